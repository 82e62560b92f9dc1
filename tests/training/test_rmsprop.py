"""RMSprop: both places of epsilon against references, the flat form and a resumed state bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from heedful.errors import UserError
from heedful.training.optim import AdamW, RMSprop, load_optimizer, make_optimizer, optimizer_tensors
from heedful.training.rmsprop import RootMeanSquare
from tolerance import close

CPU = torch.device("cpu")
EpsPlace = Literal["after_root", "under_root"]
PLACES: tuple[EpsPlace, ...] = ("after_root", "under_root")
STEPS = 50


def net(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3)).to(dtype)


def optimizer_of(model: nn.Module, place: EpsPlace) -> RootMeanSquare:
    found = make_optimizer(RMSprop(lr=2e-3, rho=0.9, eps=1e-7, eps_place=place), model, CPU)
    assert isinstance(found, RootMeanSquare)
    return found


def gradients(model: nn.Module, start: int = 0, steps: int = STEPS) -> Iterator[list[Tensor]]:
    """Gradients of a few steps, as small as those of a mean over many pixels, so that epsilon matters."""
    for step in range(start, start + steps):
        rng = torch.Generator().manual_seed(step)
        yield [1e-4 * torch.randn(weight.shape, generator=rng, dtype=weight.dtype) for weight in model.parameters()]


def trained(model: nn.Module, step: Callable[[], object], start: int = 0, steps: int = STEPS) -> list[Tensor]:
    for given in gradients(model, start, steps):
        for weight, gradient in zip(model.parameters(), given, strict=True):
            weight.grad = gradient
        step()
    return [weight.detach().clone() for weight in model.parameters()]


def largest_difference(one: list[Tensor], other: list[Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True))


def test_epsilon_after_the_root_matches_torch() -> None:
    model, theirs = net(), net()
    ours = trained(model, optimizer_of(model, "after_root").step)
    reference = torch.optim.RMSprop(theirs.parameters(), lr=2e-3, alpha=0.9, eps=1e-7)
    expected = trained(theirs, reference.step)
    close(ours, expected)
    assert largest_difference(ours, [weight.detach() for weight in net().parameters()]) > 1e-2


@pytest.mark.parametrize("place", PLACES)
def test_each_epsilon_rule_matches_its_formula(place: EpsPlace) -> None:
    model = net()
    ours = trained(model, optimizer_of(model, place).step)
    expected = [weight.detach().clone() for weight in net().parameters()]
    squares = [torch.zeros_like(weight) for weight in expected]
    for given in gradients(model):
        for weight, square, gradient in zip(expected, squares, given, strict=True):
            square.copy_(0.9 * square + 0.1 * gradient**2)
            root = square.sqrt() + 1e-7 if place == "after_root" else (square + 1e-7).sqrt()
            weight.sub_(2e-3 * gradient / root)
    close(ours, expected)


def test_small_gradients_depend_on_the_epsilon_rule() -> None:
    initial = [weight.detach() for weight in net().parameters()]
    models = [net(), net()]
    moved = [
        largest_difference(trained(model, optimizer_of(model, place).step), initial)
        for model, place in zip(models, PLACES, strict=True)
    ]
    assert moved[0] > 2 * moved[1]


@pytest.mark.parametrize("place", PLACES)
def test_learning_rate_may_be_a_tensor(place: EpsPlace) -> None:
    models = [net(torch.float32), net(torch.float32)]
    optimizers = [optimizer_of(model, place) for model in models]
    for group in optimizers[1].param_groups:
        group["lr"] = torch.tensor(2e-3)
    one, other = (trained(model, optimizer.step) for model, optimizer in zip(models, optimizers, strict=True))
    close(one, other)


@pytest.mark.parametrize("place", PLACES)
def test_saved_state_resumes_bit_for_bit(place: EpsPlace) -> None:
    model = net(torch.float32)
    whole = trained(model, optimizer_of(model, place).step)

    broken = net(torch.float32)
    first = optimizer_of(broken, place)
    trained(broken, first.step, steps=20)
    kept = {name: tensor.clone() for name, tensor in optimizer_tensors(first, broken).items()}
    assert set(kept) == {f"square.{name}" for name, _ in broken.named_parameters()}
    second = optimizer_of(broken, place)
    load_optimizer(second, broken, kept)
    after = trained(broken, second.step, start=20, steps=STEPS - 20)
    assert all(torch.equal(a, b) for a, b in zip(after, whole, strict=True))
    forgot = optimizer_of(broken, place)
    assert not forgot.state


@pytest.mark.parametrize("place", PLACES)
def test_flat_update_equals_weight_by_weight(place: EpsPlace) -> None:
    model, other = net(torch.float32), net(torch.float32)
    whole = trained(model, optimizer_of(model, place).step)
    optimizer = optimizer_of(other, place)

    def step() -> None:
        for weight in reversed(list(other.parameters())):
            optimizer.move([weight], 2e-3)

    assert all(torch.equal(a, b) for a, b in zip(trained(other, step), whole, strict=True))


def test_weight_without_gradient_does_not_change() -> None:
    model = net(torch.float32)
    optimizer = optimizer_of(model, "after_root")
    model[0].bias.requires_grad_(True)
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    model[0].bias.grad = None
    before = model[0].bias.detach().clone()
    optimizer.step()
    assert torch.equal(model[0].bias, before)
    kept = optimizer_tensors(optimizer, model)
    assert set(kept) == {"square.0.weight", "square.1.weight", "square.1.bias"}
    load_optimizer(optimizer_of(model, "after_root"), model, kept)


def test_zero_gradients_change_nothing() -> None:
    model = net(torch.float32)
    optimizer = optimizer_of(model, "after_root")
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), net(torch.float32).parameters(), strict=True))


def test_state_of_another_optimizer_is_rejected() -> None:
    model = net(torch.float32)
    adam = make_optimizer(AdamW(), model, CPU)
    trained(model, adam.step, steps=1)
    with pytest.raises(UserError) as raised:
        load_optimizer(optimizer_of(model, "after_root"), model, optimizer_tensors(adam, model))
    assert "exp_avg.0.bias" in raised.value.found  # type: ignore[operator]
    short = {f"square.{name}": torch.zeros(2) for name, _ in model.named_parameters()}
    with pytest.raises(UserError, match="does not fit this model"):
        load_optimizer(optimizer_of(model, "after_root"), model, short)
