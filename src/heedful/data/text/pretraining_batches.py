"""Batches of pre-training examples: a pair per row, padded, or all pairs packed into one row.

B rows, T positions in a row, N pairs, M masked tokens, C cells.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from heedful.data.batch import IGNORE_INDEX, MULTIPLE, EpochCache, FixedEpochs, Ints, round_up
from heedful.data.labelled.sequences import SequenceBatch, pad_sequences
from heedful.data.masking import MaskingVocab, apply_masking, count_masked
from heedful.data.order import permutation
from heedful.data.text.pretraining import EncodedDocuments, MaskedPairs
from heedful.data.tokenizers.base import MaskTokenizer
from heedful.errors import UserError


@dataclass(frozen=True, slots=True)
class PretrainingBatch(SequenceBatch):
    """Pairs of segments with masked tokens, one per row or packed into one row."""

    ids: Tensor  # (B, T) long
    segments: Tensor  # (B, T) long
    lengths: Tensor  # (N,) long
    places: Tensor  # (M,) long, flat positions of the masked tokens
    targets: Tensor  # (M,) long, their original ids, IGNORE_INDEX for padding
    follows: Tensor  # (N,) long, FOLLOWS or UNRELATED, IGNORE_INDEX where there is no pair
    whole: Tensor  # (3,) long: tokens, masked tokens and pairs of the whole batch that this may be a shard of
    indices: Tensor  # (N,) long, the cell of each pair, -1 for padding
    longest: int  # no sequence is longer

    @property
    def tokens(self) -> int:
        """The number of input tokens; on a GPU this synchronizes, so call it before moving there."""
        return int((self.lengths * (self.indices >= 0)).sum())


class BatchShape(NamedTuple):
    """The fixed shape of padded or packed batches."""

    width: int  # positions in a row
    most: int  # sequences
    hidden: int  # masked tokens


def padded_batch(
    built: MaskedPairs, cells: Ints, rows: Ints, marks: MaskingVocab, shape: BatchShape | None = None
) -> PretrainingBatch:
    """A batch of these pairs, one per row; for no pairs, one row without targets."""
    shape = shape or BatchShape(round_up(int(built.lengths[rows].max(initial=1))), max(1, len(rows)), 0)
    spare = shape.most - len(rows)
    ids = np.full((shape.most, shape.width), marks.pad, dtype=np.int64)  # (B, T)
    segments, width = np.zeros_like(ids), min(shape.width, built.ids.shape[1])
    ids[: len(rows), :width], segments[: len(rows), :width] = built.shown[rows, :width], built.segments[rows, :width]
    ids[len(rows) :, 0] = marks.cls
    row, column = np.nonzero(built.hidden[rows])
    return _batch(
        built, cells, rows, ids, segments, np.pad(built.lengths[rows], (0, spare), constant_values=1),
        row * shape.width + column, shape.hidden, shape.width,
    )  # fmt: skip


def packed_batch(
    built: MaskedPairs, cells: Ints, rows: Ints, marks: MaskingVocab, shape: BatchShape, longest: int
) -> PretrainingBatch:
    """A batch of these pairs packed into one row."""
    lengths = built.lengths[rows]  # (N,)
    real = np.arange(built.ids.shape[1]) < lengths[:, None]  # (N, T)
    ids, segments = np.full((1, shape.width), marks.pad, dtype=np.int64), np.zeros((1, shape.width), dtype=np.int64)
    ids[0, : lengths.sum()], segments[0, : lengths.sum()] = built.shown[rows][real], built.segments[rows][real]
    places = np.flatnonzero(built.hidden[rows][real])
    filled = np.pad(lengths, (0, shape.most - len(rows)))
    return _batch(built, cells, rows, ids, segments, filled, places, shape.hidden, longest)


def _batch(
    built: MaskedPairs,
    cells: Ints,
    rows: Ints,
    ids: Ints,
    segments: Ints,
    lengths: Ints,
    places: Ints,
    hidden: int,
    longest: int,
) -> PretrainingBatch:
    """Build a batch from padded or packed arrays."""
    more, spare = (0, max(hidden, 1, len(places)) - len(places)), (0, len(lengths) - len(rows))
    targets = built.ids[rows][built.hidden[rows]].astype(np.int64)
    follows = np.pad(built.unrelated[rows].astype(np.int64), spare, constant_values=IGNORE_INDEX)
    return PretrainingBatch(
        ids=torch.from_numpy(ids),
        segments=torch.from_numpy(segments),
        lengths=torch.from_numpy(lengths),
        places=torch.from_numpy(np.pad(places, more, mode="edge") if len(places) else np.zeros(more[1], np.int64)),
        targets=torch.from_numpy(np.pad(targets, more, constant_values=IGNORE_INDEX)),
        follows=torch.from_numpy(follows),
        whole=torch.from_numpy(np.array([built.lengths.sum(), built.hidden.sum(), len(built.lengths)])),
        indices=torch.from_numpy(np.pad(cells[rows], spare, constant_values=-1)),
        longest=longest,
    )


def batches_in_order(encoded: EncodedDocuments, batch_tokens: int) -> Iterator[PretrainingBatch]:
    """The examples of every cell, deterministic, for evaluation."""
    size = max(1, batch_tokens // encoded.context)
    for at in range(0, encoded.cells, size):
        cells = np.arange(at, min(at + size, encoded.cells))
        yield padded_batch(encoded.build(0, 0, cells), cells, np.arange(len(cells)), encoded.marks)


class PretrainingBatches(FixedEpochs):
    """The endless sequence of training batches; which one comes at a position depends on the seed alone.

    A batch has a row for each pair; `even` ones have one shape; `packed` ones have all pairs in one row. All
    epochs have as many batches as the first would have, so that any position is found at once: an epoch that has fewer
    starts over with its first, and one that has more drops its last.
    """

    kind = PretrainingBatch

    def __init__(
        self, encoded: EncodedDocuments, seed: int, batch_tokens: int, packed: bool = False, even: bool = False
    ) -> None:
        self.encoded, self.seed, self.packed, self.even = encoded, seed, packed, even
        self.size = max(1, batch_tokens // encoded.context)  # pairs in a batch that is not packed
        longest = int(count_masked(np.array([encoded.context]), encoded.rules.hidden)[0])
        self._lengths = EpochCache(lambda epoch: encoded.lengths(seed, epoch))  # of the examples of an epoch
        self._planned = EpochCache(self._plan)
        self.shape = BatchShape(encoded.context, self.size, self.size * longest)
        if packed:
            self.shape = self._packed_shape(batch_tokens, longest)
        self.count = len(self._planned(0))

    @property
    def few_shapes(self) -> bool:
        """Whether batches have few shapes, so that recorded steps can be reused."""
        return self.packed or self.even

    @property
    def one_shape(self) -> bool:
        """Whether all batches have one shape."""
        return self.few_shapes

    def at(self, position: int, part: int = 0, parts: int = 1) -> PretrainingBatch:
        """The batch at a position, counted from 0 over all epochs, or one shard of it, which may be empty."""
        cells, marks = self._cells(position), self.encoded.marks
        built, rows = self.encoded.build(self.seed, self.epoch_of(position), cells), np.arange(part, len(cells), parts)
        if self.packed:
            return packed_batch(built, cells, rows, marks, self.shape, self.encoded.context)
        return padded_batch(built, cells, rows, marks, self.shape if self.even else None)

    def tokens(self, position: int) -> int:
        """The number of input tokens in the whole batch at a position."""
        cells = self._cells(position)
        return int(self._lengths(self.epoch_of(position))[cells].sum())

    def _cells(self, position: int) -> Ints:
        epoch, number = divmod(position, self.count)
        plan = self._planned(epoch)
        return plan[number % len(plan)]

    def _plan(self, epoch: int) -> list[Ints]:
        """The batches of an epoch, as arrays of cells."""
        order, lengths = permutation(self.seed, epoch, self.encoded.cells), self._lengths(epoch)  # (C,)
        cuts = self._filled(lengths[order]) if self.packed else range(self.size, len(order), self.size)
        return np.split(order, cuts)

    def _filled(self, lengths: Ints) -> list[int]:
        """Batch boundaries such that no batch exceeds its shape."""
        sums = [np.cumsum(some) for some in (lengths, count_masked(lengths, self.encoded.rules.hidden))]
        cuts, start = list[int](), 0
        while True:
            before = [int(some[start - 1]) if start else 0 for some in sums]
            room = zip(sums, before, (self.shape.width, self.shape.hidden), strict=True)
            stops = [int(np.searchsorted(some, old + limit, side="right")) for some, old, limit in room]
            start = min(*stops, start + self.shape.most)
            if start >= len(lengths):
                return cuts
            cuts.append(start)

    def _packed_shape(self, room: int, longest: int) -> BatchShape:
        """A shape with room for somewhat more sequences and masked tokens than a batch usually has."""
        if room < self.encoded.context:
            raise UserError(
                "a batch is too small for one pair", where="train.batch_tokens", found=f"{room:,} tokens",
                expected=f"at least {self.encoded.context:,}, the model's context",
                todo="raise train.batch_tokens, or lower model.context",
            )  # fmt: skip
        lengths = self._lengths(0)
        most = int(1.25 * room / lengths.mean()) + MULTIPLE
        hidden = int(1.01 * room * count_masked(lengths, self.encoded.rules.hidden).mean() / lengths.mean())
        return BatchShape(room, most, round_up(max(hidden, longest)))


class PairExample(NamedTuple):
    """A pair of texts, whether the second follows the first, and the words to mask."""

    first: str
    second: str
    follows: bool
    hidden: Sequence[str]


def example_batch(pairs: Sequence[PairExample], tokenizer: MaskTokenizer, last_sep: bool = True) -> PretrainingBatch:
    """Example pairs as a batch, with each of the given words masked wherever it occurs."""
    marks = MaskingVocab.of(tokenizer)
    rows = [tokenizer.pair(*tokenizer.ids([pair.first, pair.second]), last_sep=last_sep) for pair in pairs]
    found = pad_sequences(rows, tokenizer.pad)
    ids, segments, lengths = found.ids.numpy().astype(np.int32), found.segments.numpy(), found.lengths.numpy()
    words = [[piece for word in tokenizer.words(pair.hidden) for piece in word] for pair in pairs]
    hidden = np.stack([np.isin(row, some) for row, some in zip(ids, words, strict=True)])  # (B, T)
    masked = np.zeros(int(hidden.sum()), dtype=np.uint64)
    shown = apply_masking(ids, hidden, masked, masked, marks)
    unrelated = np.array([not pair.follows for pair in pairs])
    every = np.arange(len(pairs))
    return padded_batch(MaskedPairs(ids, shown, segments, lengths, hidden, unrelated), every, every, marks)
