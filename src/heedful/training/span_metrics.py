"""Scores of what was marked in texts: chunks of words as in CoNLL-2003, and answers as in SQuAD."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from itertools import chain

from heedful.data.formats.conll import chunks, marks_chunks
from heedful.training.metrics import Score

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)

Tags = Sequence[str]


def chunk_scores(found: Sequence[Tags], right: Sequence[Tags]) -> tuple[Score, Score, Score]:
    """F1, precision and recall of chunks over all sentences; one is right if its words and its type are.

    Nothing found, or nothing to find, counts as 0, as in the script of CoNLL-2003 and in seqeval.
    """
    said = {(row, *chunk) for row, tags in enumerate(found) for chunk in chunks(tags)}
    true = {(row, *chunk) for row, tags in enumerate(right) for chunk in chunks(tags)}
    hits, words = len(said & true), sum(map(len, right))
    precision, recall = 100 * hits / max(1, len(said)), 100 * hits / max(1, len(true))
    f1 = 2 * precision * recall / (precision + recall) if hits else 0.0
    how = f"chunks:{len(true)}|found:{len(said)}|right:{hits}|words:{words}"
    return Score("f1", f1, how), Score("precision", precision, how), Score("recall", recall, how)


def tag_scores(
    found: Sequence[Tags], right: Sequence[Tags], labels: Sequence[str], each: bool = True
) -> tuple[Score, ...]:
    """Of tags that mark chunks, the scores of these; of others, the share of right words, and F1 as a mean over tags.

    If `each`, F1 of every tag that was found or is right follows.
    """
    if marks_chunks(labels):
        return chunk_scores(found, right)
    said, true = (tuple(chain.from_iterable(tags)) for tags in (found, right))
    hits, both = Counter(a for a, b in zip(said, true, strict=True) if a == b), Counter(said) + Counter(true)
    f1 = {label: 100 * 2 * hits[label] / both[label] for label in labels if both[label]}
    how = f"words:{len(true)}|tags:{len(labels)}"
    return (
        Score("accuracy", 100 * hits.total() / max(1, len(true)), how),
        Score("f1", sum(f1.values()) / max(1, len(f1)), f"average:macro|{how}"),
        *(Score(f"f1 {label}", value, how) for label, value in f1.items() if each),
    )


def answer_scores(found: Sequence[str], right: Sequence[Sequence[str]]) -> tuple[Score, Score]:
    """F1 and exact match of answers, each against the nearest of its right ones, as SQuAD's script computes them."""
    pairs = list(zip(found, right, strict=True))
    f1 = sum(max(answer_f1(said, true) for true in answers) for said, answers in pairs)
    exact = sum(max(plain_answer(said) == plain_answer(true) for true in answers) for said, answers in pairs)
    how, count = f"questions:{len(right)}|answers:{sum(map(len, right))}", max(1, len(right))
    return Score("f1", 100 * f1 / count, how), Score("exact_match", 100 * exact / count, how)


def plain_answer(text: str) -> str:
    """An answer without what SQuAD does not count: case, punctuation, articles and spaces."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def answer_f1(found: str, right: str) -> float:
    """The harmonic mean of the share of found words that are right and of right words that are found."""
    said, true = plain_answer(found).split(), plain_answer(right).split()
    common = (Counter(said) & Counter(true)).total()
    return 2 * common / (len(said) + len(true)) if common else 0.0
