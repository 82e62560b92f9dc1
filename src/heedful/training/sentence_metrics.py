"""Metrics of single sentences against one reference each, from 0 to 1: the rewards of translation.

A hundred times BLEU and chrF are the numbers of sacrebleu's `sentence_bleu` and `sentence_chrf`. The n-grams of a
reference are counted once, so that scoring many samples of a sentence is fast.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from heedful.training.metrics import MAX_NGRAM

if TYPE_CHECKING:
    from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

CHARACTERS = 6  # of the longest n-gram of chrF
BETA = 2.0  # how much more the recall counts in chrF than the precision


class SentenceMetric:
    """Scores of hypotheses, each against the reference with a number."""

    def __init__(self, references: Sequence[str]) -> None:
        self.references = references

    def scores(self, hypotheses: Sequence[str], numbers: Sequence[int]) -> NDArray[np.float64]:
        """The score (N,) of each hypothesis, from 0 to 1; `numbers` are those of their references."""
        known: dict[tuple[str, int], float] = {}  # equal samples are common once a model is sure
        for pair in zip(hypotheses, numbers, strict=True):
            if pair not in known:
                known[pair] = self.score(*pair)
        return np.array([known[pair] for pair in zip(hypotheses, numbers, strict=True)])

    @abstractmethod
    def score(self, hypothesis: str, number: int) -> float:
        """The score of one hypothesis."""


class ExactMatch(SentenceMetric):
    """1 for the reference itself, character by character, and 0 for anything else."""

    def score(self, hypothesis: str, number: int) -> float:
        return float(hypothesis == self.references[number])


class NgramMetric(SentenceMetric):
    """A metric that compares n-grams."""

    longest: ClassVar[int]

    def __init__(self, references: Sequence[str]) -> None:
        super().__init__(references)
        self._counted: dict[int, list[Counter[Sequence[str]]]] = {}

    @abstractmethod
    def units(self, text: str) -> Sequence[str]:
        """What n-grams consist of."""

    @abstractmethod
    def value(self, matches: Sequence[int], ours: Sequence[int], theirs: Sequence[int]) -> float:
        """The score, from the n-grams of both and those they share, for n = 1 and above."""

    def score(self, hypothesis: str, number: int) -> float:
        if number not in self._counted:
            self._counted[number] = self.counts(self.references[number])
        ours, theirs = self.counts(hypothesis), self._counted[number]
        shared = [
            sum(min(count, there[ngram]) for ngram, count in here.items() if ngram in there)
            for here, there in zip(ours, theirs, strict=True)
        ]
        return self.value(shared, [one.total() for one in ours], [one.total() for one in theirs])

    def counts(self, text: str) -> list[Counter[Sequence[str]]]:
        """How often each n-gram occurs, for n = 1 and above."""
        units = self.units(text)
        return [Counter([units[i : i + n] for i in range(len(units) - n + 1)]) for n in range(1, self.longest + 1)]


class SentenceBleu(NgramMetric):
    """BLEU of a sentence (Papineni et al., 2002), smoothed: without a match, an n-gram precision is 1 / (2^k total).

    k counts the precisions without a match so far (method 3 of Chen and Cherry, 2014), and n-grams longer than the
    hypothesis are left out. Without any shared word, the score is 0.
    """

    longest: ClassVar = MAX_NGRAM

    @cached_property
    def _tokenize(self) -> Tokenizer13a:
        from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

        return Tokenizer13a()  # type: ignore[no-untyped-call]

    def units(self, text: str) -> tuple[str, ...]:
        return tuple(self._tokenize(text.rstrip()).split())

    def value(self, matches: Sequence[int], ours: Sequence[int], theirs: Sequence[int]) -> float:
        if not any(matches):
            return 0.0
        logs, missed = list[float](), 0
        for shared, total in zip(matches, ours, strict=True):
            if total:
                missed += shared == 0
                logs.append(math.log(shared / total if shared else 0.5**missed / total))
        return math.exp(sum(logs) / len(logs) + min(0.0, 1 - theirs[0] / ours[0]))


class SentenceChrf(NgramMetric):
    """chrF2 of a sentence (Popović, 2015): the F-score of n-grams of 1 to 6 characters, without spaces."""

    longest: ClassVar = CHARACTERS

    def units(self, text: str) -> str:
        return "".join(text.split())

    def value(self, matches: Sequence[int], ours: Sequence[int], theirs: Sequence[int]) -> float:
        both = [each for each in zip(matches, ours, theirs, strict=True) if each[1] and each[2]]
        if not any(matches):
            return 0.0
        precision, recall = (sum(each[0] / each[side] for each in both) / len(both) for side in (1, 2))
        return (1 + BETA**2) * precision * recall / (BETA**2 * precision + recall)


METRICS: dict[str, Callable[[Sequence[str]], SentenceMetric]] = {
    "bleu": SentenceBleu,
    "chrf": SentenceChrf,
    "exact_match": ExactMatch,
}
