"""Tagged sentences as batches: ids, the first token of each word, and the tag of each word.

A sentence too long for the model is split into overlapping windows. Every word is tagged in one window only, the one
in which it is further from the edge.

B rows, T positions in a row, N windows, M words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heedful.data.batch import IGNORE_INDEX, Ints, Ragged, fingerprint
from heedful.data.formats.conll import Sentence
from heedful.data.labelled.sequences import SequenceBatch, Sequences, Windows
from heedful.data.row_schedule import SequenceBatches, in_order
from heedful.data.tokenizers.base import MaskTokenizer, count_around, count_special_tokens, last_segment
from heedful.errors import UserError, shown

OVERLAP = 4  # a window shares up to a fourth of its tokens with the next one


@dataclass(frozen=True, slots=True)
class TagBatch(SequenceBatch):
    """Windows of sentences, one per row or packed into one row, and the words that are tagged in them."""

    ids: Tensor  # (B, T) long
    segments: Tensor  # (B, T) long
    lengths: Tensor  # (N,) long
    words: Tensor  # (M,) long, the flat position of each word's first token
    labels: Tensor  # (M,) long, IGNORE_INDEX where there is none
    longest: int  # no window is longer

    @property
    def tokens(self) -> int:
        """The number of tagged words; on a GPU this synchronizes, so call it before moving there."""
        return int((self.labels != IGNORE_INDEX).sum())


@dataclass(frozen=True, slots=True)
class EncodedTags(Windows):
    """All sentences of a split in windows; each word is tagged in exactly one window, in order."""

    ids: Ragged  # of N windows
    words: Ragged  # of N windows, the position of each tagged word's first token
    labels: Ints  # (M,)
    counts: Ints  # words of each sentence
    pad: int
    context: int
    cut: int  # words with more pieces than fit into a window, which are truncated
    dropped: int = 0  # long sentences are split, not dropped
    last: int | None = None  # the segment of the last token, if it has one of its own

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def with_targets(self) -> Ints:
        """All windows have a target."""
        return np.arange(len(self.lengths))

    @property
    def sha256(self) -> str:
        """A hash of these ids and tags, in order."""
        words = self.words
        return fingerprint(self.ids.flat, self.ids.starts, words.flat, words.starts, self.labels, self.counts)

    def batch(self, rows: Ints) -> TagBatch:
        """A batch of these windows, one per row; for none, one token without a tag."""
        width = self.widest(rows)
        some = self._padded(rows, width)
        return self._with_words(some, rows, np.arange(len(rows)) * width, int(self.words.lengths[rows].sum()))

    def pack(self, rows: Ints, room: int, most: int) -> TagBatch:
        """A batch of these windows packed into one row of `room` positions, with space for `most` windows."""
        some = self._packed(rows, room, most)
        lengths = self.lengths[rows]
        return self._with_words(some, rows, np.cumsum(lengths) - lengths, room)

    def of_words(self, rows: Ints) -> Ints:
        """The indices of the words of these windows among all words."""
        places = [np.arange(self.words.starts[row], self.words.starts[row + 1]) for row in rows]
        return np.concatenate([np.zeros(0, np.int64), *places])

    def in_order(self, batch_tokens: int) -> Iterator[tuple[TagBatch, Ints]]:
        """Every window once, for evaluation, and the indices of its words among all words."""
        for rows in in_order(self.lengths, batch_tokens):
            yield self.batch(rows), self.of_words(rows)

    def row(self, row: int) -> tuple[NDArray[np.int32], Ints]:
        ids = self.ids[row]
        return ids, self.segments(len(ids), len(ids))

    def _with_words(self, some: Sequences, rows: Ints, begins: Ints, most: int) -> TagBatch:
        """A batch with the words of its windows, which start at flat positions `begins`, padded to `most` words."""
        at = self.of_words(rows)
        words, labels = np.zeros(most, np.int64), np.full(most, IGNORE_INDEX, np.int64)
        words[: len(at)] = self.words.flat[at] + np.repeat(begins, self.words.lengths[rows])
        labels[: len(at)] = self.labels[at]
        return TagBatch(
            some.ids, some.segments, some.lengths, torch.from_numpy(words), torch.from_numpy(labels), some.longest
        )


class TagBatches(SequenceBatches[TagBatch]):
    """The endless sequence of training batches of sentences."""

    kind: ClassVar = TagBatch
    encoded: EncodedTags

    def tokens(self, position: int) -> int:
        """The number of tagged words in the whole batch at a position."""
        at = self.encoded.of_words(self._at(position))
        return int(np.count_nonzero(self.encoded.labels[at] != IGNORE_INDEX))


class Window(NamedTuple):
    """The words [start, end) of a sentence, of which [first, last) are tagged in this window."""

    start: int
    end: int
    first: int
    last: int


def word_windows(sizes: Sequence[int], room: int) -> list[Window]:
    """Windows over words of these token counts, none with more than `room` tokens.

    Adjacent windows overlap by up to a fourth of their tokens, and each tags its half of the overlap.
    """
    ends = np.cumsum([0, *sizes])
    bounds: list[tuple[int, int]] = []
    start = 0
    while not bounds or bounds[-1][1] < len(sizes):
        end = int(np.searchsorted(ends, ends[start] + room, side="right")) - 1
        bounds.append((start, end))
        shared = int(np.searchsorted(ends, ends[end] - room // OVERLAP, side="left"))
        start = max(start + 1, min(shared, end))
    middles = [(start + end + 1) // 2 for (_, end), (start, _) in pairwise(bounds)]
    shares = zip([0, *middles], [*middles, len(sizes)], strict=True)
    found = [Window(*bound, *share) for bound, share in zip(bounds, shares, strict=True)]
    return [window for window in found if window.first < window.last]


def encode_tags(
    sentences: Sequence[Sentence], tokenizer: MaskTokenizer, labels: Sequence[str], context: int
) -> EncodedTags:
    """Encode sentences with the index of each word's tag."""
    numbers = {label: number for number, label in enumerate(labels)}
    return encode_words(
        [sentence.words for sentence in sentences], tokenizer, context,
        np.array([_number(tag, numbers, one) for one in sentences for tag in one.tags], np.int64),
    )  # fmt: skip


def encode_words(
    sentences: Sequence[Sequence[str]], tokenizer: MaskTokenizer, context: int, labels: Ints | None = None
) -> EncodedTags:
    """Encode words; without `labels`, they have no tags."""
    room, (before, _) = context - count_special_tokens(tokenizer, 1), count_around(tokenizer)
    pieces = iter(tokenizer.words([word for words in sentences for word in words]))
    ids: list[list[int]] = []
    places: list[Ints] = []
    cut = 0
    for words in sentences:
        every = [next(pieces) for _ in words]
        cut += sum(len(some) > room for some in every)
        every = [some[:room] for some in every]
        sizes = [len(some) for some in every]
        ends = np.cumsum([0, *sizes])
        for start, end, first, last in word_windows(sizes, room) if words else ():
            inner = [number for some in every[start:end] for number in some]
            ids.append(tokenizer.pair(inner)[0])
            places.append(before + ends[first:last] - ends[start])
    counts = np.array([len(words) for words in sentences], np.int64)
    return EncodedTags(
        ids=Ragged.of([len(some) for some in ids], [np.array(some, np.int32) for some in [[], *ids]]),
        words=Ragged.of([len(some) for some in places], [np.zeros(0, np.int32), *(p.astype(np.int32) for p in places)]),
        labels=np.full(int(counts.sum()), IGNORE_INDEX, np.int64) if labels is None else labels,
        counts=counts,
        pad=tokenizer.pad,
        context=context,
        cut=cut,
        last=last_segment(tokenizer),
    )


def _number(tag: str, numbers: Mapping[str, int], sentence: Sentence) -> int:
    if tag not in numbers:
        raise UserError(
            "unknown tag", where=f"{sentence.where}, the sentence that starts there", found=shown(tag),
            expected="one of " + ", ".join(numbers),
            todo="tags are those of the training data, unless model.labels lists them",
        )  # fmt: skip
    return numbers[tag]
