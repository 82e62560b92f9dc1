"""Layouts: how sequences of different lengths are stored in one tensor.

`Padded` gives each sequence its own row, padded to the longest. `PackedTexts` and `PackedPairs` concatenate them in one
row, so that almost nothing is padding and every batch has the same shape. Models get positions and masks from a layout.

B batch, S source positions, T target positions, D width, N sequences.
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from heedful.blocks.masks import AnyMask, BlockDiagonal, Local, Ranges, causal, same
from heedful.blocks.state import Cache, NoCache, Past


class Layout(Protocol):
    """The positions and masks that an encoder-decoder model needs."""

    @property
    def real(self) -> Tensor | None:
        """True (B, S) where there is a source token, False for padding; None if there is no padding."""

    @property
    def gaps(self) -> bool:
        """Whether there may be padding between the tokens of a row."""

    @property
    def at(self) -> Tensor:
        """The position of each source token in its own sequence, (S,) or (B, S)."""

    @property
    def mask(self) -> AnyMask:
        """The source positions that a source position may attend to."""

    @property
    def cross(self) -> AnyMask:
        """The source positions that a target position may attend to."""

    def max_length(self, context: int) -> int:
        """An upper bound of the lengths, which is exact if a row is wider than the model's context."""

    def past(self, layers: int) -> Past:
        """The decoder's cache before the first target token."""


@dataclass(frozen=True)
class Unpadded:
    """One row for each sequence, all of the same length."""

    gaps: ClassVar = False

    tokens: Tensor  # (B, S)

    @property
    def real(self) -> None:
        return None

    @property
    def at(self) -> Tensor:
        return torch.arange(self.tokens.shape[1], device=self.tokens.device)  # (S,)

    @property
    def mask(self) -> AnyMask:
        return None

    @property
    def cross(self) -> AnyMask:
        return None

    def max_length(self, context: int) -> int:
        return self.tokens.shape[1]

    def first(self, x: Tensor) -> Tensor:
        """The vectors (B, D) of x (B, S, D) at the first token of each sequence."""
        return x[:, 0]  # (B, D)

    def last(self, x: Tensor) -> Tensor:
        """The vectors (B, D) of x (B, S, D) at the last token of each sequence."""
        return x[:, -1]  # (B, D)

    def past(self, layers: int) -> Past:
        return Cache((None,) * layers)


@dataclass(frozen=True)
class Padded:
    """One row for each sequence; `real` (B, S) is True for tokens and False for padding, on any side."""

    real: Tensor
    gaps: bool = True  # whether there may be padding between tokens

    @property
    def at(self) -> Tensor:
        return (self.real.cumsum(1) - 1).clamp(min=0)  # (B, S)

    @property
    def mask(self) -> AnyMask:
        return self.real[:, None, None, :]  # (B, 1, 1, S)

    @property
    def cross(self) -> AnyMask:
        return self.mask

    def max_length(self, context: int) -> int:
        width = self.real.shape[1]
        return width if width <= context else int(self.real.sum(1).max())

    def first(self, x: Tensor) -> Tensor:
        """The vectors (B, D) of x (B, S, D) at each sequence's first token; for an empty one, at its first padding."""
        begin = self.real.int().argmax(1)  # (B,)
        return x.gather(1, begin[:, None, None].expand(-1, 1, x.shape[2]))[:, 0]  # (B, D)

    def last(self, x: Tensor) -> Tensor:
        """The vectors (B, D) of x (B, S, D) at each sequence's last token; for an empty one, at its last padding."""
        end = self.real.shape[1] - 1 - self.real.flip(1).int().argmax(1)  # (B,)
        return x.gather(1, end[:, None, None].expand(-1, 1, x.shape[2]))[:, 0]  # (B, D)

    def past(self, layers: int) -> Past:
        return Cache((None,) * layers)


def real_first(real: Tensor) -> Tensor:
    """The column (B, S) that each token gets if the padding of its row is moved to the end."""
    tokens = real.cumsum(1)  # (B, S)
    padding = tokens[:, -1:] + (~real).cumsum(1)  # (B, S)
    return torch.where(real, tokens, padding) - 1


def mean(x: Tensor, layout: Layout) -> Tensor:
    """The mean (B, D) of the vectors (B, S, D) of real tokens."""
    real = x.new_ones(x.shape[:2]) if layout.real is None else layout.real.to(x.dtype)
    return (real[:, None] @ x)[:, 0] / real.sum(1, keepdim=True).clamp(min=1)  # (B, D)


@dataclass(frozen=True)
class Rows:
    """Sequences packed in one row: the sequence and the position of each column; unused columns attend to nothing."""

    number: Tensor  # (S,) the sequence of each column, 0 ... N - 1, and N for unused columns
    at: Tensor  # (S,) position within the sequence
    begin: Tensor  # (N + 1,) where each sequence begins
    end: Tensor  # (N + 1,) one past its last column; that of the unused columns is their begin

    @classmethod
    def of(cls, lengths: Tensor, room: int) -> "Rows":
        """Sequences of these lengths (N,) in a row of `room` columns."""
        end = torch.cat([lengths, room - lengths.sum(0, keepdim=True)]).cumsum(0)  # (N + 1,)
        begin = torch.cat([end.new_zeros(1), end[:-1]])  # (N + 1,)
        column = torch.arange(room, device=lengths.device)  # (S,)
        number = torch.searchsorted(end, column, right=True)  # (S,)
        at = torch.where(number < len(lengths), column - begin[number], 0)  # (S,)
        return cls(number, at, begin, torch.cat([end[:-1], begin[-1:]]))


def ranges(queries: Rows, keys: Rows, causal: bool) -> Ranges:
    """The mask "same sequence" (and, if causal, "not later") as ranges: of keys for a query, of queries for a key."""
    lo, hi = keys.begin[queries.number], keys.end[queries.number]  # (T,)
    first, last = queries.begin[keys.number], queries.end[keys.number]  # (S,)
    if causal:
        hi = torch.minimum(hi, torch.arange(1, len(hi) + 1, device=hi.device))
        first = torch.maximum(first, torch.arange(len(first), device=first.device))
    return Ranges(lo.int(), hi.int(), first.int(), last.int())


@dataclass(frozen=True)
class PackedTexts:
    """Sequences concatenated in one row, for encoders."""

    at: Tensor  # (S,)
    mask: BlockDiagonal
    longest: int

    @classmethod
    def of(cls, lengths: Tensor, room: int, longest: int) -> "PackedTexts":
        """Sequences of these lengths (N,) in a row of `room` columns."""
        rows = Rows.of(lengths, room)
        return cls(rows.at, BlockDiagonal(rows.begin.int(), rows.end.int(), longest, rows.number), longest)

    def max_length(self, context: int) -> int:
        return self.longest

    def first(self, x: Tensor) -> Tensor:
        """The vectors (N, D) of x (1, S, D) at the first token of each sequence."""
        return x[0, self.mask.begin[:-1].clamp(max=x.shape[1] - 1)]  # (N, D)

    def last(self, x: Tensor) -> Tensor:
        """The vectors (N, D) of x (1, S, D) at the last token of each sequence."""
        return x[0, (self.mask.end[:-1] - 1).clamp(min=0)]  # (N, D)


EncoderLayout = Unpadded | Padded | PackedTexts  # layouts of encoders


@dataclass(frozen=True)
class CausalRows:
    """One row for each sequence, all of the same length, with causal attention."""

    tokens: Tensor  # (B, T)
    local: Local | None = None  # None: to every earlier token

    def past(self, layers: int) -> Past:
        width, mask = self.tokens.shape[1], causal() if self.local is None else self.local.mask()
        return NoCache(layers, width, torch.arange(width, device=self.tokens.device), mask)

    def arrange(self, x: Tensor) -> Tensor:
        """Token ids (B, T) in the shape of this layout."""
        return x


@dataclass(frozen=True)
class Documents:
    """Rows of several documents, with causal attention within each document only.

    The part of a document that continues from another row counts as a document of its own. All rows may be
    concatenated in a single one.
    """

    shape: tuple[int, int]
    width: int
    at: Tensor  # (B, T), or (B * T,) if all are in one row
    mask: AnyMask

    @classmethod
    def of(cls, documents: Tensor, in_one_row: bool, local: Local | None = None) -> "Documents":
        """The layout of tokens whose documents have these numbers (B, T), which never decrease within a row.

        With `local`, a token attends to some of the earlier tokens of its document alone; not in one row.
        """
        rows, width = documents.shape
        column = torch.arange(width, device=documents.device).expand(rows, -1)  # (B, T)
        new = documents[:, 1:] != documents[:, :-1]  # (B, T - 1)
        opens, closes = (torch.nn.functional.pad(new, side, value=True) for side in ((1, 0), (0, 1)))  # (B, T)
        begin = torch.where(opens, column, 0).cummax(1).values  # (B, T)
        if not in_one_row:
            at = column - begin  # (B, T)
            earlier = causal() if local is None else local.mask(at)
            return cls((rows, width), width, at, earlier & same(documents, ascending=True))
        assert local is None, "the kernels of packed rows know no window"
        row = torch.arange(rows, device=documents.device)[:, None] * width  # (B, 1)
        end = torch.where(closes, column + 1, width).flip(1).cummin(1).values.flip(1)  # (B, T)
        lo, own, last = ((row + x).flatten().int() for x in (begin, column, end))
        return cls((1, rows * width), width, (column - begin).flatten(), Ranges(lo, own + 1, own, last))

    def past(self, layers: int) -> Past:
        return NoCache(layers, self.width, self.at, self.mask)

    def arrange(self, x: Tensor) -> Tensor:
        """Token ids (B, T) in the shape of this layout."""
        return x.reshape(self.shape)


@dataclass(frozen=True)
class PackedPairs:
    """Source sequences concatenated in one row, and target sequences in another, in the same order."""

    gaps: ClassVar = False

    at: Tensor  # (S,)
    target_at: Tensor  # (T,)
    mask: AnyMask
    cross: AnyMask
    target_mask: AnyMask
    longest: int

    @property
    def real(self) -> Tensor:
        raise ValueError("a recurrent network cannot read packed sequences: use `Padded`, one row for each sequence")

    @classmethod
    def of(cls, source: Tensor, target: Tensor, source_room: int, target_room: int, longest: int) -> "PackedPairs":
        """Sequences of these source and target lengths (N,), in rows of `source_room` and `target_room` columns."""
        read, write = Rows.of(source, source_room), Rows.of(target, target_room)
        return cls(
            read.at,
            write.at,
            mask=ranges(read, read, causal=False),
            cross=ranges(write, read, causal=False),
            target_mask=ranges(write, write, causal=True),
            longest=longest,
        )

    def max_length(self, context: int) -> int:
        return self.longest

    def past(self, layers: int) -> Past:
        return NoCache(layers, self.longest, self.target_at, self.target_mask)
