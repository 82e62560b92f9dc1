"""Batches of text pairs as ids: padded and grouped by length under a token budget, or packed.

B batch, S source positions, T target positions, N samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from heedful.data.batch import MULTIPLE, Epochs, Ragged, TensorBatch, fingerprint, round_up
from heedful.data.formats.sources import Pair
from heedful.data.order import permutation
from heedful.data.tokenizers.base import replace_surrogates
from heedful.data.tokenizers.tokenizer import TrainedTokenizer
from heedful.errors import UserError

TILE = 128  # the token count of a batch is a multiple of this, which suits matrix products
POOL = 64  # batches per pool that is sorted by length: more waste less padding, fewer are more random
CHUNK = 1024  # pairs tokenized at a time


@dataclass(frozen=True, slots=True)
class PairBatch(TensorBatch):
    """Sources that end with eos and targets from bos to eos, padded to the right."""

    source: Tensor  # (B, S) long
    source_lengths: Tensor  # (B,) long
    target: Tensor  # (B, T) long
    target_lengths: Tensor  # (B,) long
    indices: Tensor  # (B,) long, the index of each pair in the encoded list

    @property
    def source_real(self) -> Tensor:
        """The source positions that are not padding."""
        places = torch.arange(self.source.shape[1], device=self.source.device)  # (S,)
        return places < self.source_lengths[:, None]  # (B, S)

    @property
    def tokens(self) -> int:
        """The number of target tokens; on a GPU this synchronizes, so call it before moving there."""
        return int(self.target_lengths.sum()) - len(self.target_lengths)


@dataclass(frozen=True, slots=True)
class PackedBatch(TensorBatch):
    """Pairs packed into one row per side, all batches of one shape; the rest is padding.

    Targets are the decoder's input (bos ...) and its labels (... eos).
    """

    source: Tensor  # (1, S) long
    source_lengths: Tensor  # (N,) long, zeros after the last pair
    target: Tensor  # (1, T) long
    labels: Tensor  # (1, T) long
    target_lengths: Tensor  # (N,) long, zeros after the last pair
    indices: Tensor  # (N,) long, -1 after the last pair
    longest: int  # no sequence is longer

    @property
    def tokens(self) -> int:
        """The number of target tokens."""
        return int(self.target_lengths.sum())


Batch = PairBatch | PackedBatch


@dataclass(frozen=True, slots=True)
class EncodedPairs:
    """All pairs of a split as ids, and the numbers of dropped pairs and of replaced characters."""

    source: Ragged
    target: Ragged
    indices: NDArray[np.int64]  # (N,) the index of each pair in the encoded list
    longest: int
    dropped: int  # pairs left out because a side is longer than `longest` tokens
    replaced: int  # lone surrogates in the texts, replaced by U+FFFD
    references: Sequence[str] = ()  # the target texts, by index

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Source and target length of each pair, bos and eos included."""
        return np.stack([self.source.lengths, self.target.lengths], axis=1)  # (N, 2)

    @property
    def sha256(self) -> str:
        """A hash of these ids, in order."""
        return fingerprint(self.source.flat, self.source.starts, self.target.flat, self.target.starts, self.indices)

    def batch(self, rows: NDArray[np.int64]) -> PairBatch:
        """A batch of these pairs; for no pairs, one row without targets."""
        if not len(rows):
            nothing = torch.full((1, MULTIPLE), TrainedTokenizer.pad)
            one = torch.ones(1, dtype=torch.long)
            return PairBatch(torch.full((1, MULTIPLE), TrainedTokenizer.eos), one, nothing, one, -one)
        source, source_lengths = self.source.padded(rows, self.longest)
        target, target_lengths = self.target.padded(rows, self.longest)
        return PairBatch(source, source_lengths, target, target_lengths, torch.from_numpy(self.indices[rows]))

    def even(self, rows: NDArray[np.int64], batch_tokens: int) -> PairBatch:
        """A batch of these pairs with one of few shapes: equal widths, and as many rows as fit the budget."""
        batch = self.batch(rows)
        width = max(batch.source.shape[1], batch.target.shape[1])
        spare = max(0, batch_tokens // width - len(batch.source))
        source, target = (
            functional.pad(side, (0, width - side.shape[1], 0, spare), value=TrainedTokenizer.pad)
            for side in (batch.source, batch.target)
        )
        source[len(source) - spare :, 0] = TrainedTokenizer.eos
        source_lengths, target_lengths = (
            functional.pad(lengths, (0, spare), value=1) for lengths in (batch.source_lengths, batch.target_lengths)
        )
        return PairBatch(
            source, source_lengths, target, target_lengths, functional.pad(batch.indices, (0, spare), value=-1)
        )

    def pack(self, rows: NDArray[np.int64], rooms: tuple[int, int]) -> PackedBatch:
        """Pack some pairs into rows of these widths for sources and targets."""
        spare = (0, max_packed(max(rooms)) - len(rows))
        lengths = np.pad(self.lengths[rows] - (0, 1), (spare, (0, 0)))  # (N, 2)
        return PackedBatch(
            source=self.source.packed(rows, rooms[0], 0, 0),
            source_lengths=torch.from_numpy(lengths[:, 0].copy()),
            target=self.target.packed(rows, rooms[1], 0, 1),
            labels=self.target.packed(rows, rooms[1], 1, 0),
            target_lengths=torch.from_numpy(lengths[:, 1].copy()),
            indices=torch.from_numpy(np.pad(self.indices[rows], spare, constant_values=-1)),
            longest=self.longest,
        )

    def in_order(self, batch_tokens: int) -> Iterator[PairBatch]:
        """Every pair once, for evaluation: the longest first, so that running out of memory shows at once."""
        lengths = self.lengths
        for rows in reversed(split_by_budget(by_length(np.arange(len(self)), lengths), lengths, batch_tokens)):
            yield self.batch(rows)


class PairBatches:
    """The endless sequence of training batches; which one comes at a position depends on the seed alone.

    A batch has a row for each pair; `even` ones have few shapes; `packed` ones have all pairs in one row.
    """

    def __init__(
        self, encoded: EncodedPairs, seed: int, batch_tokens: int, packed: bool = False, even: bool = False
    ) -> None:
        self.encoded = encoded
        self.batch_tokens = batch_tokens
        self.packed, self.even = packed, even
        self._lengths = encoded.lengths
        self._rooms = packed_widths(self._lengths, batch_tokens)
        choose = plan_packed if packed else plan_by_budget
        self._rows = Epochs(lambda epoch: choose(self._lengths, seed, epoch, batch_tokens))

    @property
    def kind(self) -> type[Batch]:
        """The class of the batches."""
        return PackedBatch if self.packed else PairBatch

    def at(self, position: int, part: int = 0, parts: int = 1) -> Batch:
        """The batch at a position, counted from 0 over all epochs, or one shard of it, which may be empty."""
        rows = self._rows.at(position)[part::parts]
        if self.packed:
            return self.encoded.pack(rows, self._rooms)
        return self.encoded.even(rows, self.batch_tokens) if self.even else self.encoded.batch(rows)

    @property
    def few_shapes(self) -> bool:
        """Whether batches have few shapes, so that recorded steps can be reused."""
        return self.packed or self.even

    @property
    def one_shape(self) -> bool:
        """Whether all batches have one shape."""
        return self.packed

    def tokens(self, position: int) -> int:
        """The number of target tokens in the whole batch at a position."""
        rows = self._rows.at(position)
        return int(self._lengths[rows, 1].sum()) - len(rows)

    def epoch_of(self, position: int) -> int:
        """The epoch, counted from 0, that the batch at a position belongs to."""
        return self._rows.epoch_of(position)


def encode_pairs(
    pairs: Sequence[Pair], tokenizer: TrainedTokenizer, longest: int, progress: Callable[[int, int], None] | None = None
) -> EncodedPairs:
    """Encode all pairs that fit the model's context; `progress` gets pairs done and pairs in total."""
    sources: list[NDArray[np.int32]] = []
    targets: list[NDArray[np.int32]] = []
    lengths: list[tuple[int, int]] = []
    indices: list[int] = []
    for start in range(0, len(pairs), CHUNK):
        chunk = pairs[start : start + CHUNK]
        rows = [
            (index, [*source, tokenizer.eos], [tokenizer.bos, *target, tokenizer.eos])
            for index, source, target in zip(
                range(start, start + len(chunk)),
                tokenizer.ids([pair.source for pair in chunk]),
                tokenizer.target_ids([pair.target for pair in chunk]),
                strict=True,
            )
            if max(len(source) + 1, len(target) + 2) <= longest
        ]
        indices += [index for index, _, _ in rows]
        lengths += [(len(source), len(target)) for _, source, target in rows]
        sources.append(np.array([number for _, source, _ in rows for number in source], dtype=np.int32))
        targets.append(np.array([number for _, _, target in rows for number in target], dtype=np.int32))
        if progress is not None:
            progress(start + len(chunk), len(pairs))
    if not indices:
        raise UserError(
            "no pair is left", where="data",
            found=f"{len(pairs):,} pairs, each longer than {longest:,} tokens on a side" if pairs else "no pairs",
            expected="at least one pair that fits into the model's context",
            todo="raise model.context, or use shorter texts",
        )  # fmt: skip
    return EncodedPairs(
        source=Ragged.of([source for source, _ in lengths], sources),
        target=Ragged.of([target for _, target in lengths], targets),
        indices=np.array(indices, dtype=np.int64),
        longest=longest,
        dropped=len(pairs) - len(indices),
        replaced=sum(replace_surrogates(text)[1] for pair in pairs for text in pair),
        references=[pair.target for pair in pairs],
    )


def plan_by_budget(lengths: NDArray[np.int64], seed: int, epoch: int, batch_tokens: int) -> list[NDArray[np.int64]]:
    """The batches of an epoch as row numbers: similar lengths together, within the token budget."""
    mean = float(round_up(lengths.max(axis=1)).mean())
    size = max(1, int(POOL * batch_tokens / mean))
    return plan_pooled(lengths, seed, epoch, size, lambda rows: split_by_budget(rows, lengths, batch_tokens))


def plan_pooled(
    lengths: NDArray[np.int64],
    seed: int,
    epoch: int,
    size: int,
    cut: Callable[[NDArray[np.int64]], list[NDArray[np.int64]]],
) -> list[NDArray[np.int64]]:
    """The batches of an epoch: shuffle, sort by length within pools, split each pool, shuffle its batches."""
    order = permutation(seed, epoch, len(lengths))  # (N,)
    batches = []
    for number, start in enumerate(range(0, len(order), size)):
        pool = cut(by_length(order[start : start + size], lengths))
        batches += [pool[place] for place in permutation(seed, epoch, len(pool), stream=1 + number)]
    return batches


def plan_packed(lengths: NDArray[np.int64], seed: int, epoch: int, room: int) -> list[NDArray[np.int64]]:
    """The batches of an epoch as row numbers: shuffle, then fill one batch after another, regardless of length."""
    order, rooms = permutation(seed, epoch, len(lengths)), packed_widths(lengths, room)  # (N,)
    ends = np.cumsum(lengths[order] - (0, 1), axis=0)  # (N, 2)
    batches = []
    start = 0
    while start < len(order):
        before = ends[start - 1] if start else np.zeros(2, dtype=np.int64)
        stop = min(int(np.searchsorted(ends[:, side], before[side] + rooms[side], side="right")) for side in (0, 1))
        stop = min(stop, start + max_packed(max(rooms)))
        if stop == start:
            raise UserError(
                "a batch is too small for one pair", where="train.batch_tokens", found=f"{room:,} tokens",
                expected=f"at least {int(lengths.max()):,}, the longest side of any pair",
                todo="raise train.batch_tokens, or lower model.context so that such pairs are left out",
            )  # fmt: skip
        batches.append(order[start:stop])
        start = stop
    return batches


def packed_widths(lengths: NDArray[np.int64], room: int) -> tuple[int, int]:
    """Widths for sources and targets: the side that is longer overall gets all, the other its share."""
    source, target = (lengths - (0, 1)).sum(axis=0) / max(lengths.sum(axis=0))
    longest = int(lengths.max())
    shares = (source / max(source, target), target / max(source, target))
    first, second = (min(room, max(longest, round(1.01 * share * room / TILE) * TILE)) for share in shares)
    return first, second


def max_packed(room: int) -> int:
    """The maximum number of pairs in a packed batch: eight tokens each."""
    return max(1, room // MULTIPLE)


def by_length(rows: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sort rows by their longest side, then by each side; the sort is stable."""
    sides = lengths[rows]
    return rows[np.lexsort((*sides.T[::-1], sides.max(axis=1)))]


def split_by_budget(rows: NDArray[np.int64], lengths: NDArray[np.int64], batch_tokens: int) -> list[NDArray[np.int64]]:
    """Split sorted rows so that rows x padded length fits the budget; a row over the budget is a batch of its own."""
    widths = round_up(lengths[rows].max(axis=1))  # (N,)
    batches = []
    start = 0
    while start < len(rows):
        # Widths increase, so no batch from here on has more rows than fit the budget at the first width.
        window = widths[start : start + batch_tokens // widths[start]]
        count = int(np.count_nonzero(window * np.arange(1, len(window) + 1) <= batch_tokens))
        batches.append(rows[start : start + max(1, count)])
        start += max(1, count)
    return batches
