"""Questions with several choices to batches: each choice is a pair of texts and has a row of its own.

N questions, C choices of each.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch

from heedful.data.labelled.batches import NOTHING, EncodedTexts, LabelledBatch, encode_texts
from heedful.data.labelled.choices import Question
from heedful.data.row_schedule import Ints, Rows
from heedful.data.tokenizers.base import PairTokenizer


@dataclass(frozen=True, slots=True)
class EncodedChoices:
    """All questions of a split: each choice is a pair of texts, those of a question one after the other."""

    texts: EncodedTexts  # N * C of them
    targets: Ints  # (N,)
    choices: int

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def dropped(self) -> int:
        """How many questions were left out: none, since what is too long is cut."""
        return 0

    @property
    def sha256(self) -> str:
        """A name for exactly these questions in this order."""
        return hashlib.sha256(self.texts.sha256.encode() + self.targets.tobytes()).hexdigest()

    @property
    def lengths(self) -> Ints:
        """The places that each question takes: all its choices, as long as the longest."""
        longest: Ints = self.texts.lengths.reshape(-1, self.choices).max(1)
        return longest * self.choices  # (N,)

    def batch(self, rows: Ints) -> LabelledBatch:
        """Some questions, a row for each choice; of none, one row from which there is nothing to learn."""
        found = self.texts.batch((rows[:, None] * self.choices + np.arange(self.choices)).ravel())
        if not len(rows):
            return found
        return replace(found, targets=torch.from_numpy(self.targets[rows]), indices=torch.from_numpy(rows))


def encode_choices(questions: Sequence[Question], tokenizer: PairTokenizer, context: int) -> EncodedChoices:
    """The ids of `[CLS] text [SEP] choice [SEP]` for each choice; all questions have as many."""
    pairs = [(one.text, choice) for one in questions for choice in one.choices]
    texts = encode_texts(pairs, np.full(len(pairs), NOTHING), tokenizer, context)
    return EncodedChoices(texts, np.array([one.right for one in questions], np.int64), len(questions[0].choices))


class ChoiceBatches:
    """The endless sequence of training batches; which one comes at a position depends on the seed alone."""

    kind: ClassVar = LabelledBatch
    alike: ClassVar = False  # there are rows of several lengths
    steady: ClassVar = False

    def __init__(self, encoded: EncodedChoices, seed: int, batch_tokens: int, examples: int | None = None) -> None:
        self.encoded = encoded
        self._rows = Rows(encoded.lengths, seed, batch_tokens, False, examples)

    def at(self, position: int, part: int = 0, parts: int = 1) -> LabelledBatch:
        """The batch at a position, counted from 0 over all epochs, or one part of it, which may hold no question."""
        return self.encoded.batch(self._rows.at(position)[part::parts])

    def tokens(self, position: int) -> int:
        """How many questions the whole batch at a position has."""
        return len(self._rows.at(position))

    def epoch_of(self, position: int) -> int:
        """The epoch, counted from 0, that the batch at a position belongs to."""
        return self._rows.epoch_of(position)
