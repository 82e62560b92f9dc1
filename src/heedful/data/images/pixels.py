"""Check arrays from any kind of file, and convert them to images and labels.

N images, C channels, Y rows, X columns, D = C * Y * X values of an image.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heedful.errors import UserError, shown

Array = NDArray[Any]

CHUNK = 2**22  # values checked at a time, so that a memory-mapped file is never loaded as a whole
MOST_CLASSES = 100_000


def to_images(array: Array, shape: tuple[int, int, int] | None, where: str) -> Array:
    """Images (N, C, Y, X) of an array (N, Y, X), (N, Y, X, C) or (N, D), as bytes or as 32-bit floats.

    `shape` is (C, Y, X); if unknown, a row of D values is an image of one row. Booleans are black and
    white, integers are bytes, and floats are left unchanged.
    """
    if not array.size:
        raise UserError(
            "there are no images", where=where, found=f"an array {array.shape}", expected="at least one pixel"
        )
    return np.ascontiguousarray(_convert_dtype(_reshape(array, shape, where), where))


def _reshape(array: Array, shape: tuple[int, int, int] | None, where: str) -> Array:
    """The array as (N, C, Y, X), a view of it."""
    one = array.shape[1:]
    if shape is not None:
        channels, *area = shape
        if one in {(*area, channels), tuple(area)} and math.prod(one) == math.prod(shape):
            return np.moveaxis(array.reshape(-1, *area, channels), -1, 1)
        if one == shape or one == (math.prod(shape),):
            return array.reshape(-1, *shape)
        raise UserError(
            "the images do not have the shape data.shape", where=where,
            found=f"{' x '.join(map(str, one)) or 'no'} numbers an image",
            expected=f"{' x '.join(map(str, shape))} (channels, rows, columns), or {math.prod(shape):,} in a row",
            todo="correct data.shape, or leave it out",
        )  # fmt: skip
    if array.ndim == 4 and one[-1] > 4 and one[0] <= 4:
        raise UserError(
            "which of these dimensions are the channels?", where=where, found=f"an array {array.shape}",
            expected="(images, rows, columns, channels)",
            todo=f"set the image shape, channels first: data.shape={list(one)}",
        )  # fmt: skip
    if array.ndim == 4:
        return np.moveaxis(array, -1, 1)
    if array.ndim in {2, 3}:
        return array.reshape(len(array), 1, *((1, *one) if array.ndim == 2 else one))
    raise UserError(
        "this is not an array of images", where=where, found=f"an array {array.shape}",
        expected="(images, rows, columns), (images, rows, columns, channels) or (images, numbers)",
    )  # fmt: skip


def _convert_dtype(pixels: Array, where: str) -> Array:
    """Convert pixels (N, C, Y, X) of any numeric dtype to uint8 or float32; those that already are, are not copied."""
    kind = pixels.dtype.kind
    if pixels.dtype == np.uint8:
        return pixels
    if kind == "b":
        return pixels.astype(np.uint8) * np.uint8(255)
    if kind in "iu":
        for start, some in _slices(pixels):
            _require((some >= 0) & (some <= 255), some, start, "whole numbers from 0 to 255", where)
        return pixels.astype(np.uint8)
    if kind == "f":
        return _to_float32(pixels, where)
    raise UserError("pixels must be numbers", where=where, found=f"an array of {pixels.dtype}", expected="numbers")


def _to_float32(pixels: Array, where: str) -> NDArray[np.float32]:
    ready = pixels.dtype == np.float32 and pixels.dtype.isnative
    found = pixels if ready else np.empty(pixels.shape, np.float32)
    for start, some in _slices(pixels):
        if not ready:
            with np.errstate(over="ignore"):  # overflow becomes infinite, and is reported
                found[start : start + len(some)] = some
        _require(np.isfinite(found[start : start + len(some)]), some, start, "finite 32-bit numbers", where)
    return found


def _slices(pixels: Array) -> Iterator[tuple[int, Array]]:
    """Slices of images, with the index of the first."""
    step = max(1, CHUNK // math.prod(pixels.shape[1:]))
    for start in range(0, len(pixels), step):
        yield start, pixels[start : start + step]


def _require(good: Array, pixels: Array, start: int, expected: str, where: str) -> None:
    """Refuse invalid pixels; the error names the first."""
    if not good.all():
        place = np.unravel_index(int(np.argmin(good)), good.shape)
        image, channel, row, column = map(int, place)
        raise UserError(
            "this pixel value is invalid",
            where=where,
            found=f"{pixels[place]} in image {start + image:,}, channel {channel}, row {row}, column {column}, "
            "all counted from 0",
            expected=expected,
        )


def is_byte_valued(pixels: NDArray[np.float32]) -> bool:
    """Whether floats are byte values: integers from 0 to 255, some of them above 1."""
    return bool(
        pixels.max() > 1 and pixels.min() >= 0 and pixels.max() <= 255 and not np.any(pixels != np.floor(pixels))
    )


def to_labels(array: Array, count: int, where: str) -> NDArray[np.int64]:
    """The class of each of `count` images, from an array (N,) or (N, 1) of integers."""
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1 or array.dtype.kind not in "biuf":
        raise UserError(
            "these are not labels", where=where, found=f"an array {array.shape} of {array.dtype}",
            expected="one integer per image",
        )  # fmt: skip
    if len(array) != count:
        raise UserError(
            "the number of labels differs from the number of images", where=where, found=f"{len(array):,} labels",
            expected=f"{count:,}, one per image",
        )  # fmt: skip
    good = (array >= 0) & (array < MOST_CLASSES) & (array == np.floor(array))
    if not good.all():
        place = int(np.argmin(good))
        raise UserError(
            "this is not a label", where=where,
            found=f"{shown(array[place].item())} for image {place:,}, counted from 0",
            expected=f"a whole number from 0 to {MOST_CLASSES - 1:,}",
        )  # fmt: skip
    return array.astype(np.int64)


def class_names(labels: Sequence[int] | NDArray[np.int64]) -> tuple[str, ...]:
    """Default names of classes: their indices."""
    return tuple(map(str, range(int(max(labels)) + 1)))
