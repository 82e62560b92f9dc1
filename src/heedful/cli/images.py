"""Images that a command reads: files and folders of the command line, or the run's test set.

N images, C channels, Y rows, X columns.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import typer
from numpy.typing import NDArray
from PIL import Image, ImageOps

from heedful.data.formats.arrays import read_npy, read_npz
from heedful.data.formats.idx import read_idx
from heedful.data.images.image_files import read_image_file
from heedful.data.images.image_spec import ImageSpec
from heedful.data.images.pixels import to_images, to_labels
from heedful.data.images.sources import IMAGE_SUFFIXES, ImageFolders, Images, scale_pixels
from heedful.errors import UserError, printable, shown
from heedful.files.reading import exists, is_folder, open_file
from heedful.runs.images import test_images

GREY = {"1", "L", "LA", "La"}  # Pillow's grey modes


def images_for(run: Path, paths: Sequence[str], canvas: ImageSpec) -> Images:
    """The images of these paths as the model reads them; without paths, the run's test set."""
    if not paths:
        return test_images(run)
    parts = [read_images(path, canvas) for path in paths]
    pixels = np.concatenate([scale_pixels(part.pixels) for part in parts])
    names = parts[0].names
    labels = [part.labels for part in parts if part.labels is not None]
    known = len(labels) == len(parts) and all(part.names == names for part in parts)
    return Images(pixels, np.concatenate(labels), names) if known else Images(pixels)


def read_images(path: str, canvas: ImageSpec) -> Images:
    """The images of one file or folder; FILE.npz:NAME names one array of an archive."""
    file, _, key = path.partition(".npz:")
    place = Path(f"{file}.npz" if key else path)
    if not exists(place):
        raise UserError(
            "there is no such file", where=str(place),
            expected="an image, a folder of images, a .npy or .npz file, or an idx file",
        )  # fmt: skip
    if is_folder(place):
        return _folder(place, canvas)
    suffix = place.suffix.lower()
    if suffix in IMAGE_SUFFIXES:
        return Images(_read_image(place, canvas)[None])
    if suffix == ".npz":
        return _archive(place, key or None, canvas)
    array = read_npy(place) if suffix == ".npy" else read_idx(place)
    return Images(_check_shape(array, canvas, str(place)))


def _folder(folder: Path, canvas: ImageSpec) -> Images:
    """The images of a folder, whose subfolders are classes."""
    channels, (_, rows, columns) = _channels(canvas, folder), canvas.image
    how: Any = {"channels": channels, "size": (rows, columns), "resample": canvas.resample}
    return ImageFolders(root=str(folder), train=".", test=None, **how).read("train")


def _read_image(path: Path, canvas: ImageSpec) -> NDArray[np.uint8]:
    """An image (C, Y, X), converted to the model's channels and size as in training."""
    channels, (_, rows, columns) = _channels(canvas, path), canvas.image
    image = read_image_file(path, channels, (rows, columns), resample=canvas.resample)
    with open_file(path) as plain, Image.open(plain) as file:
        coloured, size = file.mode not in GREY, ImageOps.exif_transpose(file).size
    if size != (columns, rows):
        was, now = (f"{high} rows of {wide} pixels" for wide, high in (size, (columns, rows)))
        typer.echo(f"note: {printable(str(path))} has {was}; it was scaled to the model's {now}", err=True)
    if coloured == (channels == 1):
        was, now = ("in colour", "grey") if coloured else ("grey", "colour")
        typer.echo(f"note: {printable(str(path))} is {was}; it was converted to {now}, as the model reads", err=True)
    return image


def _channels(canvas: ImageSpec, path: Path) -> Any:
    """The number of channels of the model, 1 or 3."""
    if canvas.image[0] not in (1, 3):
        raise UserError(
            f"this model reads {canvas.image[0]} channels, but image files have 1 or 3", where=str(path),
            todo="give the images as a .npy file",
        )  # fmt: skip
    return canvas.image[0]


def _archive(path: Path, key: str | None, canvas: ImageSpec) -> Images:
    """The images of a .npz file, with its array `labels` if it has one."""
    names: list[str] = []
    if zipfile.is_zipfile(path):  # else `read_npz` raises the error
        with zipfile.ZipFile(path) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist()]
    images = [name for name in names if name != "labels"]
    if key is None and len(images) > 1:
        raise UserError(
            "the archive has several arrays", where=str(path), found=", ".join(map(shown, names[:20])),
            todo=f"name the one with the images: {path}:{images[0]}",
        )  # fmt: skip
    pixels = _check_shape(read_npz(path, key, "labels"), canvas, str(path))
    if "labels" not in names or key == "labels":
        return Images(pixels)
    labels = to_labels(read_npz(path, "labels"), len(pixels), f"{path}:labels")
    return Images(pixels, labels, tuple(map(str, range(int(labels.max()) + 1))))


def _check_shape(array: NDArray[Any], canvas: ImageSpec, where: str) -> NDArray[Any]:
    """An array of one or several images as (N, C, Y, X), if they have the size of the training images."""
    channels, rows, columns = canvas.image
    shapes: list[tuple[int, ...]] = [(rows, columns, channels), (channels, rows, columns), (math.prod(canvas.image),)]
    shapes += [(rows, columns)] * (channels == 1)
    if array.shape in shapes:
        array = array[None]
    if array.shape[1:] not in shapes:
        raise UserError(
            "these images do not have the size of the training images", where=where,
            found=f"an array of shape {' x '.join(map(str, array.shape))}",
            expected=f"{rows} rows of {columns} pixels" + (f" in {channels} channels" if channels > 1 else ""),
            todo="resize them first",
        )  # fmt: skip
    return to_images(array, canvas.image, where)
