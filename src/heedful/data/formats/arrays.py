"""Read numpy files: .npy, which is memory-mapped, and .npz; objects are never unpickled."""

from __future__ import annotations

import math
import os
import tokenize
import zipfile
import zlib
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from heedful.data.formats.sources import FREE, RATIO
from heedful.errors import UserError, shown
from heedful.files.reading import open_file

MAX_NAMES = 20  # arrays that an error lists
DAMAGED = (ValueError, TypeError, SyntaxError, EOFError, OverflowError, tokenize.TokenError)  # from an invalid header


def read_npy(path: Path) -> NDArray[Any]:
    """Memory-map the array of a .npy file."""
    try:
        with open_file(path) as file:
            shape, order, kind, begin = _read_header(file, os.fstat(file.fileno()).st_size, str(path))
        mode: Any = "c"  # copy-on-write
        return np.asarray(np.memmap(path, kind, mode, begin, shape, order))
    except OSError as error:
        raise UserError(f"this file cannot be read: {error.strerror}", where=str(path)) from None


def read_npz(path: Path, key: str | None, besides: str | None = None) -> NDArray[Any]:
    """The array under a key of a .npz archive; without a key, the only one besides `besides`."""
    try:
        with open_file(path) as file, zipfile.ZipFile(file) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
            matching = [name for name in names if (name == key if key is not None else name != besides)]
            if len(matching) != 1:
                raise UserError(
                    "there is no such array" if key is not None else "the archive has several arrays",
                    where=str(path), found=", ".join(map(shown, names[:MAX_NAMES])) or "no array",
                    expected="one array" if key is None else shown(key),
                    todo="choose one with `key`, as in data.train.key" if key is None else "use one of these names",
                )  # fmt: skip
            entry = archive.getinfo(f"{matching[0]}.npy")
            where = f"{path}:{matching[0]}"
            if entry.file_size > max(FREE, RATIO * entry.compress_size):
                raise UserError(
                    "this archive has a suspiciously high compression ratio", where=where,
                    found=f"{entry.file_size:,} bytes from {entry.compress_size:,}",
                    expected=f"at most {RATIO} times as many", todo="save the array as .npy if you trust it",
                )  # fmt: skip
            content = bytearray(archive.read(entry))
    except OSError as error:
        raise UserError(f"this file cannot be read: {error.strerror}", where=str(path)) from None
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise UserError(
            f"this archive is damaged: {error}", where=str(path), expected="a .npz file, as numpy.savez writes it"
        ) from None
    shape, order, kind, begin = _read_header(BytesIO(content), len(content), where)
    return np.frombuffer(content, kind, offset=begin).reshape(shape, order=order)


def _read_header(file: BinaryIO, size: int, where: str) -> tuple[tuple[int, ...], Any, np.dtype[Any], int]:
    """Shape, order, dtype and data offset of an array in a file of `size` bytes."""
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, kind = read(file)
    except DAMAGED as error:
        raise UserError(
            "this is not a numpy array", where=where, found=shown(str(error).split("\n")[0]),
            expected="a .npy file, as numpy.save writes it",
        ) from None  # fmt: skip
    if kind.hasobject:
        raise UserError(
            "this array contains Python objects, which are never unpickled", where=where, found=f"an array of {kind}",
            expected="numbers",
            todo="save it with a numeric dtype, for example numpy.save(file, array.astype('uint8'))",
        )  # fmt: skip
    expected, actual = math.prod(shape) * kind.itemsize, size - file.tell()
    if min(shape, default=0) < 0 or expected != actual:
        raise UserError(
            "the size of this array differs from its header", where=where, found=f"{actual:,} bytes",
            expected=f"{expected:,} bytes: {' x '.join(map(str, shape))} of {kind}", todo="write the file again",
        )  # fmt: skip
    if not expected:
        raise UserError("this array is empty", where=where, found=f"shape {shape}", expected="numbers")
    return shape, "F" if fortran else "C", kind, file.tell()
