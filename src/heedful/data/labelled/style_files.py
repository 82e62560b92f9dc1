"""Texts in several styles: a file of sentences for each style, one a line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from heedful.config import Config
from heedful.data.formats.sources import SPLITS, Name, Split, lines, missing_files, no_data
from heedful.data.formats.tables import Item, Items
from heedful.errors import UserError

Styles = Annotated[dict[Name, Name], Field(min_length=2, max_length=1000)]


class StyleFiles(Config):
    """A file for each style and split; lines need not correspond."""

    kind: Literal["style_files"] = "style_files"
    root: Name = Field(".", description="folder of the files, relative to the working directory")
    train: Styles = Field(description="files for training, by style: {formal: a.txt, casual: b.txt}")
    valid: Styles = Field(description="files for validation, by style")
    test: Styles | None = Field(None, description="files for the final score, by style")
    longest: int = Field(100_000, ge=1, le=100_000_000, description="maximum characters per line")

    def files(self, split: Split) -> Mapping[str, Path]:
        """The files of a split, by style."""
        found = {"train": self.train, "valid": self.valid, "test": self.test}[split]
        return {style: Path(self.root, name) for style, name in (found or {}).items()}

    def file(self, split: Split) -> Path | None:
        """The first file of a split, if it is given."""
        return next(iter(self.files(split).values()), None)

    def problems(self, splits: Sequence[Split] = SPLITS) -> list[UserError]:
        """Problems with the files of these splits that can be seen without reading them."""
        return missing_files(self.root, (path for split in splits for path in self.files(split).values()))

    def read(self, split: Split) -> Items:
        """The lines of all files of a split, and the number of blank ones."""
        files = self.files(split)
        if not files:
            raise no_data(split)
        rows = [
            Item(line, None, style, f"{path}:{number}")
            for style, path in files.items()
            for number, line in enumerate(lines(path, self.longest), start=1)
        ]
        found = [row for row in rows if not row.blank]
        for style, path in files.items():
            if not any(row.label == style for row in found):
                raise UserError(
                    "there are no texts", where=str(path), found="blank lines", expected="a sentence a line"
                )
        return Items(found, len(rows) - len(found))
