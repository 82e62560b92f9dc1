"""Scores of translations over a whole test set, in one shape, each with the signature that makes it comparable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Score:
    """A figure from 0 to 100, and how it was computed."""

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


def _require_pairs(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    """Refuse what has no score, which sacrebleu would score or shorten in silence."""
    if not references or len(hypotheses) != len(references):
        raise ValueError(f"{len(hypotheses)} hypotheses for {len(references)} references: expected as many, and some")
