"""Tagged sentences: columns as in CoNLL-2003, or JSON lines, plain or gzip.

Tags may be any labels, such as parts of speech. Chunk tags say whether a word is in a chunk, such as a name, and of
which type. They come in several schemes: IOB1, where B- is used only between adjacent chunks of one type; IOB2, where
every chunk starts with B-; and IOBES, where E- ends a chunk and S- marks a single-word chunk. All are read by the rule
of the CoNLL shared tasks and stored as IOB2. Other tags are left unchanged.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from heedful.data.formats.sources import FilePerSplit, Name, Split, json_lines, lines, list_keys, uneven_columns
from heedful.data.tokenizers.base import replace_surrogates
from heedful.errors import UserError, shown

CHUNK = re.compile(r"[BIESLU]-(.+)")
TAG = re.compile(r"O|[BIESLU]-(.+)")
MAX_TAG = 1000  # characters
SEPARATOR = re.compile(r"[ \t]+")
DOCUMENT = "-DOCSTART-"  # in the word column, where a document starts


class Chunk(NamedTuple):
    """The words [start, end) of a sentence, and their type, such as PER."""

    start: int
    end: int
    kind: str


class Sentence(NamedTuple):
    """Words and their tags (IOB2 for chunk tags), and the location in the file where the sentence starts."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    where: str


class Sentences(NamedTuple):
    """The sentences of one split, and the number of empty ones."""

    sentences: list[Sentence]
    skipped: int


class TaggedFiles(FilePerSplit):
    """Base of tagged-word files: paths and maximum line length."""

    longest: int = Field(100_000, ge=1, le=100_000_000, description="maximum characters per line")
    chunks: bool | None = Field(None, description="whether tags are chunk tags such as B-PER and I-PER; null: detect")

    @abstractmethod
    def rows(self, path: Path) -> Iterator[Sentence]:
        """Every sentence of a file with its original tags, empty sentences included."""

    def read(self, split: Split) -> Sentences:
        """The sentences of a split, and the number of empty ones."""
        path = self.path(split)
        rows = list(self.rows(path))
        sentences = [sentence for sentence in rows if sentence.words]
        if not sentences:
            raise UserError("there are no sentences", where=str(path), expected="words with their tags")
        detected = any(CHUNK.fullmatch(tag) for sentence in sentences for tag in sentence.tags)
        if detected if self.chunks is None else self.chunks:
            sentences = [sentence._replace(tags=iob2(self.check_tags(sentence))) for sentence in sentences]
        return Sentences(sentences, len(rows) - len(sentences))

    def check_tags(self, sentence: Sentence) -> tuple[str, ...]:
        """The tags of a sentence, if all are valid chunk tags."""
        for number, tag in enumerate(sentence.tags):
            if not TAG.fullmatch(tag):
                raise UserError(
                    "this is not a chunk tag", where=self.location(sentence, number), found=shown(tag),
                    expected="O outside, B-TYPE or I-TYPE inside (also E-, S-, L-, U-), such as I-PER",
                    todo="other tags of this file are chunk tags; set data.chunks: false if tags are arbitrary labels",
                )  # fmt: skip
        return sentence.tags

    def location(self, sentence: Sentence, word: int) -> str:
        """The location of a word in the file, or of its sentence."""
        return sentence.where


class Conll(TaggedFiles):
    """A word per line, in columns separated by a space or a tab; a blank line ends a sentence."""

    kind: Literal["conll"] = "conll"
    word_column: int = Field(0, ge=0, le=1000, description="column of the word, counted from 0")
    tag_column: int = Field(-1, ge=-1000, le=1000, description="column of the tag; -1: the last")

    def rows(self, path: Path) -> Iterator[Sentence]:
        """The sentences, separated by blank lines; document markers are skipped."""
        words: list[str] = []
        tags: list[str] = []
        first = width = 0
        for number, line in enumerate([*lines(path, self.longest), ""], start=1):
            if line.strip():
                where = f"{path}:{number}"
                columns = line.rstrip("\r").split("\t") if "\t" in line else SEPARATOR.split(line.strip(" "))
                width = width or len(columns)
                self._require_columns(columns, width, where)
                if columns[self.word_column] != DOCUMENT:
                    first = first if words else number
                    words.append(columns[self.word_column])
                    tags.append(require_tag(columns[self.tag_column], where))
            elif words:
                yield Sentence(tuple(words), tuple(tags), f"{path}:{first}")
                words, tags = [], []

    def location(self, sentence: Sentence, word: int) -> str:
        """The line of a word."""
        path, first = sentence.where.rsplit(":", 1)
        return f"{path}:{int(first) + word}"

    def _require_columns(self, columns: Sequence[str], width: int, where: str) -> None:
        tag = self.tag_column if self.tag_column >= 0 else width + self.tag_column
        needed = max(self.word_column, tag, 1) + 1
        found = f"{len(columns)} column{'s' * (len(columns) != 1)} in {shown(' '.join(columns))}"
        if tag < 0 or tag == self.word_column or width < needed:
            raise UserError(
                "this line has too few columns",
                where=where,
                found=found,
                expected=f"a word in column {self.word_column} and a tag in column {self.tag_column} "
                "(the first is 0, the last -1)",
                todo="check data.word_column and data.tag_column",
            )
        if len(columns) != width:
            advice = "columns are separated by spaces or by one tab each: is one missing, or is there one too many?"
            raise uneven_columns(where, found, width, advice)


class JsonTags(TaggedFiles):
    """One JSON object per line, with a list of words and a list of their tags."""

    kind: Literal["jsonl"] = "jsonl"
    words: Name = Field("tokens", description="key of the words")
    tags: Name = Field("tags", description="key of the tags")

    def rows(self, path: Path) -> Iterator[Sentence]:
        """The sentence of each object; a blank line is an empty sentence."""
        for where, found in json_lines(path, self.longest):
            row = {self.words: [], self.tags: []} if found is None else found
            words, tags = (_string_list(row, key, where) for key in (self.words, self.tags))
            if len(words) != len(tags):
                raise UserError(
                    "the numbers of tags and words differ", where=where,
                    found=f"{len(words)} under {shown(self.words)}, {len(tags)} under {shown(self.tags)}",
                    expected="a tag for each word",
                )  # fmt: skip
            yield Sentence(words, tuple(require_tag(tag, where) for tag in tags), where)


TagsConfig = Annotated[Conll | JsonTags, Field(discriminator="kind")]


def require_tag(tag: str, where: str) -> str:
    """A tag; refuse one that is blank or too long."""
    if not tag.strip() or len(tag) > MAX_TAG:
        raise UserError(
            "this is not a tag", where=where, found=shown(tag), expected=f"a label of at most {MAX_TAG:,} characters"
        )
    return replace_surrogates(tag)[0]


def marks_chunks(labels: Sequence[str]) -> bool:
    """Whether a tag set consists of chunk tags: O, B-TYPE and so on."""
    return all(map(TAG.fullmatch, labels)) and any(map(CHUNK.fullmatch, labels))


def chunks(tags: Iterable[str]) -> list[Chunk]:
    """The chunks of a tag sequence in any scheme, by the rule of the CoNLL shared tasks.

    A chunk continues while tags are I- or E- of the same type. Anything else starts a chunk: an I- after O or after
    another type is read as B-.
    """
    found: list[Chunk] = []
    is_open = False  # whether the last chunk may include the next word
    for place, tag in enumerate(tags):
        mark, _, kind = tag.partition("-")
        if mark == "O":
            is_open = False
            continue
        if is_open and mark in "IEL" and found[-1].kind == kind:
            found[-1] = Chunk(found[-1].start, place + 1, kind)
        else:
            found.append(Chunk(place, place + 1, kind))
        is_open = mark in "BI"
    return found


def iob2(tags: Sequence[str]) -> tuple[str, ...]:
    """The same chunks in IOB2."""
    written = ["O"] * len(tags)
    for start, end, kind in chunks(tags):
        written[start:end] = [f"B-{kind}"] + [f"I-{kind}"] * (end - start - 1)
    return tuple(written)


def collect_labels(sentences: Iterable[Sentence]) -> tuple[str, ...]:
    """The label set of sentences: for chunk tags O and B-/I- of each type, else the tags that occur."""
    tags = {tag for sentence in sentences for tag in sentence.tags}
    if not marks_chunks(sorted(tags)):
        return tuple(sorted(tags))
    kinds = {tag.partition("-")[2] for tag in tags} - {""}
    return ("O", *(f"{mark}-{kind}" for kind in sorted(kinds) for mark in "BI"))


def _string_list(row: dict[str, object], key: str, where: str) -> tuple[str, ...]:
    """The list of strings under a key of an object."""
    texts = row.get(key)
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        found = shown(texts) if key in row else list_keys(row)
        raise UserError(
            f"there is no list of strings under {shown(key)}",
            where=where,
            found=found,
            expected=f'"{key}": ["...", ...]',
        )
    return tuple(texts)
