"""Rare classes: weights in the loss against torch's own, balanced sampling, and trainings that find them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from heedful.blocks.losses import cross_entropy
from heedful.data.order import balanced_order
from heedful.errors import UserError
from heedful.runs.evaluate import scored
from heedful.runs.load import load
from heedful.runs.recipe import load_recipe
from heedful.runs.train import train
from heedful.tasks import task_of
from heedful.tasks.imbalance import class_weights
from tolerance import close, near

RECIPES = {
    "text_classification": """
task: {kind: text_classification}
data: {kind: csv, train: train.csv, valid: valid.csv, text: text, label: label}
tokenizer: {kind: words}
model: {kind: conv_classifier, width: 16, filters: 16, sizes: [2], dropout: 0.0}
""",
    "classification": """
task: {kind: classification}
data: {kind: csv, train: train.csv, valid: valid.csv, text: text, label: label}
tokenizer: {kind: wordpiece, vocab: 90}
model: {kind: classifier, encoder: {kind: bert, width: 8, heads: 2, hidden: 8, layers: 1, context: 16}}
""",
    "tabular": """
task: {kind: tabular, predict: label, metric: accuracy}
data: {kind: csv, train: train.csv, valid: valid.csv}
columns: {text: {kind: text}}
""",
    "tagging": """
task: {kind: tagging}
data: {kind: jsonl, train: train.jsonl, valid: valid.jsonl}
tokenizer: {kind: wordpiece, vocab: 90}
model: {kind: tagger, encoder: {kind: bert, width: 8, heads: 2, hidden: 8, layers: 1, context: 16}}
""",
    "tree_classification": """
task: {kind: tree_classification}
data: {kind: trees, train: train.txt, valid: valid.txt, classes: 2}
model: {kind: tree_lstm, width: 8, hidden: 8, classes: 2}
""",
}
TRAIN = """
train: {budget: {steps: 2}, batch_tokens: 256, evaluate_every: 2, save_every: 2, threads: 1, samples: 0}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Data of each kind, nine to one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("heedful.runs.finish.curve", lambda run, unit: None)
    monkeypatch.setattr("heedful.runs.report.write_report", lambda *given: None)
    for name, count in (("train", 200), ("valid", 60)):
        rare = [row % 10 == 9 for row in range(count)]
        texts = [f"{'odd' if one else 'even'} number word{row % 7}" for row, one in enumerate(rare)]
        lines = [f"{text},{'rare' if one else 'usual'}\n" for text, one in zip(texts, rare, strict=True)]
        (tmp_path / f"{name}.csv").write_text("text,label\n" + "".join(lines))
        tags = [[f"B-{'LOC' if one else 'PER'}", "O", "O"] for one in rare]
        words = [f'{{"tokens": {text.split()}, "tags": {tag}}}\n' for text, tag in zip(texts, tags, strict=True)]
        (tmp_path / f"{name}.jsonl").write_text("".join(words).replace("'", '"'))
        trees = [f"({int(one)} ({int(one)} {'odd' if one else 'even'}) (0 number))\n" for one in rare]
        (tmp_path / f"{name}.txt").write_text("".join(trees))
    for name, text in RECIPES.items():
        (tmp_path / f"{name}.yaml").write_text(text + TRAIN)
    return tmp_path


def test_weighted_loss_is_that_of_torch() -> None:
    logits, targets = torch.randn(40, 3, requires_grad=True), torch.randint(3, (40,))
    targets[::5] = -100
    weights = torch.tensor([0.5, 2.0, 1.5])
    for smoothing in (0.0, 0.1):
        found = cross_entropy(logits, targets, smoothing, weights=weights)
        each = F.cross_entropy(logits, targets, label_smoothing=smoothing, reduction="none", ignore_index=-100)
        right = (weights[targets.clamp(min=0)] * each).sum()
        close(found.total, right)
        close(*(torch.autograd.grad(one, logits, retain_graph=True)[0] for one in (found.total, right)))
        close(found.plain, F.cross_entropy(logits, targets, reduction="sum", ignore_index=-100))
        assert int(found.count) == 32
        ones = cross_entropy(logits, targets, smoothing, weights=torch.ones(3))
        close(ones.total, cross_entropy(logits, targets, smoothing).total)


def test_weights_have_a_mean_of_one_and_unlabelled_items_none() -> None:
    labels = np.array([0] * 9 + [1] * 3 + [-100] * 5)
    assert class_weights(labels, ("a", "b"), "balanced") == near([12 / 18, 12 / 6], dtype=torch.float64)
    assert class_weights(labels, ("a", "b"), {"b": 3.0}) == near([12 / 18, 36 / 18], dtype=torch.float64)
    assert class_weights(labels, ("a", "b"), None) == []


def test_balanced_order_has_as_many_of_each_class_and_all_of_the_rare_one() -> None:
    labels = np.array([0] * 90 + [1] * 10)
    rows = balanced_order(3, 0, labels) % 100
    assert Counter(labels[rows].tolist()) == {0: 50, 1: 50}
    assert Counter(rows[labels[rows] == 1].tolist()) == dict.fromkeys(range(90, 100), 5)
    assert len({*rows[labels[rows] == 0].tolist()}) == 50
    assert balanced_order(3, 1, labels).tolist() != balanced_order(3, 0, labels).tolist()


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", RECIPES)
def test_every_task_with_classes_takes_weights_and_learns_otherwise(name: str) -> None:
    losses = []
    for weights in ("null", "balanced"):
        recipe = load_recipe(f"{name}.yaml", [f"task.class_weights={weights}", "train.log_every=1"])
        steps = [event for event in train(recipe, f"{name}-{weights}") if type(event).__name__ == "Step"]
        losses.append([step.loss for step in steps])
    assert losses[0][0] == near(losses[1][0], slack=1e4)  # the loss that is reported has no weights
    assert losses[0][1] != losses[1][1]  # but the step before was another


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", ["text_classification", "classification", "tabular"])
@pytest.mark.parametrize("more", [[], ["train.batch_examples=16"]])
def test_balanced_sampling_shows_as_many_of_each_class(name: str, more: list[str]) -> None:
    recipe = load_recipe(f"{name}.yaml", ["task.sampling=balanced", *more])
    task: Any = task_of(recipe.fill_in() if name == "classification" else recipe)
    read = task.read("train")
    encoded = task.encode(read, task.learn(read))
    batches, counts = task.batches(encoded, False, False), Counter[int]()
    position = 0
    while batches.epoch_of(position) == 0:
        counts.update(batches.at(position).targets.tolist())
        position += 1
    assert counts == {0: 100, 1: 100}


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("setting", ["task.class_weights=balanced", "task.sampling=balanced"])
def test_rare_class_is_found_with_weights_or_sampling(setting: str) -> None:
    found = {}
    base = ["train.budget={steps: 20}", "train.optimizer={kind: adamw, lr: 1e-2}", "train.schedule={kind: constant}"]
    base += ["train.evaluate_every=20", "train.save_every=20", "train.batch_examples=20"]
    for name, more in (("plain", []), ("balanced", [setting])):
        recipe = load_recipe("text_classification.yaml", [*base, *more])
        for _ in train(recipe, name):
            pass
        scores = {score.name: score.value for score in scored(load(name), recipe, "valid").scores}
        found[name] = scores["matthews"]
    assert found["plain"] == 0 and found["balanced"] > 50


@pytest.mark.usefixtures("folder")
def test_unknown_class_and_numbers_are_refused(folder: Path) -> None:
    with pytest.raises(UserError, match="no such class") as error:
        list(train(load_recipe("text_classification.yaml", ["task.class_weights={scarce: 3.0}"]), "run"))
    assert "scarce" in str(error.value.found) and "rare" in str(error.value.expected)
    for name in ("train", "valid"):
        (folder / f"{name}.csv").write_text("x,y\n" + "".join(f"{row},{row / 3}\n" for row in range(30)))
    text = RECIPES["tabular"].replace("label, metric: accuracy", "y").replace("columns: {text: {kind: text}}", "")
    (folder / "numbers.yaml").write_text(text + TRAIN)
    for setting in ("class_weights", "sampling"):
        with pytest.raises(UserError, match="a number has no classes") as error:
            list(train(load_recipe("numbers.yaml", [f"task.{setting}=balanced"]), f"run-{setting}"))
        assert error.value.where == f"task.{setting}"
