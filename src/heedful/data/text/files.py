"""Running text from files and folders, plain or gzip, one paragraph per line.

A document is an iterable of lines, which is not loaded into memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from pydantic import Field, field_validator

from heedful.config import Config
from heedful.data.formats.sources import SPLITS, Name, Split, lines, missing_files, no_data
from heedful.errors import UserError
from heedful.files.reading import is_folder

SUFFIXES = (".txt", ".tokens", ".raw", ".md", ".rst", ".json", ".jsonl")  # of the files read from a folder

DocumentStream: TypeAlias = Iterator[Iterable[str]]  # documents, each as its lines without their ends


class Text(NamedTuple):
    """A text as lines without line ends, blank lines included."""

    lines: list[str]
    skipped: int = 0
    starts: tuple[int, ...] = (0,)  # the first line of each document

    @property
    def characters(self) -> int:
        """The number of characters, each line end counted as one."""
        return sum(map(len, self.lines)) + len(self.lines)

    @property
    def documents(self) -> DocumentStream:
        """The lines of each document."""
        ends = (*self.starts[1:], len(self.lines))
        return (self.lines[start:end] for start, end in zip(self.starts, ends, strict=True))


class TextFiles(Config):
    """Files of running text for each split, each file a document, or text whose end is held out."""

    kind: Literal["text"] = "text"
    root: Name = Field(".", description="folder of the files, relative to the working directory")
    longest: int = Field(1_000_000, ge=1, le=100_000_000, description="maximum characters per line")
    train: Name | list[Name] = Field(description="file or folder for training, or a list of them")
    valid: Name | list[Name] | None = Field(
        None, description="files for validation; null: the end of the training text"
    )
    test: Name | list[Name] | None = Field(None, description="files for the final score")
    held_out: float = Field(
        0.1, gt=0, lt=1, description="share of the text held out for validation where valid is null"
    )

    @field_validator("train", "valid", "test")
    @classmethod
    def _require_files(cls, names: str | list[str] | None) -> str | list[str] | None:
        if names == []:
            raise ValueError("an empty list; name files, or leave it out")
        return names

    def names(self, split: Split) -> list[str]:
        """The files and folders of a split; empty if the split is not given."""
        names = {"train": self.train, "valid": self.valid or self.train, "test": self.test}[split]
        return [names] if isinstance(names, str) else names or []

    def paths(self, split: Split) -> list[Path]:
        """The files of a split; empty if the split is not given."""
        return list(expand_files(self.root, self.names(split)))

    def stream(self, split: Split) -> DocumentStream:
        """Stream each file of a split as its lines."""
        paths = self.paths(split)
        if not paths:
            raise no_data(split)
        if self.valid is not None or split == "test":
            return skip_blank(lines(path, self.longest) for path in paths)
        numbered = self._split_lines(paths, split)
        return skip_blank((line for _, line in some) for _, some in groupby(numbered, itemgetter(0)))

    def read(self, split: Split) -> Text:
        """The text of a split."""
        text = collect(self.stream(split))
        if not text.lines:
            where = " and ".join(map(str, self.paths(split)))
            raise UserError("there is no text to read", where=where, found="only blank lines")
        return text

    def problems(self, splits: Sequence[Split] = SPLITS) -> list[UserError]:
        """Problems with the files of these splits that can be seen without reading them."""
        return check_files(self.root, (name for split in splits for name in self.names(split)))

    def _split_lines(self, paths: Sequence[Path], split: Split) -> Iterator[tuple[int, str]]:
        """The lines of a split with their file numbers: the first share of the characters, or all after it.

        A line belongs to the share if its end does; there is one line at least on either side.
        """
        total, last = 0, -1
        for last, (_, line) in enumerate(self._lines(paths)):  # noqa: B007
            total += len(line) + 1
        if last < 1:
            raise UserError(
                "one line cannot be split", where=" and ".join(map(str, paths)), found="a single line of text",
                todo="name a separate file under data.valid",
            )  # fmt: skip
        limit, end = (1 - self.held_out) * total, 0
        for number, (file, line) in enumerate(self._lines(paths)):
            end += len(line) + 1
            learned = number == 0 or (end < limit and number < last)
            if learned == (split == "train"):
                yield file, line

    def _lines(self, paths: Sequence[Path]) -> Iterator[tuple[int, str]]:
        return ((number, line) for number, path in enumerate(paths) for line in lines(path, self.longest))


def collect(documents: DocumentStream) -> Text:
    """Load documents into memory, concatenated."""
    found: list[str] = []
    starts: list[int] = []
    for document in documents:
        starts.append(len(found))
        found += document
    return Text(found, 0, tuple(starts or [0]))


def skip_blank(documents: Iterable[Iterable[str]]) -> DocumentStream:
    """Skip blank documents."""
    for document in documents:
        rest, seen = iter(document), []
        for line in rest:
            seen.append(line)
            if line.strip():
                yield chain(seen, rest)
                break


def expand_files(root: str, names: Sequence[str]) -> Iterator[Path]:
    """Expand folders into their text files, sorted by name."""
    for name in names:
        path = Path(root, name)
        if not is_folder(path):
            yield path
        elif files := _in_folder(path):
            yield from files
        else:
            raise _no_files(path)


def check_files(root: str, names: Iterable[str]) -> list[UserError]:
    """Problems with files and folders that can be seen without reading them."""
    paths = dict.fromkeys(Path(root, name) for name in names)
    empty = [_no_files(path) for path in paths if is_folder(path) and not _in_folder(path)]
    return [*missing_files(root, (path for path in paths if not is_folder(path))), *empty]


def _in_folder(folder: Path) -> list[Path]:
    """The text files in a folder and its subfolders."""
    found = (path for path in sorted(folder.rglob("*")) if path.name.removesuffix(".gz").endswith(SUFFIXES))
    return [path for path in found if not is_folder(path)]


def _no_files(folder: Path) -> UserError:
    return UserError(
        "there is no text in this folder", where=str(folder), expected="files that end in " + ", ".join(SUFFIXES),
        todo="name the files themselves",
    )  # fmt: skip
