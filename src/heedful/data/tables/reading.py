"""Rows of CSV, TSV, JSON lines and Parquet files, plain or gzip: the reader that all tasks share."""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from heedful.data.fields.columns import Array
from heedful.data.formats.sources import Encoding, file_problem, json_lines, lines, uneven_columns
from heedful.data.formats.tables import csv_rows, tsv_rows
from heedful.errors import UserError, shown

Kind = Literal["csv", "tsv", "jsonl", "parquet"]
Record: TypeAlias = "tuple[dict[str, object], str]"  # the values of a row by column, and where it stands

SUFFIXES: dict[str, Kind] = {
    ".csv": "csv", ".tsv": "tsv", ".tab": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl",
    ".parquet": "parquet", ".pq": "parquet",
}  # fmt: skip
SPREADSHEETS = (".xlsx", ".xls", ".xlsm", ".ods", ".numbers")
SEPARATORS = (",", ";", "\t", "|")
SAMPLE = 500  # lines from which a separator and quotes are found
DECIMAL = re.compile(r"-?[0-9]{1,15}\.[0-9]{1,15}")
BATCH = 1000  # rows of a Parquet file at a time
MOST_BYTES = 64 * 2**30  # of the columns of a Parquet file


class Format(NamedTuple):
    """How a file is written; None: found from its name or its first lines."""

    kind: Kind | None = None
    separator: str | None = None
    quotes: bool | None = None
    header: bool = True
    encoding: Encoding = "utf-8"
    longest: int = 1_000_000

    def of(self, path: Path) -> Format:
        """The format of a file, with what is found."""
        kind = self.kind or kind_of(path)
        if kind not in ("csv", "tsv"):
            return self._replace(kind=kind)
        sample = [] if self.separator and self.quotes is not None else self._sample(path)
        separator = self.separator or ("\t" if kind == "tsv" else find_separator(sample))
        quotes = self.quotes if self.quotes is not None else kind == "csv" or are_quoted(sample, separator)
        return self._replace(kind=kind, separator=separator, quotes=quotes)

    def _sample(self, path: Path) -> list[str]:
        return [f"{line}\n" for line in islice(lines(path, self.longest, self.encoding), SAMPLE)]

    @property
    def text(self) -> str:
        """The format in words."""
        if self.kind not in ("csv", "tsv"):
            return str(self.kind)
        return f"{self.kind}, separator {self.separator!r}, {'quotes' if self.quotes else 'no quotes'}, {self.encoding}"


def kind_of(path: Path) -> Kind:
    """The format that a file's name says."""
    suffix = Path(path.name.lower().removesuffix(".gz")).suffix
    if suffix in SPREADSHEETS:
        raise UserError(
            "spreadsheets are not read", where=str(path), expected="a .csv, .tsv, .jsonl or .parquet file",
            todo="save it as CSV in UTF-8, in the program that it was made with",
        )  # fmt: skip
    if suffix not in SUFFIXES:
        raise UserError(
            "this is no table", where=str(path), found=shown(suffix) if suffix else "a name without an ending",
            expected="a .csv, .tsv, .jsonl or .parquet file", todo="rename it, or write data.format=csv, tsv or jsonl",
        )  # fmt: skip
    return SUFFIXES[suffix]


def is_table_name(name: str) -> bool:
    """Whether a file's name says that it is a table; .json may be anything."""
    suffix = Path(name.lower().removesuffix(".gz")).suffix
    return suffix in SUFFIXES and suffix != ".json"


def find_separator(sample: Sequence[str]) -> str:
    """The mark that splits most of these lines into as many columns as the first one."""
    return max(SEPARATORS, key=lambda mark: _evenness(sample, mark))


def _evenness(sample: Sequence[str], separator: str) -> tuple[float, int]:
    """The share of records with as many columns as the first, less 1 for a single one; and how many these are."""
    rows = [row for row in _parsed(sample, separator) if row]
    rows = rows[:-1] if len(rows) > 2 else rows  # the last one may be cut
    width = len(rows[0]) if rows else 0
    even = sum(len(row) == width for row in rows) / len(rows) if rows else 0.0
    return (even if width > 1 else even - 1), width  # rather several columns than one


def _parsed(sample: Sequence[str], separator: str, strict: bool = False) -> list[list[str]]:
    try:
        return list(csv.reader(sample, delimiter=separator, strict=strict))
    except csv.Error:
        return []


def are_quoted(sample: Sequence[str], separator: str) -> bool:
    """Whether fields are in quotes: some begin with one, and all lines can be read so, with as many columns."""
    if not any(cell.startswith('"') for line in sample for cell in line.split(separator)):
        return False
    rows = [row for row in _parsed(sample, separator, strict=True) if row]
    return bool(rows) and len({len(row) for row in (rows[:-1] if len(rows) > 2 else rows)}) == 1


# ------------------------------------------------------------------ rows
FOUND = Format()


def read_records(path: Path, form: Format = FOUND) -> Iterator[Record]:
    """The rows of a file, one by one."""
    found = form.of(path)
    if found.kind == "parquet":
        return _parquet(path)
    if found.kind == "jsonl":
        return ((row, where) for where, row in json_lines(path, form.longest, form.encoding) if row is not None)
    separator, advice = found.separator or ",", "columns are separated by data.separator; or set data.quotes"
    if found.quotes:
        table = csv_rows(path, separator, form.longest, form.encoding, "data.quotes=false")
    else:
        table = tsv_rows(path, separator, form.longest, form.encoding)
    return from_cells(table, path, form.header, advice)


def from_cells(table: Iterable[tuple[int, list[str]]], path: Path, header: bool, advice: str) -> Iterator[Record]:
    """The rows of a table of texts; without a header, columns are named by their numbers from 0."""
    names = list[str]()
    for number, cells in table:
        if not names:
            names = column_names(cells, f"{path}:{number}") if header else [str(place) for place in range(len(cells))]
            if header:
                continue
        if len(cells) != len(names):
            count = f"{len(cells)} columns in {shown(' | '.join(cells))}"
            raise uneven_columns(f"{path}:{number}", count, len(names), advice)
        yield dict(zip(names, cells, strict=True)), f"{path}:{number}"


def column_names(cells: Sequence[str], where: str) -> list[str]:
    """The names of the columns, each of which occurs once; one may be blank, as of an index."""
    names = [cell.strip() for cell in cells]
    if names[0].lower().startswith("sep="):
        raise UserError(
            "the first line says how columns are separated, not their names", where=where, found=shown(names[0]),
            expected="a first line with a name for each column", todo="remove that line, which only Excel reads",
        )  # fmt: skip
    twice = next((name for number, name in enumerate(names) if name in names[:number]), None)
    if twice is not None:
        raise UserError(
            "two columns have one name" if twice else "two columns have no name", where=where,
            found=shown(" | ".join(names)), expected="a first line with a name for each column",
            todo="name them; or set data.header=false if the first line is not a header",
        )  # fmt: skip
    return names


def _parquet(path: Path) -> Iterator[Record]:
    """The rows of a Parquet file, read in batches."""
    if (problem := file_problem(path)) is not None:
        raise problem
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise UserError(
            "Parquet files need the package pyarrow, which is not installed", where=str(path),
            todo="pip install 'heedful[parquet]', or convert the file to CSV or JSON lines",
        ) from None  # fmt: skip
    number = 0
    try:
        with ParquetFile(path) as file:
            about = file.metadata
            size = sum(about.row_group(group).total_byte_size for group in range(about.num_row_groups))
            if size > MOST_BYTES:
                raise UserError("this Parquet file is too large", where=str(path), found=f"{size:,} bytes")
            for batch in file.iter_batches(BATCH):
                for row in batch.to_pylist():
                    number += 1
                    yield row, f"{path}, row {number}"
    except (ArrowException, OSError, ValueError) as error:
        where = f"{path}, row {number + 1}" if number else str(path)
        raise UserError(f"this is not a Parquet file: {error}", where=where) from None


# ------------------------------------------------------------------ values
def same_text(value: object) -> str:
    """A value as text that is equal for equal values of all formats, apart from case and spaces."""
    text = " ".join(text_of(parsed(value)).split()).casefold()
    return text_of(float(text)) if DECIMAL.fullmatch(text) else text


def parsed(value: object) -> object:
    """A list that a cell of a text file has as JSON, or as an array; other values as they are."""
    if isinstance(value, Array):
        return value.tolist()
    if isinstance(value, str) and value.strip().startswith("["):
        with suppress(ValueError, RecursionError):
            found: object = json.loads(value)
            return found
    return value


def text_of(value: object) -> str:
    """A value as text: nothing for a missing one, and 3 for 3.0, as libraries write integers where one is missing."""
    if value is None or (isinstance(value, float) and value != value):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    if isinstance(value, list | tuple):
        return " ".join(map(text_of, value))
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)
