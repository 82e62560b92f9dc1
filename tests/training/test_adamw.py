"""The step of AdamW on a CPU is torch's own, bit for bit."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from heedful.training import adamw

SHAPES = ((120, 4), (120,), (84, 120), (3,), ())


def weights() -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(shape)) for shape in SHAPES]


def optimizer(some: list[nn.Parameter], decay: float) -> torch.optim.AdamW:
    groups = [{"params": some[:3], "weight_decay": decay}, {"params": some[3:], "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.98), eps=1e-9, foreach=True)


def set_gradients(step: int, *models: list[nn.Parameter]) -> None:
    """The same gradients for each; the second weight has none in every third step."""
    for model in models:
        source = torch.Generator().manual_seed(step)
        for number, weight in enumerate(model):
            gradient = torch.randn(weight.shape, generator=source) * 10 ** -(number + 1)
            weight.grad = None if number == 1 and step % 3 == 1 else gradient


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_a_step_is_that_of_torch(decay: float) -> None:
    ours, theirs = weights(), weights()
    mine, reference = optimizer(ours, decay), optimizer(theirs, decay)
    for step in range(7):
        set_gradients(step, ours, theirs)
        for group in (*mine.param_groups, *reference.param_groups):
            group["lr"] = 3e-3 / (1 + step)
        adamw.step(mine)
        reference.step()
        assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))
    for one, other in zip(ours, theirs, strict=True):
        assert mine.state[one].keys() == reference.state[other].keys()
        assert all(torch.equal(value, reference.state[other][key]) for key, value in mine.state[one].items())


def test_torch_continues_from_its_state() -> None:
    ours = weights()
    mine = optimizer(ours, 0.1)
    set_gradients(0, ours)
    adamw.step(mine)
    theirs = copy.deepcopy(ours)
    reference = optimizer(theirs, 0.1)
    reference.load_state_dict(copy.deepcopy(mine.state_dict()))
    set_gradients(2, ours, theirs)
    adamw.step(mine)
    reference.step()
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))
