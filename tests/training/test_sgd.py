"""SGD with momentum against torch's own, a part of the weights at a time, and a resumed state bit for bit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from heedful.config import Config
from heedful.errors import UserError
from heedful.training.configs import Budget, TrainConfig
from heedful.training.optim import SGD, Stepwise, load_optimizer, make_optimizer, optimizer_tensors
from heedful.training.sgd import Momentum
from tolerance import close

CPU = torch.device("cpu")


def net() -> nn.Sequential:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 3)).double()


def optimizer_of(config: SGD, model: nn.Module) -> Momentum:
    found = make_optimizer(config, model, CPU)
    assert isinstance(found, Momentum)
    return found


def train(model: nn.Module, optimizer: torch.optim.Optimizer, first: int = 0, steps: int = 6) -> list[Tensor]:
    for step in range(first, first + steps):
        rng = torch.Generator().manual_seed(step)
        for weight in model.parameters():
            weight.grad = torch.randn(weight.shape, generator=rng, dtype=weight.dtype)
        optimizer.step()
    return [weight.detach().clone() for weight in model.parameters()]


@pytest.mark.parametrize("config", [SGD(), SGD(nesterov=True, weight_decay=0.01), SGD(momentum=0.0)], ids=str)
def test_it_is_torchs_own(config: SGD) -> None:
    ours, theirs = net(), net()
    groups = [
        {"params": [weight for weight in theirs.parameters() if (weight.dim() > 1) == wide], "weight_decay": decay}
        for wide, decay in ((True, config.weight_decay), (False, 0.0))  # biases and norms do not decay
    ]
    reference = torch.optim.SGD(groups, config.lr, config.momentum, nesterov=config.nesterov)
    close(train(ours, optimizer_of(config, ours)), train(theirs, reference))


def test_weights_may_move_in_parts() -> None:
    whole, parts = net(), net()
    first, second = (optimizer_of(SGD(), model) for model in (whole, parts))
    for step in range(3):
        train(whole, first, step, 1)
        rng = torch.Generator().manual_seed(step)
        for weight in parts.parameters():
            weight.grad = torch.randn(weight.shape, generator=rng, dtype=weight.dtype)
        weights = list(parts.parameters())
        second.move(weights[::2], 0.1)
        second.move(weights[1::2], 0.1)
    assert all(torch.equal(one, other) for one, other in zip(whole.parameters(), parts.parameters(), strict=True))


def test_resumed_state_continues_bit_for_bit() -> None:
    model = net()
    whole = train(model, optimizer_of(SGD(), model), steps=8)
    model = net()
    optimizer = optimizer_of(SGD(), model)
    train(model, optimizer, steps=5)
    saved = {name: value.clone() for name, value in optimizer_tensors(optimizer, model).items()}
    again = optimizer_of(SGD(), model)
    load_optimizer(again, model, saved)
    assert sorted(saved)[0] == "velocity.0.bias"
    found = train(model, again, 5, 3)
    assert all(torch.equal(one, other) for one, other in zip(found, whole, strict=True))
    with pytest.raises(UserError, match="does not fit"):
        load_optimizer(again, model, {"square.0.bias": saved["velocity.0.bias"]})


def test_nesterov_needs_momentum() -> None:
    with pytest.raises(ValueError, match="needs momentum"):
        SGD(nesterov=True, momentum=0.0)


def test_the_rate_falls_at_its_places() -> None:
    schedule = Stepwise(at=(0.25, 0.5), drop=0.1, warmup=2)
    found = [schedule.factor(step, (step - 1) / 8) for step in range(1, 9)]
    close(torch.tensor(found), torch.tensor([0.5, 1.0, 0.1, 0.1, 0.01, 0.01, 0.01, 0.01]))
    settings: Config = TrainConfig.model_validate(
        {"budget": Budget(steps=1), "optimizer": {"kind": "sgd"}, "schedule": {"kind": "stepwise"}}
    )
    assert TrainConfig.model_validate(settings.model_dump()) == settings
