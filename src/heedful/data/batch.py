"""What all batches share: moving to a device, a fingerprint of their data, and the order of batches over epochs."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, Generic, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

IGNORE_INDEX = -100  # the target where there is none, as in PyTorch's losses
Ints = NDArray[np.int64]
Value = TypeVar("Value")


class TensorBatch:
    """A dataclass of tensors, numbers and tuples of numbers."""

    __slots__ = ()

    def to(self, device: torch.device | str, non_blocking: bool = True) -> Self:
        """Copy the batch to a device."""
        batch: Any = self
        parts = {field.name: getattr(batch, field.name) for field in fields(batch)}
        on = {name: part.to(device, non_blocking=non_blocking) for name, part in parts.items() if torch.is_tensor(part)}
        return replace(batch, **on)


def fingerprint(*arrays: NDArray[Any]) -> str:
    """A SHA-256 over arrays, in order."""
    return hashlib.sha256(b"".join(hashlib.sha256(array.tobytes()).digest() for array in arrays)).hexdigest()


class EpochCache(Generic[Value]):
    """Caches a function of the epoch for the last two epochs."""

    def __init__(self, make: Callable[[int], Value]) -> None:
        self._make = make
        self._kept: dict[int, Value] = {}

    def __call__(self, epoch: int) -> Value:
        if epoch not in self._kept:
            self._kept = dict([*list(self._kept.items())[-1:], (epoch, self._make(epoch))])
        return self._kept[epoch]


class Epochs:
    """One epoch after another, each planned as a list of batches (arrays of row numbers)."""

    def __init__(self, plan: Callable[[int], list[Ints]]) -> None:
        self._planned = EpochCache(plan)
        self._starts = [0]  # position of the first batch of each epoch planned so far

    def at(self, position: int) -> Ints:
        """The rows at a position, counted from 0 over all epochs."""
        epoch = self.epoch_of(position)
        return self._planned(epoch)[position - self._starts[epoch]]

    def epoch_of(self, position: int) -> int:
        """The epoch, counted from 0, that a position belongs to."""
        # Epochs differ slightly in their number of batches, so a far position needs all plans before it.
        while self._starts[-1] <= position:
            self._starts.append(self._starts[-1] + len(self._planned(len(self._starts) - 1)))
        return bisect_right(self._starts, position) - 1
