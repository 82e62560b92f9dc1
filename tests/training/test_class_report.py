"""Reports of classifiers against scikit-learn, and against definitions written as loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.calibration import calibration_curve
from sklearn.metrics import accuracy_score, confusion_matrix, precision_recall_fscore_support

from heedful.training.class_report import BINS, answer_report, class_report, label_report, reliability
from tolerance import near


def random_predictions(seed: int, count: int = 400, classes: int = 5) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    draws = np.random.default_rng(seed)
    targets = draws.choice(classes, count, p=[0.4, 0.3, 0.2, 0.1, 0.0][:classes])
    logits = draws.normal(0, 2, (count, classes)) + 2 * np.eye(classes)[targets]
    shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return targets, shares


@pytest.mark.parametrize("seed", range(5))
def test_matrix_and_scores_are_those_of_scikit_learn(seed: int) -> None:
    targets, shares = random_predictions(seed)
    found, names = shares.argmax(1), ("a", "b", "c", "d", "e")
    report = class_report("test", "texts", targets, found, shares.max(1), names, str)
    assert np.array_equal(np.array(report.confusion), confusion_matrix(targets, found, labels=range(5)))
    precision, recall, f1, there = precision_recall_fscore_support(targets, found, labels=range(5), zero_division=0)
    for number, each in enumerate(report.classes):
        right = 100 * np.array([precision[number], recall[number], f1[number]])
        assert np.array([each.precision, each.recall, each.f1]) == near(right, dtype=torch.float64)
        assert each.count == there[number] and each.label == names[number]
    assert report.right == int((targets == found).sum()) and report.count == 400


@pytest.mark.parametrize("seed", range(3))
def test_calibration_is_that_of_scikit_learn_and_of_a_loop(seed: int) -> None:
    targets, shares = random_predictions(seed)
    right, confidence = shares.argmax(1) == targets, shares.max(1)
    bins = reliability(right, confidence)
    accuracy, means = calibration_curve(right, confidence, n_bins=BINS)
    assert [each.accuracy for each in bins] == near(accuracy, dtype=torch.float64)
    assert [each.confidence for each in bins] == near(means, dtype=torch.float64)
    ece = 0.0
    for number in range(BINS):
        inside = [row for row in range(400) if number / BINS < confidence[row] <= (number + 1) / BINS]
        if inside:
            gap = np.mean([right[row] for row in inside]) - np.mean([confidence[row] for row in inside])
            ece += len(inside) / 400 * abs(gap)
    report = class_report("test", "texts", targets, shares.argmax(1), confidence, tuple("abcde"), str)
    assert report.ece == near(ece, dtype=torch.float64)
    assert sum(each.count for each in bins) == 400


@pytest.mark.parametrize("threshold", [0.5, 0.3])
def test_scores_of_labels_are_those_of_scikit_learn(threshold: float) -> None:
    draws = np.random.default_rng(0)
    targets = (draws.random((200, 4)) < [0.5, 0.2, 0.1, 0.0]).astype(np.int64)
    shares = 0.3 * targets + 0.7 * draws.random((200, 4))
    found = (shares >= threshold).astype(np.int64)
    report = label_report("test", "texts", targets, found, shares, ("a", "b", "c", "d"), str)
    precision, recall, f1, there = precision_recall_fscore_support(targets, found, zero_division=0)
    for number, each in enumerate(report.classes):
        right = 100 * np.array([precision[number], recall[number], f1[number]])
        assert np.array([each.precision, each.recall, each.f1]) == near(right, dtype=torch.float64)
        assert each.count == there[number] and each.predicted == found[:, number].sum()
    assert report.right == 200 * accuracy_score(targets, found) and report.count == 200 and report.confusion == ()
    hits, confidence = (targets == found).ravel(), np.where(found, shares, 1 - shares).ravel()
    bins = reliability(hits, confidence)
    assert report.bins == bins and sum(each.count for each in bins) == 800
    assert report.ece == near(sum(each.count / 800 * abs(each.accuracy - each.confidence) for each in bins))
    worst = max((row for row in range(800) if not hits[row]), key=lambda row: confidence[row])
    assert report.mistakes[0].input == str(worst // 4) and report.mistakes[0].probability == confidence[worst]
    label, there_is = "abcd"[worst % 4], bool(targets.ravel()[worst])
    assert report.mistakes[0].expected == (label if there_is else f"not {label}")
    assert report.mistakes[0].predicted == (f"not {label}" if there_is else label)
    assert report.constant is None and not report.exclusive


def test_probabilities_on_the_edges_are_in_one_bin() -> None:
    bins = reliability(np.array([True, False, True, True]), np.array([0.0, 1.0, 1.0 + 1e-7, 1 / BINS]))
    assert [(each.low, each.count) for each in bins] == [(0.0, 2), ((BINS - 1) / BINS, 2)]


def test_mistakes_are_the_most_confident_wrong_predictions_with_their_inputs() -> None:
    targets, shares = random_predictions(1)
    found, confidence, names = shares.argmax(1), shares.max(1), ("a", "b", "c", "d", "e")
    report = class_report("valid", "texts", targets, found, confidence, names, lambda row: f"text {row}")
    wrong = sorted((row for row in range(400) if found[row] != targets[row]), key=lambda row: -confidence[row])[:20]
    assert [one.input for one in report.mistakes] == [f"text {row}" for row in wrong]
    assert [one.expected for one in report.mistakes] == [names[targets[row]] for row in wrong]
    assert [one.predicted for one in report.mistakes] == [names[found[row]] for row in wrong]
    assert [one.probability for one in report.mistakes] == confidence[wrong].tolist()


def test_constant_predictions_are_recognized() -> None:
    targets = np.array([0] * 9 + [1])
    nine = class_report("test", "texts", targets, np.zeros(10, np.int64), np.full(10, 0.9), ("no", "yes"), str)
    assert nine.constant == "no" and nine.classes[1].f1 == 0 and nine.ece == near(0.0, of=1.0)
    assert class_report("test", "texts", targets, targets, np.ones(10), ("no", "yes"), str).constant is None
    only = np.zeros(10, np.int64)
    assert class_report("test", "texts", only, only, np.ones(10), ("no", "yes"), str).constant is None


def test_free_answers_have_no_classes() -> None:
    found = answer_report("test", "questions", [True, False], [0.5, 0.75], str, lambda row: ("x", "y"))
    assert (found.classes, found.confusion, found.right) == ((), (), 1)
    assert [(one.input, one.expected, one.predicted) for one in found.mistakes] == [("1", "x", "y")]
