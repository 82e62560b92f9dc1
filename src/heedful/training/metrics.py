"""Scores over a whole test set, in one shape, each with the signature that makes it comparable."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Classes = Sequence[int] | NDArray[np.int64]
Numbers = Sequence[float] | NDArray[np.float64]


@dataclass(frozen=True)
class Score:
    """A figure from 0 to 100, or from -100 where it is a correlation, and how it was computed."""

    name: str
    value: float
    signature: str


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Corpus BLEU as sacrebleu computes it, on plain text, one reference each."""
    from sacrebleu.metrics.bleu import BLEU

    _require_pairs(hypotheses, references)
    metric = BLEU()
    value = metric.corpus_score(list(hypotheses), [list(references)]).score
    return Score("bleu", float(value), str(metric.get_signature()))


RUN = 4  # words of the longest run that BLEU counts


def can_count_runs(references: Sequence[str]) -> bool:
    """Whether BLEU says anything: where most references are shorter than its longest run, it is 0 or an accident."""
    return 2 * sum(len(text.split()) >= RUN for text in references) >= len(references)


def translation_scores(hypotheses: Sequence[str], references: Sequence[str]) -> tuple[Score, ...]:
    """BLEU where it says anything, chrF and exact match."""
    scores = (chrf(hypotheses, references), exact_match(hypotheses, references))
    return (bleu(hypotheses, references), *scores) if can_count_runs(references) else scores


def chrf(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Corpus chrF2 as sacrebleu computes it, one reference each."""
    from sacrebleu.metrics.chrf import CHRF

    _require_pairs(hypotheses, references)
    metric = CHRF()
    value = metric.corpus_score(list(hypotheses), [list(references)]).score
    return Score("chrf", float(value), str(metric.get_signature()))


def exact_match(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """The share of hypotheses that are equal to their reference, character by character."""
    _require_pairs(hypotheses, references)
    equal = sum(ours == theirs for ours, theirs in zip(hypotheses, references, strict=True))
    return Score("exact_match", 100 * equal / len(references), f"nrefs:1|case:mixed|lines:{len(references)}")


def accuracy(found: Classes, right: Classes) -> Score:
    """The share of classes that are the right ones."""
    table = confusion(found, right)
    return Score("accuracy", 100 * float(np.trace(table) / table.sum()), f"texts:{table.sum()}")


def f1(found: Classes, right: Classes, labels: Sequence[str]) -> Score:
    """2 precision recall / (precision + recall): of two classes that of the second one, of more the mean over all.

    A class that neither the data nor the model name is not counted.
    """
    table = confusion(found, right, len(labels))
    seen = table.sum(0) + table.sum(1)  # (C,)
    each = 2 * np.diag(table) / np.maximum(seen, 1)  # (C,)
    if len(labels) == 2:
        return Score("f1", 100 * float(each[1]), f"class:{labels[1]}|texts:{table.sum()}")
    return Score("f1", 100 * float(each[seen > 0].mean()), f"average:macro|classes:{len(labels)}|texts:{table.sum()}")


def matthews(found: Classes, right: Classes) -> Score:
    """Matthews' correlation, for any number of classes (Gorodkin, 2004); 0 where one side is always the same."""
    table = confusion(found, right).astype(np.float64)
    total, predicted, actual = table.sum(), table.sum(0), table.sum(1)
    together = np.trace(table) * total - predicted @ actual
    return Score(
        "matthews",
        _share(together, (total**2 - predicted @ predicted) * (total**2 - actual @ actual)),
        f"texts:{total:.0f}",
    )


def pearson(found: Numbers, right: Numbers) -> Score:
    """The correlation of two rows of numbers; 0 where one of them is always the same."""
    _require_pairs(found, right)
    a, b = (np.asarray(side, dtype=np.float64) - np.mean(side) for side in (found, right))
    return Score("pearson", _share(a @ b, (a @ a) * (b @ b)), f"texts:{len(a)}")


def spearman(found: Numbers, right: Numbers) -> Score:
    """The correlation of their ranks, equal numbers sharing the mean of theirs."""
    value = pearson(ranks(found), ranks(right)).value
    return Score("spearman", value, f"ties:mean|texts:{len(right)}")


def ranks(numbers: Numbers) -> NDArray[np.float64]:
    """The place of each number in order from 1 on; equal numbers have the mean of theirs."""
    _, where, counts = np.unique(np.asarray(numbers), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    mean: NDArray[np.float64] = (last - (counts - 1) / 2)[where]
    return mean


def _share(together: Any, squared: Any) -> float:
    """What two sides have in common, of what they could have, from -100 to 100."""
    return 100 * max(-1.0, min(1.0, float(together / np.sqrt(squared)))) if squared > 0 else 0.0


def confusion(found: Classes, right: Classes, classes: int = 0) -> NDArray[np.int64]:
    """How often each class (rows) was taken for each (columns)."""
    _require_pairs(found, right)
    size = max(classes, int(max(np.max(found), np.max(right))) + 1)
    table = np.zeros((size, size), dtype=np.int64)
    np.add.at(table, (np.asarray(right), np.asarray(found)), 1)
    return table


def _require_pairs(hypotheses: Sized, references: Sized) -> None:
    """Refuse what has no score, which sacrebleu would score or shorten in silence."""
    if not len(references) or len(hypotheses) != len(references):
        raise ValueError(f"{len(hypotheses)} hypotheses for {len(references)} references: expected as many, and some")
