"""Pairs of texts from files: two aligned files, TSV or JSON lines, plain or gzip."""

from __future__ import annotations

import gzip
import io
import json
import os
import stat
import zlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, NamedTuple, TypeAlias

from pydantic import Field, model_validator

from heedful.config import Config
from heedful.errors import UserError, shown
from heedful.files.reading import is_folder, open_file

Stream: TypeAlias = "io.BufferedReader[Any]"
Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = ("train", "valid", "test")
TABS = "separate columns by one tab; quotes do not escape a tab"
JQ = "a list of objects becomes one on each line by: jq -c '.[]' FILE > NEW.jsonl"
BOM = b"\xef\xbb\xbf"
GZIP = b"\x1f\x8b"
RATIO = 200  # maximum compression ratio; text reaches about 20, a gzip bomb about 1000
MOST = 64 * 2**30  # bytes that an archive may decompress to
FREE = 64 * 2**20  # bytes that any archive may decompress to, so that short repetitive files pass

Encoding = Literal["utf-8", "utf-8-sig", "cp1252", "latin-1"]

Name = Annotated[str, Field(min_length=1)]
Column = Annotated[int, Field(ge=0, le=10_000)]


class Pair(NamedTuple):
    """A source text and its target."""

    source: str
    target: str


class Examples(NamedTuple):
    """The pairs of one split, and the number of those skipped because a side was blank."""

    pairs: list[Pair]
    skipped: int


class FilePair(Config):
    """Two files that are aligned line by line."""

    source: Name = Field(description="file of source texts, one per line")
    target: Name = Field(description="file of target texts, aligned line by line with the source")


class PairSource(Config):
    """Base of all sources of text pairs: paths, maximum line length, and the count of blank pairs."""

    kind: str
    root: Name = Field(".", description="folder of the files, relative to the working directory")
    longest: int = Field(100_000, ge=1, le=100_000_000, description="maximum characters per line")

    @abstractmethod
    def files(self, split: Split) -> list[Path]:
        """The files of a split; empty if the split is not given."""

    @abstractmethod
    def rows(self, split: Split) -> Iterator[Pair]:
        """Every pair of a split, blank ones included."""

    def read(self, split: Split) -> Examples:
        """The pairs of a split, and the number of those with a blank side."""
        files = self.files(split)
        if not files:
            raise no_data(split)
        rows = list(self.rows(split))
        pairs = [pair for pair in rows if pair.source.strip() and pair.target.strip()]
        if not pairs:
            raise UserError(
                "there are no pairs", where=" and ".join(map(str, files)),
                found=f"{len(rows)} pairs, each with a blank side",
                expected="at least one pair with text on both sides",
            )  # fmt: skip
        return Examples(pairs, len(rows) - len(pairs))

    def pairs(self, split: Split) -> list[Pair]:
        """The pairs of a split that have text on both sides."""
        return self.read(split).pairs

    def problems(self, splits: Sequence[Split] = SPLITS) -> list[UserError]:
        """Problems with the files of these splits that can be seen without reading them."""
        return missing_files(self.root, (path for split in splits for path in self.files(split)))


class FilePerSplit(Config):
    """Base of data with one file per split."""

    kind: str
    root: Name = Field(".", description="folder of the files, relative to the working directory")
    train: Name = Field(description="file for training")
    valid: Name = Field(description="file for validation, with other rows than the one for training")
    test: Name | None = Field(None, description="file for the final score")

    def file(self, split: Split) -> Path | None:
        """The file of a split, if it is given."""
        name = {"train": self.train, "valid": self.valid, "test": self.test}[split]
        return None if name is None else Path(self.root, name)

    def path(self, split: Split) -> Path:
        """The file of a split, which must be given."""
        file = self.file(split)
        if file is None:
            raise no_data(split)
        return file

    def problems(self, splits: Sequence[Split] = SPLITS) -> list[UserError]:
        """Problems with the files of these splits that can be seen without reading them."""
        return missing_files(self.root, map(self.file, splits))


class ParallelFiles(PairSource):
    """A file of source lines and a file of target lines for each split."""

    kind: Literal["parallel"] = "parallel"
    train: FilePair = Field(description="files for training")
    valid: FilePair = Field(description="files for validation")
    test: FilePair | None = Field(None, description="files for the final score")

    def files(self, split: Split) -> list[Path]:
        """The source file and the target file of a split."""
        files = {"train": self.train, "valid": self.valid, "test": self.test}[split]
        return [] if files is None else [Path(self.root, files.source), Path(self.root, files.target)]

    def rows(self, split: Split) -> Iterator[Pair]:
        """Line n of one file with line n of the other; both must have the same number of lines."""
        source, target = self.files(split)
        left, right = lines(source, self.longest), lines(target, self.longest)
        for number, (text, translation) in enumerate(zip_longest(left, right)):
            if text is None or translation is None:
                longer = number + 1 + sum(1 for _ in (right if text is None else left))
                counts = (number, longer) if text is None else (longer, number)
                raise UserError(
                    "the two files have unequal numbers of lines", where=f"{source} and {target}",
                    found=f"{counts[0]:,} lines in {source}, {counts[1]:,} in {target}",
                    expected="one translation per line",
                    todo="look for a missing or duplicate line where the translations stop matching",
                )  # fmt: skip
            yield Pair(text, translation)


class PairTable(PairSource):
    """Base of sources with a single file per split."""

    train: Name = Field(description="file for training")
    valid: Name = Field(description="file for validation, with other rows than the one for training")
    test: Name | None = Field(None, description="file for the final score")

    def files(self, split: Split) -> list[Path]:
        """The one file of a split."""
        name = {"train": self.train, "valid": self.valid, "test": self.test}[split]
        return [] if name is None else [Path(self.root, name)]


class Tsv(PairTable):
    """Tab-separated columns; there is no quoting, so a text cannot contain a tab."""

    kind: Literal["tsv"] = "tsv"
    source_column: Column = Field(0, description="column of the source, counted from 0")
    target_column: Column = Field(1, description="column of the target, counted from 0")

    @model_validator(mode="after")
    def _two_columns(self) -> Tsv:
        if self.source_column == self.target_column:
            raise ValueError(f"source_column and target_column are both {self.source_column}; choose two columns")
        return self

    def rows(self, split: Split) -> Iterator[Pair]:
        """The two columns of each line; all lines must have the same number of columns."""
        (path,) = self.files(split)
        needed = max(self.source_column, self.target_column) + 1
        width = None
        for number, line in enumerate(lines(path, self.longest), start=1):
            if not line:
                yield Pair("", "")
                continue
            columns = line.split("\t")
            width = len(columns) if width is None else width
            if len(columns) != width or width < needed:
                where, found = f"{path}:{number}", f"{len(columns)} columns in {shown(line)}"
                if width >= needed:
                    raise uneven_columns(where, found, width, TABS)
                raise UserError(
                    "this line has too few columns", where=where, found=found, expected=f"at least {needed}", todo=TABS
                )
            yield Pair(columns[self.source_column], columns[self.target_column])


class Jsonl(PairTable):
    """One JSON object per line, with a text under each of two keys."""

    kind: Literal["jsonl"] = "jsonl"
    source: Name = Field("source", description="key of the source text")
    target: Name = Field("target", description="key of the target text")

    def rows(self, split: Split) -> Iterator[Pair]:
        """The two texts of each object; a blank line is a blank pair."""
        (path,) = self.files(split)
        for where, row in json_lines(path, self.longest):
            if row is None:
                yield Pair("", "")
            else:
                yield Pair(string_field(row, self.source, where), string_field(row, self.target, where))


def json_lines(
    path: Path, longest: int, encoding: Encoding | None = None
) -> Iterator[tuple[str, dict[str, object] | None]]:
    """The location of each line and the JSON object in it; None for a blank line."""
    for number, line in enumerate(lines(path, longest, encoding), start=1):
        yield f"{path}:{number}", parse_object(line, f"{path}:{number}") if line.strip() else None


def parse_object(line: str, where: str) -> dict[str, object]:
    """Parse a line as a JSON object."""
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(
            f"this is not JSON: {error.msg}", where=f"{where}:{error.colno}",
            found=shown(line[max(0, error.pos - 20) : error.pos + 20]), expected="one JSON object per line",
            todo=JQ if line.lstrip().startswith("[") else None,
        ) from None  # fmt: skip
    except (ValueError, RecursionError) as error:  # too many digits, or nested too deeply
        raise UserError(f"this JSON cannot be read: {error}", where=where, found=shown(line)) from None
    if not isinstance(row, dict):
        raise UserError(
            "this line is not a JSON object", where=where, found=shown(line), expected='{"key": "text", ...}',
            todo=JQ if isinstance(row, list) else None,
        )  # fmt: skip
    return row


def string_field(row: dict[str, object], key: str, where: str) -> str:
    """The string under a key of an object."""
    if key not in row:
        raise UserError(
            f"the key {shown(key)} is missing", where=where, found=list_keys(row), expected=f"{shown(key)} with a text"
        )
    text = row[key]
    if not isinstance(text, str):
        raise UserError(
            f"the value of {shown(key)} is not a string", where=where, found=shown(text), expected="a JSON string"
        )
    return text


def list_keys(row: Mapping[str, object]) -> str:
    """The first keys of an object, for an error."""
    return ", ".join(map(shown, list(row)[:10])) or "no keys"


def uneven_columns(where: str, found: str, width: int, todo: str) -> UserError:
    """The error for a line with a different number of columns than the first."""
    expected = f"{width:,} column{'s' * (width != 1)}, as in the first line"
    return UserError(
        "this line has a different number of columns", where=where, found=found, expected=expected, todo=todo
    )  # fmt: skip


def no_data(split: Split) -> UserError:
    """The error for a split that is needed but not given."""
    return UserError(
        f"there is no {split} data", where=f"data.{split}", found="no file", todo=f"name a file under data.{split}"
    )


def missing_files(root: str, paths: Iterable[Path | None]) -> list[UserError]:
    """Errors for files that cannot be read; if the folder does not exist, only that."""
    if not is_folder(root):
        return [UserError("there is no such folder", where="data.root", found=shown(root), expected="a folder")]
    distinct = dict.fromkeys(path for path in paths if path is not None)
    return [problem for path in distinct if (problem := file_problem(path)) is not None]


def file_problem(path: Path) -> UserError | None:
    """Why a path cannot be read as a text file, without opening it."""
    where = str(path)
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        here = "" if path.is_absolute() else ", and that to the folder you are in; data.root=FOLDER sets another"
        return UserError(
            "there is no such file", where=where, todo=f"check the path; it is relative to data.root{here}"
        )
    except OSError as error:
        return UserError(f"this file cannot be accessed: {error.strerror}", where=where)
    if stat.S_ISDIR(status.st_mode):
        return UserError("this is a folder", where=where, expected="a file", todo="name the file inside it")
    if not stat.S_ISREG(status.st_mode):
        return UserError("this is not a regular file", where=where, expected="a file of text, plain or gzip")
    if status.st_size == 0:
        return UserError("this file is empty", where=where, expected="at least one line of text")
    if not os.access(path, os.R_OK):
        return UserError("permission to read this file is denied", where=where, todo="change its permissions")
    return None


def lines(path: Path, longest: int, encoding: Encoding | None = None) -> Iterator[str]:
    r"""The lines of a file, ended by \n or \r\n only, since other separators may occur inside a text.

    Without an encoding they are UTF-8, and an error does not suggest to set `data.encoding`.
    """
    return map(itemgetter(0), lines_and_ends(path, longest, encoding))


def lines_and_ends(path: Path, longest: int, encoding: Encoding | None = None) -> Iterator[tuple[str, str]]:
    """The same, each with its line end; the last one has one, too."""
    if (problem := file_problem(path)) is not None:
        raise problem
    most = 4 * longest + 8  # bytes: beyond this, even 4-byte characters with BOM and line end are too many
    number = 0
    with open_plain_or_gzip(path, lambda: f"{path}:{number + 1}") as stream:
        while line := stream.readline(most):
            number += 1
            text = decode_line(line if number > 1 else line.removeprefix(BOM), longest, f"{path}:{number}", encoding)
            yield text, "\r\n" if line.endswith(b"\r\n") else "\n"
    if number == 0:
        raise UserError("this file is empty", where=str(path), expected="at least one line of text")


@contextmanager
def open_plain_or_gzip(path: Path, where: Callable[[], str] | None = None) -> Iterator[Stream]:
    """Open a file for reading, decompressed if it is gzip; errors name the current location, `where()`."""
    there = where or (lambda: str(path))
    try:
        with open_file(path) as file:
            if path.suffix == ".gz" or file.peek(2)[:2] == GZIP:
                # GzipFile splits lines in Python, BufferedReader in C.
                yield io.BufferedReader(GzipStream(file, there), 2**17)
            else:
                yield file
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(
            f"this gzip file is damaged: {error}", where=there(), expected="a complete gzip file",
            todo="download it again; `gzip -t` tests a file",
        ) from None  # fmt: skip
    except OSError as error:
        raise UserError(f"this file cannot be read: {error.strerror}", where=there()) from None


class GzipStream(io.RawIOBase):
    """A gzip stream that raises an error at a suspicious compression ratio."""

    def __init__(self, file: BinaryIO, where: Callable[[], str]) -> None:
        self._file, self._where, self._inner, self._done = file, where, gzip.GzipFile(fileobj=file), 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._inner.readinto(buffer)
        self._done += count
        if self._done > MOST:
            raise UserError(
                "this gzip file is too large", where=self._where(), found=f"over {MOST:,} bytes", todo="unpack it"
            )
        if self._done > max(FREE, RATIO * self._file.tell()):
            raise UserError(
                "this gzip file has a suspiciously high compression ratio", where=self._where(),
                found=f"over {self._done:,} bytes from {self._file.tell():,}",
                expected=f"at most {RATIO} times as many", todo="unpack it yourself if you trust it",
            )  # fmt: skip
        return count


def decode_line(line: bytes, longest: int, where: str, encoding: Encoding | None = None) -> str:
    """Decode one line without its line end; an invalid byte is reported by its position."""
    line = line.removesuffix(b"\n").removesuffix(b"\r")
    if len(line) > longest:  # there are never more characters than bytes
        characters = len(line.decode(errors="replace"))
        if characters > longest:
            raise UserError(
                "this line is too long", where=where, found=f"at least {characters:,} characters",
                expected=f"at most {longest:,}", todo="split it, or raise data.longest",
            )  # fmt: skip
    if (place := line.find(0)) >= 0:
        raise UserError(
            "this is not text", where=f"{where}:{place + 1}", found=f"a NUL byte, byte {place + 1} of the line",
            expected="UTF-8 text", todo="if it is UTF-16, convert it: iconv -f UTF-16 -t UTF-8",
        )  # fmt: skip
    try:
        return line.decode(encoding or "utf-8")
    except UnicodeDecodeError as error:
        raise _undecodable(line, error, where, encoding) from None


def _undecodable(line: bytes, error: UnicodeDecodeError, where: str, encoding: Encoding | None) -> UserError:
    """The error for a line in another encoding; where one can be set, with what the line says in Windows' usual one."""
    name = "UTF-8" if encoding in (None, "utf-8", "utf-8-sig") else encoding
    found = f"byte 0x{line[error.start]:02x}, byte {error.start + 1} of the line, {error.reason}"
    todo = "convert the file, for example: iconv -f LATIN1 -t UTF-8"
    if encoding is not None:
        other = "utf-8" if name == "cp1252" else "cp1252"
        around = line[max(0, error.start - 20) : error.start + 20].decode(other, "replace")
        todo = f"write data.encoding={other} if this reads well: {shown(around)}; or {todo}"
    return UserError(
        f"this is not {name}", where=f"{where}:{error.start + 1}", found=found, expected=f"{name} text", todo=todo
    )
