"""Read TensorFlow checkpoints without TensorFlow: an index file, data files, and checksums for all.

The index is a sorted table as in LevelDB: blocks of prefix-compressed keys, an index of the blocks, and a footer.
Its values are protocol buffer messages.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.errors import AGAIN, UserError
from heedful.files.folders import has_file, path_inside, read_bytes
from heedful.files.reading import open_file
from heedful.hub.crc32c import crc32c, mask_crc

MAX_INDEX = 100_000_000  # bytes
MAX_TENSORS = 100_000
MAX_SHARDS = 1000
MAGIC = 0xDB4775248B80FB57
FOOTER = 48  # bytes
TRAILER = 5  # bytes after a block: compression type and checksum
TYPES = {1: torch.float32, 2: torch.float64, 3: torch.int32, 9: torch.int64, 14: torch.bfloat16, 19: torch.float16}


class Entry(NamedTuple):
    """The dtype, shape and location of a tensor."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    crc: int


class DamageError(Exception):
    """A file is damaged; the message says how."""


def find_checkpoint(folder: Path) -> str | None:
    """The file name prefix of a folder's checkpoint, if it has one."""
    names = sorted(path.name.removesuffix(".index") for path in folder.glob("*.index"))
    found = [name for name in names if ".ckpt" in name]
    if len(found) > 1:
        raise UserError(
            "there are several checkpoints in this folder", where=str(folder), found=", ".join(found[:10]),
            todo="keep one in a folder of its own, with its settings and its vocabulary",
        )  # fmt: skip
    return found[0] if found else None


def read_checkpoint(folder: Path, name: str) -> dict[str, Tensor]:
    """The tensors of a checkpoint by name; their checksums are verified."""
    file = folder / f"{name}.index"
    try:
        entries, shards = read_index(read_bytes(folder, file.name, MAX_INDEX))
        found: dict[str, Tensor] = {}
        for shard in range(shards):
            file = folder / f"{name}.data-{shard:05d}-of-{shards:05d}"
            if not has_file(folder, file.name):
                raise DamageError("the file is not there")
            mine = {key: entry for key, entry in entries.items() if entry.shard == shard}
            found |= _read_tensors(path_inside(folder, file.name), mine)
        return {key: found[key] for key in entries}
    except (DamageError, OSError, ValueError) as error:
        raise UserError(
            "this checkpoint cannot be read", where=str(file), found=str(error),
            expected="a TensorFlow checkpoint: NAME.ckpt.index and NAME.ckpt.data-00000-of-00001", todo=AGAIN,
        ) from error  # fmt: skip


def _read_tensors(path: Path, entries: dict[str, Entry]) -> dict[str, Tensor]:
    """The tensors in one data file."""
    with open_file(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        data = memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) if size else b"")
    if sum(entry.size for entry in entries.values()) > size:
        raise DamageError(f"{size:,} bytes, too few for its tensors")
    found: dict[str, Tensor] = {}
    for name, entry in entries.items():
        part = data[entry.offset : entry.offset + entry.size]
        if entry.dtype not in TYPES:
            raise DamageError(f"{name} is of type {entry.dtype}, which is not a supported dtype")
        dtype = TYPES[entry.dtype]
        if len(part) != entry.size or entry.size != math.prod(entry.shape) * dtype.itemsize:
            raise DamageError(f"{name} has {len(part):,} bytes, which are not those of its shape {entry.shape}")
        if mask_crc(crc32c(part)) != entry.crc:
            raise DamageError(f"the checksum of {name} is not the one in the index")
        found[name] = (
            torch.frombuffer(bytearray(part), dtype=dtype).reshape(entry.shape) if part else torch.empty(entry.shape)
        )
    return found


def read_index(data: bytes) -> tuple[dict[str, Entry], int]:
    """The tensors that an index lists, and the number of data files."""
    if len(data) < FOOTER or int.from_bytes(data[-8:], "little") != MAGIC:
        raise DamageError("it does not end like the index of a checkpoint")
    footer = ByteReader(data[-FOOTER:-8])
    others, blocks = (ByteReader(_block(data, footer.number(), footer.number())) for _ in range(2))
    if any(footer.data[footer.at :]) or list(block_entries(others)):
        raise DamageError("it has more than the index of a checkpoint")
    entries: dict[str, Entry] = {}
    shards = 0
    for _, handle in block_entries(blocks):
        location = ByteReader(handle)
        for key, value in block_entries(ByteReader(_block(data, location.number(), location.number()))):
            if key:
                entries[str(key, "utf-8")] = parse_entry(value)
            else:
                shards = parse_header(value)
            if len(entries) > MAX_TENSORS:
                raise DamageError(f"it names more than {MAX_TENSORS:,} tensors")
    if not 1 <= shards <= MAX_SHARDS or any(not 0 <= entry.shard < shards for entry in entries.values()):
        raise DamageError(f"it names {shards:,} data files")
    return entries, shards


def _block(data: bytes, offset: int, size: int) -> bytes:
    """A block of the table; its checksum is verified."""
    end = offset + size + TRAILER
    if end > len(data):
        raise DamageError(f"a block from byte {offset:,} to {end:,} lies beyond the end")
    kind, crc = data[offset + size], int.from_bytes(data[end - 4 : end], "little")
    if mask_crc(crc32c(data[offset : end - 4])) != crc:
        raise DamageError(f"the checksum of the block at byte {offset:,} is wrong")
    if kind:
        raise DamageError("its index is compressed, which is not supported")
    return data[offset : offset + size]


class ByteReader:
    """A reader over bytes."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def number(self) -> int:
        """A varint: seven bits per byte, the last byte below 128."""
        found = 0
        for shift in range(0, 70, 7):
            byte = self.take(1)[0]
            found |= (byte & 127) << shift
            if byte < 128:
                return found & (1 << 64) - 1
        raise DamageError("a varint in it has no end")

    def take(self, count: int) -> bytes:
        """The next `count` bytes."""
        if count > len(self.data) - self.at:
            raise DamageError("a message in it ends too early")
        self.at += count
        return self.data[self.at - count : self.at]

    @property
    def left(self) -> bool:
        """Whether there are more bytes."""
        return self.at < len(self.data)


def block_entries(block: ByteReader) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values of a block; keys are prefix-compressed against the one before."""
    restarts = int.from_bytes(block.data[-4:], "little")
    end = len(block.data) - 4 * (restarts + 1)
    if end < 0:
        raise DamageError("a block in it is too short")
    block.data = block.data[:end]
    key = b""
    while block.left:
        shared, rest, size = block.number(), block.number(), block.number()
        if shared > len(key):
            raise DamageError("a key in it has an invalid prefix length")
        key = key[:shared] + block.take(rest)
        yield key, block.take(size)


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protocol buffer message by number: integers, or the bytes of nested messages."""
    stream = ByteReader(message)
    while stream.left:
        tag = stream.number()
        kind = tag & 7
        if kind == 0:
            yield tag >> 3, stream.number()
        elif kind == 2:
            yield tag >> 3, stream.take(stream.number())
        elif kind in (1, 5):
            yield tag >> 3, int.from_bytes(stream.take(8 if kind == 1 else 4), "little")
        else:
            raise DamageError(f"a message in it has a field of kind {kind}")


def parse_header(message: bytes) -> int:
    """The number of data files, from the table's first entry."""
    found = dict(fields(message))
    if found.get(2, 0) != 0:
        raise DamageError("it is not little-endian")
    return _whole(found.get(1, 0))


def parse_entry(message: bytes) -> Entry:
    """The location of a tensor, from its entry."""
    found = dict(fields(message))
    if 7 in found:
        raise DamageError("it holds a tensor in slices, which is not supported")
    dtype, shard, offset, size, crc = (_whole(found.get(number, 0)) for number in (1, 3, 4, 5, 6))
    shape = found.get(2, b"")
    if not isinstance(shape, bytes):
        raise DamageError("a shape in it is invalid")
    sizes = tuple(
        _whole(dict(fields(below)).get(1, 0)) if isinstance(below, bytes) else -1
        for number, below in fields(shape)
        if number == 2
    )
    if len(sizes) > 8 or any(not 0 <= length < 2**48 for length in sizes):
        raise DamageError(f"it holds a tensor of the impossible shape {sizes}")
    return Entry(dtype, sizes, shard, offset, size, crc)


def _whole(value: int | bytes) -> int:
    if not isinstance(value, int):
        raise DamageError("a field in it is not an integer")
    return value
