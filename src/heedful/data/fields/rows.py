"""Rows with named columns: from CSV, TSV, JSON lines and Parquet files, and from Python."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from pydantic import Field

from heedful.data.fields.columns import MOST_ERRORS, Array, ColumnType, Picture, Place
from heedful.data.formats.sources import FilePerSplit, Split
from heedful.data.formats.tables import MAX_FIELD
from heedful.data.tables.reading import Format, Record, read_records
from heedful.errors import UserError, shown

Row = Mapping[str, object]


@dataclass(frozen=True, eq=False)
class Rows:
    """The values of each column, and where each row stands; a value that a row does not have is None."""

    values: dict[str, list[object]]
    places: list[str]
    root: Path = Path()
    skipped: int = 0  # rows are never left out

    def __len__(self) -> int:
        return len(self.places)

    @classmethod
    def of(cls, rows: Iterable[Row], places: Iterable[str], root: Path = Path()) -> Rows:
        """Rows that are given one by one; the columns are those of any row, in the order in which they occur."""
        found, where, values = list(rows), list(places), dict[str, list[object]]()
        for number, row in enumerate(found):
            for name, value in row.items():
                values.setdefault(name, [None] * len(found))[number] = value
        return cls(values, where, root)

    def one_by_one(self) -> Iterator[tuple[dict[str, object], str]]:
        """Each row, and where it stands."""
        for number, place in enumerate(self.places):
            yield {name: column[number] for name, column in self.values.items()}, place

    def part(self, start: int, stop: int) -> Rows:
        """Some of the rows, in order."""
        values = {name: column[start:stop] for name, column in self.values.items()}
        return Rows(values, self.places[start:stop], self.root)

    def read(self, name: str, column: ColumnType) -> list[Any]:
        """The values of a column as its type has them; one error for all that are not."""
        found, problems = list[Any](), list[UserError]()
        for value, row in zip(self.values.get(name, [None] * len(self)), self.places, strict=True):
            try:
                found.append(column.read(value, Place(row, name, self.root)))
            except UserError as error:
                problems.append(error)
        if problems:
            raise joined(problems, f"{len(problems):,} of {len(self):,} values of the column {shown(name)} are invalid")
        return found

    def problems(self, columns: Mapping[str, ColumnType]) -> list[UserError]:
        """What is wrong with the values of some columns, one error for each column."""
        found = list[UserError]()
        for name, column in columns.items():
            try:
                self.read(name, column)
            except UserError as error:
                found.append(error)
        return found


def joined(problems: Sequence[UserError], message: str) -> UserError:
    """One error for several."""
    if len(problems) == 1:
        return problems[0]
    more = len(problems) - MOST_ERRORS
    todo = f"start with these; {more:,} more are not shown" if more > 0 else None
    return UserError(message, problems=problems[:MOST_ERRORS], todo=todo)


# ------------------------------------------------------------------ files
class RowFiles(FilePerSplit):
    """The base of tables with a file per split."""

    longest: int = Field(1_000_000, ge=1, le=MAX_FIELD, description="maximum characters per line")

    @property
    @abstractmethod
    def form(self) -> Format:
        """How its files are written."""

    def read(self, split: Split) -> Rows:
        """The rows of a split."""
        path = self.path(split)
        found = named_rows(read_records(path, self.form), self.root)
        if not len(found):
            raise UserError("there are no rows", where=str(path), expected="at least one row")
        return found


class CsvRows(RowFiles):
    """Comma-separated values with the names of the columns in the first line, plain or gzip."""

    kind: Literal["csv"] = "csv"
    separator: str = Field(",", min_length=1, max_length=1, description="column separator")

    @property
    def form(self) -> Format:
        """Comma-separated values in quotes."""
        return Format("csv", self.separator, True, longest=self.longest)


class TsvRows(RowFiles):
    """Tab-separated columns without quoting, with their names in the first line, plain or gzip."""

    kind: Literal["tsv"] = "tsv"

    @property
    def form(self) -> Format:
        """Values between tabs."""
        return Format("tsv", "\t", False, longest=self.longest)


class JsonlRows(RowFiles):
    """One JSON object per line, whose keys are the columns, plain or gzip."""

    kind: Literal["jsonl"] = "jsonl"

    @property
    def form(self) -> Format:
        """JSON lines."""
        return Format("jsonl", longest=self.longest)


class ParquetRows(RowFiles):
    """Parquet files, which need the package pyarrow."""

    kind: Literal["parquet"] = "parquet"

    @property
    def form(self) -> Format:
        """Parquet."""
        return Format("parquet")


def named_rows(records: Iterable[Record], root: str) -> Rows:
    """Rows whose columns all have names; one without is probably the index of another library's table."""
    found = list(records)
    for row, place in found[:1]:
        if "" in row:
            raise UserError(
                "a column has no name", where=place, found=shown(" | ".join(row)),
                expected="a first line with a name for each column",
            )  # fmt: skip
    rows = ({name: _plain(value) for name, value in row.items()} for row, _ in found)
    return Rows.of(rows, (place for _, place in found), Path(root))


def rows_in(path: Path) -> Rows:
    """The rows of a file, in the format that its name says."""
    found = named_rows(read_records(path), str(path.parent))
    if not len(found):
        raise UserError("there are no rows", where=str(path), expected="at least one row")
    return found


# ------------------------------------------------------------------ Python
@runtime_checkable
class DataFrame(Protocol):
    """What is used of a DataFrame of pandas."""

    columns: Any

    def isna(self) -> Any:
        """Which values are missing."""

    def itertuples(self, index: bool = True, name: str | None = "Pandas") -> Iterable[tuple[object, ...]]:
        """The rows."""


@runtime_checkable
class PolarsFrame(Protocol):
    """What is used of a DataFrame of polars."""

    def iter_rows(self, *, named: Literal[True]) -> Iterable[Row]:
        """The rows."""


@runtime_checkable
class Featured(Protocol):
    """What is used of a `Dataset` of the package `datasets`: what is known of its columns."""

    features: Any


@runtime_checkable
class ClassFeature(Protocol):
    """What is used of a `ClassLabel` there: the names of the classes, whose values are numbers."""

    names: Sequence[str]

    def int2str(self, values: Any) -> Any:
        """The name of a number."""


@runtime_checkable
class ListFeature(Protocol):
    """What is used of a list there: what its elements are."""

    feature: Any


Table = Sequence[Row] | DataFrame | PolarsFrame | Iterable[Row]


def from_python(table: Table, name: str = "row") -> Rows:
    """Rows from Python: dicts, a DataFrame of pandas or polars, or a `Dataset` of the package `datasets`."""
    found = list(_records(table))
    places = [f"{name}[{number}]" for number in range(len(found))]
    for row, place in zip(found, places, strict=True):
        if not isinstance(row, Mapping) or not all(isinstance(key, str) for key in row):
            raise UserError(
                "this is not a row", where=place, found=shown(row), expected="a dict with a value for each column"
            )
    return Rows.of(({key: _plain(value) for key, value in row.items()} for row in found), places)


def _records(table: Table) -> Iterator[Row]:
    if isinstance(table, DataFrame):
        names = [str(name) for name in table.columns]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise UserError(
                "two columns have one name", where="data", found=shown(twice), expected="a name for each column",
                todo="rename one: frame.columns = [...]",
            )  # fmt: skip
        rows = zip(table.itertuples(False, None), table.isna().itertuples(False, None), strict=True)
        for values, missing in rows:
            cells = zip(names, values, missing, strict=True)
            yield {name: None if bool(absent) else value for name, value, absent in cells}
    elif isinstance(table, PolarsFrame):
        yield from table.iter_rows(named=True)
    else:
        classes = _classes(table)
        for row in table:
            named = classes.items() if isinstance(row, Mapping) else ()
            yield {**row, **{name: _named(row.get(name), names) for name, names in named}} if named else row


def _classes(table: object) -> dict[str, Sequence[str]]:
    """The names of the classes of each column of a `Dataset` whose values are their numbers, or lists of them."""
    found = dict[str, Sequence[str]]()
    features = table.features if isinstance(table, Featured) else None
    for name, feature in dict(features or {}).items():
        inner = feature.feature if isinstance(feature, ListFeature) else feature
        inner = inner[0] if isinstance(inner, list) and inner else inner
        if isinstance(inner, ClassFeature):
            found[name] = inner.names
    return found


def _named(value: object, names: Sequence[str]) -> object:
    """The name of a class, or the names of several; -1 is a missing one."""
    number = value.tolist() if isinstance(value, Array) else value
    if isinstance(number, list):
        return [_named(one, names) for one in number]
    if not isinstance(number, int) or number >= len(names):
        return number
    return names[number] if number >= 0 else None


def _plain(value: object) -> object:
    """A value as files have it: numbers and vectors of NumPy as those of Python; other objects as text."""
    if isinstance(value, Array) and value.ndim < 2:
        return value.tolist()
    known = isinstance(value, str | int | float | Sequence | Mapping | os.PathLike | Array | Picture)
    return value if known or value is None else str(value)
