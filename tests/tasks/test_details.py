"""Details of predictions, of every task that predicts classes or answers: they agree with the scores of its run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import heedful
from heedful.runs.load import load
from heedful.tasks import TASKS, task_of
from heedful.tasks.tagging.report import NOTHING, tag_report
from heedful.training.span_metrics import chunk_scores

RUNS = Path(__file__).parent.parent / "golden" / "runs"
DETAILED = {  # the score that is the share of right items
    "classification": "accuracy",
    "text_classification": "accuracy",
    "multiple_choice": "accuracy",
    "tree_classification": "accuracy",
    "image_classification": "accuracy",
    "tabular": "accuracy",
    "multi_label": "accuracy",
    "story_answering": "accuracy",
    "answering": "exact_match",
    "tagging": None,  # the items of a report are all entities, those of the score are those that are there
}
NOT_CLASSES = {
    "translation", "dialogue", "language_model", "pretraining", "permutation_lm", "regression",
    "style_transfer", "text_autoencoding", "reconstruction", "paragraphs", "captioning", "control",
}  # fmt: skip


def test_every_task_has_details_or_predicts_no_classes() -> None:
    assert DETAILED.keys() | NOT_CLASSES == TASKS.keys() and not DETAILED.keys() & NOT_CLASSES


@pytest.mark.parametrize("name", sorted(path.name for path in RUNS.iterdir()))
def test_details_agree_with_the_scores_of_the_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = heedful.load_recipe(str(RUNS / name / "recipe.yaml"))
    kind = name.partition("-")[0]
    if kind in NOT_CLASSES:
        assert not hasattr(type(task_of(recipe)), "details") or "details" not in vars(type(task_of(recipe)))
        return
    shutil.copytree(RUNS / name, tmp_path / "run")
    monkeypatch.chdir(tmp_path / "run")
    results = json.loads(Path("results.json").read_text())
    details = task_of(recipe).details(load("."), results["split"])
    assert details is not None and details.count > 0 and details.split == results["split"]
    assert all(0 <= each.accuracy <= 1 for each in details.bins)
    wrong = details.count - details.right
    assert len(details.mistakes) == min(20, wrong) if details.exclusive else bool(details.mistakes) == bool(wrong)
    assert all(one.input and one.expected != one.predicted for one in details.mistakes)
    score = DETAILED[kind]
    if score is not None:
        assert 100 * details.right / details.count == pytest.approx(results["scores"][score]["value"])
    if details.classes and details.exclusive:
        assert sum(map(sum, details.confusion)) == details.count == sum(each.count for each in details.classes)


def test_entities_are_counted_as_by_the_script_of_conll() -> None:
    right = [["B-PER", "I-PER", "O", "B-LOC"], ["O", "B-LOC", "O"], ["B-PER", "O", "B-LOC"]]
    found = [["B-PER", "I-PER", "O", "B-PER"], ["O", "O", "B-LOC"], ["B-PER", "O", "B-LOC"]]
    words = [["Ada", "Lovelace", "in", "Rome"], ["in", "Rome", "today"], ["Ada", "in", "Rome"]]
    import numpy as np

    shares = [np.linspace(0.5, 0.9, len(tags)).astype(np.float32) for tags in right]
    labels = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
    report = tag_report("test", words, right, found, shares, labels)
    by_name = {each.label: each for each in report.classes}
    for kind in ("PER", "LOC"):
        alone = [[[tag if tag.endswith(kind) else "O" for tag in tags] for tags in side] for side in (found, right)]
        f1, precision, recall = chunk_scores(*alone)
        each = by_name[kind]
        assert (each.f1, each.precision, each.recall) == pytest.approx((f1.value, precision.value, recall.value))
    assert [one.input for one in report.mistakes] == ["Ada Lovelace in [Rome]", "in Rome [today]", "in [Rome] today"]
    assert {(one.expected, one.predicted) for one in report.mistakes} == {
        ("LOC", "PER"), (NOTHING, "LOC"), ("LOC", NOTHING)
    }  # fmt: skip


def test_tags_that_mark_no_entities_are_counted_by_word() -> None:
    import numpy as np

    shares = [np.array([0.9, 0.4, 0.8], np.float32)]
    report = tag_report("test", [["the", "dog", "barks"]], [["DET", "NOUN", "X"]], [["DET", "VERB", "VERB"]], shares,
                        ("DET", "NOUN", "VERB"))  # fmt: skip
    assert report.what == "words" and report.right == 1
    assert [(one.input, one.expected, one.predicted) for one in report.mistakes] == [
        ("the dog [barks]", "X", "VERB"), ("the [dog] barks", "NOUN", "VERB")
    ]  # fmt: skip
