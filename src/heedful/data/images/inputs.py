"""Images that a classifier is given: files, images of Pillow and arrays, prepared as in training.

C channels, Y rows, X columns.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from heedful.data.images.image_files import ImageFile, image_pixels, read_image_file, read_image_files
from heedful.data.images.image_spec import ImageSpec
from heedful.data.images.labelled_batches import EncodedLabelledImages, encode_labelled_images
from heedful.data.images.pixels import to_images
from heedful.data.images.sources import ArrayFile, ArrayImages, Images, is_zip, list_images
from heedful.data.images.zip_files import ZipMember
from heedful.errors import UserError
from heedful.files.reading import is_folder

AnyImage = str | ZipMember | os.PathLike[str] | NDArray[Any] | Image.Image


def prepare(image: AnyImage, spec: ImageSpec) -> NDArray[Any]:
    """The pixels (C, Y, X) of an image, in the size and channels of the training images."""
    if isinstance(image, np.ndarray):
        return _array_pixels(image, spec)
    how = file_settings(spec)
    if isinstance(image, Image.Image):
        return image_pixels(image, "an image", **how)
    return read_image_file(_file(image), **how)


def _file(image: str | ZipMember | os.PathLike[str]) -> ImageFile:
    return image if isinstance(image, ZipMember) else Path(image)


def file_settings(spec: ImageSpec) -> dict[str, Any]:
    """How image files are read: the channels, the size, and how they get it."""
    return {
        "channels": file_channels(spec), "size": spec.image[1:], "shorter": spec.shorter, "resample": spec.resample
    }  # fmt: skip


def display(image: AnyImage) -> NDArray[np.uint8]:
    """The pixels (Y, X, 3) of an image in its own size, to draw it."""
    if isinstance(image, np.ndarray):
        array = image.transpose(1, 2, 0) if image.ndim == 3 and image.shape[0] in (1, 3) else image
        pixels = array if array.dtype == np.uint8 else (np.clip(array, 0, 1) * 255 + 0.5).astype(np.uint8)
        return np.broadcast_to(pixels if pixels.ndim == 3 else pixels[..., None], (*pixels.shape[:2], 3))
    found = image_pixels(image, "an image", 3) if isinstance(image, Image.Image) else read_image_file(_file(image), 3)
    return found.transpose(1, 2, 0)


def file_channels(spec: ImageSpec) -> int:
    """The channels of an image file that a model reads: 1 or 3."""
    if spec.image[0] not in (1, 3):
        raise UserError(
            f"this model reads {spec.image[0]} channels, but image files have 1 or 3",
            todo="give the images as arrays",
        )  # fmt: skip
    return spec.image[0]


def _array_pixels(array: NDArray[Any], spec: ImageSpec) -> NDArray[Any]:
    """An array (Y, X), (Y, X, C) or (C, Y, X); bytes of another size are resized."""
    channels, rows, columns = spec.image
    shapes: list[tuple[int, ...]] = [(channels, rows, columns), (rows, columns, channels)]
    shapes += [(rows, columns)] * (channels == 1)
    if array.shape in shapes:
        pixels: NDArray[Any] = to_images(array[None], spec.image, "an image")[0]
        return pixels
    plain = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (1, 3, 4))
    if array.dtype != np.uint8 or not plain or not array.size:
        raise UserError(
            "this array is no image for this model", found=f"an array {array.shape} of {array.dtype}",
            expected=f"{channels} x {rows} x {columns} (channels, rows, columns), or (rows, columns, channels); "
            "bytes may have another size",
        )  # fmt: skip
    return prepare(Image.fromarray(array[..., 0] if array.shape[2:] == (1,) else array), spec)


def read_labelled(data: Path | Sequence[tuple[AnyImage, str]], spec: ImageSpec) -> EncodedLabelledImages:
    """Images with their classes: pairs (image, class), a folder or zip file with subfolders, or .npz with `labels`."""
    if not isinstance(data, Path):
        pixels = np.stack([prepare(image, spec) for image, _ in data])
        names = tuple(dict.fromkeys(str(label) for _, label in data))
        labels = np.array([names.index(str(label)) for _, label in data], np.int64)
        return encode_labelled_images(Images(pixels, labels, names), spec)
    if is_folder(data) or is_zip(data):
        listed = list_images(data)
        names = tuple(listed.classes)
        if not names:
            raise UserError(
                "these images have no classes", where=str(data),
                expected="a subfolder per class, or an .npz with `labels`",
            )  # fmt: skip
        pixels = read_image_files(listed.files, **file_settings(spec))
        return encode_labelled_images(Images(pixels, listed.labels(names), names, files=listed.places), spec)
    file = ArrayFile(file=str(data), labels="labels")
    images = ArrayImages(train=file, test=file, shape=spec.image).read("test")
    assert images.labels is not None, "they are named"
    spec_images = spec.require(images.pixels, str(data))
    return encode_labelled_images(Images(spec_images, images.labels, images.names), spec)
