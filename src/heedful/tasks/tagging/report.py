"""How a tagger is right and wrong: by entity if the tags mark entities, else by word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from heedful.data.formats.conll import chunks, marks_chunks
from heedful.training.class_report import ClassReport, class_report

NOTHING = "no entity"  # the class of words that belong to no entity
AROUND = 6  # words beside an item that are shown

Tags = Sequence[str]


def tag_report(
    split: str,
    words: Sequence[Sequence[str]],
    right: Sequence[Tags],
    found: Sequence[Tags],
    shares: Sequence[NDArray[np.float32]],
    labels: Tags,
) -> ClassReport:
    """The report of predicted tags with their probabilities, sentence by sentence.

    An entity is right if its words and its kind are, as in the script of CoNLL-2003; the items are all that are
    there or were found. The probability of one is that of its least probable tag.
    """
    if not marks_chunks(labels):
        return _word_report(split, words, right, found, shares, labels)
    kinds = [*dict.fromkeys(tag[2:] for tag in labels if tag[1:2] == "-"), NOTHING]
    numbers = {kind: number for number, kind in enumerate(kinds)}
    items: list[tuple[int, int, int, str, str]] = []
    for row, (true, said) in enumerate(zip(right, found, strict=True)):
        there = {(start, end): kind for start, end, kind in chunks(true)}
        predicted = {(start, end): kind for start, end, kind in chunks(said)}
        for start, end in sorted({*there, *predicted}):
            items.append((row, start, end, there.get((start, end), NOTHING), predicted.get((start, end), NOTHING)))

    def show(item: int) -> str:
        row, start, end, _, _ = items[item]
        return _shown(words[row], start, end)

    confidence = np.array([shares[row][start:end].min() for row, start, end, _, _ in items], np.float64)
    targets = np.array([numbers[true] for _, _, _, true, _ in items], np.int64)
    predictions = np.array([numbers[said] for _, _, _, _, said in items], np.int64)
    if not items:  # no entity is there, and none was found
        return ClassReport(split, "entities", 0, 0, 0.0, (), (), (), ())
    return replace(class_report(split, "entities", targets, predictions, confidence, kinds, show), none=NOTHING)


def _word_report(
    split: str,
    words: Sequence[Sequence[str]],
    right: Sequence[Tags],
    found: Sequence[Tags],
    shares: Sequence[NDArray[np.float32]],
    labels: Tags,
) -> ClassReport:
    names = [*dict.fromkeys([*labels, *chain.from_iterable(right)])]  # the data may have tags that training has not
    numbers = {label: number for number, label in enumerate(names)}
    places = [(row, word) for row, sentence in enumerate(words) for word in range(len(sentence))]
    targets, predictions = (
        np.array([numbers[tag] for tag in chain.from_iterable(tags)], np.int64) for tags in (right, found)
    )

    def show(item: int) -> str:
        row, word = places[item]
        return _shown(words[row], word, word + 1)

    return class_report(split, "words", targets, predictions, np.concatenate(shares), names, show)


def _shown(words: Sequence[str], start: int, end: int) -> str:
    """Words in brackets, with some of those beside them."""
    before, after = words[max(0, start - AROUND) : start], words[end : end + AROUND]
    return " ".join([*before, f"[{' '.join(words[start:end])}]", *after])
