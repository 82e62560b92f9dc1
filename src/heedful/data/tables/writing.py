"""Tables written row by row: text lines, CSV, TSV, JSON lines and Parquet, plain or gzip."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from heedful.data.formats.sources import file_problem
from heedful.data.tables.reading import SUFFIXES
from heedful.errors import UserError, shown
from heedful.files import writing as files

OutputKind = Literal["csv", "tsv", "jsonl", "parquet", "txt"]
ValueType = Literal["text", "integer", "number", "boolean", "texts", "numbers", "json"]
Write: TypeAlias = Callable[[Sequence[Mapping[str, object]]], None]
LARGEST = 2**63  # of the integers of a column


class OutputFormat(NamedTuple):
    """How a file is written."""

    kind: OutputKind
    packed: bool = False  # by gzip


def output_format(path: Path) -> OutputFormat:
    """The format that a file's name says."""
    packed = path.name.lower().endswith(".gz")
    suffix = Path(path.name.lower().removesuffix(".gz")).suffix
    kinds: dict[str, OutputKind] = {**SUFFIXES, ".txt": "txt"}
    if suffix not in kinds:
        raise UserError(
            "this is no format to write", where=str(path),
            found=shown(suffix) if suffix else "a name without an ending",
            expected="a name that ends in .csv, .tsv, .jsonl, .parquet or .txt; all but Parquet also with .gz",
        )  # fmt: skip
    if kinds[suffix] == "parquet" and packed:
        raise UserError("Parquet files are compressed already", where=str(path), todo="leave out .gz")
    return OutputFormat(kinds[suffix], packed)


# ------------------------------------------------------------------ types of columns
def type_of(value: object) -> ValueType | None:
    """The type of a column with this value; None if any type has it."""
    match value:
        case None | [] | ():
            return None
        case bool():
            return "boolean"
        case int():
            return "integer" if -LARGEST <= value < LARGEST else "json"
        case float():
            return "number"
        case str():
            return "text"
        case list() | tuple():
            if all(isinstance(one, str) for one in value):
                return "texts"
            numeric = all(isinstance(one, int | float) and not isinstance(one, bool) for one in value)
            return "numbers" if numeric else "json"
    return "json"


def common_type(one: ValueType | None, other: ValueType | None) -> ValueType | None:
    """The type of a column with values of both types."""
    if one is None or other is None or one == other:
        return other if one is None else one
    return "number" if {one, other} == {"integer", "number"} else "json"


def json_text(value: object) -> str:
    """A value as JSON; values that JSON does not have, such as dates, as text."""
    return json.dumps(value, ensure_ascii=False, default=str)


def cell(value: object) -> str:
    """A value as the text of a table cell: nothing for a missing one, JSON for lists and objects."""
    if value is None:
        return ""
    return (
        value if isinstance(value, str) else json_text(value) if isinstance(value, list | dict | bool) else str(value)
    )


# ------------------------------------------------------------------ files
@contextmanager
def table_writer(path: Path, form: OutputFormat, columns: Mapping[str, Any]) -> Iterator[Write]:
    """A function that adds rows to a new file; `columns` are types by name, of Heedful or of Arrow."""
    if form.kind == "parquet":
        with _parquet(path, columns) as write:
            yield write
        return
    with path.open("xb") as file:
        if form.packed:
            with gzip.GzipFile("", "wb", 6, file, mtime=0) as packed:  # equal rows make equal bytes
                yield from _text(packed, form.kind, list(columns))
        else:
            yield from _text(file, form.kind, list(columns))
        file.flush()
        files.sync(file.fileno())


def _text(binary: Any, kind: OutputKind, names: list[str]) -> Iterator[Write]:
    stream = io.TextIOWrapper(binary, encoding="utf-8", errors="backslashreplace", newline="")
    yield line_writer(stream, kind, names)
    stream.flush()
    stream.detach()


class UnixLines:
    """A stream for `csv.writer`, which quotes only those line ends that are in its own; here, both kinds."""

    end = "\r\n"

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def write(self, row: str) -> None:
        """Write a row, whose line ends with a line feed alone."""
        self.stream.write(f"{row.removesuffix(self.end)}\n")


def line_writer(stream: Any, kind: OutputKind, names: Sequence[str]) -> Write:
    """A function that writes rows as text in a format."""
    if kind == "jsonl":
        return lambda rows: stream.write("".join(f"{json_text(row)}\n" for row in rows))
    if kind == "txt":
        return lambda rows: stream.write("".join(f"{one_line(row.get('prediction'))}\n" for row in rows))
    mark, lines = "\t" if kind == "tsv" else ",", UnixLines(stream)
    table = csv.writer(lines, delimiter=mark, lineterminator=lines.end)
    # The first line of a TSV file is in quotes, so that readers know that later ones may be.
    csv.writer(
        lines, delimiter=mark, lineterminator=lines.end, quoting=csv.QUOTE_ALL if kind == "tsv" else csv.QUOTE_MINIMAL
    ).writerow(names)
    return lambda rows: table.writerows([cell(row.get(name)) for name in names] for row in rows)


def one_line(value: object) -> str:
    """A value on one line."""
    return " ".join(cell(value).splitlines())


@contextmanager
def _parquet(path: Path, columns: Mapping[str, Any]) -> Iterator[Write]:
    arrow, parquet = _pyarrow(path)
    known = {
        "text": arrow.string(), "integer": arrow.int64(), "number": arrow.float64(), "boolean": arrow.bool_(),
        "texts": arrow.list_(arrow.string()), "numbers": arrow.list_(arrow.float64()), "json": arrow.string(),
    }  # fmt: skip
    as_json = {name for name, kind in columns.items() if isinstance(kind, str) and kind == "json"}
    schema = arrow.schema([(name, known[kind] if isinstance(kind, str) else kind) for name, kind in columns.items()])

    def value(row: Mapping[str, object], name: str) -> object:
        found = row.get(name)
        return json_text(found) if name in as_json and found is not None else found

    with parquet.ParquetWriter(path, schema) as file:
        yield lambda rows: file.write_table(
            arrow.Table.from_pylist([{name: value(row, name) for name in columns} for row in rows], schema)
        )
    with path.open("ab") as written:
        files.sync(written.fileno())


def parquet_types(path: Path) -> dict[str, Any]:
    """The Arrow type of each column of a Parquet file."""
    if (problem := file_problem(path)) is not None:
        raise problem
    arrow, parquet = _pyarrow(path)
    try:
        schema = parquet.read_schema(path)
    except (arrow.ArrowException, OSError, ValueError) as error:
        raise UserError(f"this is not a Parquet file: {error}", where=str(path)) from None
    return {field.name: field.type for field in schema}


def _pyarrow(path: Path) -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UserError(
            "Parquet files need the package pyarrow, which is not installed", where=str(path),
            todo="pip install 'heedful[parquet]', or name a .csv or .jsonl file",
        ) from None  # fmt: skip
    return pyarrow, parquet


def collect_types(rows: Iterable[Mapping[str, object]], found: dict[str, ValueType | None]) -> None:
    """Widen the types of columns to those of more rows."""
    for row in rows:
        for name, value in row.items():
            found[name] = common_type(found.get(name), type_of(value))
