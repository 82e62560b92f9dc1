"""Hints: each fires on the run it is about, with its numbers, and not on a run that went well."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from heedful.data.tokenizers.tokenizer import WordPiece
from heedful.data.tokenizers.wordpiece import BertTokenizer
from heedful.runs.events import Events, read_events
from heedful.runs.hints import hints
from heedful.runs.load import load
from heedful.runs.recipe import load_recipe
from heedful.runs.train import Hint, train
from heedful.tasks import task_of
from heedful.tasks.base import Example
from heedful.tasks.tagging.report import tag_report
from heedful.training.class_report import ClassReport, class_report, label_report

RECIPE = """
task: {kind: text_classification}
data: {kind: csv, train: train.csv, valid: valid.csv, test: valid.csv, text: text, label: label}
tokenizer: {kind: words}
model: {kind: conv_classifier, width: 8, filters: 4, sizes: [2]}
train:
  budget: {steps: 40}
  batch_examples: 10
  optimizer: {kind: adamw, lr: 1e-6}
  log_every: 1
  evaluate_every: 20
  save_every: 20
  threads: 1
"""


@pytest.fixture(scope="module")
def nine_to_one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on data of which nine tenths have one label, at a learning rate that learns nothing else."""
    folder = tmp_path_factory.mktemp("hints")
    for name, count in (("train", 100), ("valid", 40)):
        rows = [f"word{n % 7} and word{n % 5},{'rare' if n % 10 == 9 else 'usual'}" for n in range(count)]
        (folder / f"{name}.csv").write_text("text,label\n" + "\n".join(rows) + "\n")
    (folder / "tiny.yaml").write_text(RECIPE.replace("kind: csv,", f"kind: csv, root: {folder},"))
    return folder


def test_run_that_predicts_one_class_says_so_in_its_report_and_at_its_end(nine_to_one: Path) -> None:
    run = nine_to_one / "run"
    overrides = ["train.optimizer.lr=3e-3", "train.schedule={kind: constant}"]
    events = list(train(load_recipe(str(nine_to_one / "tiny.yaml"), overrides), run))
    (hint,) = [event.text for event in events if isinstance(event, Hint) and "predicted as" in event.text]
    assert "All 40 texts are predicted as 'usual', which 90% of them are" in hint
    assert "task.class_weights=balanced" in hint and "train.optimizer.lr" in hint
    page = (run / "report.html").read_text()
    assert "All 40 texts are predicted as" in page and "Confusion matrix" in page and "Worst mistakes" in page
    details = json.loads((run / "details.json").read_text())
    assert details["confusion"] == [[0, 4], [0, 36]] and details["split"] == "test" and len(details["mistakes"]) == 4
    assert details["mistakes"][0]["input"].startswith("word") and details["classes"][0]["f1"] == 0
    assert {path.name for path in (run / "pictures").iterdir()} == {"confusion.png", "reliability.png"}


def steps(*losses: float) -> list[dict[str, Any]]:
    return [{"kind": "step", "step": place, "loss": loss} for place, loss in enumerate(losses, 1)]


def evaluations(*losses: float) -> list[dict[str, Any]]:
    return [
        {"kind": "evaluated", "split": "valid", "step": 10 * place, "loss": loss}
        for place, loss in enumerate(losses, 1)
    ]


@pytest.fixture
def found(nine_to_one: Path) -> Any:
    """The hints about some events and details."""
    task = task_of(load_recipe(str(nine_to_one / "tiny.yaml")))

    class Words:
        tokenizer = None

    def hints_about(records: list[dict[str, Any]], details: ClassReport | None = None) -> list[str]:
        return list(hints(task, Path("runs/x"), Events(records, 0), details, Words()))

    return hints_about


def test_validation_that_gets_worse(found: Any) -> None:
    (hint,) = found(evaluations(1.0, 0.5, 0.6, 0.8, 0.9))
    assert "worse since step 20: 0.5000 there, 0.9000 at step 50, 80% more" in hint and "train.patience=3" in hint
    assert found(evaluations(1.0, 0.5, 0.4, 0.41, 0.4)) == found(evaluations(1.0, 0.5, 0.4, 0.9)) == []


def test_learning_rate_too_high_and_too_low(found: Any) -> None:
    (low,) = found(steps(*[2.0] * 20))
    assert "hardly falls" in low and "train.optimizer.lr=1e-05" in low and "heedful tune" in low
    (high,) = found(steps(*np.linspace(2, 0.5, 10), *np.linspace(0.5, 3, 10)))
    assert "rises" in high and "too high" in high and "train.optimizer.lr=3e-07" in high
    assert found(steps(*np.linspace(0.7, 0.02, 30), 0.23)) == []  # one step alone is noise
    assert found(steps(*np.linspace(2, 0.5, 20))) == found(steps(2.0, 2.0)) == []


def test_classes_that_are_never_right(found: Any) -> None:
    targets = np.array([0] * 40 + [1] * 40 + [2] * 20)
    predicted = np.array([0] * 40 + [1] * 40 + [0] * 20)
    (hint,) = found([], class_report("test", "texts", targets, predicted, np.ones(100), ("a", "b", "c"), str))
    assert "Never right: 'c' (20 texts)" in hint and "task.class_weights=balanced" in hint
    right = class_report("test", "texts", targets, targets, np.ones(100), ("a", "b", "c"), str)
    few = class_report("test", "texts", targets[35:45], np.zeros(10, int), np.ones(10), ("a", "b", "c"), str)
    assert found([], right) == found([], few) == []


def test_weights_are_advised_only_where_classes_are_uneven(found: Any) -> None:
    """And where the class that is predicted is the largest."""
    for count, advised in ((20, False), (40, True), (5, False)):
        targets = np.array([0] * count + [1] * 20)
        (hint,) = found([], class_report("test", "texts", targets, 0 * targets, 0.5 + 0 * targets, ("a", "b"), str))
        assert f"which {count / (count + 20):.0%} of them are" in hint
        assert ("class_weights=balanced" in hint) == advised and "train.optimizer.lr" in hint


def test_entities_that_are_not_there_are_no_class_that_is_never_right(found: Any) -> None:
    """A tagger that finds ten entities too many, and one that finds none."""
    words, labels = [["a", "b"]] * 30, ("O", "B-PER")
    right = [["B-PER", "O"]] * 20 + [["O", "O"]] * 10
    shares = [np.ones(2, np.float32)] * 30
    more = tag_report("test", words, right, [["B-PER", "O"]] * 30, shares, labels)
    assert more.confusion == ((20, 0), (10, 0)) and [each.label for each in more.scored] == ["PER"]
    assert found([], more) == []
    (hint,) = found([], tag_report("test", words, right, [["O", "O"]] * 30, shares, labels))
    assert hint.startswith("All 20 entities are predicted as 'no entity', F1 of every class is 0. Try")


def test_labels_that_are_never_right(found: Any) -> None:
    """All texts have the first label, and it alone is predicted: this is right."""
    targets = np.stack([np.ones(40, int), np.arange(40) % 4 == 0], 1).astype(int)
    predicted = np.stack([np.ones(40, int), np.zeros(40, int)], 1)
    (hint,) = found([], label_report("test", "texts", targets, predicted, np.full((40, 2), 0.5), ("a", "b"), str))
    assert hint.startswith("Never right: 'b' (10 texts)")


def test_vocabulary_that_splits_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heedful.runs.finish.curve", lambda run, unit: None)
    base = ["data.train=80", "data.valid=200", "data.test=10", "train.budget={steps: 1}", "model.encoder.width=8"]
    base += ["model.encoder.heads=2", "model.encoder.hidden=8", "model.encoder.layers=1", "train.threads=1"]
    base += ["train.log_every=1"]
    small = list(train(load_recipe("number-languages", [*base, "tokenizer.vocab=45"]), tmp_path / "small"))
    (hint,) = [event.text for event in small if isinstance(event, Hint) and "splits a word" in event.text]
    assert "tokenizer.vocab=" in hint and "validation texts" in hint
    predictor: Any = load(tmp_path / "small")
    recipe = load_recipe(str(tmp_path / "small" / "recipe.yaml"))
    texts = [example.text for example in task_of(recipe).examples("valid")]
    mean = sum(len(one.ids) for one in predictor.tokenizer.encode_batch(texts)) / sum(len(one.split()) for one in texts)
    assert f"into {mean:.1f} on average" in hint
    assert read_events(tmp_path / "small").records


@pytest.mark.parametrize(
    ("text", "splits"), [("今天天气很好我们去公园散步", False), ("unbelievably complicated words", True)]
)
def test_scripts_without_spaces_are_not_long_words(
    text: str, splits: bool, nine_to_one: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = task_of(load_recipe(str(nine_to_one / "tiny.yaml")))
    monkeypatch.setattr(task, "examples", lambda split: [Example(text, None, "a")] * 200)
    letters = " ".join("abcdefghijklmnopqrstuvwxyz今天气很好我们去公园散步")
    predictor = SimpleNamespace(tokenizer=BertTokenizer.train(WordPiece(vocab=80), [letters]))
    found = list(hints(task, Path("runs/x"), Events([], 0), None, predictor))
    assert any("splits a word" in hint for hint in found) == splits
