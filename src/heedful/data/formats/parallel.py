"""Corpora in several languages that are aligned line by line, as texts of all languages, or as pairs of two.

The source of a pair begins with the target's language, "<2de> a house", as Johnson et al. (2017) write it: one model
then translates between all of them.
"""

from __future__ import annotations

import difflib
import re
from abc import abstractmethod
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from heedful.config import Config, FieldError
from heedful.data.embedded import REPEATS, SHORT, NumberWords, known_languages, spell
from heedful.data.fields.rows import rows_in
from heedful.data.formats.sources import (
    SPLITS,
    Examples,
    FilePerSplit,
    Name,
    Pair,
    Split,
    lines,
    missing_files,
    no_data,
)
from heedful.errors import UserError, shown

Language = Annotated[str, Field(pattern=r"^[\w-]+$", max_length=40)]
Direction = tuple[Language, Language]
TAG = re.compile(r"<2([\w-]+)> ?")


def tagged(text: str, language: str) -> str:
    """A text to translate into this language."""
    return f"<2{language}> {text}"


def split_tag(text: str, languages: Sequence[str]) -> tuple[str | None, str]:
    """The language that a text is to be translated into, and the text without it."""
    found = TAG.match(text)
    return (found[1], text[found.end() :]) if found and found[1] in languages else (None, text)


def require_language(language: str, languages: Sequence[str], where: str) -> None:
    """Refuse a language that there is not."""
    if language not in languages:
        close = difflib.get_close_matches(language, languages, n=1, cutoff=0.4)
        raise UserError(
            "there is no such language", where=where, found=shown(language), expected="one of " + ", ".join(languages),
            todo=f"did you mean {close[0]}?" if close else None,
        )  # fmt: skip


class AlignedCorpora(Config):
    """The base of corpora in several languages."""

    kind: str
    directions: tuple[Direction, ...] | None = Field(
        None, min_length=1, max_length=10_000,
        description="languages of source and target that are translated; null: from each language to each other",
    )  # fmt: skip

    @property
    @abstractmethod
    def codes(self) -> tuple[str, ...]:
        """The languages, in order."""

    @abstractmethod
    def aligned(self, split: Split) -> dict[str, list[str]]:
        """The texts of a split in each language; those at one place mean the same."""

    @model_validator(mode="after")
    def _directions_exist(self) -> Self:
        for source, target in self.directions or ():
            for code in (source, target):
                if code not in self.codes:
                    raise FieldError(f"there is no language {code!r}; there are {', '.join(self.codes)}", "directions")
            if source == target:
                raise FieldError(f"{source!r} is both source and target", "directions")
        return self

    @property
    def pairs_of_languages(self) -> list[Direction]:
        """The languages of source and target that are translated."""
        if self.directions is not None:
            return list(self.directions)
        return [(source, target) for source in self.codes for target in self.codes if source != target]

    def texts(self, split: Split) -> dict[str, list[str]]:
        """The aligned texts of a split without the rows of which one is blank."""
        found = self.aligned(split)
        kept = [row for row in zip(*found.values(), strict=True) if all(text.strip() for text in row)]
        return {code: [row[place] for row in kept] for place, code in enumerate(found)}

    def read(self, split: Split) -> Examples:
        """The pairs of all directions, each with the target's language before its source."""
        found = self.aligned(split)
        rows = [
            (text, Pair(tagged(text, target), translation))
            for source, target in self.pairs_of_languages
            for text, translation in zip(found[source], found[target], strict=True)
        ]
        pairs = [pair for text, pair in rows if text.strip() and pair.target.strip()]
        if not pairs:
            raise UserError(
                "there are no pairs", where=f"data.{split}", found=f"{len(rows):,} pairs, each with a blank side",
                expected="at least one pair with text on both sides",
            )  # fmt: skip
        return Examples(pairs, len(rows) - len(pairs))

    def problems(self, splits: Sequence[Split] = SPLITS) -> list[UserError]:
        """Problems with the files of these splits that can be seen without reading them."""
        return []


Files = dict[Language, Name]


class ParallelCorpora(AlignedCorpora):
    """A file for each language, aligned line by line, plain or gzip."""

    kind: Literal["parallel_corpora"] = "parallel_corpora"
    root: Name = Field(".", description="folder of the files, relative to the working directory")
    longest: int = Field(100_000, ge=1, le=100_000_000, description="maximum characters per line")
    train: Files = Field(min_length=2, max_length=1000, description="files for training, by language: {en: train.en}")
    valid: Files = Field(min_length=2, max_length=1000, description="files for validation, by language")
    test: Files | None = Field(None, min_length=2, max_length=1000, description="files for the final score")

    @field_validator("valid", "test")
    @classmethod
    def _at_most_once(cls, files: Files | None) -> Files | None:
        if files is not None and len(set(files.values())) < len(files):
            raise ValueError("two languages have one file")
        return files

    @model_validator(mode="after")
    def _same_languages(self) -> Self:
        for name in ("valid", "test"):
            files = getattr(self, name)
            if files is not None and set(files) != set(self.train):
                raise FieldError(
                    f"the languages are {', '.join(files)}, but those of train are {', '.join(self.train)}", name
                )
        return self

    @property
    def codes(self) -> tuple[str, ...]:
        """The languages of the training files."""
        return tuple(self.train)

    def files(self, split: Split) -> dict[str, Path]:
        """The file of each language."""
        files = {"train": self.train, "valid": self.valid, "test": self.test}[split]
        if files is None:
            return {}
        return {code: Path(self.root, files[code]) for code in self.codes}

    def aligned(self, split: Split) -> dict[str, list[str]]:
        """Line n of each file; all must have the same number of lines."""
        files = self.files(split)
        if not files:
            raise no_data(split)
        found: dict[str, list[str]] = {code: [] for code in files}
        columns = [lines(path, self.longest) for path in files.values()]
        for row in zip_longest(*columns):
            if None in row:
                counts = {
                    code: len(found[code]) + (text is not None) + sum(1 for _ in column)
                    for (code, text), column in zip(zip(files, row, strict=True), columns, strict=True)
                }
                raise UserError(
                    "the files have unequal numbers of lines", where=" and ".join(map(str, files.values())),
                    found=", ".join(f"{count:,} lines in {files[code]}" for code, count in counts.items()),
                    expected="the same sentence in each language per line",
                    todo="look for a missing or duplicate line where the translations stop matching",
                )  # fmt: skip
            for code, text in zip(files, row, strict=True):
                found[code].append(text)
        return found

    def problems(self, splits: Sequence[Split] = SPLITS) -> list[UserError]:
        """Files that cannot be read."""
        return missing_files(self.root, (path for split in splits for path in self.files(split).values()))


class ParallelColumns(FilePerSplit, AlignedCorpora):
    """A table with a column for each language: CSV, TSV, JSON lines or Parquet, by its suffix."""

    kind: Literal["parallel_columns"] = "parallel_columns"
    languages: dict[Language, Name] = Field(
        min_length=2, max_length=1000, description="the column of each language: {en: English, de: German}"
    )

    @property
    def codes(self) -> tuple[str, ...]:
        """The languages."""
        return tuple(self.languages)

    def aligned(self, split: Split) -> dict[str, list[str]]:
        """The columns of a file; a text that is missing is blank."""
        path = self.path(split)
        rows = rows_in(path)
        for code, name in self.languages.items():
            if name not in rows.values:
                raise UserError(
                    f"there is no column {shown(name)}", where=str(path), found=", ".join(map(shown, rows.values)),
                    expected="the name of a column", todo=f"check data.languages.{code}",
                )  # fmt: skip
        return {
            code: ["" if text is None else str(text) for text in rows.values[name]]
            for code, name in self.languages.items()
        }


class ParallelNumbers(AlignedCorpora):
    """Spelled-out numbers, each in several languages, with nothing to download; the splits are disjoint."""

    kind: Literal["parallel_numbers"] = "parallel_numbers"
    languages: tuple[str, ...] = Field(("en", "de", "fr"), min_length=2, max_length=100, description="language codes")
    train: int = Field(10_000, ge=1, le=10_000_000, description="numbers for training, each in every language")
    valid: int = Field(100, ge=1, le=1_000_000, description="numbers for validation")
    test: int = Field(400, ge=1, le=1_000_000, description="numbers for the final score")
    below: int = Field(1_000_000, ge=3, le=10**12, description="upper limit of the numbers, exclusive")
    seed: int = Field(0, ge=0, lt=2**63, description="random seed of the sampled numbers")

    _known = field_validator("languages")(known_languages)

    @model_validator(mode="after")
    def _enough(self) -> Self:
        self._numbers()
        return self

    def _numbers(self) -> NumberWords:
        return NumberWords(train=self.train, valid=self.valid, test=self.test, below=self.below, seed=self.seed)

    @property
    def codes(self) -> tuple[str, ...]:
        """The languages."""
        return self.languages

    def aligned(self, split: Split) -> dict[str, list[str]]:
        """The numbers of a split in each language; in training, numbers below 100 are repeated."""
        numbers = self._numbers().numbers(split)
        if split == "train":
            numbers += [number for number in numbers if number < SHORT] * (REPEATS - 1)
        return {code: spell(numbers, code) for code in self.languages}
