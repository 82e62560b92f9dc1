"""Documents from text files: as sentences, for next-sentence prediction, or as running text.

Files have one paragraph or one sentence per line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, TypeVar

from pydantic import Field, field_validator

from heedful.config import Config
from heedful.data.embedded import Counting, LibraryProse
from heedful.data.formats.sources import SPLITS, Name, Split, json_lines, lines, no_data, string_field
from heedful.data.text.files import DocumentStream, check_files, expand_files, skip_blank
from heedful.errors import UserError

HEADING = re.compile(r"\s*= .* =\s*")  # of any depth: ` = Title = `, ` = = Section = = `
TITLE = re.compile(r"\s*= [^=].*[^=] =\s*|\s*= [^=\s] =\s*")
CODE = re.compile(r"^\s*(>>>|\.\.\.|\$ )", re.MULTILINE)

# A sentence ends with . ! ? or an ellipsis, and closing quotes or brackets, if a capital, a digit or an opening
# mark follows; in Chinese and Japanese, with their own full stop.
END = re.compile(
    r"""(?P<stop>[.!?…]+)(?P<close>\s?[”’"')\]»]+(?=\s))?\s+"""
    r"""(?=[“‘"'(\[«¿¡—-]*\s?(?P<next>[^\W_a-zß-öø-ÿ]\w*|<unk>))|[。！？]+[」』”]*"""
)
LOOKBEHIND = 200  # characters before a full stop that decide whether it ends a sentence
ABBREVIATION = re.compile(  # never ends a sentence, even before a capital
    r"mrs?|ms|messrs|mme|mlle|dr|prof|rev|hon|st|capt|col|gen|lt|sgt|maj|cpl|pvt|adm|sen|rep|gov|pres|vs?|cf|viz|nos?|"
    r"vol|figs?|eq|pp|eds?|approx|dept|mt|ft|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec|e\.g|i\.e",
    re.IGNORECASE,
)
INITIALS = re.compile(r"(?:[A-Za-z]\.)+[A-Za-z]")  # as in U.S. or p.m., which may or may not end a sentence
OPENERS = re.compile(  # words that start a sentence far more often than they follow such an abbreviation
    r"A|After|Although|An|And|As|At|But|By|For|From|He|Her|His|How|However|I|If|In|It|Its|No|Not|On|One|Our|She|Since|"
    r"So|Some|That|The|Their|Then|There|These|They|This|Those|Though|Thus|To|Under|We|What|When|Where|While|Who|With|"
    r"You|Your"
)


class TextDocuments(Config):
    """Text files; the settings say what separates documents and sentences."""

    kind: Literal["text"] = "text"
    files: list[Name] = Field(min_length=1, description="files and folders, plain or gzip")
    between: Literal["files", "blank_lines", "headings"] = Field(
        "files",
        description="where documents end: with each file, at a blank line, or before a line such as `= Title =`",
    )
    sentences: Literal["split", "lines"] = Field(
        "split",
        description="split each line, a paragraph, into sentences; or take each line as a sentence; ignored by "
        "language models",
    )

    def documents(self, root: str, longest: int) -> Iterator[list[str]]:
        """Each document's sentences; empty documents are skipped."""
        for path in expand_files(root, self.files):
            for document in _split_documents(lines(path, longest), self.between):
                if found := [one for line in document for one in self._sentences(line)]:
                    yield found

    def stream(self, root: str, longest: int) -> DocumentStream:
        """Each document's lines unchanged, headings included; blank documents are skipped."""
        files = (lines(path, longest) for path in expand_files(root, self.files))
        return skip_blank(document for file in files for document in _parts(file, self.between))

    def _sentences(self, line: str) -> list[str]:
        return sentences(line) if self.sentences == "split" else [line.strip()] * bool(line.strip())


class JsonDocuments(Config):
    """JSON lines: the text under a key is a document."""

    kind: Literal["jsonl"] = "jsonl"
    files: list[Name] = Field(min_length=1, description="files and folders, plain or gzip")
    field: Name = Field("text", description="key of the text")

    def documents(self, root: str, longest: int) -> Iterator[list[str]]:
        """Each text's sentences; empty texts are skipped."""
        for text in self._texts(root, longest):
            if found := split_text(text):
                yield found

    def stream(self, root: str, longest: int) -> DocumentStream:
        """Each text's lines; blank texts are skipped."""
        return skip_blank(text.split("\n") for text in self._texts(root, longest))

    def _texts(self, root: str, longest: int) -> Iterator[str]:
        for path in expand_files(root, self.files):
            for where, row in json_lines(path, longest):
                if row is not None:
                    yield string_field(row, self.field, where)


Document = TypeVar("Document")
DocumentsConfig = Annotated[TextDocuments | JsonDocuments, Field(discriminator="kind")]


class Prose(NamedTuple):
    """The documents of a split."""

    documents: list[list[str]]
    skipped: int = 0

    @property
    def texts(self) -> Iterator[str]:
        """All sentences, in order."""
        return (text for document in self.documents for text in document)


class Documents(Config):
    """Documents from files, with separate splits or a held-out share."""

    kind: Literal["documents"] = "documents"
    root: Name = Field(".", description="folder of the files, relative to the working directory")
    longest: int = Field(10_000_000, ge=1, le=100_000_000, description="maximum characters per line")
    train: list[DocumentsConfig] = Field(min_length=1, description="files for training")
    valid: list[DocumentsConfig] | None = Field(
        None, description="files for validation; null: a share of the training documents"
    )
    test: list[DocumentsConfig] | None = Field(None, description="files for the final score")
    held_out: float = Field(
        0.05, gt=0, le=0.5, description="share of the documents held out for validation where valid is null"
    )

    @field_validator("valid", "test")
    @classmethod
    def _require_files(cls, parts: list[DocumentsConfig] | None) -> list[DocumentsConfig] | None:
        if parts == []:
            raise ValueError("an empty list; name files, or leave it out")
        return parts

    def documents(self, split: Split) -> Iterator[list[str]]:
        """Stream the sentences of each document of a split."""
        found = (one for part in self._parts(split) for one in part.documents(self.root, self.longest))
        return self._select(split, found)

    def stream(self, split: Split) -> DocumentStream:
        """Stream the lines of each document of a split."""
        found = (one for part in self._parts(split) for one in part.stream(self.root, self.longest))
        return self._select(split, found)

    def problems(self, splits: Sequence[Split] = SPLITS) -> list[UserError]:
        """Problems with the files of these splits that can be seen without reading them."""
        return check_files(self.root, (name for split in splits for name in self._names(split)))

    def paths(self, split: Split) -> list[Path]:
        """The files of a split; empty if the split is not given."""
        return list(expand_files(self.root, self._names(split)))

    def _names(self, split: Split) -> list[str]:
        return [name for part in self._given(split) or () for name in part.files]

    def _parts(self, split: Split) -> list[DocumentsConfig]:
        parts = self._given(split)
        if parts is None:
            raise no_data(split)
        return parts

    def _given(self, split: Split) -> list[DocumentsConfig] | None:
        return {"train": self.train, "valid": self.valid or self.train, "test": self.test}[split]

    def _select(self, split: Split, found: Iterator[Document]) -> Iterator[Document]:
        """Select the documents of a split."""
        if split == "test" or self.valid is not None:
            return found
        every = round(1 / self.held_out)
        return (one for number, one in enumerate(found, start=1) if (number % every == 0) == (split == "valid"))


def read_documents(data: Documents | LibraryProse | Counting, split: Split) -> Prose:
    """Load the documents of a split into memory; an error if there are none."""
    found = list(iter_documents(data, split))
    if not found:
        raise UserError(
            f"there is no document for {split}", where="data", found="no text, or too few documents to hold some out",
            todo="name more files, or files of their own under data.valid",
        )  # fmt: skip
    return Prose(found)


def iter_documents(data: Documents | LibraryProse | Counting, split: Split) -> Iterator[list[str]]:
    """Iterate over the documents of a split."""
    return library_documents(data, split) if isinstance(data, LibraryProse) else data.documents(split)


def library_documents(config: LibraryProse, split: Split) -> Iterator[list[str]]:
    """The modules of Python's standard library as documents, without code examples."""
    for module in config.modules(split):
        paragraphs = (part for text in module for part in re.split(r"\n\s*\n", text) if not CODE.search(part))
        if found := [one for part in paragraphs for one in sentences(part)]:
            yield found


def _split_documents(file: Iterable[str], between: str) -> Iterator[list[str]]:
    """Split a file into documents, as lines without headings."""
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


def _parts(file: Iterable[str], between: str) -> DocumentStream:
    """Split a file into documents, as lines with headings, without the blank lines between documents."""
    if between == "files":
        yield file
    elif between == "blank_lines":
        yield from (some for blank, some in groupby(file, lambda line: not line.strip()) if not blank)
    else:
        yield from (some for _, some in groupby(file, _Titles()))


class _Titles:
    """Counts documents: each starts with a title, the first may start without one."""

    def __init__(self) -> None:
        self.number, self.started = 0, False

    def __call__(self, line: str) -> int:
        self.number += self.started and TITLE.fullmatch(line) is not None
        self.started = self.started or bool(line.strip())
        return self.number


def split_text(text: str) -> list[str]:
    """The sentences of a text, whose paragraphs are its lines."""
    return [one for part in re.split(r"\n|<br */?>", text) for one in sentences(part)]


def sentences(paragraph: str) -> list[str]:
    """Split a paragraph into sentences, whitespace normalized; rules are for English."""
    text = " ".join(paragraph.split())
    found, begin = [], 0
    for match in END.finditer(text):
        before = text[max(begin, match.start() - LOOKBEHIND) : match.start()]
        if match["stop"] is None or _ends(before, match["stop"], match["close"], match["next"]):
            found.append(text[begin : match.end()].strip())
            begin = match.end()
    found.append(text[begin:].strip())
    return [one for one in found if one]


def _ends(before: str, stop: str, close: str | None, following: str) -> bool:
    """Whether a full stop ends a sentence, rather than an abbreviation or an initial."""
    if stop != "." or close:
        return True
    words = before.rsplit(None, 1)
    if not words or before[-1].isspace():
        return bool(words)  # a separate full stop, as in tokenized text
    word = words[-1].lstrip("“‘\"'([«—-")
    if len(word) == 1 and word.isupper():
        # An initial; but `I` may be a word, if no name comes before it.
        return word == "I" and len(words) == 2 and words[0].rsplit(None, 1)[-1][:1].islower()
    if ABBREVIATION.fullmatch(word):
        return False
    return not INITIALS.fullmatch(word) or OPENERS.fullmatch(following) is not None
