"""Images from files: idx as MNIST's, folders and zip files of image files, numpy arrays, and rows of numbers.

N images, C channels, Y rows, X columns.
"""

from __future__ import annotations

import difflib
import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from heedful.config import Config
from heedful.data.formats.sources import SPLITS, Column, Name, Split, file_problem, missing_files, no_data
from heedful.data.images.zip_files import ZipMember, members
from heedful.data.tables.splits import Share, held_out
from heedful.errors import UserError, shown
from heedful.files.reading import entries, exists, is_file, is_folder

if TYPE_CHECKING:  # settings are checked without numpy
    import numpy as np
    from numpy.typing import NDArray

    from heedful.data.images.file_images import FileImages

MOST_IN_MEMORY = 4 * 2**30  # bytes of decoded images
IMAGE_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm", ".pbm", ".pnm"}

Resample = Literal["nearest", "bilinear", "bicubic", "lanczos"]
Side = Annotated[int, Field(ge=1, le=100_000)]
Shape = tuple[Side, Side, Side]  # channels, rows, columns


@dataclass(frozen=True, eq=False)
class Images:
    """The images of one split, with their labels if these are known."""

    stored: NDArray[Any] | FileImages  # (N, C, Y, X) uint8 or float32, in memory or in files
    labels: NDArray[np.int64] | None = None  # (N,)
    names: tuple[str, ...] = ()  # of the classes
    skipped: int = 0  # files that are not images
    resample: Resample = "lanczos"  # how those of another size were resized
    files: tuple[str, ...] = ()  # of each image, if each has its own

    def __len__(self) -> int:
        return len(self.stored)

    @property
    def vectors(self) -> NDArray[Any]:
        """Each image as one row; a view of the same memory."""
        return self.pixels.reshape(len(self), -1)  # (N, C * Y * X)

    @cached_property
    def pixels(self) -> NDArray[Any]:
        """All images (N, C, Y, X) in memory."""
        import numpy as np

        return np.asarray(self.stored)


def scale_pixels(pixels: NDArray[Any]) -> NDArray[np.float32]:
    """Model input: bytes scaled to 0..1, floats unchanged."""
    import numpy as np

    numbers = pixels.astype(np.float32, copy=False)
    return numbers / np.float32(255) if pixels.dtype == np.uint8 else numbers


class ImageData(Config):
    """Base of all image sources. Where no validation images are given, the test images are used."""

    kind: str
    root: Name = Field(".", description="folder of the files, relative to the working directory")

    def setting(self, split: Split) -> Any:
        """The setting of a split, if it is given."""
        named: Any = self
        return named.test if split == "valid" and named.valid is None else getattr(named, split)

    def files(self, split: Split) -> list[Path]:
        """The files of a split; empty if the split is not given."""
        name = self.setting(split)
        return [] if name is None else [Path(self.root, name)]

    @abstractmethod
    def images(self, split: Split) -> Images:
        """Read the images of a split, whose files exist."""

    def read(self, split: Split) -> Images:
        """The images of a split."""
        if not self.files(split):
            raise no_data(split)
        for problem in self.problems([split]):
            raise problem
        return self.images(split)

    def problems(self, splits: Sequence[Split] = SPLITS) -> list[UserError]:
        """Problems with the files of these splits that can be seen without reading them."""
        if problems := missing_files(self.root, ()):
            return problems
        files = dict.fromkeys(path for split in splits for path in self.files(split))
        unnamed = [no_data("valid")] if "valid" in splits and not self.files("valid") else []
        return unnamed + [found for path in files if (found := self.unreadable(path)) is not None]

    def unreadable(self, path: Path) -> UserError | None:
        """The error for a file that cannot be read, without opening it."""
        problem = file_problem(path)
        if problem is not None and problem.expected is not None:
            problem.expected = "a file of images, or of their labels"
        if problem is not None and (near := _closest_name(path)):
            problem.todo = f"did you mean {near}?"
        return problem


class ImageFiles(Config):
    """A file of images, and the file of their labels."""

    images: Name = Field(description="idx file of images, plain or gzip")
    labels: Name | None = Field(None, description="idx file of their labels; null: no labels")


class IdxImages(ImageData):
    """idx files such as MNIST's: any of the format's dtypes, images as (N, Y, X) or (N, Y, X, C)."""

    kind: Literal["idx"] = "idx"
    train: ImageFiles = Field(description="files for training")
    valid: ImageFiles | None = Field(None, description="files for validation; null: the test files")
    test: ImageFiles | None = Field(None, description="files for the final score")

    def files(self, split: Split) -> list[Path]:
        """The file of images, and that of labels if there is one."""
        setting = self.setting(split)
        names = [] if setting is None else [setting.images, setting.labels]
        return [Path(self.root, name) for name in names if name is not None]

    def images(self, split: Split) -> Images:
        """The images, with their labels."""
        from heedful.data.formats.idx import read_idx
        from heedful.data.images.pixels import to_images

        path, *others = self.files(split)
        array = read_idx(path)
        if array.ndim not in {3, 4}:
            raise _shape_error(path, "images", array.shape, "(images, rows, columns), or with channels (..., channels)")
        pixels = to_images(array, None, str(path))
        for other in others:
            labels = read_idx(other)
            if labels.ndim != 1:
                raise _shape_error(other, "labels", labels.shape, "one number for each image")
            return _with_labels(pixels, labels, str(other))
        return Images(pixels)


class ImageFolders(ImageData):
    """A folder or a zip file of image files per split, sorted by name, optionally with a subfolder per class.

    The classes are those of the training images. Of animations, the first frame is read; transparent pixels have
    the colour beneath.
    """

    kind: Literal["image_folder"] = "image_folder"
    train: Name = Field("train", description="folder or zip file for training")
    valid: Name | Share | None = Field(
        None,
        description="folder or zip file for validation, or the share or number of images that are held out of train; "
        "null: those for the final score",
    )
    test: Name | Share | None = Field(
        "test",
        description="folder or zip file for the final score, or the share or number of images that are held out of "
        "train",
    )
    seed: int = Field(0, ge=0, lt=2**63, description="random seed of the images that are held out")
    channels: Literal[1, 3] = Field(3, description="1: greyscale, 3: RGB")
    size: tuple[Side, Side] | None = Field(
        None, description="rows and columns that images are resized to; null: all have one size"
    )
    resample: Resample = Field("lanczos", description="how pixels are interpolated")
    keep: Literal["auto", "memory", "files"] = Field(
        "auto",
        description="memory: images are decoded once; files: in every epoch, by `train.workers` processes; "
        "auto: files where the pixels take more than 4 GiB",
    )

    @property
    def shares(self) -> dict[Split, float | int]:
        """What is held out of the training images, by split."""
        given: dict[Split, Any] = {"valid": self.valid, "test": self.test}
        return {split: share for split, share in given.items() if isinstance(share, int | float)}

    def files(self, split: Split) -> list[Path]:
        """The folder or the zip file of a split, which for held-out images is that for training."""
        name = self.setting(split)
        return [] if name is None else [Path(self.root, name if isinstance(name, str) else self.train)]

    def listing(self, split: Split) -> Listing:
        """The image files of a split."""
        listed = list_images(self.files(split)[0])
        if not self.shares or (isinstance(self.setting(split), str) and split != "train"):
            return listed
        part = "test" if split == "valid" and self.valid is None else split
        return listed.part(part, self.shares, self.seed)

    @property
    def division(self) -> dict[str, list[str]]:
        """The names of the held-out images in the folder or zip file for training, by split."""
        (path,) = self.files("train")
        return {
            split: [file.name if isinstance(file, ZipMember) else file.relative_to(path).as_posix() for file in files]
            for split in self.shares
            for files in [self.listing(split).files]
        }

    def images(self, split: Split) -> Images:
        """The images, labelled by their subfolder."""
        (path,) = self.files(split)
        listed = self.listing(split)
        if not listed.classes:
            pixels = load_files(listed.loose, self.channels, self.size, self.keep, self.resample)
            return Images(pixels, None, (), listed.others, self.resample, listed.places)
        for problem in self.problems(["train"]):
            raise problem
        names = tuple(self.listing("train").classes or listed.classes)
        for name in listed.classes:
            if name not in names:
                raise UserError(
                    "there are no training images of this class", where=f"{path}/{name}",
                    expected="a class of the training images: " + ", ".join(map(shown, names[:20])),
                )  # fmt: skip
        pixels = load_files(listed.files, self.channels, self.size, self.keep, self.resample)
        return Images(pixels, listed.labels(names), names, listed.others, self.resample, listed.places)

    def unreadable(self, path: Path) -> UserError | None:
        """The error for a folder or a zip file without images."""
        try:
            if not is_folder(path) and not (is_zip(path) and is_file(path)):
                found = "a file" if exists(path) else "nothing"
                return UserError(
                    "there is no such folder", where=str(path), found=found,
                    expected="images, optionally in a subfolder per class, or a .zip file of such a folder",
                    todo="data.train, data.valid and data.test name the folders in data.root",
                )  # fmt: skip
            if not is_folder(path):
                list_images(path)
            elif not any(_is_image(entry.name) for entry in path.rglob("*")):
                return _no_images_error(path)
            else:
                _subfolders(path)
        except UserError as error:
            return error
        return None


def load_files(
    files: Sequence[Path | ZipMember],
    channels: Literal[1, 3],
    size: tuple[int, int] | None,
    keep: Literal["auto", "memory", "files"],
    resample: Resample = "lanczos",
) -> NDArray[Any] | FileImages:
    """The pixels of image files, in memory or in their files; `auto`: in files where they take more than 4 GiB."""
    from heedful.data.images.file_images import FileImages
    from heedful.data.images.image_files import read_image_files

    large = size is not None and len(files) * channels * math.prod(size) > MOST_IN_MEMORY
    if keep == "files" or (keep == "auto" and large):
        return FileImages(files, channels, size, resample)
    return read_image_files(files, channels, size, resample=resample)


@dataclass(frozen=True)
class Listing:
    """The image files of a folder or a zip file, by subfolder or without, sorted by name."""

    classes: Mapping[str, Sequence[Path | ZipMember]]
    loose: Sequence[Path | ZipMember]
    others: int  # files that are not images

    @cached_property
    def files(self) -> list[Path | ZipMember]:
        """All of them, class by class."""
        return [*self.loose, *(file for found in self.classes.values() for file in found)]

    @property
    def places(self) -> tuple[str, ...]:
        """The path of each."""
        return tuple(map(str, self.files))

    def labels(self, names: Sequence[str]) -> NDArray[np.int64]:
        """The number of the class of each, by the names of all classes."""
        import numpy as np

        counts = [len(found) for found in self.classes.values()]
        return np.repeat(np.array([names.index(name) for name in self.classes], np.int64), counts)

    def part(self, split: Split, shares: Mapping[Split, float | int], seed: int) -> Listing:
        """Those of one split, if some are held out: of each class its share, chosen by the names of the files."""
        classes = [name for name, found in self.classes.items() for _ in found] or [""] * len(self.loose)
        units = [f"{name}/{PurePosixPath(file.name).name}" for name, file in zip(classes, self.files, strict=True)]
        rows = held_out(units, classes, shares, seed, "image")[split]
        if not self.classes:
            return Listing({}, [self.loose[row] for row in rows], self.others)
        chosen: dict[str, list[Path | ZipMember]] = {}
        for row in rows:
            chosen.setdefault(classes[row], []).append(self.files[row])
        return Listing(chosen, (), self.others)


def list_images(path: Path) -> Listing:
    """The image files of a folder or a zip file; they are all in subfolders, or none is."""
    if is_zip(path) and not is_folder(path):
        return _list_zip(path)
    folders = _subfolders(path)
    if not folders:
        files, others = image_files(path)
        return Listing({}, files, others)
    loose = [entry.name for entry in entries(path) if _is_image(entry.name)]
    if loose:
        raise _mixed_error(path, loose[0], folders[0].name)
    listed = {folder.name: image_files(folder) for folder in folders}
    return Listing({name: files for name, (files, _) in listed.items()}, (), sum(n for _, n in listed.values()))


def _list_zip(path: Path) -> Listing:
    """The same of a zip file, without folders around all its images."""
    found, others = zip_images(path)
    images = [(file, file.name.split("/")) for file in found]
    depth, classes, loose = 0, dict[str, list[ZipMember]](), list[ZipMember]()
    while len({parts[depth] for _, parts in images}) == 1 and all(len(parts) > depth + 2 for _, parts in images):
        depth += 1
    for file, parts in images:
        (classes.setdefault(parts[depth], []) if len(parts) > depth + 1 else loose).append(file)
    if classes and loose:
        raise _mixed_error(path, loose[0].name, next(iter(classes)))
    return Listing(dict(sorted(classes.items())), loose, others)


class ArrayFile(Config):
    """A file with an array of images, and optionally one with their labels."""

    file: Name = Field(description="`.npy` or `.npz` file of images")
    key: Name | None = Field(None, description="name of the array in a `.npz` file; null: the only one")
    labels: Name | None = Field(
        None, description="`.npy` file of labels, or their name in the `.npz` file; null: no labels"
    )

    @model_validator(mode="after")
    def _require_archive_for_keys(self) -> Self:
        named = self.key is not None or (self.labels is not None and not self.labels.endswith(".npy"))
        if named and not self.file.endswith(".npz"):
            raise ValueError(f"only a .npz file has named arrays, and {shown(self.file)} is none")
        return self


class ArrayImages(ImageData):
    """Numpy arrays: (N, Y, X), (N, Y, X, C) with the channels last, or (N, D) with an image per row.

    Booleans are black and white, integers are bytes from 0 to 255, and floats are left unchanged. A
    .npy file is memory-mapped if its values are bytes or native 32-bit floats in that order.
    """

    kind: Literal["array"] = "array"
    train: ArrayFile = Field(description="array for training")
    valid: ArrayFile | None = Field(None, description="array for validation; null: the test array")
    test: ArrayFile | None = Field(None, description="array for the final score")
    shape: Shape | None = Field(
        None, description="channels, rows and columns of an image; null: as in the array, a row being one pixel row"
    )

    def files(self, split: Split) -> list[Path]:
        """The file of images, and the file of labels if it is a different one."""
        setting = self.setting(split)
        names = [] if setting is None else [setting.file, setting.labels if _is_npy(setting.labels) else None]
        return [Path(self.root, name) for name in names if name is not None]

    def images(self, split: Split) -> Images:
        """The images, with their labels."""
        from heedful.data.formats.arrays import read_npy, read_npz
        from heedful.data.images.pixels import to_images

        setting = self.setting(split)
        assert setting is not None  # checked by `read`
        path, *others = self.files(split)
        packed = path.suffix == ".npz"
        pixels = to_images(
            read_npz(path, setting.key, setting.labels) if packed else read_npy(path), self.shape, str(path)
        )
        for other in others:
            return _with_labels(pixels, read_npy(other), str(other))
        if setting.labels is not None:
            return _with_labels(pixels, read_npz(path, setting.labels), f"{path}:{setting.labels}")
        return Images(pixels)


class CsvImages(ImageData):
    """A line of numbers per image, plain or gzip.

    Integers from 0 to 255, some of them above 1, are bytes; all others are left unchanged.
    """

    kind: Literal["csv"] = "csv"
    train: Name = Field(description="file for training")
    valid: Name | None = Field(None, description="file for validation; null: the test file")
    test: Name | None = Field(None, description="file for the final score")
    header: bool | None = Field(None, description="whether the first line is a header; null: detect")
    label: Column | Name | None = Field(
        None, description="column of the label, by name or by index from 0; null: no labels"
    )
    separator: Annotated[str, Field(min_length=1, max_length=1)] = Field(",", description="column separator")
    shape: Shape | None = Field(
        None, description="channels, rows and columns of an image; null: a square if possible, else one row"
    )
    longest: int = Field(10_000_000, ge=1, le=100_000_000, description="maximum characters per line")

    def images(self, split: Split) -> Images:
        """The images, with their labels."""
        import numpy as np

        from heedful.data.formats.number_rows import read_rows
        from heedful.data.images.pixels import is_byte_valued, to_images

        (path,) = self.files(split)
        rows, header = read_rows(path, self.separator, self.header, self.longest)
        place = None if self.label is None else self._place(self.label, header, rows.shape[1], path)
        numbers = rows if place is None else np.delete(rows, place, axis=1)
        numbers = numbers.astype(np.uint8 if numbers.size and is_byte_valued(numbers) else np.float32, copy=False)
        side = math.isqrt(numbers.shape[1])
        shape = (1, side, side) if self.shape is None and side * side == numbers.shape[1] else self.shape
        pixels = to_images(numbers, shape, str(path))
        return Images(pixels) if place is None else _with_labels(pixels, rows[:, place], f"{path}, column {place + 1}")

    def _place(self, label: int | str, header: Sequence[str], width: int, path: Path) -> int:
        if isinstance(label, int) and label < width:
            return label
        if isinstance(label, str) and label in header:
            return header.index(label)
        names = ", ".join(map(shown, header[:5])) + (", ..." if len(header) > 5 else "")
        raise UserError(
            f"there is no column {shown(label)}", where=f"{path}:1",
            found=f"{width:,} columns" + (f": {names}" if header else " without names"),
            expected="a name in the header, or an index from 0",
            todo="correct data.label; data.header=true reads the first line as a header",
        )  # fmt: skip


def _is_npy(name: str | None) -> bool:
    return name is not None and name.endswith(".npy")


def _with_labels(pixels: NDArray[Any], labels: NDArray[Any], where: str) -> Images:
    """Images with integer labels."""
    from heedful.data.images.pixels import class_names, to_labels

    found = to_labels(labels, len(pixels), where)
    return Images(pixels, found, class_names(found))


def _shape_error(path: Path, content: str, shape: Sequence[int], expected: str) -> UserError:
    return UserError(
        f"this file has no {content}", where=str(path), found=f"an array of shape {' x '.join(map(str, shape))}",
        expected=expected, todo="check whether the image and label files are swapped",
    )  # fmt: skip


def _closest_name(path: Path) -> str | None:
    """The file in the same folder with the most similar name."""
    try:
        names = [] if exists(path) else [entry.name for entry in entries(path.parent)]
    except UserError:
        return None
    return next(iter(difflib.get_close_matches(path.name, names, n=1, cutoff=0.8)), None)


def _subfolders(folder: Path) -> list[Path]:
    """The subfolders of a folder, sorted by name."""
    return [entry for entry in entries(folder) if is_folder(entry) and not entry.name.startswith(".")]


def zip_images(path: Path) -> tuple[list[ZipMember], int]:
    """All images in a zip file, sorted by name, and the number of other files."""
    files = members(path)
    found = [file for file in files if _is_image(file.name.rpartition("/")[2])]
    if not found:
        raise _no_images_error(path)
    return found, len(files) - len(found)


def image_files(folder: Path) -> tuple[list[Path], int]:
    """All images in a folder and its subfolders, sorted by name, and the number of other files."""
    hidden = (any(part.startswith(".") for part in entry.relative_to(folder).parts) for entry in folder.rglob("*"))
    files = [entry for entry, skip in zip(folder.rglob("*"), hidden, strict=True) if not skip and not is_folder(entry)]
    found = sorted((entry for entry in files if _is_image(entry.name)), key=Path.as_posix)
    if not found:
        raise _no_images_error(folder)
    return found, len(files) - len(found)


def _is_image(name: str) -> bool:
    return Path(name).suffix.lower() in IMAGE_SUFFIXES and not name.startswith(".")


def is_zip(path: Path) -> bool:
    """Whether this is the name of a zip file."""
    return path.suffix.lower() == ".zip"


def _no_images_error(path: Path) -> UserError:
    kind = "zip file" if is_zip(path) else "folder"
    return UserError(
        f"there is no image in this {kind}", where=str(path),
        expected="files that end in " + ", ".join(sorted(IMAGE_SUFFIXES)),
    )  # fmt: skip


def _mixed_error(path: Path, loose: str, folder: str) -> UserError:
    return UserError(
        "some images are in a class folder, others are not", where=str(path),
        found=f"{loose} beside the folder {folder}", expected="all images in subfolders, or none",
    )  # fmt: skip
