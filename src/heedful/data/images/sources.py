"""Images from files: idx as MNIST's, folders of pictures, arrays of numpy, and rows of numbers.

N images, C channels, Y rows, X columns.
"""

from __future__ import annotations

import difflib
import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

from pydantic import Field, model_validator

from heedful.config import Config
from heedful.data.formats.sources import SPLITS, Column, Name, Split, missing_files, no_data, unfit
from heedful.errors import UserError, shown
from heedful.files.reading import entries, exists, is_folder

if TYPE_CHECKING:  # settings are checked without numpy
    import numpy as np
    from numpy.typing import NDArray

PICTURES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm", ".pbm", ".pnm"}

Side = Annotated[int, Field(ge=1, le=100_000)]
Shape = tuple[Side, Side, Side]  # channels, rows, columns
Given = TypeVar("Given")


@dataclass(frozen=True, eq=False)
class Images:
    """The images of one split, with their classes where these are known."""

    pixels: NDArray[Any]  # (N, C, Y, X) uint8, or float32 as they were found
    labels: NDArray[np.int64] | None = None  # (N,)
    names: tuple[str, ...] = ()  # of the classes
    skipped: int = 0  # files beside the pictures that are none

    def __len__(self) -> int:
        return len(self.pixels)

    @property
    def vectors(self) -> NDArray[Any]:
        """Each image as one row of numbers, in the same memory."""
        return self.pixels.reshape(len(self.pixels), -1)  # (N, C * Y * X)


def scaled(pixels: NDArray[Any]) -> NDArray[np.float32]:
    """What a model reads: bytes as numbers from 0 to 1, and other numbers as they are."""
    import numpy as np

    numbers = pixels.astype(np.float32, copy=False)
    return numbers / np.float32(255) if pixels.dtype == np.uint8 else numbers


class ImageData(Config):
    """What all files of images share. Where no validation images are named, those of the test are used."""

    kind: str
    root: Name = Field(".", description="folder that the files are in, seen from the current one")

    @abstractmethod
    def files(self, split: Split) -> list[Path]:
        """The files of a split, none where it is not given."""

    @abstractmethod
    def images(self, split: Split) -> Images:
        """The images of a split whose files are there."""

    def read(self, split: Split) -> Images:
        """The images of a split."""
        if not self.files(split):
            raise no_data(split)
        for problem in self.missing([split]):
            raise problem
        return self.images(split)

    def missing(self, splits: Sequence[Split] = SPLITS) -> list[UserError]:
        """What a look at the files of some splits, without reading, already shows to be wrong."""
        if problems := missing_files(self.root, ()):
            return problems
        files = dict.fromkeys(path for split in splits for path in self.files(split))
        unnamed = [no_data("valid")] if "valid" in splits and not self.files("valid") else []
        return unnamed + [found for path in files if (found := self.unreadable(path)) is not None]

    def unreadable(self, path: Path) -> UserError | None:
        """Why one of its files cannot be read, as far as its entry in the folder tells."""
        problem = unfit(path)
        if problem is not None and problem.expected is not None:
            problem.expected = "a file of images, or of their labels"
        if problem is not None and (near := _nearest(path)):
            problem.todo = f"did you mean {near}?"
        return problem


class ImageFiles(Config):
    """A file of images, and the file of their labels."""

    images: Name = Field(description="idx file of images, plain or gzip")
    labels: Name | None = Field(None, description="idx file of their labels; null: there are none")


class IdxImages(ImageData):
    """Files in the idx format, as MNIST's: numbers of any of its types, images as (N, Y, X) or (N, Y, X, C)."""

    kind: Literal["idx"] = "idx"
    train: ImageFiles = Field(description="files to learn from")
    valid: ImageFiles | None = Field(None, description="files to watch progress on; null: those of the test")
    test: ImageFiles | None = Field(None, description="files for the final figure")

    def files(self, split: Split) -> list[Path]:
        """The file of images, and that of labels if there is one."""
        given = _given(split, self.train, self.valid, self.test)
        names = [] if given is None else [given.images, given.labels]
        return [Path(self.root, name) for name in names if name is not None]

    def images(self, split: Split) -> Images:
        """The images, with their labels."""
        from heedful.data.formats.idx import read_idx
        from heedful.data.images.pixels import images_of

        path, *others = self.files(split)
        array = read_idx(path)
        if array.ndim not in {3, 4}:
            raise _mixed_up(path, "images", array.shape, "(images, rows, columns), or with channels (..., channels)")
        pixels = images_of(array, None, str(path))
        for other in others:
            labels = read_idx(other)
            if labels.ndim != 1:
                raise _mixed_up(other, "labels", labels.shape, "one number for each image")
            return _labelled(pixels, labels, str(other))
        return Images(pixels)


class ImageFolders(ImageData):
    """A folder of pictures for each split, sorted by name, in a folder for each class or in none.

    The classes are those of the training pictures. Animations give their first frame; what is transparent counts with
    the colour beneath.
    """

    kind: Literal["image_folder"] = "image_folder"
    train: Name = Field("train", description="folder to learn from")
    valid: Name | None = Field(None, description="folder to watch progress on; null: that of the test")
    test: Name | None = Field("test", description="folder for the final figure")
    channels: Literal[1, 3] = Field(3, description="1: grey, 3: red, green, blue")
    size: tuple[Side, Side] | None = Field(
        None, description="rows and columns to which pictures are scaled; null: all have one size"
    )

    def files(self, split: Split) -> list[Path]:
        """The folder of a split."""
        name = _given(split, self.train, self.valid, self.test)
        return [] if name is None else [Path(self.root, name)]

    def images(self, split: Split) -> Images:
        """The pictures, whose labels are the folders that they are in."""
        import numpy as np

        from heedful.data.images.pictures import read_pictures

        (folder,) = self.files(split)
        classes = _folders(folder)
        if not classes:
            paths, others = _pictures(folder)
            return Images(read_pictures(paths, self.channels, self.size), skipped=others)
        for problem in self.missing(["train"]):
            raise problem
        names = tuple(entry.name for entry in _folders(self.files("train")[0]) or classes)
        for entry in classes:
            if entry.name not in names:
                raise UserError(
                    "there are no training pictures of this class",
                    where=str(entry),
                    expected="a folder that is among the training pictures too: " + ", ".join(map(shown, names[:20])),
                )
        _require_one_way(folder, classes)
        listed = [_pictures(entry) for entry in classes]
        paths = [path for found, _ in listed for path in found]
        counts = [len(found) for found, _ in listed]
        labels = np.repeat(np.array([names.index(entry.name) for entry in classes], np.int64), counts)
        skipped = sum(others for _, others in listed)
        return Images(read_pictures(paths, self.channels, self.size), labels, names, skipped)

    def unreadable(self, path: Path) -> UserError | None:
        """Why a folder holds no pictures."""
        try:
            if not is_folder(path):
                found = "a file" if exists(path) else "nothing"
                return UserError(
                    "there is no such folder",
                    where=str(path),
                    found=found,
                    expected="pictures, in a folder for each class or in none",
                    todo="data.train, data.valid and data.test name the folders in data.root",
                )
            if not any(_is_picture(entry) for entry in path.rglob("*")):
                return _no_picture(path)
            _folders(path)
        except UserError as error:
            return error
        return None


class ArrayFile(Config):
    """An array of images in a file, and that of their labels."""

    file: Name = Field(description=".npy or .npz file of images")
    key: Name | None = Field(None, description="name of the array in a .npz file; null: there is but one")
    labels: Name | None = Field(
        None, description=".npy file of labels, or their name in the .npz file; null: there are none"
    )

    @model_validator(mode="after")
    def _names_need_an_archive(self) -> Self:
        named = self.key is not None or (self.labels is not None and not self.labels.endswith(".npy"))
        if named and not self.file.endswith(".npz"):
            raise ValueError(f"only a .npz file has arrays with names, and {shown(self.file)} is none")
        return self


class ArrayImages(ImageData):
    """Arrays of numpy: (N, Y, X), (N, Y, X, C) with the channels last, or (N, D) with an image a row.

    Truth values are black and white, whole numbers are bytes from 0 to 255, and real numbers are left as they are. A
    .npy file stays on disk, and is read when it is needed, if its numbers are bytes or 32-bit floats in that order.
    """

    kind: Literal["array"] = "array"
    train: ArrayFile = Field(description="array to learn from")
    valid: ArrayFile | None = Field(None, description="array to watch progress on; null: that of the test")
    test: ArrayFile | None = Field(None, description="array for the final figure")
    shape: Shape | None = Field(
        None, description="channels, rows and columns of an image; null: as the array has them, and a row is one row"
    )

    def files(self, split: Split) -> list[Path]:
        """The file of images, and that of labels if it is another."""
        given = _given(split, self.train, self.valid, self.test)
        names = [] if given is None else [given.file, given.labels if _is_npy(given.labels) else None]
        return [Path(self.root, name) for name in names if name is not None]

    def images(self, split: Split) -> Images:
        """The images, with their labels."""
        from heedful.data.formats.arrays import read_npy, read_npz
        from heedful.data.images.pixels import images_of

        given = _given(split, self.train, self.valid, self.test)
        assert given is not None  # as `read` has seen
        path, *others = self.files(split)
        packed = path.suffix == ".npz"
        pixels = images_of(read_npz(path, given.key, given.labels) if packed else read_npy(path), self.shape, str(path))
        for other in others:
            return _labelled(pixels, read_npy(other), str(other))
        if given.labels is not None:
            return _labelled(pixels, read_npz(path, given.labels), f"{path}:{given.labels}")
        return Images(pixels)


class CsvImages(ImageData):
    """A line of numbers for each image, plain or gzip.

    Whole numbers from 0 to 255, some of them above 1, are bytes; all others are left as they are.
    """

    kind: Literal["csv"] = "csv"
    train: Name = Field(description="file to learn from")
    valid: Name | None = Field(None, description="file to watch progress on; null: that of the test")
    test: Name | None = Field(None, description="file for the final figure")
    header: bool | None = Field(None, description="whether the first line names the columns; null: if it looks so")
    label: Column | Name | None = Field(
        None, description="column of the label, by its name or by its number from 0; null: there is none"
    )
    separator: Annotated[str, Field(min_length=1, max_length=1)] = Field(",", description="what stands between columns")
    shape: Shape | None = Field(
        None, description="channels, rows and columns of an image; null: a square if the numbers make one, else a row"
    )
    longest: int = Field(10_000_000, ge=1, le=100_000_000, description="characters that a line may have")

    def files(self, split: Split) -> list[Path]:
        """The one file of a split."""
        name = _given(split, self.train, self.valid, self.test)
        return [] if name is None else [Path(self.root, name)]

    def images(self, split: Split) -> Images:
        """The images, with their labels."""
        import numpy as np

        from heedful.data.formats.number_rows import read_rows
        from heedful.data.images.pixels import byte_valued, images_of

        (path,) = self.files(split)
        rows, header = read_rows(path, self.separator, self.header, self.longest)
        place = None if self.label is None else self._place(self.label, header, rows.shape[1], path)
        numbers = rows if place is None else np.delete(rows, place, axis=1)
        numbers = numbers.astype(np.uint8 if numbers.size and byte_valued(numbers) else np.float32, copy=False)
        side = math.isqrt(numbers.shape[1])
        shape = (1, side, side) if self.shape is None and side * side == numbers.shape[1] else self.shape
        pixels = images_of(numbers, shape, str(path))
        return Images(pixels) if place is None else _labelled(pixels, rows[:, place], f"{path}, column {place + 1}")

    def _place(self, label: int | str, header: Sequence[str], width: int, path: Path) -> int:
        if isinstance(label, int) and label < width:
            return label
        if isinstance(label, str) and label in header:
            return header.index(label)
        names = ", ".join(map(shown, header[:5])) + (", ..." if len(header) > 5 else "")
        raise UserError(
            f"there is no column {shown(label)}",
            where=f"{path}:1",
            found=f"{width:,} columns" + (f": {names}" if header else " without names"),
            expected="a name from the first line, or a number below their count, the first being 0",
            todo="correct data.label; data.header=true takes the first line for names",
        )


def _given(split: Split, train: Given, valid: Given | None, test: Given | None) -> Given | None:
    """What is named for a split."""
    return {"train": train, "valid": test if valid is None else valid, "test": test}[split]


def _is_npy(name: str | None) -> bool:
    return name is not None and name.endswith(".npy")


def _labelled(pixels: NDArray[Any], labels: NDArray[Any], where: str) -> Images:
    """Images with labels that are nothing but numbers."""
    from heedful.data.images.pixels import class_names, labels_of

    found = labels_of(labels, len(pixels), where)
    return Images(pixels, found, class_names(found))


def _mixed_up(path: Path, wanted: str, shape: Sequence[int], expected: str) -> UserError:
    return UserError(
        f"this file holds no {wanted}",
        where=str(path),
        found=f"an array of {' x '.join(map(str, shape))} numbers",
        expected=expected,
        todo="look whether the files of images and of labels stand in each other's place",
    )


def _nearest(path: Path) -> str | None:
    """The file of the same folder whose name is most like one that is not there."""
    try:
        names = [] if exists(path) else [entry.name for entry in entries(path.parent)]
    except UserError:
        return None
    return next(iter(difflib.get_close_matches(path.name, names, n=1, cutoff=0.8)), None)


def _folders(folder: Path) -> list[Path]:
    """The folders in a folder, by their names."""
    return [entry for entry in entries(folder) if is_folder(entry) and not entry.name.startswith(".")]


def _pictures(folder: Path) -> tuple[list[Path], int]:
    """All pictures in a folder and in those inside it, by their names, and how many files are none."""
    files = [entry for entry in _visible(folder) if not is_folder(entry)]
    found = sorted((entry for entry in files if _is_picture(entry)), key=Path.as_posix)
    if not found:
        raise _no_picture(folder)
    return found, len(files) - len(found)


def _visible(folder: Path) -> Iterator[Path]:
    return (entry for entry in folder.rglob("*") if not _hidden(entry.relative_to(folder).parts))


def _hidden(parts: Iterable[str]) -> bool:
    return any(part.startswith(".") for part in parts)


def _is_picture(path: Path) -> bool:
    return path.suffix.lower() in PICTURES and not path.name.startswith(".")


def _no_picture(folder: Path) -> UserError:
    return UserError(
        "there is no picture in this folder",
        where=str(folder),
        expected="files that end in " + ", ".join(sorted(PICTURES)),
    )


def _require_one_way(folder: Path, classes: Sequence[Path]) -> None:
    loose = [entry.name for entry in entries(folder) if _is_picture(entry)]
    if loose:
        raise UserError(
            "some pictures are in a folder of their class, others are not",
            where=str(folder),
            found=f"{loose[0]} beside the folder {classes[0].name}",
            expected="all pictures in such folders, or none",
        )
