"""Memory that a process shares with a worker, in slots: a large batch is written once, and used where it lies."""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

COUNT = 3  # of slots: one that is filled, one that waits, one in use
ROOM = 2**30  # bytes of addresses of a slot; memory is taken when it is first written to
ALIGNED = 8  # bytes of the largest dtype, at whose multiples every array starts


class Slots:
    """Made before the worker starts; the worker fills slots, and the other process says which are free again."""

    def __init__(self) -> None:
        file = os.memfd_create("batches")
        try:
            os.ftruncate(file, COUNT * ROOM)
            self.memory = mmap.mmap(file, COUNT * ROOM)
        finally:
            os.close(file)
        self.free, self.freed = os.pipe()  # the numbers of free slots: the end of the worker, and the other
        os.write(self.freed, bytes(range(COUNT)))
        self._in_use: dict[int, weakref.ref[Any]] = {}

    def fill(self, contents: Sequence[NDArray[np.uint8]]) -> int:
        """Write arrays into a slot, as soon as one is free, in a worker; returns its number."""
        if not (number := os.read(self.free, 1)):
            raise BrokenPipeError("the other process has gone")
        begin = number[0] * ROOM
        for content in contents:
            np.frombuffer(self.memory, np.uint8, content.nbytes, begin)[:] = content
            begin += aligned(content.nbytes)
        return number[0]

    def contents(self, number: int, length: int) -> Any:
        """The contents of a slot, which is free again once nothing refers to them."""
        found = (ctypes.c_char * length).from_buffer(self.memory, number * ROOM)
        if len(self._in_use) < COUNT - 1:
            self._in_use[number] = weakref.ref(found)
            return found
        kept = bytearray(found)  # else the worker might wait for a slot, and the other process for the worker
        os.write(self.freed, bytes([number]))
        return kept

    def release(self) -> None:
        """Tell the worker which slots are free again."""
        for number in [number for number, contents in self._in_use.items() if contents() is None]:
            del self._in_use[number]
            os.write(self.freed, bytes([number]))


def aligned(length: int) -> int:
    """The bytes that an array takes."""
    return length + -length % ALIGNED
