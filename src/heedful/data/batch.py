"""What all batches share: moving to a device, a fingerprint of their data, and the order of batches over epochs."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

IGNORE_INDEX = -100  # the target where there is none, as in PyTorch's losses
Ints = NDArray[np.int64]
Value = TypeVar("Value")
Number = TypeVar("Number", int, NDArray[np.int64])
MULTIPLE = 8  # lengths are padded to multiples of this, the tile size of tensor cores
PAD = 0  # the padding id of Heedful's tokenizers


class TensorBatch:
    """A dataclass of tensors, numbers, and tuples of tensors or of numbers."""

    __slots__ = ()

    def to(self, device: torch.device | str, non_blocking: bool = True) -> Self:
        """Copy the batch to a device."""

        def there(part: Any) -> Any:
            if isinstance(part, tuple):
                return tuple(map(there, part))
            return part.to(device, non_blocking=non_blocking) if torch.is_tensor(part) else part

        batch: Any = self
        return replace(batch, **{field.name: there(getattr(batch, field.name)) for field in fields(batch)})


def fingerprint(*arrays: NDArray[Any]) -> str:
    """A SHA-256 over arrays, in order."""
    return hashlib.sha256(b"".join(hashlib.sha256(array.tobytes()).digest() for array in arrays)).hexdigest()


class EpochCache(Generic[Value]):
    """Caches a function of the epoch for the last two epochs."""

    def __init__(self, compute: Callable[[int], Value]) -> None:
        self._compute = compute
        self._cache: dict[int, Value] = {}

    def __call__(self, epoch: int) -> Value:
        if epoch not in self._cache:
            self._cache = dict([*list(self._cache.items())[-1:], (epoch, self._compute(epoch))])
        return self._cache[epoch]


class Epochs:
    """One epoch after another, each planned as a list of batches (arrays of row numbers)."""

    def __init__(self, plan: Callable[[int], list[Ints]]) -> None:
        self._plans = EpochCache(plan)
        self._starts = [0]  # position of the first batch of each epoch planned so far

    def at(self, position: int) -> Ints:
        """The rows at a position, counted from 0 over all epochs."""
        epoch = self.epoch_of(position)
        return self._plans(epoch)[position - self._starts[epoch]]

    def epoch_of(self, position: int) -> int:
        """The epoch, counted from 0, that a position belongs to."""
        # Epochs differ slightly in their number of batches, so a position needs the plans of all epochs before it.
        while self._starts[-1] <= position:
            self._starts.append(self._starts[-1] + len(self._plans(len(self._starts) - 1)))
        return bisect_right(self._starts, position) - 1


class FixedEpochs:
    """Base of batches with `count` batches in every epoch."""

    count: int

    def epoch_of(self, position: int) -> int:
        """The epoch, counted from 0, that the batch at a position belongs to."""
        return position // self.count


@dataclass(frozen=True, slots=True)
class Ragged:
    """Rows of unequal length as one flat array: row i is flat[starts[i]:starts[i + 1]]."""

    flat: NDArray[np.int32]
    starts: NDArray[np.int64]  # (N + 1,)

    @classmethod
    def of(cls, lengths: Sequence[int], parts: Sequence[NDArray[np.int32]]) -> Ragged:
        """Build it from arrays that contain the rows one after the other."""
        return cls(np.concatenate(parts), np.cumsum([0, *lengths], dtype=np.int64))

    def __getitem__(self, row: int) -> NDArray[np.int32]:
        return self.flat[self.starts[row] : self.starts[row + 1]]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The length of each row."""
        return np.diff(self.starts)

    def packed(self, rows: NDArray[np.int64], room: int, first: int, last: int) -> Tensor:
        """Pack rows, each without its first `first` and last `last` ids, into one row of `room` positions."""
        ids = np.full((1, room), PAD, dtype=np.int64)  # (1, S)
        parts = [self.flat[self.starts[row] + first : self.starts[row + 1] - last] for row in rows]
        filled = np.concatenate([self.flat[:0], *parts])
        ids[0, : len(filled)] = filled
        return torch.from_numpy(ids)

    def padded(self, rows: NDArray[np.int64], widest: int) -> tuple[Tensor, Tensor]:
        """Pad rows to a common width, and return their lengths; the width is a multiple of 8, but at most `widest`."""
        lengths = self.starts[rows + 1] - self.starts[rows]  # (B,)
        positions = np.arange(min(round_up(int(lengths.max())), widest))  # (S,)
        real = positions < lengths[:, None]  # (B, S)
        ids = np.full(real.shape, PAD, dtype=np.int64)  # (B, S)
        ids[real] = self.flat[(self.starts[rows][:, None] + positions)[real]]
        return torch.from_numpy(ids), torch.from_numpy(lengths)


def round_up(length: Number) -> Number:
    """A length, or an array of lengths, rounded up to a multiple of 8."""
    return -(-length // MULTIPLE) * MULTIPLE
