"""Metrics over a whole test set, each with a signature that makes it comparable."""

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
    """A metric from 0 to 100 (correlations from -100, CIDEr-D to 1000, R2 from -inf), with its signature.

    The signature says how it was computed.
    """

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


MAX_NGRAM = 4  # words of the longest n-gram that BLEU counts


def bleu_applies(references: Sequence[str]) -> bool:
    """Whether BLEU is meaningful: at least half of the references have as many words as its longest n-gram."""
    return 2 * sum(len(text.split()) >= MAX_NGRAM for text in references) >= len(references)


def translation_scores(hypotheses: Sequence[str], references: Sequence[str]) -> tuple[Score, ...]:
    """BLEU where it is meaningful, chrF and exact match."""
    scores = (chrf(hypotheses, references), exact_match(hypotheses, references))
    return (bleu(hypotheses, references), *scores) if bleu_applies(references) else scores


def chrf(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Corpus chrF2 as sacrebleu computes it, one reference each."""
    from sacrebleu.metrics.chrf import CHRF

    _require_pairs(hypotheses, references)
    metric = CHRF()
    value = metric.corpus_score(list(hypotheses), [list(references)]).score
    return Score("chrf", float(value), str(metric.get_signature()))


def exact_match(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """The percentage of hypotheses that equal their reference, character by character."""
    _require_pairs(hypotheses, references)
    equal = sum(ours == theirs for ours, theirs in zip(hypotheses, references, strict=True))
    return Score("exact_match", 100 * equal / len(references), f"nrefs:1|case:mixed|lines:{len(references)}")


def distinct(texts: Sequence[str], size: int) -> Score:
    """Distinct n-grams of words per n-gram, in percent: low where replies repeat each other (Li et al., 2016)."""
    words = [text.split() for text in texts]
    grams = [tuple(one[at : at + size]) for one in words for at in range(len(one) - size + 1)]
    return Score(f"distinct{size}", 100 * len(set(grams)) / max(1, len(grams)), f"words:{size}|texts:{len(texts)}")


def accuracy(predictions: Classes, targets: Classes, what: str = "texts") -> Score:
    """The percentage of correct classes."""
    table = confusion(predictions, targets)
    return Score("accuracy", 100 * float(np.trace(table) / table.sum()), f"{what}:{table.sum()}")


def top_accuracy(predictions: NDArray[np.int64], targets: Classes) -> Score:
    """The percentage of examples whose class is among the first K predictions (N, K)."""
    _require_pairs(predictions, targets)
    hits = (predictions == np.asarray(targets)[:, None]).any(1)  # (N,)
    count = predictions.shape[1]
    return Score(f"top{count}", 100 * float(hits.mean()), f"among:{count}|images:{len(hits)}")


def f1(predictions: Classes, targets: Classes, labels: Sequence[str], what: str = "texts") -> Score:
    """2 precision recall / (precision + recall): of the second class if there are two, else the macro average.

    Classes that are neither in the data nor predicted are not counted.
    """
    table = confusion(predictions, targets, len(labels))
    seen = table.sum(0) + table.sum(1)  # (C,)
    each = 2 * np.diag(table) / np.maximum(seen, 1)  # (C,)
    if len(labels) == 2:
        return Score("f1", 100 * float(each[1]), f"class:{labels[1]}|{what}:{table.sum()}")
    how = f"average:macro|classes:{len(labels)}|{what}:{table.sum()}"
    return Score("f1", 100 * float(each[seen > 0].mean()), how)


def micro_f1(predictions: NDArray[np.int64], targets: NDArray[np.int64]) -> Score:
    """F1 over all decisions whether a text has a label (N, C)."""
    both, total = (predictions & targets).sum(), predictions.sum() + targets.sum()
    return Score("micro_f1", 200 * float(both) / max(1, int(total)), _decisions(targets))


def macro_f1(predictions: NDArray[np.int64], targets: NDArray[np.int64]) -> Score:
    """The mean over labels of their F1 (N, C); labels that no text has and none is given are not counted."""
    both, total = (predictions & targets).sum(0), predictions.sum(0) + targets.sum(0)  # (C,)
    seen = total > 0
    value = float((200 * both[seen] / total[seen]).mean()) if seen.any() else 0.0
    return Score("macro_f1", value, _decisions(targets))


def label_accuracy(predictions: NDArray[np.int64], targets: NDArray[np.int64]) -> Score:
    """The percentage of texts with all labels right (N, C)."""
    return Score("accuracy", 100 * float((predictions == targets).all(1).mean()), _decisions(targets))


def _decisions(targets: NDArray[np.int64]) -> str:
    return f"labels:{targets.shape[1]}|texts:{targets.shape[0]}"


def matthews(predictions: Classes, targets: Classes) -> Score:
    """Matthews' correlation, for any number of classes (Gorodkin, 2004); 0 if one side is constant."""
    table = confusion(predictions, targets).astype(np.float64)
    total, predicted, actual = table.sum(), table.sum(0), table.sum(1)
    covariance = np.trace(table) * total - predicted @ actual
    return Score(
        "matthews",
        _correlation(covariance, (total**2 - predicted @ predicted) * (total**2 - actual @ actual)),
        f"texts:{total:.0f}",
    )


def r2(predictions: Numbers, targets: Numbers, what: str = "texts") -> Score:
    """1 - sum (y - prediction)^2 / sum (y - mean of y)^2, in percent; 0 if the targets are constant."""
    _require_pairs(predictions, targets)
    right = np.asarray(targets, dtype=np.float64)
    total = np.square(right - right.mean()).sum()
    left = np.square(right - np.asarray(predictions, dtype=np.float64)).sum()
    return Score("r2", 100 * float(1 - left / total) if total > 0 else 0.0, f"{what}:{len(right)}")


def pearson(predictions: Numbers, targets: Numbers, what: str = "texts") -> Score:
    """Pearson's correlation; 0 if one side is constant."""
    _require_pairs(predictions, targets)
    a, b = (np.asarray(side, dtype=np.float64) - np.mean(side) for side in (predictions, targets))
    return Score("pearson", _correlation(a @ b, (a @ a) * (b @ b)), f"{what}:{len(a)}")


def spearman(predictions: Numbers, targets: Numbers, what: str = "texts") -> Score:
    """Spearman's correlation: Pearson's correlation of the ranks, ties averaged."""
    value = pearson(ranks(predictions), ranks(targets)).value
    return Score("spearman", value, f"ties:mean|{what}:{len(targets)}")


def ranks(numbers: Numbers) -> NDArray[np.float64]:
    """The rank of each number, from 1; ties have the mean of their ranks."""
    _, where, counts = np.unique(np.asarray(numbers), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    mean: NDArray[np.float64] = (last - (counts - 1) / 2)[where]
    return mean


def _correlation(covariance: Any, variances: Any) -> float:
    """A correlation from -100 to 100: covariance over the root of the product of variances."""
    return 100 * max(-1.0, min(1.0, float(covariance / np.sqrt(variances)))) if variances > 0 else 0.0


def confusion(predictions: Classes, targets: Classes, classes: int = 0) -> NDArray[np.int64]:
    """The confusion matrix: true classes (rows) by predicted classes (columns)."""
    _require_pairs(predictions, targets)
    size = max(classes, int(max(np.max(predictions), np.max(targets))) + 1)
    table = np.zeros((size, size), dtype=np.int64)
    np.add.at(table, (np.asarray(targets), np.asarray(predictions)), 1)
    return table


def _require_pairs(hypotheses: Sized, references: Sized) -> None:
    """Refuse empty or unequal inputs, which sacrebleu would score or truncate silently."""
    if not len(references) or len(hypotheses) != len(references):
        raise ValueError(
            f"{len(hypotheses)} hypotheses for {len(references)} references: expected equal numbers, at least one"
        )
