"""Running text from files, plain or gzip, a paragraph a line."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import Field

from heedful.config import Config
from heedful.data.sources import SPLITS, Name, Split, lines, missing_files, no_data
from heedful.errors import UserError


class Text(NamedTuple):
    """A text as its lines, without their ends; blank ones are a part of it."""

    lines: list[str]
    skipped: int = 0

    @property
    def characters(self) -> int:
        """How many characters it has, each line's end counted as one."""
        return sum(map(len, self.lines)) + len(self.lines)


class TextFiles(Config):
    """One file of running text for each split, or one whose end is held out."""

    kind: Literal["text"] = "text"
    root: Name = Field(".", description="folder that the files are in, seen from the current one")
    longest: int = Field(1_000_000, ge=1, le=100_000_000, description="characters that a line may have")
    train: Name = Field(description="file to learn from")
    valid: Name | None = Field(None, description="file to watch progress on; null: the end of the one to learn from")
    test: Name | None = Field(None, description="file for the final figure")
    held_out: float = Field(0.1, gt=0, lt=1, description="share of the text that is held out where valid is null")

    def file(self, split: Split) -> Path | None:
        """The file that a split is read from, if it is given."""
        name = {"train": self.train, "valid": self.valid or self.train, "test": self.test}[split]
        return None if name is None else Path(self.root, name)

    def read(self, split: Split) -> Text:
        """The text of a split."""
        path = self.file(split)
        if path is None:
            raise no_data(split)
        whole = self._lines(path)
        if self.valid is not None or split == "test":
            return Text(whole)
        cut = self._cut(whole)
        return Text(whole[:cut] if split == "train" else whole[cut:])

    def missing(self, splits: Sequence[Split] = SPLITS) -> list[UserError]:
        """What a look at the files of some splits, without reading, already shows to be wrong."""
        return missing_files(self.root, map(self.file, splits))

    def _lines(self, path: Path) -> list[str]:
        found = list(lines(path, self.longest))
        if not any(map(str.strip, found)):
            raise UserError("there is no text to read", where=str(path), found=f"{len(found):,} lines, all blank")
        return found

    def _cut(self, whole: list[str]) -> int:
        """The first line that is held out: its end and all before it have the other share of the characters."""
        if len(whole) < 2:
            raise UserError(
                "one line cannot be cut in two", where=str(self.file("train")), found="a single line of text",
                todo="name a file of its own under data.valid",
            )  # fmt: skip
        ends = list(accumulate(len(line) + 1 for line in whole))
        return min(max(1, bisect_left(ends, (1 - self.held_out) * ends[-1])), len(whole) - 1)
