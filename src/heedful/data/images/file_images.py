"""Images that stay in their files and are decoded whenever they are used, for data larger than memory.

N images, C channels, Y rows, X columns.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from heedful.data.images.image_files import (
    ImageFile,
    decode_image,
    quiet,
    read_contents,
    require_size,
    unreadable_error,
)
from heedful.data.images.sources import Resample
from heedful.errors import UserError

Checked = tuple[str, tuple[int, int, int]]  # the hash of all files, and the shape of an image


class FileImages:
    """An array (N, C, Y, X) of bytes whose images are decoded when they are indexed.

    All files are read once at the start: one that cannot be read later was changed since.
    """

    dtype = np.dtype(np.uint8)

    def __init__(
        self,
        files: Sequence[ImageFile],
        channels: Literal[1, 3],
        size: tuple[int, int] | None,
        resample: Resample = "lanczos",
    ) -> None:
        self.files, self.channels, self.size, self.resample = tuple(files), channels, size, resample
        self.sha256, image = _checked(self.files, tuple(map(_stamp, self.files)), channels, size, resample)
        self.shape = (len(files), *image)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, rows: Any) -> NDArray[np.uint8]:
        """Some images (N, C, Y, X), or one (C, Y, X) of an integer."""
        if isinstance(rows, int | np.integer):
            return self.take(np.array([rows]))[0]
        return self.take(np.arange(len(self.files))[rows])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self.take(np.arange(len(self.files)), threads=available_threads()).astype(
            dtype or self.dtype, copy=False
        )

    def take(self, rows: NDArray[np.int64], threads: int = 1) -> NDArray[np.uint8]:
        """The images (N, C, Y, X) of these rows, decoded by some threads."""
        found = np.empty((len(rows), *self.shape[1:]), np.uint8)
        files = [self.files[row] for row in rows]
        if threads == 1:
            with quiet():
                for place, file in enumerate(files):
                    found[place] = self._decode(file)
        else:
            with quiet(), ThreadPoolExecutor(threads) as pool:  # Pillow decodes without the interpreter's lock
                for place, pixels in enumerate(pool.map(self._decode, files)):
                    found[place] = pixels
        return found

    def _decode(self, file: ImageFile) -> NDArray[np.uint8]:
        pixels = decode_image(read_contents(file), file, self.channels, self.size, resample=self.resample)
        if pixels.shape != self.shape[1:]:
            raise UserError(
                "this image has changed since it was checked", where=str(file),
                found=" x ".join(map(str, pixels.shape)), expected=" x ".join(map(str, self.shape[1:])),
                todo="leave the images as they are while a run reads them",
            )  # fmt: skip
        return pixels


def available_threads() -> int:
    """The number of cores that this process may use."""
    return max(1, len(os.sched_getaffinity(0)))


def _stamp(file: ImageFile) -> tuple[int, int]:
    """What changes with the contents of a file, without reading them."""
    if not isinstance(file, Path):
        return file.stamp()
    found = os.stat(file)
    return found.st_size, found.st_mtime_ns


@lru_cache(maxsize=16)
def _checked(
    files: tuple[ImageFile, ...], stamps: tuple[tuple[int, int], ...], channels: Literal[1, 3],
    size: tuple[int, int] | None, resample: Resample,
) -> Checked:  # fmt: skip
    """Read all files once; one error names those that cannot be read."""
    way = "" if resample == "lanczos" else f"{resample} "  # hashes of older runs have no word for it
    digest, unreadable = hashlib.sha256(f"files {channels} {size} {way}".encode()), list[UserError]()
    first: tuple[tuple[int, int, int], ImageFile] | None = None
    with quiet(), ThreadPoolExecutor(available_threads()) as pool:
        for file, found in zip(files, pool.map(partial(_try, channels, size, resample), files), strict=True):
            if isinstance(found, UserError):
                unreadable.append(found)
                continue
            shape, sha256 = found
            first = first or (shape, file)
            require_size(shape, first[0], file, first[1])
            digest.update(sha256)
    if unreadable:
        raise unreadable_error(unreadable, len(files))
    assert first is not None, "a listing has images"
    return digest.hexdigest(), first[0]


def _try(
    channels: Literal[1, 3], size: tuple[int, int] | None, resample: Resample, file: ImageFile
) -> tuple[tuple[int, int, int], bytes] | UserError:
    try:
        contents = read_contents(file)
        one, rows, columns = decode_image(contents, file, channels, size, resample=resample).shape
    except UserError as error:
        return error
    return (one, rows, columns), hashlib.sha256(contents).digest()
