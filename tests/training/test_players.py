"""Players: parts of a model with optimizers of their own, in one step, in checkpoints, and over processes."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from heedful.blocks.losses import Loss
from heedful.errors import UserError
from heedful.training.carry import stateless
from heedful.training.configs import Budget, PlayerConfig, TrainConfig
from heedful.training.distributed.team import ParallelLoss
from heedful.training.optim import SGD, AdamW, Constant, RMSprop, make_optimizer
from heedful.training.players import frozen, load_states, make_players, states
from heedful.training.step import PlainStep
from tolerance import close

CPU = torch.device("cpu")
ADAM = AdamW(lr=0.02, betas=(0.5, 0.9), eps=1e-8, weight_decay=0.0)
RIVAL = PlayerConfig(optimizer=SGD(lr=0.3, momentum=0.8, weight_decay=0.0), clip=0.05)


class Pair(nn.Module):
    """A generator of numbers, and a discriminator."""

    def __init__(self) -> None:
        super().__init__()
        self.generator, self.discriminator = nn.Linear(3, 2), nn.Linear(2, 1)


def generator_loss(model: Any, noise: Tensor) -> Tensor:
    found: Tensor = nn.functional.softplus(-model.discriminator(model.generator(noise))).sum()
    return found


def discriminator_loss(model: Any, noise: Tensor, real: Tensor) -> Tensor:
    forged = nn.functional.softplus(model.discriminator(model.generator(noise).detach())).sum()
    return nn.functional.softplus(-model.discriminator(real)).sum() + forged


def both(model: Any, noise: Tensor, real: Tensor) -> Tensor:
    with frozen(model.discriminator):
        first = generator_loss(model, noise)
    return first + discriminator_loss(model, noise, real)


def new(seed: int = 3) -> Pair:
    torch.manual_seed(seed)
    return Pair().double()


def batches(count: int) -> list[Any]:
    torch.manual_seed(8)
    made = [SimpleNamespace(noise=torch.randn(5, 3).double(), real=torch.randn(5, 2).double()) for _ in range(count)]
    for batch in made:
        batch.to = lambda device, batch=batch: batch
    return made


def step_of(model: Pair, **settings: Any) -> PlainStep:
    config = TrainConfig(budget=Budget(steps=1), optimizer=ADAM, schedule=Constant(), clip=0.4, **settings)

    def loss_of(batch: Any) -> Loss:
        total = both(model, batch.noise, batch.real)
        return Loss(total, total.detach(), torch.tensor(5))

    players = make_players({"discriminator": RIVAL}, model, CPU)
    optimizer = make_optimizer(config.optimizer, model, CPU, ["discriminator"])
    return PlainStep(model, ParallelLoss(stateless(loss_of)), optimizer, config, CPU, None, players=players)


def clip_by_hand(gradients: Sequence[Tensor], limit: float) -> Tensor:
    """Scale gradients to a maximum norm; returns the norm before."""
    norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
    for gradient in gradients:
        gradient *= min(1.0, limit / float(norm))
    return norm


def take(step: PlainStep, batch: Any, factor: float = 1.0) -> Tensor:
    step.gradients(batch, 5)
    norm = step.norm()
    step.update(ADAM.lr * factor)
    return norm


@pytest.mark.claim("M14")
def test_a_step_of_two_players_equals_two_optimizers_by_hand() -> None:
    """Both losses from the weights before the step; each optimizer and each clipping for its own weights alone."""
    model, by_hand = new(), new()
    step = step_of(model)
    generator, discriminator = by_hand.generator.parameters, by_hand.discriminator.parameters
    adam = torch.optim.AdamW(generator(), lr=ADAM.lr, betas=ADAM.betas, eps=ADAM.eps, weight_decay=0.0)
    sgd = torch.optim.SGD(discriminator(), lr=0.3, momentum=0.8)
    for number, batch in enumerate(batches(6)):
        factor = (1.0, 0.5, 0.25)[number // 2]
        first = torch.autograd.grad(generator_loss(by_hand, batch.noise) / 5, list(generator()))
        second = torch.autograd.grad(discriminator_loss(by_hand, batch.noise, batch.real) / 5, list(discriminator()))
        for weight, gradient in zip([*generator(), *discriminator()], [*first, *second], strict=True):
            weight.grad = gradient
        one, other = clip_by_hand(first, 0.4), clip_by_hand(second, 0.05)
        for optimizer, rate in ((adam, ADAM.lr), (sgd, 0.3)):
            optimizer.param_groups[0]["lr"] = rate * factor
            optimizer.step()
        close(take(step, batch, factor), (one**2 + other**2).sqrt())
        assert other > 0.05  # so that its clipping has an effect
        for name, weight in by_hand.named_parameters():
            close(model.get_parameter(name), weight)
        assert all(weight.grad is None for weight in model.parameters())


@pytest.mark.claim("M14")
def test_each_loss_gives_gradients_to_its_own_player_alone() -> None:
    """The generator wants its samples taken for real ones, and the discriminator wants to tell them apart."""
    (batch,) = batches(1)
    model = new()
    with frozen(model.discriminator):
        generator_loss(model, batch.noise).backward()
    assert all(weight.grad is None and weight.requires_grad for weight in model.discriminator.parameters())
    before = generator_loss(model, batch.noise)
    moved = new()
    with torch.no_grad():
        for name, weight in moved.generator.named_parameters():
            weight -= 1e-3 * model.generator.get_parameter(name).grad
    assert generator_loss(moved, batch.noise) < before  # the discriminator is the same
    model = new()
    discriminator_loss(model, batch.noise, batch.real).backward()
    assert all(weight.grad is None for weight in model.generator.parameters())
    assert torch.any(model.discriminator.weight.grad != 0)


def test_frozen_keeps_what_was_frozen_before() -> None:
    model = new()
    model.discriminator.bias.requires_grad_(False)
    with frozen(model.discriminator):
        assert not model.discriminator.weight.requires_grad
    assert model.discriminator.weight.requires_grad and not model.discriminator.bias.requires_grad


def test_both_states_are_restored_bit_for_bit() -> None:
    one, other = new(), new(seed=5)
    step, some = step_of(one), batches(5)
    for batch in some[:3]:
        take(step, batch)
    kept = states([step.optimizer, *(player.optimizer for player in step.players)], one)
    assert {name.partition(".")[0] for name in kept if ".discriminator." in name} == {"velocity"}
    assert {name.partition(".")[0] for name in kept if ".generator." in name} == {"exp_avg", "exp_avg_sq", "step"}
    kept = {name: value.clone() for name, value in kept.items()}
    other.load_state_dict(one.state_dict())
    resumed = step_of(other)
    optimizers = [resumed.optimizer, *(player.optimizer for player in resumed.players)]
    load_states(optimizers, other, kept)
    for batch in some[3:]:
        take(step, batch)
        take(resumed, batch)
    assert all(torch.equal(weight, other.get_parameter(name)) for name, weight in one.named_parameters())
    with pytest.raises(UserError, match="does not fit this model"):
        load_states(optimizers, other, kept | {"velocity.discriminator.more": torch.zeros(2)})
    wrong = RIVAL.model_copy(update={"optimizer": RMSprop()})
    changed = [resumed.optimizer, *(player.optimizer for player in make_players({"discriminator": wrong}, other, CPU))]
    with pytest.raises(UserError, match="does not fit this model"):
        load_states(changed, other, kept)


def test_gradients_add_up_over_batches_for_both_players() -> None:
    first, second = batches(2)
    model = new()
    step = step_of(model)
    for batch in (first, second):
        step.gradients(batch, 10, last=batch is second)
    whole = new()
    joined = SimpleNamespace(noise=torch.cat([first.noise, second.noise]), real=torch.cat([first.real, second.real]))
    (both(whole, joined.noise, joined.real) / 10).backward()
    for name, weight in whole.named_parameters():
        assert weight.grad is not None
        close(model.get_parameter(name).grad, weight.grad)
