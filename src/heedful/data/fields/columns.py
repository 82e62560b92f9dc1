"""The types of a table's columns: which values they have, when one is missing, and a guess from the values alone.

Readable without torch and numpy, so that a recipe and its files are checked without them.
"""

from __future__ import annotations

import difflib
import json
import os
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Protocol, runtime_checkable

from pydantic import Field

from heedful.config import Config
from heedful.data.images.sources import IMAGE_SUFFIXES, Side
from heedful.data.tokenizers.tokenizer import Bpe, Characters, Unigram, WholeWords, WordPiece
from heedful.errors import UserError, shown
from heedful.files.reading import is_file

MOST_ERRORS = 20  # values that one error lists
LARGEST = 1e30  # larger numbers are probably mistakes, and their squares are inf in 32 bits
MOST_NUMBERS = 65_536  # in a vector
# A guess calls values classes if they are short, few, and each is frequent enough.
CLASS_WORDS, CLASS_VALUES, PER_CLASS, PER_INTEGER = 3, 100, 5, 10
NEARLY_ALL = 0.95  # of the values of a column of numbers are numbers


@runtime_checkable
class Array(Protocol):
    """What is used of an array of NumPy, or of one number of it."""

    ndim: int

    def tolist(self) -> Any:
        """Numbers of Python."""


@runtime_checkable
class Picture(Protocol):
    """What is used of an image of Pillow."""

    mode: str

    def getbands(self) -> tuple[str, ...]:
        """The names of its channels."""


class Place(NamedTuple):
    """Where a value stands: its row, as file:line, its column, and the folder that paths are relative to."""

    row: str
    column: str
    root: Path = Path()

    def error(self, message: str, found: object, expected: str, todo: str | None = None) -> UserError:
        """An error about this value; a path is shown in full."""
        where = f"{self.row}, column {shown(self.column)}"
        text = str(found) if isinstance(found, Path) else shown(found)
        return UserError(message, where=where, found=text, expected=expected, todo=todo)


def is_missing(value: object) -> bool:
    """Whether a value is null, blank, or NaN, as libraries write a missing value."""
    if isinstance(value, str):
        return not value.strip()
    return value is None or (isinstance(value, float) and value != value)


class ColumnType(Config):
    """The base of the types of columns."""

    kind: str

    @property
    def allows_missing(self) -> bool:
        """Whether a value may be missing."""
        return False

    def read(self, value: object, place: Place) -> Any:
        """A value as this type has it; None where it is missing and may be."""
        if not is_missing(value):
            return self.parse(value, place)
        if self.allows_missing:
            return None
        todo = "write it into the row, or remove the row"
        if "missing" in type(self).model_fields:
            todo += f"; or write columns.{place.column}.missing: replace"
        raise place.error("a value is missing", value, self.expected, todo)

    @property
    @abstractmethod
    def expected(self) -> str:
        """What a value is, for errors."""

    @abstractmethod
    def parse(self, value: object, place: Place) -> Any:
        """A value that is not missing, as this type has it."""


Missing = Literal["refuse", "replace"]


class TextColumn(ColumnType):
    """Texts, as the ids of their tokens between `<bos>` and `<eos>`."""

    kind: Literal["text"] = "text"
    tokenizer: Annotated[Bpe | WordPiece | Unigram | Characters | WholeWords, Field(discriminator="kind")] = Field(
        WordPiece(vocab=4000, lowercase=True), description="tokenizer, trained on this column"
    )
    longest: int = Field(
        128, ge=3, le=1_048_576, description="maximum tokens, with the special ones; the rest of a text is not read"
    )
    missing: Missing = Field("refuse", description="a missing text is an error, or an empty text")

    @property
    def allows_missing(self) -> bool:
        """Whether a missing text is an empty one."""
        return self.missing == "replace"

    @property
    def expected(self) -> str:
        """A text."""
        return "a text"

    def parse(self, value: object, place: Place) -> str:
        """The text; a number is a text too."""
        if isinstance(value, str | int | float):
            return str(value)
        raise place.error("this is not a text", value, self.expected)


Scaling = Annotated[
    Literal["standard", "min_max", "none"],
    Field(
        description="standard: minus the mean, divided by the standard deviation of the training rows; min_max: from 0 "
        "to 1 between their smallest and largest value; a constant column becomes 0"
    ),
]


class NumberColumn(ColumnType):
    """Numbers, normalized."""

    kind: Literal["number"] = "number"
    scaling: Scaling = "standard"
    missing: Missing = Field(
        "refuse", description="a missing number is an error, or the mean, with a second input of 1 instead of 0"
    )

    @property
    def allows_missing(self) -> bool:
        """Whether a missing number is replaced by the mean."""
        return self.missing == "replace"

    @property
    def expected(self) -> str:
        """A number."""
        return "a number such as 3.8"

    def parse(self, value: object, place: Place) -> float:
        """The number."""
        return to_number(value, place, self.expected)


class NumbersColumn(ColumnType):
    """Vectors of numbers, each component normalized: a JSON list, or numbers with spaces between."""

    kind: Literal["numbers"] = "numbers"
    size: int | None = Field(
        None, ge=1, le=MOST_NUMBERS, description="components of each vector; null: as the first row has"
    )
    scaling: Scaling = "standard"
    missing: Missing = Field(
        "refuse", description="a missing vector is an error, or the mean, with another input of 1 instead of 0"
    )

    @property
    def allows_missing(self) -> bool:
        """Whether a missing vector is replaced by the mean."""
        return self.missing == "replace"

    @property
    def expected(self) -> str:
        """Some numbers."""
        return f"{self.size or 'some'} numbers, as [1.5, 2] or 1.5 2"

    def parse(self, value: object, place: Place) -> tuple[float, ...]:
        """The components."""
        found = tuple(to_number(one, place, self.expected) for one in components(value))
        if not found or len(found) != (self.size or len(found)):
            raise place.error(f"this vector has {len(found)} components", value, self.expected)
        return found


class ClassColumn(ColumnType):
    """Classes: a few values, each with a name. At prediction, a value that is not in the training rows is `unknown`."""

    kind: Literal["class"] = "class"
    at_least: int = Field(
        1, ge=1, description="a value that fewer training rows have is unknown, so that unknown ones are trained too"
    )
    missing: Missing = Field("refuse", description="a missing class is an error, or unknown")

    @property
    def allows_missing(self) -> bool:
        """Whether a missing class is unknown."""
        return self.missing == "replace"

    @property
    def expected(self) -> str:
        """A class."""
        return "the name of a class"

    def parse(self, value: object, place: Place) -> str:
        """The name of the class."""
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, float) and value.is_integer():
            return str(int(value))  # pandas makes integers floats where one is missing
        if isinstance(value, str | int | float):
            return str(value).strip()
        raise place.error("this is not a class", value, self.expected)


class ImageColumn(ColumnType):
    """Images: paths of files, or from Python also arrays and images of Pillow."""

    kind: Literal["image"] = "image"
    channels: Literal[1, 3] = Field(3, description="1: greyscale; 3: RGB")
    size: tuple[Side, Side] | None = Field(
        None, description="rows and columns that images are resized to; null: they have one size"
    )

    @property
    def expected(self) -> str:
        """An image."""
        return "the path of an image file, relative to data.root"

    def parse(self, value: object, place: Place) -> object:
        """The path of the file, or the image itself."""
        if isinstance(value, Array | Picture):
            return value
        if not isinstance(value, str | os.PathLike):
            raise place.error("this is not an image", value, self.expected)
        path = Path(place.root, value)
        if not is_file(path):
            raise place.error("there is no such image", path, "an image file", "correct the path, or data.root")
        return path


Column = Annotated[TextColumn | NumberColumn | NumbersColumn | ClassColumn | ImageColumn, Field(discriminator="kind")]
Columns = dict[str, Column]


def to_number(value: object, place: Place, expected: str) -> float:
    """A value as a finite number."""
    found = float("nan")
    if isinstance(value, int | float) and not isinstance(value, bool):
        found = float(value) if abs(value) < LARGEST else found
    elif isinstance(value, str) and "_" not in value:  # which Python allows between digits
        with suppress(ValueError):
            found = float(value)
    if not abs(found) < LARGEST:  # true for NaN too
        raise place.error("this is not a number", value, expected)
    return found


def components(value: object) -> Sequence[object]:
    """The components of a vector: a list, JSON, or numbers with spaces or commas between."""
    if isinstance(value, str):
        text = value.strip()
        if text.startswith("["):
            try:
                value = json.loads(text)
            except (ValueError, RecursionError):
                return [value]
        else:
            return text.replace(",", " ").split()
    return value if isinstance(value, Sequence) and not isinstance(value, str | bytes) else [value]


# ------------------------------------------------------------------ a guess
def guess(values: Sequence[object], target: bool = False) -> ColumnType:
    """The type that the values of a column seem to have; a `target` of a few integers is a class."""
    found = [value for value in values if not is_missing(value)]
    missing: Missing = "refuse" if len(found) == len(values) else "replace"
    texts = {
        value if isinstance(value, str) else repr(value) for value in found if isinstance(value, str | int | float)
    }
    if not found:
        return TextColumn(missing=missing)
    if all(map(_seems_image, found)):
        grey = all(isinstance(value, Array) and value.ndim == 2 for value in found)
        return ImageColumn(channels=1 if grey else 3)
    if sum(map(_is_number, found)) >= NEARLY_ALL * len(found):  # the others are then reported as mistakes
        classes = target and len(texts) * PER_INTEGER <= len(found) and len(texts) <= CLASS_VALUES
        if classes and all(_is_number(text) and float(text).is_integer() for text in texts):
            return ClassColumn()
        return NumberColumn(missing=missing)
    sizes = {len(components(value)) for value in found}
    if len(sizes) == 1 and max(sizes) > 1 and all(_is_number(part) for value in found for part in components(value)):
        return NumbersColumn(size=max(sizes), missing=missing)
    few = len(texts) * PER_CLASS <= len(found) and len(texts) <= CLASS_VALUES
    if all(isinstance(value, bool) for value in found) or (
        few and max(len(text.split()) for text in texts) <= CLASS_WORDS
    ):
        return ClassColumn(missing=missing)
    return TextColumn(missing=missing)


def _is_number(value: object) -> bool:
    try:
        to_number(value, Place("", ""), "")
    except UserError:
        return False
    return True


def _seems_image(value: object) -> bool:
    """Whether a value is the path of an image file, or an image from Python."""
    if isinstance(value, str | os.PathLike):
        return Path(value).suffix.lower() in IMAGE_SUFFIXES
    return isinstance(value, Array | Picture)


def complete(
    given: Mapping[str, ColumnType], values: Mapping[str, Sequence[object]], target: str, left_out: Sequence[str]
) -> dict[str, ColumnType]:
    """The types of the columns that are used: those in the recipe, and a guess for each of the others."""
    for name, where in (*((name, "columns") for name in given), (target, "task.predict"),
                        *((name, "task.leave_out") for name in left_out)):  # fmt: skip
        require_column(name, values, where)
    names = [name for name in values if name not in left_out]
    if len(names) < 2 or target in left_out:
        raise UserError(
            "there is nothing to predict from" if target not in left_out else "the column to predict is left out",
            where="task.leave_out", found=", ".join(map(shown, left_out)) or "no column left out",
            expected=f"at least one column besides {shown(target)}",
        )  # fmt: skip
    return {name: given.get(name) or guess(values[name], name == target) for name in names}


def require_column(name: str, names: Iterable[str], where: str) -> None:
    """Refuse a column that the data do not have."""
    known = list(names)
    if name not in known:
        close = next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.6)), None)
        raise UserError(
            f"there is no column {shown(name)}", where=where, found=", ".join(map(shown, known[:MOST_ERRORS])),
            expected="the name of a column of the data", todo=f"did you mean {close}?" if close else None,
        )  # fmt: skip


def describe(given: Mapping[str, ColumnType], columns: Mapping[str, ColumnType], rows: int) -> Iterator[str]:
    """The types that were guessed, for the user."""
    guessed = [f"{name}: {columns[name].kind}" for name in columns if name not in given]
    if guessed:
        yield f"types of columns guessed from {rows:,} rows, which the recipe may set: {', '.join(guessed)}"
