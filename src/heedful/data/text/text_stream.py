"""Streaming tokenization of text: documents are split into passages, and passages encoded as ids.

All documents are concatenated into one array of ids: each after the start token, with the start token once
more at the end. So every token is to be predicted once, and the end of each document, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Self, TypeAlias

from pydantic import Field

from heedful.config import Config
from heedful.data.tokenizers.base import replace_surrogates
from heedful.data.tokenizers.lm_tokenization import TextCodec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PASSAGE = 1 << 19  # characters above which a document is split
SHARD = 1 << 21  # characters encoded at a time


SplitPoint: TypeAlias = Callable[[str], int]  # see `TextCodec.split_point`


class Passage(NamedTuple):
    """A part of a document."""

    text: str
    begins: bool  # whether it starts the document


class TextCounts(Config):
    """Counts of a text; the end of a document counts as a line end."""

    tokens: int = Field(0, ge=0)
    documents: int = Field(0, ge=0)
    characters: int = Field(0, ge=0)
    bytes: int = Field(0, ge=0)
    words: int = Field(0, ge=0)
    lines: int = Field(0, ge=0)
    unknown: int = Field(0, ge=0)
    replaced: int = Field(0, ge=0)  # lone surrogates, replaced by U+FFFD

    def __add__(self, other: Self) -> Self:
        return type(self)(**{name: value + getattr(other, name) for name, value in self})


class Shard(NamedTuple):
    """Encoded passages, document starts among them, and their counts."""

    ids: NDArray[np.int32]
    starts: NDArray[np.int64]
    amounts: TextCounts


def passages(documents: Iterable[Iterable[str]], split_point: SplitPoint, most: int = PASSAGE) -> Iterator[Passage]:
    """Split documents into passages whose ids concatenate to those of the whole document."""
    for document in documents:
        begins, parts, size, limit = True, list[str](), 0, most
        for line in document:
            parts.append(line)
            size += len(line) + 1
            if size >= limit:
                text = "\n".join(parts)
                end = split_point(text)
                if end > 0:
                    yield Passage(text[:end], begins)
                    begins = False
                parts, limit = [text[max(0, end) :]], most if end > 0 else 2 * limit
                size = len(parts[0])
        if parts:
            yield Passage("\n".join(parts), begins)


def shards(passages: Iterable[Passage], most: int = SHARD) -> Iterator[list[Passage]]:
    """Group passages into lists of about `most` characters."""
    shard: list[Passage] = []
    size = 0
    for passage in passages:
        shard.append(passage)
        size += len(passage.text)
        if size >= most:
            yield shard
            shard, size = [], 0
    if shard:
        yield shard


def encode_passages(passages: Sequence[Passage], codec: TextCodec) -> Shard:
    """Encode passages, and count their text."""
    import numpy as np

    parts, starts, counts, at = [], [], [], 0
    for passage, ids in zip(passages, codec.encode_batch([passage.text for passage in passages]), strict=True):
        if passage.begins:
            starts.append(at)
        parts.append(np.array([codec.start_id, *ids] if passage.begins else ids, dtype=np.int32))
        at += len(parts[-1])
        (text, replaced), ends = replace_surrogates(passage.text), int(passage.begins)
        size = (len(text) + ends, len(text.encode()) + ends, len(text.split()), text.count("\n") + ends)
        counts.append(
            (len(parts[-1]), ends, *size, 0 if codec.unknown_id is None else ids.count(codec.unknown_id), replaced)
        )
    amounts = TextCounts(**dict(zip(TextCounts.model_fields, map(sum, zip(*counts, strict=True)), strict=True)))
    return Shard(np.concatenate(parts), np.array(starts, dtype=np.int64), amounts)
