"""Multiple-choice questions as batches: each choice is a pair of texts in its own row.

N questions, C choices of each.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch

from heedful.data.batch import IGNORE_INDEX, Ints
from heedful.data.labelled.batches import EncodedTexts, LabelledBatch, encode_texts
from heedful.data.labelled.choices import Question
from heedful.data.row_schedule import SequenceBatches
from heedful.data.tokenizers.base import PairTokenizer


@dataclass(frozen=True, slots=True)
class EncodedChoices:
    """All questions of a split: each choice is a pair of texts, those of a question are adjacent."""

    texts: EncodedTexts  # N * C of them
    targets: Ints  # (N,)
    choices: int

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def dropped(self) -> int:
        """The number of dropped questions: none, since long ones are truncated."""
        return 0

    @property
    def sha256(self) -> str:
        """A hash of these questions, in order."""
        return hashlib.sha256(self.texts.sha256.encode() + self.targets.tobytes()).hexdigest()

    @property
    def lengths(self) -> Ints:
        """The padded size of each question: all its choices, as long as the longest."""
        longest: Ints = self.texts.lengths.reshape(-1, self.choices).max(1)
        return longest * self.choices  # (N,)

    @property
    def with_targets(self) -> Ints:
        """All questions have a target."""
        return np.arange(len(self))

    def batch(self, rows: Ints) -> LabelledBatch:
        """A batch of these questions, one row per choice; for none, one row without a target."""
        found = self.texts.batch((rows[:, None] * self.choices + np.arange(self.choices)).ravel())
        if not len(rows):
            return found
        return replace(found, targets=torch.from_numpy(self.targets[rows]), indices=torch.from_numpy(rows))

    def pack(self, rows: Ints, room: int, most: int) -> LabelledBatch:
        """Not supported, since choices are compared row by row."""
        raise NotImplementedError


def encode_choices(questions: Sequence[Question], tokenizer: PairTokenizer, context: int) -> EncodedChoices:
    """The ids of `[CLS] text [SEP] choice [SEP]` for each choice; all questions have the same number of choices."""
    pairs = [(one.text, choice) for one in questions for choice in one.choices]
    texts = encode_texts(pairs, np.full(len(pairs), IGNORE_INDEX), tokenizer, context)
    return EncodedChoices(texts, np.array([one.right for one in questions], np.int64), len(questions[0].choices))


class ChoiceBatches(SequenceBatches[LabelledBatch]):
    """The endless sequence of training batches of questions, which are never packed."""

    kind: ClassVar = LabelledBatch
