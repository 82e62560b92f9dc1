"""The order of training batches of single sequences: a function of the seed alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Generic, Protocol, TypeVar

import numpy as np

from heedful.data.batch import Epochs, Ints
from heedful.data.order import balanced_order, permutation
from heedful.data.pairs.batches import (
    POOL,
    TILE,
    by_length,
    max_packed,
    plan_by_budget,
    plan_packed,
    plan_pooled,
    split_by_budget,
)

Plan = Callable[[Ints, int, int, int], list[Ints]]  # lengths, seed, epoch, batch size -> batches of an epoch

BatchT = TypeVar("BatchT", covariant=True)

SHAPES = 8  # roughly the number of shapes of packed batches with a fixed number of sequences


class EncodedSequences(Protocol[BatchT]):
    """Encoded sequences that can be batched."""

    @property
    def lengths(self) -> Ints:
        """The number of tokens of each sequence."""

    @property
    def with_targets(self) -> Ints:
        """The rows of the sequences that have a target."""

    def batch(self, rows: Ints) -> BatchT:
        """A batch of these sequences, one per row."""

    def pack(self, rows: Ints, room: int, most: int) -> BatchT:
        """A batch of these sequences packed into one row of `room` positions, with space for `most` sequences."""


class RowSchedule(Epochs):
    """The endless sequence of batches as row numbers: of similar length within a token budget, or packed.

    With `examples`, each batch has that many sequences instead; packed ones come in random order. With `classes`, an
    epoch has as many sequences of each class.
    """

    def __init__(
        self,
        lengths: Ints,
        seed: int,
        batch_tokens: int,
        packed: bool,
        examples: int | None = None,
        classes: Ints | None = None,
    ) -> None:
        self.most = examples or max_packed(batch_tokens)  # sequences in a packed batch
        plans: tuple[Plan, Plan] = (plan_by_budget, plan_packed) if examples is None else (plan_by_length, plan_random)
        plan = plans[packed]
        mean = self.most * float(lengths.mean())  # tokens in a batch of a fixed number of sequences
        self._step = batch_tokens if examples is None else TILE * max(1, round(mean / SHAPES / TILE))
        sides = np.stack([lengths, np.ones_like(lengths)], axis=1)  # (N, 2), as of pairs with an empty side

        def batches(epoch: int) -> list[Ints]:
            if classes is None:
                return plan(sides, seed, epoch, examples or batch_tokens)
            rows = balanced_order(seed, epoch, classes) % len(classes)  # (N,) some of them several times
            return [rows[places] for places in plan(sides[rows], seed, epoch, examples or batch_tokens)]

        super().__init__(batches)

    def room(self, tokens: int) -> int:
        """The width of a packed batch with `tokens` tokens: constant, or one of a few values."""
        return -(-max(1, tokens) // self._step) * self._step


def plan_by_length(lengths: Ints, seed: int, epoch: int, examples: int) -> list[Ints]:
    """The batches of an epoch as row numbers: `examples` sequences of similar length each."""
    return plan_pooled(lengths, seed, epoch, POOL * examples, lambda rows: split_rows(rows, examples))


def plan_random(lengths: Ints, seed: int, epoch: int, examples: int) -> list[Ints]:
    """The batches of an epoch as row numbers: `examples` sequences each, of any length."""
    return split_rows(permutation(seed, epoch, len(lengths)), examples)


def split_rows(rows: Ints, examples: int) -> list[Ints]:
    """Split rows into parts of `examples` rows; the last may be smaller."""
    return [rows[start : start + examples] for start in range(0, len(rows), examples)]


def in_order(lengths: Ints, batch_tokens: int) -> list[Ints]:
    """Every row once, for evaluation: the longest first, so that running out of memory shows at once."""
    sides = np.stack([lengths, np.ones_like(lengths)], axis=1)  # (N, 2)
    return list(reversed(split_by_budget(by_length(np.arange(len(lengths)), sides), sides, batch_tokens)))


class SequenceBatches(Generic[BatchT]):
    """The endless sequence of training batches; which one comes at a position depends on the seed alone.

    A batch has a fixed number of examples, if given, else as many as fit the token budget. With `classes`, one for each
    example, there are as many of each.
    """

    one_shape: ClassVar = False

    def __init__(
        self,
        encoded: EncodedSequences[BatchT],
        seed: int,
        batch_tokens: int,
        examples: int | None = None,
        packed: bool = False,
        classes: Ints | None = None,
    ) -> None:
        self.encoded, self.few_shapes = encoded, packed
        self._lengths, self._with_targets = encoded.lengths, encoded.with_targets
        self._rows = RowSchedule(self._lengths[self._with_targets], seed, batch_tokens, packed, examples, classes)

    def at(self, position: int, part: int = 0, parts: int = 1) -> BatchT:
        """The batch at a position, counted from 0 over all epochs, or one shard of it, which may be empty."""
        rows = self._at(position)[part::parts]
        if not self.few_shapes:
            return self.encoded.batch(rows)
        return self.encoded.pack(rows, self._rows.room(int(self._lengths[rows].sum())), self._rows.most)

    def tokens(self, position: int) -> int:
        """The number of examples in the whole batch at a position."""
        return len(self._at(position))

    def epoch_of(self, position: int) -> int:
        """The epoch, counted from 0, that the batch at a position belongs to."""
        return self._rows.epoch_of(position)

    def _at(self, position: int) -> Ints:
        return self._with_targets[self._rows.at(position)]
