"""The idx format of MNIST: a dtype, a shape, and data, plain or gzip."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from heedful.data.formats.sources import open_plain_or_gzip
from heedful.errors import UserError, shown

TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}  # third byte of a file
MAX_RANK = 32  # the maximum of numpy
CHUNK = 2**20  # bytes


def read_idx(path: Path) -> NDArray[Any]:
    """Read the array in an idx file, using no more memory than the file has data."""
    with open_plain_or_gzip(path) as stream:
        return _array(CountingReader(stream), str(path))


class CountingReader:
    """A byte stream that counts the bytes read."""

    def __init__(self, stream: BinaryIO) -> None:
        self.stream, self.count = stream, 0

    def read(self, size: int) -> bytearray:
        """Up to `size` bytes."""
        found = bytearray()
        while len(found) < size and (more := self.stream.read(min(size - len(found), CHUNK))):
            found += more
        self.count += len(found)
        return found


def _array(data: CountingReader, where: str) -> NDArray[Any]:
    magic = data.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in TYPES or not 1 <= magic[3] <= MAX_RANK:
        raise UserError(
            "this is not an idx file", where=where, found=f"{shown(bytes(magic))} at its start",
            expected="two zero bytes, the dtype (8, 9, 11, 12, 13 or 14), and the number of dimensions",
            todo="MNIST images start with the bytes 0 0 8 3, its labels with 0 0 8 1",
        )  # fmt: skip
    kind, rank = np.dtype(TYPES[magic[2]]), magic[3]
    sizes = data.read(4 * rank)
    if len(sizes) < 4 * rank:
        raise _truncated(where, data.count, 4 + 4 * rank, f"a header with {rank} dimensions")
    shape = tuple(map(int, np.frombuffer(sizes, ">u4")))
    size = math.prod(shape) * kind.itemsize
    if not size:
        raise UserError("this idx file is empty", where=where, found=f"sizes {shape}", expected="numbers")
    content = data.read(size)
    description = (
        f"{' x '.join(map(str, shape))} numbers of {kind.itemsize} {'byte' if kind.itemsize == 1 else 'bytes'}"
    )
    if len(content) < size:
        raise _truncated(where, data.count, 4 + 4 * rank + size, description)
    if data.read(CHUNK):
        raise UserError(
            "this idx file is longer than its header says", where=where, found=f"{data.count:,} bytes or more",
            expected=f"{4 + 4 * rank + size:,} bytes: {description}", todo="download it again",
        )  # fmt: skip
    return np.frombuffer(content, kind).reshape(shape)


def _truncated(where: str, found: int, size: int, description: str) -> UserError:
    return UserError(
        "this idx file is truncated", where=where, found=f"{found:,} bytes", expected=f"{size:,} bytes: {description}",
        todo="download it again",
    )  # fmt: skip
