"""Agents: whole runs that resume exactly, what they learn, and what is refused."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import heedful
from heedful.errors import UserError
from heedful.runs.evaluate import results, scored
from heedful.runs.load import load, read_recipe
from heedful.runs.recipe import load_recipe
from heedful.runs.train import Started, train
from heedful.tasks.base import Evaluated
from heedful.tasks.control.predictor import Agent
from heedful.training.checkpoint.folder import newest
from heedful.training.loop import Step

SMALL = [
    "train.budget.steps=12", "train.evaluate_every=6", "train.save_every=4", "train.log_every=1", "train.device=cpu",
    "train.samples=2", "data.valid=3", "data.test=4", "task.lanes=4",
]  # fmt: skip
GRID = "data={kind: gridworld, rows: 2, columns: 3, limit: 9, valid: 3, test: 4}"
AGENTS = {
    "reinforce": ("cartpole-policy", ["model.hidden=[8]"]),
    "critic": ("cartpole-policy", ["model={hidden: [8], critic: [8]}", "task.agent.baseline=value", GRID]),
    "actor_critic": ("cartpole-actor-critic", ["model={hidden: [8], critic: [8]}", "task.agent.steps=5"]),
    "dqn": (
        "cartpole-dqn",
        ["model.hidden=[8]", "task.agent={kind: dqn, batch: 12, buffer: 60, warmup: 20, target_every: 5, epsilon_steps: 6}"],
    ),
}


def recipe_of(agent: str, *overrides: str) -> Any:
    name, own = AGENTS[agent]
    return load_recipe(name, [*SMALL, *own, *overrides])


def stopped(recipe: Any, run: Path, after: int) -> None:
    """Train for a few steps, as if the process were then killed after its last checkpoint."""
    seen = itertools.count()
    list(train(recipe, run, stop=lambda: next(seen) >= after))


@pytest.mark.usefixtures("no_loss_curve")
@pytest.mark.parametrize("agent", AGENTS)
def test_resumed_run_equals_an_uninterrupted_one(agent: str, tmp_path: Path) -> None:
    recipe = recipe_of(agent)
    events = list(train(recipe, tmp_path / "whole"))
    for after in (3, 2):
        stopped(recipe, tmp_path / "broken", after)
    again = list(train(recipe, tmp_path / "broken"))
    assert next(event.step for event in again if isinstance(event, Started)) == 5
    kept = ["model/model.safetensors", "environment.json"]
    folder = "checkpoints/step-00000012"
    kept += [f"{folder}/{path.name}" for path in (tmp_path / "whole" / folder).iterdir() if path.suffix == ".safetensors"]
    assert (f"{folder}/carry.safetensors" in kept) == (agent in ("actor_critic", "dqn"))
    for file in kept:
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "broken" / file).read_bytes(), file
    assert results(tmp_path / "whole") == results(tmp_path / "broken")
    losses, later = ([event.loss for event in some if isinstance(event, Step)] for some in (events, again))
    assert losses[-len(later) :] == later and len(set(losses)) > 6
