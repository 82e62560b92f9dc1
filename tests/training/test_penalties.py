"""Penalties on weights: their gradients, their report, and their count where a step has several batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from heedful.blocks.losses import Loss
from heedful.errors import UserError
from heedful.runs.recipe import load_recipe
from heedful.runs.train import train
from heedful.training.configs import Penalty, TrainConfig
from heedful.training.loop import Step
from heedful.training.penalties import penalized, weights_named
from tolerance import close, near

SMALL = [
    "data={kind: grammar, train: 60, valid: 8, test: 8}", "train.batch_tokens=256", "train.budget.steps=4",
    "model={width: 12, hidden: 16, connector: {kind: stochastic, units: 4}, context: 16}", "train.log_every=1",
    "train.evaluate_every=4", "train.save_every=4", "train.device=cpu", "task.importance_samples=1",
]  # fmt: skip


def linear_loss(model: nn.Module, x: torch.Tensor) -> Loss:
    total = model(x).sum()
    return Loss(total, total.detach(), torch.tensor(len(x)))


@pytest.mark.claim("M16")
@pytest.mark.parametrize("kind", ["l1", "l2"])
def test_gradient_of_a_step_is_that_of_the_penalty_however_many_batches_it_has(kind: Any) -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    loss_of = penalized(lambda x: linear_loss(model, x), model, [Penalty(kind=kind, weight=0.1)])
    batches = [torch.zeros(4, 3), torch.zeros(2, 3)]
    losses = [loss_of(x) for x in batches]
    (gradient,) = torch.autograd.grad(sum(loss.total for loss in losses) / 6, [model.weight])
    close(gradient, 0.1 * (model.weight.sign() if kind == "l1" else model.weight))
    value = model.weight.abs().sum() if kind == "l1" else model.weight.square().sum() / 2
    assert losses[0].parts.keys() == {"data", kind}
    close(losses[0].parts[kind], 4 * value)
    close(losses[0].plain, losses[0].parts["data"] + 0.1 * losses[0].parts[kind])


@pytest.mark.claim("M16")
@pytest.mark.claim("M24")
def test_recipes_choose_penalties_which_are_reported(tmp_path: Path, no_loss_curve: None) -> None:
    some = "[{kind: l1, weights: 'connector.*', weight: 1.0e-3}, {kind: l2, weight: 0.5}]"

    def run(name: str, *more: str) -> list[Step]:
        events = train(load_recipe("sentences", [*SMALL, *more]), tmp_path / name)
        return [event for event in events if isinstance(event, Step)]

    steps = run("with", f"train.regularize={some}")
    for step in steps:
        assert step.parts.keys() == {"reconstruction", "kl", "l1_1", "l2_2"}
        weighted = {"reconstruction": 1.0, "kl": 1.0, "l1_1": 1e-3, "l2_2": 0.5}
        assert step.loss == near(sum(weight * step.parts[name] for name, weight in weighted.items()))
    assert steps[-1].parts["l2_2"] < steps[0].parts["l2_2"]
    plain = run("without")
    assert plain[0].parts.keys() == {"reconstruction", "kl"}


def test_recorded_models_are_penalized_too(tmp_path: Path, no_loss_curve: None) -> None:
    """A model whose steps are recorded on a CPU takes plain steps instead."""
    small = [
        "data={kind: digits, train: 40, valid: 10, test: 10}", "train.budget={steps: 3}", "train.log_every=1",
        "train.evaluate_every=3", "train.save_every=3", "train.device=cpu",
    ]  # fmt: skip
    recipe = load_recipe("digits", [*small, "train.regularize=[{kind: l2, weight: 0.1}]"])
    steps = [event for event in train(recipe, tmp_path / "run") if isinstance(event, Step)]
    assert all(step.loss == near(step.parts["data"] + 0.1 * step.parts["l2"]) for step in steps)
    assert len(steps) == 3


def test_mistakes_are_explained() -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(UserError, match="no trained weight has such a name"):
        penalized(lambda x: linear_loss(model, x), model, [Penalty(kind="l1", weights="encoder.*", weight=1)])
    model.weight.requires_grad_(False)
    assert weights_named(model, Penalty(kind="l1", weights="*", weight=1)) == [model.bias]
    for change in ("{kind: l3, weight: 1}", "{kind: l1, weight: 0}"):
        with pytest.raises(UserError, match="regularize"):
            load_recipe("sentences", [f"train.regularize=[{change}]"])
    with pytest.raises(UserError, match="fsdp"):
        load_recipe("sentences", ["train.regularize=[{kind: l1, weight: 1}]", "train.parallel=fsdp"])
    assert "regularize" not in TrainConfig.model_validate({"budget": {"steps": 1}}).model_dump()
