"""The confidence penalty: a part of the loss of each task that has it, with the weight in its recipe."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from heedful.blocks.losses import Loss
from heedful.errors import UserError
from heedful.runs.recipe import load_recipe
from heedful.runs.train import train
from heedful.tasks.tabular.predictor import target_loss
from heedful.tasks.tagging import predictor as tagging
from heedful.tasks.tree_classification.predictor import tree_loss
from heedful.training.loop import Step
from tolerance import near

SMALL = [
    "data.train=32", "data.valid=4", "data.test=4", "train.budget={steps: 3}", "train.evaluate_every=3",
    "train.save_every=3", "train.log_every=1", "train.device=cpu", "train.threads=1",
]  # fmt: skip
RECIPES = {
    "number-languages-rnn-encoder": ["tokenizer.vocab=100", "model.encoder.width=16"],
    "number-languages-conv": ["model.filters=4"],
    "numbers-rnn": ["tokenizer.vocab=90", "model.width=16", "model.hidden=16", "model.encoder.hidden=16",
                    "task.label_smoothing=0", "train.batch_tokens=256"],
    "trips": ["model.width=8", "model.hidden=8", "train.batch_tokens=512"],
    "trips model.kind=seq2seq": ["model.width=8", "model.hidden=8", "train.batch_tokens=512"],
}  # fmt: skip


@pytest.mark.claim("M16")
@pytest.mark.usefixtures("no_loss_curve")
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_selects_it_and_its_parts_are_reported(name: str, tmp_path: Path) -> None:
    known, *kind = name.split()
    recipe = load_recipe(known, [*kind, *SMALL, *RECIPES[name], "task.confidence_penalty=0.25"])
    steps = [event for event in train(recipe, tmp_path / "run") if isinstance(event, Step)]
    assert len(steps) == 3
    for step in steps:
        assert step.parts.keys() == {"cross_entropy", "entropy"} and step.parts["entropy"] > 0
        assert step.loss == near(step.parts["cross_entropy"] - 0.25 * step.parts["entropy"], slack=64)


def tree(logits: Tensor, labels: Tensor, penalty: float) -> Loss:
    batch: Any = SimpleNamespace(labels=labels)
    return tree_loss(lambda batch: logits, batch, penalty=penalty)


def row(logits: Tensor, labels: Tensor, penalty: float) -> Loss:
    batch: Any = SimpleNamespace(targets=labels)
    return target_loss(logits, batch, penalty=penalty)


@pytest.mark.claim("M16")
@pytest.mark.parametrize("loss_of", [tree, row])
def test_trees_and_rows_have_it(loss_of: Callable[[Tensor, Tensor, float], Loss]) -> None:
    logits, labels = torch.zeros(3, 4), torch.tensor([1, 3, -100])
    plain, found = loss_of(logits, labels, 0.0), loss_of(logits, labels, 0.5)
    assert float(found.total) == near(0.5 * float(plain.total))  # of even distributions both are log 4
    assert plain.parts == {}


@pytest.mark.claim("M16")
def test_tags_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tagging, "outputs", lambda model, batch: torch.zeros(3, 4))
    batch: Any = SimpleNamespace(labels=torch.tensor([1, 3, -100]))
    assert float(tagging.tag_loss(None, batch, 0.5).total) == near(0.5 * float(tagging.tag_loss(None, batch).total))


def test_it_is_refused_where_nothing_reads_it() -> None:
    with pytest.raises(UserError, match="only likelihood has it"):
        load_recipe("numbers-rnn", ["task.confidence_penalty=0.1", "model.attention.choice=hard"])
    with pytest.raises(UserError, match=r"task\.confidence_penalty"):
        load_recipe("numbers", ["task.confidence_penalty=-1"])
