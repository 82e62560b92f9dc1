"""Text as documents: as sentences, for models that learn which of them follow each other, or as running text.

Files hold a paragraph a line, or a sentence a line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, TypeVar

from pydantic import Field, field_validator

from heedful.config import Config
from heedful.data.embedded import LibraryProse
from heedful.data.formats.sources import SPLITS, Name, Split, json_lines, lines, no_data, text_under
from heedful.data.text.files import Running, found_files, missing_texts, told
from heedful.errors import UserError

HEADING = re.compile(r"\s*= .* =\s*")  # of any depth: ` = Title = `, ` = = Section = = `
TITLE = re.compile(r"\s*= [^=].*[^=] =\s*|\s*= [^=\s] =\s*")
CODE = re.compile(r"^\s*(>>>|\.\.\.|\$ )", re.MULTILINE)

# A sentence ends with . ! ? or an ellipsis, and marks that close after it, where a capital, a digit or something that
# opens comes next; in Chinese and Japanese, with a stop of their own.
END = re.compile(
    r"""(?P<stop>[.!?…]+)(?P<close>\s?[”’"')\]»]+(?=\s))?\s+"""
    r"""(?=[“‘"'(\[«¿¡—-]*\s?(?P<next>[^\W_a-zß-öø-ÿ]\w*|<unk>))|[。！？]+[」』”]*"""
)
LOOK = 200  # characters before a stop that tell what it is
NEVER = re.compile(  # the end of a sentence, before a capital
    r"mrs?|ms|messrs|mme|mlle|dr|prof|rev|hon|st|capt|col|gen|lt|sgt|maj|cpl|pvt|adm|sen|rep|gov|pres|vs?|cf|viz|nos?|"
    r"vol|figs?|eq|pp|eds?|approx|dept|mt|ft|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec|e\.g|i\.e",
    re.IGNORECASE,
)
LETTERS = re.compile(r"(?:[A-Za-z]\.)+[A-Za-z]")  # as in U.S. or p.m., which may end a sentence or not
OPENERS = re.compile(  # words that begin a sentence far more often than they follow such letters inside one
    r"A|After|Although|An|And|As|At|But|By|For|From|He|Her|His|How|However|I|If|In|It|Its|No|Not|On|One|Our|She|Since|"
    r"So|Some|That|The|Their|Then|There|These|They|This|Those|Though|Thus|To|Under|We|What|When|Where|While|Who|With|"
    r"You|Your"
)


class TextDocuments(Config):
    """Files of text: what is a document there, and what a sentence."""

    kind: Literal["text"] = "text"
    files: list[Name] = Field(min_length=1, description="files and folders, plain or gzip")
    between: Literal["files", "blank_lines", "headings"] = Field(
        "files", description="where documents end: with each file, at a blank line, before a line such as = Title ="
    )
    sentences: Literal["split", "lines"] = Field(
        "split",
        description="split each line, a paragraph, into its sentences; or take a line as a sentence; no matter for "
        "running text",
    )

    def documents(self, root: str, longest: int) -> Iterator[list[str]]:
        """Each document's sentences; documents without any are passed over."""
        for path in found_files(root, self.files):
            for document in _cut(lines(path, longest), self.between):
                if found := [one for line in document for one in self._sentences(line)]:
                    yield found

    def running(self, root: str, longest: int) -> Running:
        """Each document's lines as they stand, headings included; blank documents are passed over."""
        files = (lines(path, longest) for path in found_files(root, self.files))
        return told(document for file in files for document in _parts(file, self.between))

    def _sentences(self, line: str) -> list[str]:
        return sentences(line) if self.sentences == "split" else [line.strip()] * bool(line.strip())


class JsonDocuments(Config):
    """JSON lines: the text under a key is a document."""

    kind: Literal["jsonl"] = "jsonl"
    files: list[Name] = Field(min_length=1, description="files and folders, plain or gzip")
    field: Name = Field("text", description="key of the text")

    def documents(self, root: str, longest: int) -> Iterator[list[str]]:
        """Each text's sentences; texts without any are passed over."""
        for text in self._texts(root, longest):
            if found := [one for part in re.split(r"\n|<br */?>", text) for one in sentences(part)]:
                yield found

    def running(self, root: str, longest: int) -> Running:
        """Each text's lines; blank texts are passed over."""
        return told(text.split("\n") for text in self._texts(root, longest))

    def _texts(self, root: str, longest: int) -> Iterator[str]:
        for path in found_files(root, self.files):
            for where, row in json_lines(path, longest):
                if row is not None:
                    yield text_under(row, self.field, where)


Document = TypeVar("Document")
DocumentsConfig = Annotated[TextDocuments | JsonDocuments, Field(discriminator="kind")]


class Prose(NamedTuple):
    """The documents of a split."""

    documents: list[list[str]]
    skipped: int = 0

    @property
    def texts(self) -> Iterator[str]:
        """All sentences, one after the other."""
        return (text for document in self.documents for text in document)


class Documents(Config):
    """Documents from files of one make or of several, with splits of their own or a share that is held out."""

    kind: Literal["documents"] = "documents"
    root: Name = Field(".", description="folder that the files are in, seen from the current one")
    longest: int = Field(10_000_000, ge=1, le=100_000_000, description="characters that a line may have")
    train: list[DocumentsConfig] = Field(min_length=1, description="what to learn from")
    valid: list[DocumentsConfig] | None = Field(
        None, description="what to watch progress on; null: a share of the documents to learn from"
    )
    test: list[DocumentsConfig] | None = Field(None, description="what the final figure is of")
    held_out: float = Field(0.05, gt=0, le=0.5, description="share of the documents held out where valid is null")

    @field_validator("valid", "test")
    @classmethod
    def _named(cls, parts: list[DocumentsConfig] | None) -> list[DocumentsConfig] | None:
        if parts == []:
            raise ValueError("an empty list; name files, or leave it out")
        return parts

    def documents(self, split: Split) -> Iterator[list[str]]:
        """The sentences of each document of a split, one after the other, none of them held in memory."""
        found = (one for part in self._parts(split) for one in part.documents(self.root, self.longest))
        return self._held(split, found)

    def running(self, split: Split) -> Running:
        """The lines of each document of a split, none of them held in memory."""
        found = (one for part in self._parts(split) for one in part.running(self.root, self.longest))
        return self._held(split, found)

    def missing(self, splits: Sequence[Split] = SPLITS) -> list[UserError]:
        """What a look at the files of some splits, without reading, already shows to be wrong."""
        return missing_texts(self.root, (name for split in splits for name in self._names(split)))

    def paths(self, split: Split) -> list[Path]:
        """The files of a split, none where it is not given."""
        return list(found_files(self.root, self._names(split)))

    def _names(self, split: Split) -> list[str]:
        return [name for part in self._given(split) or () for name in part.files]

    def _parts(self, split: Split) -> list[DocumentsConfig]:
        parts = self._given(split)
        if parts is None:
            raise no_data(split)
        return parts

    def _given(self, split: Split) -> list[DocumentsConfig] | None:
        return {"train": self.train, "valid": self.valid or self.train, "test": self.test}[split]

    def _held(self, split: Split, found: Iterator[Document]) -> Iterator[Document]:
        """Those of all documents that a split is given."""
        if split == "test" or self.valid is not None:
            return found
        every = round(1 / self.held_out)
        return (one for number, one in enumerate(found, start=1) if (number % every == 0) == (split == "valid"))


def read_documents(data: Documents | LibraryProse, split: Split) -> Prose:
    """The documents of a split, held in memory, if there are any."""
    found = list(documents_of(data, split))
    if not found:
        raise UserError(
            f"there is no document for {split}",
            where="data",
            found="no text, or too few documents to hold some out",
            todo="name more files, or files of their own under data.valid",
        )
    return Prose(found)


def documents_of(data: Documents | LibraryProse, split: Split) -> Iterator[list[str]]:
    """The documents of a split, one after the other."""
    return library_documents(data, split) if isinstance(data, LibraryProse) else data.documents(split)


def library_documents(config: LibraryProse, split: Split) -> Iterator[list[str]]:
    """A module of Python's standard library is a document; examples of code are left out."""
    for module in config.modules(split):
        paragraphs = (part for text in module for part in re.split(r"\n\s*\n", text) if not CODE.search(part))
        if told := [one for part in paragraphs for one in sentences(part)]:
            yield told


def _cut(file: Iterable[str], between: str) -> Iterator[list[str]]:
    """The lines of each document of a file, headings left out."""
    if between == "files":
        yield list(file)
    elif between == "blank_lines":
        yield from (list(some) for blank, some in groupby(file, lambda line: not line.strip()) if not blank)
    else:
        document: list[str] = []
        for line in file:
            if TITLE.fullmatch(line):
                yield document
                document = []
            elif not HEADING.fullmatch(line):
                document.append(line)
        yield document


def _parts(file: Iterable[str], between: str) -> Running:
    """The lines of each document of a file, nothing left out but the blank lines that lie between two."""
    if between == "files":
        yield file
    elif between == "blank_lines":
        yield from (some for blank, some in groupby(file, lambda line: not line.strip()) if not blank)
    else:
        yield from (some for _, some in groupby(file, _Titles()))


class _Titles:
    """Which document of a file a line belongs to: each begins with its title, and the first with what is before it."""

    def __init__(self) -> None:
        self.number, self.told = 0, False

    def __call__(self, line: str) -> int:
        self.number += self.told and TITLE.fullmatch(line) is not None
        self.told = self.told or bool(line.strip())
        return self.number


def sentences(paragraph: str) -> list[str]:
    """The sentences of a paragraph, spaces made one: English above all; what is no sentence is left whole."""
    text = " ".join(paragraph.split())
    found, begin = [], 0
    for match in END.finditer(text):
        before = text[max(begin, match.start() - LOOK) : match.start()]
        if match["stop"] is None or _ends(before, match["stop"], match["close"], match["next"]):
            found.append(text[begin : match.end()].strip())
            begin = match.end()
    found.append(text[begin:].strip())
    return [one for one in found if one]


def _ends(before: str, stop: str, close: str | None, following: str) -> bool:
    """Whether a sentence ends at a stop, and not an abbreviation or somebody's initial."""
    if stop != "." or close:
        return True
    words = before.rsplit(None, 1)
    if not words or before[-1].isspace():
        return bool(words)  # a stop that stands alone, as in texts that are cut into tokens
    word = words[-1].lstrip("“‘\"'([«—-")
    if len(word) == 1 and word.isupper():
        # An initial; but `I` may be a word, where no name stands before it.
        return word == "I" and len(words) == 2 and words[0].rsplit(None, 1)[-1][:1].islower()
    if NEVER.fullmatch(word):
        return False
    return not LETTERS.fullmatch(word) or OPENERS.fullmatch(following) is not None
