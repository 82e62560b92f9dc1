"""Which sequences come at each position of training, of those that have one side only: a function of the seed alone."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from heedful.data.order import permutation
from heedful.data.pairs.batches import POOL, TILE, by_length, cut, most_packed, plan, plan_packed, pooled

Ints = NDArray[np.int64]
Plan = Callable[[Ints, int, int, int], list[Ints]]  # lengths, seed, epoch, size of a batch -> its batches

SHAPES = 8  # about as many that packed batches of a fixed number of sequences have


class Rows:
    """The endless sequence of batches as row numbers: of like length under a budget of tokens, or packed into it.

    Where a number of examples is given, each batch has so many instead; packed, they come in random order.
    """

    def __init__(self, lengths: Ints, seed: int, batch_tokens: int, packed: bool, examples: int | None = None) -> None:
        self.seed, self._size = seed, examples or batch_tokens
        self.most = examples or most_packed(batch_tokens)  # sequences in a packed batch
        plans: tuple[Plan, Plan] = (plan, plan_packed) if examples is None else (alike, drawn)
        self._choose = plans[packed]
        usual = self.most * float(lengths.mean())  # tokens in a batch of a fixed number of sequences
        self._step = batch_tokens if examples is None else TILE * max(1, round(usual / SHAPES / TILE))
        self._lengths = np.stack([lengths, np.ones_like(lengths)], axis=1)  # (N, 2), as of pairs with an empty side
        self._starts = [0]  # position of the first batch of each epoch that was looked at
        self._plans: dict[int, list[Ints]] = {}  # of the two epochs that were last looked at

    def at(self, position: int) -> Ints:
        """The rows at a position, counted from 0 over all epochs."""
        epoch = self.epoch_of(position)
        return self._planned(epoch)[position - self._starts[epoch]]

    def room(self, tokens: int) -> int:
        """The places of a packed batch with so many tokens: always the same, or one of few numbers."""
        return -(-max(1, tokens) // self._step) * self._step

    def epoch_of(self, position: int) -> int:
        """The epoch, counted from 0, that a position belongs to."""
        while self._starts[-1] <= position:
            self._starts.append(self._starts[-1] + len(self._planned(len(self._starts) - 1)))
        return bisect_right(self._starts, position) - 1

    def _planned(self, epoch: int) -> list[Ints]:
        if epoch not in self._plans:
            latest = list(self._plans.items())[-1:]
            self._plans = dict([*latest, (epoch, self._choose(self._lengths, self.seed, epoch, self._size))])
        return self._plans[epoch]


def alike(lengths: Ints, seed: int, epoch: int, examples: int) -> list[Ints]:
    """The batches of an epoch as row numbers: so many sequences of like lengths each."""
    return pooled(lengths, seed, epoch, POOL * examples, lambda rows: parted(rows, examples))


def drawn(lengths: Ints, seed: int, epoch: int, examples: int) -> list[Ints]:
    """The batches of an epoch as row numbers: so many sequences each, whatever their lengths."""
    return parted(permutation(seed, epoch, len(lengths)), examples)


def parted(rows: Ints, examples: int) -> list[Ints]:
    """Rows in parts of a size, the last one smaller."""
    return [rows[start : start + examples] for start in range(0, len(rows), examples)]


def in_order(lengths: Ints, batch_tokens: int) -> list[Ints]:
    """Every row once, for evaluation: the longest first, so that a lack of memory shows at once."""
    sides = np.stack([lengths, np.ones_like(lengths)], axis=1)  # (N, 2)
    return list(reversed(cut(by_length(np.arange(len(lengths)), sides), sides, batch_tokens)))
