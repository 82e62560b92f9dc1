"""The rows that are predicted: of a table, of text lines, or a row for each image of a folder or zip file."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heedful.data.formats.sources import lines
from heedful.data.images.sources import image_files, is_zip, zip_images
from heedful.data.images.zip_files import ZipMember
from heedful.data.tables.reading import SPREADSHEETS, SUFFIXES, Format, Record, read_records
from heedful.data.tables.writing import ValueType, collect_types, parquet_types
from heedful.errors import UserError
from heedful.files.reading import exists, is_folder

LONGEST = 10_000_000  # characters of a line
USUAL = Format(longest=LONGEST)
CHECKED = 10_000  # rows between two reports of progress


@dataclass(frozen=True)
class RowSource:
    """A file of rows, or a folder or zip file of images; it is read anew by each iteration."""

    path: Path
    form: Format = USUAL

    @property
    def root(self) -> Path:
        """The folder that paths in its rows are relative to."""
        return self.path.parent

    @property
    def has_images(self) -> bool:
        """Whether its rows are the images of a folder or zip file."""
        return is_folder(self.path) or is_zip(self.path)

    @property
    def is_table(self) -> bool:
        """Whether its name says that its rows have columns."""
        suffix = Path(self.path.name.lower().removesuffix(".gz")).suffix
        return self.form.kind is not None or suffix in SUFFIXES or suffix in SPREADSHEETS

    def __iter__(self) -> Iterator[Record]:
        if not exists(self.path):
            raise UserError(
                "there is no such file", where=str(self.path),
                expected="a .csv, .tsv, .jsonl, .parquet or text file, or a folder or zip file of images",
            )  # fmt: skip
        if self.has_images:
            files = zip_images(self.path)[0] if is_zip(self.path) else image_files(self.path)[0]
            for file in files:
                yield {"image": self.name(file)}, str(file)
        elif self.is_table:
            yield from read_records(self.path, self.form)
        else:
            for number, line in enumerate(lines(self.path, LONGEST, self.form.encoding), 1):
                yield {"text": line}, f"{self.path}:{number}"

    def name(self, file: Path | ZipMember) -> str:
        """The name of an image in the folder or zip file."""
        return file.name if isinstance(file, ZipMember) else file.relative_to(self.path).as_posix()

    def image(self, name: str) -> Path | ZipMember:
        """The image file that a row names: in the folder or zip file, beside the table, or by a path of its own."""
        if is_zip(self.path):
            return ZipMember(self.path, name)
        if is_folder(self.path):
            return self.path / name
        return Path(name) if exists(name) else self.root / name


@dataclass(frozen=True)
class Survey:
    """What all rows of a source have: their number, and their columns with a type each."""

    count: int
    columns: Mapping[str, Any]


def survey(source: RowSource, check: Callable[[dict[str, object], str], None]) -> Iterator[Survey]:
    """Read all rows once, so that all mistakes are found first; yields every few thousand rows, and at last."""
    found, count = dict[str, ValueType | None](), 0
    for row, where in source:
        check(row, where)
        collect_types([row], found)
        count += 1
        if count % CHECKED == 0:
            yield Survey(count, found)
    if not count:
        raise UserError("there are no rows", where=str(source.path), expected="at least one row")
    arrow = parquet_types(source.path) if is_parquet(source.path) else {}
    yield Survey(count, {name: kind or "text" for name, kind in found.items()} | arrow)


def is_parquet(path: Path) -> bool:
    """Whether the name of a file says that it is Parquet."""
    return SUFFIXES.get(path.suffix.lower()) == "parquet"


def digest(rows: list[dict[str, object]], files: list[Path | ZipMember]) -> str:
    """The SHA-256 of rows, and of when the files that they name were last changed."""
    stamps = [file.stamp() if isinstance(file, ZipMember) else stamp(file) for file in files]
    return hashlib.sha256(json.dumps([rows, stamps], default=str).encode()).hexdigest()


def stamp(file: Path) -> tuple[int, int] | None:
    """The size of a file, and the time of its last change."""
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns
