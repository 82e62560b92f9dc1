"""Image files, read with Pillow."""

from __future__ import annotations

import math
import os
import struct
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from heedful.data.images.sources import Resample
from heedful.data.images.zip_files import MOST_BYTES, ZipMember
from heedful.errors import UserError
from heedful.files.reading import open_file

ImageFile = Path | ZipMember

MOST_NAMED = 10  # unreadable images in an error
WARNINGS = threading.RLock()  # filters of warnings are the process's
DAMAGED = (OSError, SyntaxError, ValueError, EOFError, struct.error, IndexError, TypeError, KeyError, OverflowError)


def read_image_files(
    paths: Sequence[ImageFile],
    channels: Literal[1, 3],
    size: tuple[int, int] | None = None,
    shorter: int | None = None,
    resample: Resample = "lanczos",
) -> NDArray[np.uint8]:
    """Images of one size (N, C, Y, X); others are resized if a size is given. One error names all unreadable ones."""
    first, unreadable = None, list[UserError]()
    for number, path in enumerate(paths):
        try:
            picture = read_image_file(path, channels, size, shorter, resample)
        except UserError as error:
            unreadable.append(error)
            continue
        if first is None:
            first, origin = picture, path
            found = np.empty((len(paths), *first.shape), np.uint8)
        require_size(picture.shape, first.shape, path, origin)
        found[number] = picture
    if unreadable:
        raise unreadable_error(unreadable, len(paths))
    return found


def require_size(shape: tuple[int, ...], first: tuple[int, ...], path: ImageFile, origin: ImageFile) -> None:
    """Refuse an image of another size than the first."""
    if shape != first:
        raise UserError(
            "this image has a different size from the first", where=str(path), found=_size(shape),
            expected=f"{_size(first)}, as {origin} has", todo=f"resize all to one size: data.size={list(first[1:])}",
        )  # fmt: skip


def unreadable_error(errors: Sequence[UserError], count: int) -> UserError:
    """One error for all images that cannot be read."""
    if len(errors) == 1:
        return errors[0]
    names = [f"{error.where}: {error.message}" for error in errors[:MOST_NAMED]]
    more = [f"and {len(errors) - MOST_NAMED:,} more"] if len(errors) > MOST_NAMED else []
    return UserError(
        f"{len(errors):,} of {count:,} images cannot be read", found="\n".join([*names, *more]),
        todo="replace or remove them",
    )  # fmt: skip


def read_image_file(
    path: ImageFile,
    channels: Literal[1, 3],
    size: tuple[int, int] | None = None,
    shorter: int | None = None,
    resample: Resample = "lanczos",
) -> NDArray[np.uint8]:
    """One image (C, Y, X) in greyscale or RGB, upright; of an animation, the first frame."""
    with quiet():
        return decode_image(read_contents(path), path, channels, size, shorter, resample)


@contextmanager
def quiet() -> Iterator[None]:
    """Without Pillow's warnings about metadata: around threads, since they share what is ignored."""
    with WARNINGS, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def read_contents(path: ImageFile) -> bytes:
    """The bytes of an image file."""
    try:
        if isinstance(path, ZipMember):
            return path.read().getvalue()
        with open_file(path) as plain:
            size = os.fstat(plain.fileno()).st_size
            if size > MOST_BYTES:
                raise OSError(f"it has more than {MOST_BYTES:,} bytes")
            return plain.read(size)
    except OSError as error:
        raise _damaged_error(path, error) from None


def decode_image(
    contents: bytes,
    path: ImageFile | str,
    channels: Literal[1, 3],
    size: tuple[int, int] | None = None,
    shorter: int | None = None,
    resample: Resample = "lanczos",
) -> NDArray[np.uint8]:
    """One image (C, Y, X) from the bytes of its file, which the path names in errors."""
    with _checked(path), _opened(contents) as file:
        return image_pixels(file, str(path), channels, size, shorter, resample)


def open_image(contents: bytes, where: str) -> Image.Image:
    """The image in the contents of a file."""
    with quiet(), _checked(where):
        image = _opened(contents)
        image.load()
        return image


def _opened(contents: bytes) -> Image.Image:
    """An image that is not suspiciously large, of which Pillow only warns."""
    image = Image.open(BytesIO(contents))
    if image.width * image.height > (Image.MAX_IMAGE_PIXELS or math.inf):
        raise Image.DecompressionBombError(f"{image.width * image.height:,} pixels")
    return image


@contextmanager
def _checked(path: object) -> Iterator[None]:
    """Errors of Pillow as errors for the user."""
    try:
        yield
    except Image.DecompressionBombError as error:
        raise UserError(
            "this image is suspiciously large", where=str(path), found=str(error).split(",")[0],
            expected=f"at most {Image.MAX_IMAGE_PIXELS:,} pixels", todo="resize it if you trust it",
        ) from None  # fmt: skip
    except DAMAGED as error:
        raise _damaged_error(path, error) from None


def _damaged_error(path: object, error: Exception) -> UserError:
    unknown = isinstance(error, UnidentifiedImageError)
    found = "no known image format" if unknown else f"{getattr(error, 'strerror', None) or error}"
    return UserError(
        "this image cannot be read", where=str(path), found=found,
        expected="an undamaged image: PNG, JPEG, BMP, GIF, WebP, TIFF or PNM",
        todo="open it in a viewer; replace or remove it",
    )  # fmt: skip


def image_pixels(
    image: Image.Image,
    where: str,
    channels: Literal[1, 3],
    size: tuple[int, int] | None = None,
    shorter: int | None = None,
    resample: Resample = "lanczos",
) -> NDArray[np.uint8]:
    """The pixels (C, Y, X) of an image in Pillow, resized to rows and columns.

    With `shorter`, its shorter side is resized to that, and the centre is cropped; otherwise it may be distorted.
    """
    _require_bytes(image, where)
    image.load()  # metadata may come last
    turned = image.getexif().get(ExifTags.Base.Orientation, 1) != 1
    picture = ImageOps.exif_transpose(image) if turned else image
    mode = "L" if channels == 1 else "RGB"
    picture = picture if picture.mode == mode else picture.convert(mode)
    method = Image.Resampling[resample.upper()]
    if size is not None and shorter is not None:
        wide, high = picture.size
        least = min(wide, high)
        picture = picture.resize((wide * shorter // least, high * shorter // least), method)
        left, top = round((picture.width - size[1]) / 2), round((picture.height - size[0]) / 2)
        picture = picture.crop((left, top, left + size[1], top + size[0]))
    elif size is not None and picture.size != size[::-1]:
        picture = picture.resize(size[::-1], method)
    planes = [np.frombuffer(picture.tobytes("raw", band), np.uint8) for band in mode]  # faster than a transposed copy
    return np.stack(planes).reshape(channels, picture.height, picture.width)


def _require_bytes(file: Image.Image, where: str) -> None:
    if file.mode[0] in "IF":
        raise UserError(
            "this image has more than 8 bits per channel", where=where, found=f"Pillow's mode {file.mode}",
            expected="8 bits per channel",
            todo="convert it to 8 bits, or store the values as an array: data.kind=array",
        )  # fmt: skip


def _size(shape: tuple[int, ...]) -> str:
    return f"{shape[1]} rows of {shape[2]} pixels"
