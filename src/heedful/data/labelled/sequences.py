"""Sequences of ids for encoders: one per row, padded to the longest, or packed into one row.

In both layouts, a token has a flat position in the tensor, row by row. Tasks that need only some tokens, such as
the first of each sequence, index them by flat positions, independent of the layout.

B rows, T positions in a row, N sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heedful.data.batch import Ints, Ragged, TensorBatch, round_up

Ids = Sequence[int] | NDArray[np.int32] | NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Sequences(TensorBatch):
    """Token ids and segments; in a packed row, empty sequences come after the last one."""

    ids: Tensor  # (B, T) long
    segments: Tensor  # (B, T) long
    lengths: Tensor  # (N,) long
    longest: int  # no sequence is longer

    @property
    def packed(self) -> bool:
        """Whether all sequences are in one row."""
        return len(self.ids) != len(self.lengths)

    @property
    def real(self) -> Tensor:
        """The positions that are not padding, if each sequence has its own row."""
        return torch.arange(self.ids.shape[1], device=self.ids.device) < self.lengths[:, None]  # (B, T)

    @property
    def begins(self) -> Tensor:
        """The flat position of each sequence's first token; for empty ones, some valid position."""
        if self.packed:
            return (self.lengths.cumsum(0) - self.lengths).clamp(max=self.ids.shape[1] - 1)  # (N,)
        return torch.arange(len(self.ids), device=self.ids.device) * self.ids.shape[1]  # (N,)


class SequenceBatch(TensorBatch):
    """Base of batches of sequences with targets."""

    __slots__ = ()

    ids: Tensor
    segments: Tensor
    lengths: Tensor
    longest: int

    @property
    def sequences(self) -> Sequences:
        """The model's input."""
        return Sequences(self.ids, self.segments, self.lengths, self.longest)


class Windows:
    """Base of encoded sequences: ids of N windows, none longer than the context."""

    __slots__ = ()

    ids: Ragged
    pad: int
    context: int
    last: int | None  # the segment of the last token, if it has one of its own

    @property
    def lengths(self) -> Ints:
        """The number of tokens of each window."""
        return self.ids.lengths

    def widest(self, rows: Ints | slice = slice(None)) -> int:
        """The padded length of the longest of these windows, at most the context."""
        return min(round_up(int(self.lengths[rows].max(initial=1))), self.context)

    def segments(self, length: int, first: int) -> Ints:
        """The segments of a window of this length, whose first segment has `first` tokens."""
        found = (np.arange(length) >= first).astype(np.int64)
        if self.last is not None:
            found[-1:] = self.last
        return found

    def row(self, row: int) -> tuple[NDArray[np.int32], Ints]:
        """The ids of a window and their segments."""
        raise NotImplementedError

    def _padded(self, rows: Ints, width: int) -> Sequences:
        """A batch of these windows, one per row; for none, one padding token."""
        return pad_sequences([self.row(row) for row in rows.tolist()] or [([self.pad], [0])], self.pad, width)

    def _packed(self, rows: Ints, room: int, most: int) -> Sequences:
        """A batch of these windows packed into one row of `room` positions, with space for `most` windows."""
        return pack_sequences([self.row(row) for row in rows.tolist()], self.pad, room, most, self.widest())


def pad_sequences(rows: Sequence[tuple[Ids, Ids]], pad: int, width: int | None = None) -> Sequences:
    """Pad sequences of (ids, segments) to the longest or to `width`, one per row."""
    lengths = np.array([len(ids) for ids, _ in rows], dtype=np.int64)  # (N,)
    longest = int(lengths.max(initial=1))
    ids = np.full((len(rows), width or longest), pad, dtype=np.int64)  # (B, T)
    segments = np.zeros_like(ids)  # (B, T)
    for row, (some, kinds) in enumerate(rows):
        ids[row, : len(some)], segments[row, : len(some)] = some, kinds
    return Sequences(torch.from_numpy(ids), torch.from_numpy(segments), torch.from_numpy(lengths), width or longest)


def pack_sequences(rows: Sequence[tuple[Ids, Ids]], pad: int, room: int, most: int, longest: int) -> Sequences:
    """Pack sequences into one row of `room` positions, with space for `most`, none longer than `longest`."""
    lengths = np.zeros(max(most, 2), dtype=np.int64)  # (N,)
    lengths[: len(rows)] = [len(ids) for ids, _ in rows]
    ids, segments = np.full((1, room), pad, dtype=np.int64), np.zeros((1, room), dtype=np.int64)  # (1, T)
    end = 0
    for some, kinds in rows:
        ids[0, end : end + len(some)], segments[0, end : end + len(some)] = some, kinds
        end += len(some)
    return Sequences(torch.from_numpy(ids), torch.from_numpy(segments), torch.from_numpy(lengths), longest)
