"""What all batches share: how they go to a device, what tells their data from any other, and which comes when."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, Generic, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

NOTHING = -100  # the target where there is none
Ints = NDArray[np.int64]
Value = TypeVar("Value")


class TensorBatch:
    """A dataclass of tensors, numbers and tuples of numbers."""

    __slots__ = ()

    def to(self, device: torch.device | str, non_blocking: bool = True) -> Self:
        """The same batch on a device."""
        batch: Any = self
        parts = {field.name: getattr(batch, field.name) for field in fields(batch)}
        on = {name: part.to(device, non_blocking=non_blocking) for name, part in parts.items() if torch.is_tensor(part)}
        return replace(batch, **on)


def fingerprint(*arrays: NDArray[Any]) -> str:
    """A name for exactly these numbers in this order."""
    return hashlib.sha256(b"".join(hashlib.sha256(array.tobytes()).digest() for array in arrays)).hexdigest()


class Latest(Generic[Value]):
    """What a function says of an epoch, kept of the two that were last asked for."""

    def __init__(self, make: Callable[[int], Value]) -> None:
        self._make = make
        self._kept: dict[int, Value] = {}

    def __call__(self, epoch: int) -> Value:
        if epoch not in self._kept:
            self._kept = dict([*list(self._kept.items())[-1:], (epoch, self._make(epoch))])
        return self._kept[epoch]


class Epochs:
    """One epoch after the other, each planned as a list of batches, which are the numbers of their rows."""

    def __init__(self, plan: Callable[[int], list[Ints]]) -> None:
        self._planned = Latest(plan)
        self._starts = [0]  # position of the first batch of each epoch that was looked at

    def at(self, position: int) -> Ints:
        """The rows at a position, counted from 0 over all epochs."""
        epoch = self.epoch_of(position)
        return self._planned(epoch)[position - self._starts[epoch]]

    def epoch_of(self, position: int) -> int:
        """The epoch, counted from 0, that a position belongs to."""
        # Epochs have slightly different numbers of batches, so that a far position asks for all plans before it.
        while self._starts[-1] <= position:
            self._starts.append(self._starts[-1] + len(self._planned(len(self._starts) - 1)))
        return bisect_right(self._starts, position) - 1
