"""What is learned of each column from the training rows, as one file: `columns.json`.

N rows, K components, C channels, Y rows and X columns of an image.
"""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from heedful.config import Config, parse
from heedful.data.batch import Ragged
from heedful.data.fields.columns import (
    Array,
    ClassColumn,
    ColumnType,
    ImageColumn,
    NumberColumn,
    NumbersColumn,
    TextColumn,
)
from heedful.data.fields.rows import Rows
from heedful.data.images.file_images import FileImages
from heedful.data.images.image_spec import ImageSpec
from heedful.data.images.inputs import display, prepare
from heedful.data.images.normalization import channel_statistics
from heedful.data.tokenizers.tokenizer import TrainedTokenizer
from heedful.errors import UserError, shown
from heedful.files.reading import read_file

UNKNOWN = 0  # the number of an unknown class; those of the training rows follow
MOST_SHOWN = 20  # classes in an error

Images: TypeAlias = NDArray[Any] | FileImages
Encoded: TypeAlias = Ragged | Images  # the values of a column: ids of texts, or an array with a row for each


class Learned(ColumnType):
    """The base of columns of which something is learned: values become arrays."""

    @abstractmethod
    def encode(self, values: Sequence[Any]) -> Encoded:
        """The values of N rows as an array, or as ids."""

    @property
    @abstractmethod
    def sizes(self) -> dict[str, Any]:
        """What a model has to know of it: its kind, and the size of its vocabulary, vector or image."""


class LearnedText(TextColumn, Learned):
    """The tokenizer of texts."""

    trained: str = Field(description="tokenizer.json")

    @cached_property
    def words(self) -> TrainedTokenizer:
        """The tokenizer."""
        return TrainedTokenizer(self.trained, "columns.json")

    def encode(self, values: Sequence[str | None]) -> Ragged:
        """The ids of texts between `<bos>` and `<eos>`; what exceeds `longest` is not read."""
        room = self.longest - 2
        found = self.words.ids([value or "" for value in values])
        rows = [np.array([self.words.bos, *ids[:room], self.words.eos], np.int32) for ids in found]
        return Ragged.of([len(row) for row in rows], rows)

    def unread(self, text: str | None) -> int:
        """The number of tokens of a text that exceed `longest`."""
        return max(0, len(self.words.ids([text or ""])[0]) + 2 - self.longest)

    @property
    def sizes(self) -> dict[str, Any]:
        """The size of the vocabulary, and the length of the longest text."""
        return {"kind": "text", "vocab": self.words.vocab, "longest": self.longest}


class Normalized(Learned):
    """The base of numbers: (x - shift) / scale for each component, and whether they are missing."""

    shift: tuple[float, ...] = Field(description="what is subtracted from each component")
    scale: tuple[Annotated[float, Field(gt=0)], ...] = Field(description="what each component is divided by")

    def encode(self, values: Sequence[Any]) -> NDArray[np.float64]:
        """Normalized components (N, K); where missing ones are allowed, also 1 or 0 for a missing one (N, K + 1)."""
        missing = np.array([value is None for value in values], bool)  # (N,)
        found = np.zeros((len(values), len(self.shift)))  # (N, K)
        if not missing.all():
            given = np.array([value for value in values if value is not None], np.float64)
            found[~missing] = (given.reshape(len(given), -1) - self.shift) / self.scale
        return np.hstack([found, missing[:, None]]) if self.allows_missing else found  # (N, K) or (N, K + 1)

    def restore(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Numbers (N, K) of which these are the normalized ones."""
        restored: NDArray[np.float64] = values * self.scale + self.shift
        return restored

    @property
    def sizes(self) -> dict[str, Any]:
        """The number of components, and of the input that says whether they are missing."""
        return {"kind": "numbers", "size": len(self.shift) + self.allows_missing}


class LearnedNumber(NumberColumn, Normalized):
    """The normalization of a number."""


class LearnedNumbers(NumbersColumn, Normalized):
    """The normalization of each component of a vector."""


class LearnedClass(ClassColumn, Learned):
    """The names of the classes, whose numbers start from 1."""

    names: tuple[str, ...] = Field(min_length=1, description="the classes, in order")

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The number of each class."""
        return {name: number for number, name in enumerate(self.names, UNKNOWN + 1)}

    def encode(self, values: Sequence[str | None]) -> NDArray[np.int64]:
        """The number of each class (N,); 0 is an unknown one."""
        return np.array([UNKNOWN if value is None else self.numbers.get(value, UNKNOWN) for value in values], np.int64)

    @property
    def sizes(self) -> dict[str, Any]:
        """The number of classes, the unknown one included."""
        return {"kind": "class", "classes": len(self.names) + 1}


class LearnedImage(ImageColumn, Learned):
    """The size of images, and the mean and standard deviation of their channels."""

    image: tuple[int, int, int] = Field(description="channels, rows and columns")
    mean: tuple[float, ...] = Field(description="mean of each channel, for pixels from 0 to 1")
    std: tuple[float, ...] = Field(description="standard deviation of each channel")

    def encode(self, values: Sequence[Any]) -> Images:
        """The pixels of images (N, C, Y, X), which stay in their files if they are files."""
        found = read_images(values, self, self.image[1:])
        if found.shape[1:] != self.image:
            raise UserError(
                "these images do not have the size that the model was trained on", where="the images",
                found=" x ".join(map(str, found.shape[1:])), expected=" x ".join(map(str, self.image)),
            )  # fmt: skip
        return found

    @property
    def sizes(self) -> dict[str, Any]:
        """The size of an image."""
        return {"kind": "image", "channels": self.image[0], "size": self.image[1:]}


AnyLearned = Annotated[
    LearnedText | LearnedNumber | LearnedNumbers | LearnedClass | LearnedImage, Field(discriminator="kind")
]


def read_images(values: Sequence[Any], column: ImageColumn, size: tuple[int, int] | None) -> Images:
    """Images of files or from Python, in one size."""
    if all(isinstance(value, Path) for value in values):
        return FileImages(list(values), column.channels, size)
    images = [np.asarray(value) if isinstance(value, Array) else value for value in values]
    rows, columns = size or display(images[0]).shape[:2]
    return np.stack([prepare(image, ImageSpec((column.channels, rows, columns))) for image in images])


def read_first(values: Sequence[Any], column: ImageColumn, name: str) -> Images:
    """The training images; those of different sizes are an error that names the setting of the column."""
    try:
        return read_images(values, column, column.size)
    except UserError as error:
        if error.todo is not None:
            error.todo = error.todo.replace("data.size", f"columns.{name}.size")
        raise


# ------------------------------------------------------------------ learning
def learn(column: ColumnType, values: Sequence[Any], name: str) -> Any:
    """What is learned of a column from its values in the training rows."""
    if all(value is None for value in values):
        raise UserError("a column has no value", where=f"columns.{name}", todo=f"leave it out: task.leave_out=[{name}]")
    settings = column.model_dump()
    match column:
        case TextColumn():
            tokenizer = TrainedTokenizer.train(column.tokenizer, (value or "" for value in values))
            return LearnedText(**settings, trained=tokenizer.json)
        case NumberColumn():
            shift, scale = normalization(column.scaling, values)
            return LearnedNumber(**settings, shift=shift, scale=scale)
        case NumbersColumn():
            first = next((len(value) for value in values if value is not None), 0)
            settings["size"] = column.size or first
            shift, scale = normalization(column.scaling, values)
            return LearnedNumbers(**settings, shift=shift, scale=scale)
        case ClassColumn():
            return LearnedClass(**settings, names=class_names(values, column.at_least, name))
        case ImageColumn():
            images = read_first(values, column, name)
            mean, std = channel_statistics(images)
            channels, rows, columns = images.shape[1:]
            return LearnedImage(**settings, image=(channels, rows, columns), mean=mean, std=std)
    raise AssertionError(f"a column of the kind {column.kind}")


def normalization(scaling: str, values: Sequence[Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The shift and the scale of each component; the scale of a constant one is 1."""
    given = [value for value in values if value is not None]
    table = np.array(given, np.float64).reshape(len(given), -1)  # (N, K)
    constant = (table == table[0]).all(0)  # whose computed deviation may differ from 0 in the last bits
    if scaling == "standard":
        shift, scale = np.where(constant, table[0], table.mean(0)), np.where(constant, 1.0, table.std(0))
    elif scaling == "min_max":
        shift, scale = table.min(0), np.where(constant, 1.0, table.max(0) - table.min(0))
    else:
        shift, scale = np.zeros(table.shape[1]), np.ones(table.shape[1])
    scale = np.where(scale > 0, scale, 1.0)
    return tuple(shift.tolist()), tuple(scale.tolist())


def class_names(values: Sequence[str | None], at_least: int, name: str) -> tuple[str, ...]:
    """The classes that enough rows have: integers by value, others alphabetically."""
    counts = Counter(value for value in values if value is not None)
    names = [value for value, count in counts.items() if count >= at_least]
    if not names:
        raise UserError(
            "no class is frequent enough", where=f"columns.{name}.at_least", found=f"{len(counts):,} different values",
            expected=f"a value in at least {at_least:,} rows", todo="lower at_least, or make it a text: kind: text",
        )  # fmt: skip
    integers = all(value.removeprefix("-").isdecimal() and len(value) < 20 for value in names)
    return tuple(sorted(names, key=lambda value: (int(value) if integers else 0, value)))


# ------------------------------------------------------------------ all columns
class _SpecFile(Config):
    """The file format of `TableSpec`."""

    inputs: dict[str, AnyLearned] = Field(min_length=1, description="the columns that are read")
    target: dict[str, AnyLearned] = Field(min_length=1, max_length=1, description="the column that is predicted")


@dataclass(frozen=True, eq=False)
class TableSpec:
    """What was learned of the columns that are read, in the model's order, and of the one that is predicted."""

    inputs: Mapping[str, Any]
    name: str  # of the column that is predicted
    target: LearnedClass | LearnedNumber

    @classmethod
    def learn(cls, rows: Rows, columns: Mapping[str, ColumnType], target: str) -> Self:
        """Learn from the training rows."""
        found = {name: learn(column, rows.read(name, column), name) for name, column in columns.items()}
        return cls({name: column for name, column in found.items() if name != target}, target, found[target])

    @classmethod
    def parse(cls, text: str, where: str) -> Self:
        """Parse the JSON text of a file."""
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UserError("this is not JSON", where=where, found=str(error), todo="copy the whole folder") from error
        written = parse(_SpecFile, found if isinstance(found, dict) else {}, file=Path(where))
        ((name, target),) = written.target.items()
        if not isinstance(target, LearnedClass | LearnedNumber):
            raise UserError("invalid value for target", where=where, found=target.kind, expected="a class or a number")
        return cls(written.inputs, name, target)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file."""
        try:
            return cls.parse(read_file(path).decode(), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"this file cannot be read: {error}", where=str(path)) from None

    @cached_property
    def json(self) -> str:
        """The text of the file."""
        inputs = {name: column.model_dump(mode="json") for name, column in self.inputs.items()}
        written = {"inputs": inputs, "target": {self.name: self.target.model_dump(mode="json")}}
        return json.dumps(written, indent=2, ensure_ascii=False) + "\n"

    @property
    def sha256(self) -> str:
        """A hash that identifies what was learned."""
        return hashlib.sha256(self.json.encode()).hexdigest()

    @property
    def vocab(self) -> int:
        """The number of columns that are read."""
        return len(self.inputs)

    @property
    def sizes(self) -> list[dict[str, Any]]:
        """What a model has to know of each column that it reads."""
        return [column.sizes for column in self.inputs.values()]

    def unread(self, rows: Rows, values: Sequence[Encoded]) -> list[int]:
        """The number of tokens of each row that exceed the `longest` of its columns; `values` are the encoded ones."""
        found = [0] * len(rows)
        for (name, column), encoded in zip(self.inputs.items(), values, strict=True):
            if isinstance(column, LearnedText) and isinstance(encoded, Ragged):
                texts = rows.read(name, column)
                for row in np.flatnonzero(encoded.lengths >= column.longest).tolist():
                    found[row] += column.unread(texts[row])
        return found

    def require(self, rows: Rows, target: bool) -> None:
        """Refuse rows without a column that the model reads or, with `target`, predicts."""
        for name in (*self.inputs, *((self.name,) if target else ())) if len(rows) else ():
            column = self.inputs.get(name, self.target)
            if name not in rows.values and not (name != self.name and column.allows_missing):
                raise UserError(
                    f"the column {shown(name)} is missing", where=rows.places[0],
                    found=", ".join(map(shown, list(rows.values)[:MOST_SHOWN])),
                    expected="the columns " + ", ".join(map(shown, self.inputs)),
                )  # fmt: skip
