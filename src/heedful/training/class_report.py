"""How a classifier is right and wrong on a whole set: confusion matrix, scores of each class, calibration, mistakes.

N items, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heedful.training.metrics import Classes, confusion

BINS = 15  # of the probability, as in Guo et al. (2017)
MOST_MISTAKES = 20
MOST_CELLS = 10_000  # of a confusion matrix that is kept
Input = Callable[[int], str]  # the text of an item, or its image's file


@dataclass(frozen=True)
class ClassScores:
    """The scores of one class, in percent."""

    label: str
    count: int  # items of this class
    predicted: int  # items that were taken for it
    precision: float
    recall: float
    f1: float


@dataclass(frozen=True)
class Bin:
    """The items whose prediction has a probability above `low`, up to `high`."""

    low: float
    high: float
    count: int
    confidence: float  # mean probability
    accuracy: float  # share of right predictions


@dataclass(frozen=True)
class Mistake:
    """A wrong prediction, with its probability."""

    input: str
    expected: str
    predicted: str
    probability: float


@dataclass(frozen=True)
class ClassReport:
    """Details of a classifier's predictions on a split; there are no classes where answers are free texts."""

    split: str
    what: str  # the items
    count: int
    right: int
    ece: float  # expected calibration error: sum over bins of their share |accuracy - confidence|
    bins: tuple[Bin, ...]  # those with items
    classes: tuple[ClassScores, ...]
    confusion: tuple[tuple[int, ...], ...]  # true classes (rows) by predicted classes; empty where it is too large
    mistakes: tuple[Mistake, ...]  # the most confident first
    exclusive: bool = True  # each item has one class, not any number of them
    none: str | None = None  # the class of what is no item, which is never right

    @property
    def scored(self) -> tuple[ClassScores, ...]:
        """The classes that can be right."""
        return tuple(each for each in self.classes if each.label != self.none)

    @property
    def constant(self) -> str | None:
        """The only class that is ever predicted, if there are others."""
        if not self.exclusive:
            return None
        used = [each.label for each in self.classes if each.predicted]
        others = sum(each.count > 0 for each in self.scored) > 1
        return used[0] if len(used) == 1 and (others or used[0] == self.none) else None


def class_report(
    split: str,
    what: str,
    targets: Classes,
    found: Classes,
    confidence: NDArray[Any],
    labels: Sequence[str],
    show: Input,
) -> ClassReport:
    """The report of predicted classes (N,) with their probabilities (N,)."""
    table = confusion(found, targets, len(labels))  # (C, C)
    hits, there, predicted = np.diag(table).tolist(), table.sum(1).tolist(), table.sum(0).tolist()
    classes = tuple(
        ClassScores(label, there[k], predicted[k], *_scores(hits[k], there[k], predicted[k]))
        for k, label in enumerate(labels)
    )
    matrix = tuple(map(tuple, table.tolist())) if table.size <= MOST_CELLS else ()

    def name(row: int) -> tuple[str, str]:
        return labels[int(targets[row])], labels[int(found[row])]

    right = np.asarray(found) == np.asarray(targets)
    return _report(split, what, right, confidence, show, name, classes, matrix)


def answer_report(
    split: str, what: str, right: Sequence[bool], confidence: Sequence[float], show: Input,
    name: Callable[[int], tuple[str, str]],
) -> ClassReport:  # fmt: skip
    """The report of free answers; `name` gives what was expected of an item, and what was found."""
    return _report(split, what, np.array(right, bool), np.array(confidence, np.float64), show, name, (), ())


def label_report(
    split: str,
    what: str,
    targets: NDArray[Any],
    found: NDArray[Any],
    probabilities: NDArray[Any],
    labels: Sequence[str],
    show: Input,
) -> ClassReport:
    """The report of any number of labels (N, C), of 1 and 0; calibration and mistakes are those of single labels.

    `probabilities` are those of the labels; where one is not predicted, its absence has the rest.
    """
    there, predicted, hits = targets.sum(0).tolist(), found.sum(0).tolist(), (targets * found).sum(0).tolist()
    classes = tuple(
        ClassScores(label, there[k], predicted[k], *_scores(hits[k], there[k], predicted[k]))
        for k, label in enumerate(labels)
    )
    confidence = np.where(found, probabilities, 1 - probabilities).ravel()  # (N * C,)
    said = [(label, f"not {label}") for label in labels]

    def name(place: int) -> tuple[str, str]:
        row, label = divmod(place, len(labels))
        return said[label][1 - int(targets[row, label])], said[label][1 - int(found[row, label])]

    single = _report(
        split, what, (targets == found).ravel(), confidence, lambda place: show(place // len(labels)), name, classes, ()
    )
    right = int((targets == found).all(1).sum())
    return replace(single, count=len(targets), right=right, exclusive=False)


def _report(
    split: str, what: str, right: NDArray[np.bool_], confidence: NDArray[Any], show: Input,
    name: Callable[[int], tuple[str, str]], classes: tuple[ClassScores, ...], matrix: tuple[tuple[int, ...], ...],
) -> ClassReport:  # fmt: skip
    bins = reliability(right, confidence)
    ece = sum(each.count * abs(each.accuracy - each.confidence) for each in bins) / max(1, len(right))
    wrong = np.flatnonzero(~right)
    worst = wrong[np.argsort(-confidence[wrong], kind="stable")][:MOST_MISTAKES].tolist()
    mistakes = tuple(Mistake(show(row), *name(row), float(confidence[row])) for row in worst)
    return ClassReport(split, what, len(right), int(right.sum()), ece, bins, classes, matrix, mistakes)


def reliability(right: NDArray[np.bool_], confidence: NDArray[Any], count: int = BINS) -> tuple[Bin, ...]:
    """Confidence and accuracy of the predictions in bins of equal width; bins without any are left out."""
    values = np.clip(np.asarray(confidence, np.float64), 0.0, 1.0)  # (N,)
    places = np.clip(np.ceil(values * count).astype(np.int64) - 1, 0, count - 1)  # (N,)
    found = []
    for place in np.unique(places).tolist():
        members = places == place
        mean, accuracy = float(values[members].mean()), float(right[members].mean())
        found.append(Bin(place / count, (place + 1) / count, int(members.sum()), mean, accuracy))
    return tuple(found)


def _scores(hits: int, there: int, predicted: int) -> tuple[float, float, float]:
    """Precision, recall and F1, in percent; 0 where there is nothing to divide by."""
    return (
        100 * hits / max(1, predicted),
        100 * hits / max(1, there),
        100 * 2 * hits / max(1, there + predicted),
    )
