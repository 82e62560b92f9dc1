"""Labelled texts and pairs of texts: TSV, CSV and JSON lines."""

from __future__ import annotations

import csv
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal, NamedTuple

from pydantic import Field, model_validator

from heedful.data.formats.sources import (
    SPLITS,
    TABS,
    Column,
    Encoding,
    FilePerSplit,
    Name,
    Split,
    json_lines,
    lines,
    lines_and_ends,
    string_field,
    uneven_columns,
)
from heedful.data.tokenizers.base import replace_surrogates
from heedful.errors import UserError, shown

LONGEST_LABEL = 1000  # characters, as model folders may have them
MAX_NAMES = 20  # labels or columns that an error lists
MAX_FIELD = 100_000_000  # characters of a quoted field
MAX_LINES = 20  # of the longest kind that a quoted field may have


class Item(NamedTuple):
    """A text, or a pair of texts, with its label and its location."""

    text: str
    pair: str | None
    label: str
    where: str  # file:line:column of the label

    @property
    def blank(self) -> bool:
        """Whether a text is blank."""
        return not self.text.strip() or (self.pair is not None and not self.pair.strip())


class Items(NamedTuple):
    """The items of one split, and the number of those skipped because a text was blank."""

    items: list[Item]
    skipped: int


class Cell(NamedTuple):
    """The text of a table cell, and its location."""

    text: str
    where: str


class Labelled(FilePerSplit):
    """Base of files of labelled texts."""

    longest: int = Field(1_000_000, ge=1, le=MAX_FIELD, description="maximum characters per line")

    @abstractmethod
    def rows(self, path: Path) -> Iterator[tuple[Cell, Cell | None, Cell]]:
        """The text, the second text if there are pairs, and the label of every row."""

    def read(self, split: Split) -> Items:
        """The items of a split, and the number of blank ones."""
        path = self.path(split)
        rows = [
            Item(text.text, pair.text if pair else None, replace_surrogates(label.text.strip())[0], label.where)
            for text, pair, label in self.rows(path)
        ]
        items = [item for item in rows if not item.blank]
        if not items:
            raise UserError(
                "there are no texts", where=str(path), found=f"{len(rows)} rows, each with a blank text",
                expected="at least one text with a label",
            )  # fmt: skip
        return Items(items, len(rows) - len(items))


ByName = Column | Name


class Columns(Labelled):
    """Base of tables with columns."""

    advice: ClassVar[str]  # about column separators

    header: bool = Field(True, description="whether the first line is a header")
    text: ByName = Field(description="column of the text, by name or by index from 0")
    pair: ByName | None = Field(None, description="column of the second text, for pairs")
    label: ByName = Field(description="column of the label, or of the number")

    @model_validator(mode="after")
    def _require_header_for_names(self) -> Columns:
        names = [column for column in (self.text, self.pair, self.label) if isinstance(column, str)]
        if names and not self.header:
            raise ValueError(
                f"without a header, columns have no names; write an index from 0 instead of {shown(names[0])}"
            )
        return self

    @abstractmethod
    def split(self, path: Path) -> Iterator[tuple[int, list[Cell]]]:
        """Every non-empty line, as its number and its cells."""

    def problems(self, splits: Sequence[Split] = SPLITS) -> list[UserError]:
        """Files that cannot be read, or else whose first lines lack a column."""
        if missing := super().problems(splits):
            return missing
        return [problem for path in dict.fromkeys(map(self.file, splits)) if path and (problem := self._header(path))]

    def _header(self, path: Path) -> UserError | None:
        """What is wrong with the first line of a file, if anything."""
        try:
            next(self.rows(path), None)
        except UserError as error:
            return error
        return None

    def rows(self, path: Path) -> Iterator[tuple[Cell, Cell | None, Cell]]:
        """The text, pair and label columns of each line."""
        columns = [column for column in (self.text, self.pair, self.label) if column is not None]
        for cells in select_columns(self.split(path), columns, self.header, self.advice, path):
            yield cells[0], cells[1] if len(cells) > 2 else None, cells[-1]


def select_columns(
    split: Iterable[tuple[int, list[Cell]]], columns: Sequence[int | str], header: bool, advice: str, path: Path
) -> Iterator[list[Cell]]:
    """Select columns of each line of a table; all lines must have the same number of columns."""
    indices: list[int] = []
    width = 0
    for number, cells in split:
        if not width:
            width = len(cells)
            indices = [_column_index(column, cells, header, advice) for column in columns]
            if header:
                continue
        if len(cells) != width:
            found = f"{len(cells)} columns in {shown(' | '.join(cell.text for cell in cells))}"
            raise uneven_columns(f"{path}:{number}", found, width, advice)
        yield [cells[index] for index in indices]
    if not width:
        raise UserError("there are no texts", where=str(path), expected="a text and its label per line")


def _column_index(column: int | str, first: list[Cell], header: bool, advice: str) -> int:
    """The index of a column, which is given by its name in the header or by its index."""
    names = [cell.text.strip() for cell in first]
    if isinstance(column, str) and column in names:
        return names.index(column)
    if isinstance(column, int) and column < len(names):
        return column
    listed = ", ".join(map(shown, names[:MAX_NAMES])) if header else f"{len(names)} columns"
    other = next((mark for mark in ";|\t" if len(names) == 1 and mark in names[0]), None)
    if other is not None:
        advice = "set data.kind=tsv" if other == "\t" else f"set data.kind=csv and data.separator='\"{other}\"'"
    raise UserError(
        f"there is no column {shown(column)}", where=first[0].where, found=listed,
        expected="a name in the header, or an index from 0",
        todo=f"{advice}; or set data.header=false if the first line is not a header",
    )  # fmt: skip


class TsvTable(Columns):
    """Tab-separated columns, as in GLUE; there is no quoting, so a text cannot contain a tab."""

    advice: ClassVar = TABS

    kind: Literal["tsv"] = "tsv"

    def split(self, path: Path) -> Iterator[tuple[int, list[Cell]]]:
        """The cells of each line."""
        return tsv_cells(path, self.longest)


class CsvTable(Columns):
    """Comma-separated columns; a text in double quotes may contain commas, line ends, and doubled quotes."""

    advice: ClassVar = "columns are separated by data.separator"

    kind: Literal["csv"] = "csv"
    separator: Annotated[str, Field(min_length=1, max_length=1)] = Field(",", description="column separator")

    def split(self, path: Path) -> Iterator[tuple[int, list[Cell]]]:
        """The cells of each record."""
        return csv_cells(path, self.separator, self.longest)


def tsv_cells(path: Path, longest: int) -> Iterator[tuple[int, list[Cell]]]:
    """Every non-empty line of a TSV file without quoting: its number, and its cells."""
    for number, texts in tsv_rows(path, "\t", longest):
        cells, column = [], 1
        for text in texts:
            cells.append(Cell(text, f"{path}:{number}:{column}"))
            column += len(text) + 1
        yield number, cells


def tsv_rows(
    path: Path, separator: str, longest: int, encoding: Encoding | None = None
) -> Iterator[tuple[int, list[str]]]:
    """Every non-empty line of a file without quoting: its number, and its texts."""
    for number, line in enumerate(lines(path, longest, encoding), start=1):
        if line:
            yield number, line.split(separator)


def csv_cells(path: Path, separator: str, longest: int) -> Iterator[tuple[int, list[Cell]]]:
    """Every non-empty record of a CSV file: its first line, and its cells."""
    for begin, texts in csv_rows(path, separator, longest):
        yield begin, [Cell(text, f"{path}:{begin}, column {place}") for place, text in enumerate(texts, 1)]


def csv_rows(
    path: Path, separator: str, longest: int, encoding: Encoding | None = None, literal: str = "data.kind=tsv"
) -> Iterator[tuple[int, list[str]]]:
    """Every non-empty record of a CSV file: its first line, and its texts; `literal` is the setting without quotes."""
    reader = csv.reader(map("".join, lines_and_ends(path, longest, encoding)), delimiter=separator, strict=True)
    former, begin, row = csv.field_size_limit(), 1, list[str]()
    try:
        while True:
            csv.field_size_limit(min(MAX_FIELD, MAX_LINES * longest))  # of all readers, one of which may have ended
            row = next(reader)
            if row:
                yield begin, row
            begin = reader.line_num + 1
    except StopIteration:
        return
    except csv.Error as error:
        message, todo = f"this is not CSV: {error}", f"look for an unclosed quote; {literal} reads quotes literally"
        if "new-line character" in message:
            message = "this is not CSV: a carriage return outside of quotes"
            todo = f"if it ends every line, as on old Macs, convert it: tr '\\r' '\\n' < {path.name} > NEW"
        raise UserError(
            message, where=f"{path}:{begin}",
            expected='fields with a comma between; "a text, in quotes", and "a ""quote"" in it"', todo=todo,
        ) from None  # fmt: skip
    finally:
        csv.field_size_limit(former)


class JsonlTable(Labelled):
    """One JSON object per line; the label may be a string, a number, or a boolean."""

    kind: Literal["jsonl"] = "jsonl"
    text: Name = Field("text", description="key of the text")
    pair: Name | None = Field(None, description="key of the second text, for pairs")
    label: Name = Field("label", description="key of the label, or of the number")

    def rows(self, path: Path) -> Iterator[tuple[Cell, Cell | None, Cell]]:
        """The values under the keys of each object; blank lines are skipped."""
        for where, row in json_lines(path, self.longest):
            if row is not None:
                text = Cell(string_field(row, self.text, where), where)
                pair = Cell(string_field(row, self.pair, where), where) if self.pair else None
                yield text, pair, Cell(scalar_field(row, self.label, where), where)


def scalar_field(row: dict[str, object], key: str, where: str) -> str:
    """A string, number or boolean under a key, as text."""
    value = row.get(key)
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, int | float) else string_field(row, key, where)


def collect_labels(items: Sequence[Item], where: str) -> tuple[str, ...]:
    """The distinct labels of some items: integers by value, others alphabetically."""
    labels = {item.label for item in items}
    if blank := [item for item in items if not item.label]:
        found = "nothing" + (f"; {len(blank):,} of {len(items):,} texts have no label" if len(blank) > 1 else "")
        raise UserError(
            "a label is missing", where=blank[0].where, found=found, expected="a label for each text",
            todo="remove the row, or write a label into it",
        )  # fmt: skip
    if len(labels) < 2:
        raise UserError(
            "there is only one class", where=where, found=f"only the label {shown(labels.pop())}",
            expected="texts of at least two different labels", todo="check data.label",
        )  # fmt: skip
    if len(labels) > max(100, len(items) // 2):
        raise UserError(
            "nearly every text has a different label", where=where,
            found=f"{len(labels):,} different labels of {len(items):,} texts, such as {shown(min(labels))}",
            expected="few classes with many texts each",
            todo="check data.label; for numeric labels use task.kind: regression",
        )  # fmt: skip
    return sort_labels(labels)


def sort_labels(labels: set[str]) -> tuple[str, ...]:
    """Integers by value, others alphabetically."""
    if (longest := max(labels, key=len)) and len(longest) > LONGEST_LABEL:
        raise UserError(
            "a label is too long", where="the training data", found=f"{shown(longest)}, {len(longest):,} characters",
            expected=f"at most {LONGEST_LABEL:,}", todo="check which column has the labels, or shorten them",
        )  # fmt: skip
    integers = all(label.removeprefix("-").isdecimal() and len(label) < 20 for label in labels)
    return tuple(sorted(labels, key=lambda label: (int(label) if integers else 0, label)))


def class_numbers(items: Sequence[Item], labels: Sequence[str]) -> list[int]:
    """The class index of each item's label."""
    known = {label: number for number, label in enumerate(labels)}
    for item in items:
        if item.label not in known:
            more = f" and {len(labels) - MAX_NAMES:,} more" if len(labels) > MAX_NAMES else ""
            raise UserError(
                "unknown label", where=item.where, found=shown(item.label) if item.label else "no label",
                expected="one of " + ", ".join(map(shown, labels[:MAX_NAMES])) + more,
                todo="correct it, or list all labels under model.labels",
            )  # fmt: skip
    return [known[item.label] for item in items]


def label_values(items: Sequence[Item]) -> list[float]:
    """The label of each item as a number."""
    return [_number(item) for item in items]


def _number(item: Item) -> float:
    try:
        value = float(item.label)
    except ValueError:
        value = float("nan")
    if not abs(value) < 1e30:  # true for NaN too
        raise UserError(
            "this is not a number", where=item.where, found=shown(item.label) if item.label else "nothing",
            expected="a number such as 3.8, since this is a regression task",
        )  # fmt: skip
    return value
