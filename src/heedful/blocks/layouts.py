"""Layouts: how sequences of different lengths lie in one tensor.

`Padded` gives each its own row, filled up to the longest. `Packed` lays them end to end in a single row, so that no
column is wasted and every batch has the same shape. Models ask a layout for positions and masks.

B batch, S source positions, T target positions, N sequences.
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from heedful.blocks.masks import Ranges, Together, Visible, causal, same
from heedful.blocks.state import AllAtOnce, Cache, Past


class Layout(Protocol):
    """What a model asks."""

    @property
    def real(self) -> Tensor | None:
        """Which source positions hold a token, (B, S), where some do not."""

    @property
    def gaps(self) -> bool:
        """Whether padding may stand between tokens."""

    @property
    def at(self) -> Tensor:
        """The position of each source token in its own sequence, (S,) or (B, S)."""

    @property
    def mask(self) -> Visible:
        """The source positions that a source position may attend to."""

    @property
    def cross(self) -> Visible:
        """The source positions that a target position may attend to."""

    def longest_within(self, context: int) -> int:
        """No sequence is longer than this; counted exactly where a row is wider than a model's context."""

    def past(self, layers: int) -> Past:
        """The past of a decoder before the first target token."""


@dataclass(frozen=True)
class Whole:
    """One row a sequence, all of one length."""

    gaps: ClassVar = False

    tokens: Tensor  # (B, S)

    @property
    def real(self) -> None:
        return None

    @property
    def at(self) -> Tensor:
        return torch.arange(self.tokens.shape[1], device=self.tokens.device)  # (S,)

    @property
    def mask(self) -> Visible:
        return None

    @property
    def cross(self) -> Visible:
        return None

    def longest_within(self, context: int) -> int:
        return self.tokens.shape[1]

    def first(self, x: Tensor) -> Tensor:
        """Of x (B, S, D), what stands at the first token of each sequence."""
        return x[:, 0]  # (B, D)

    def past(self, layers: int) -> Past:
        return Cache((None,) * layers)


@dataclass(frozen=True)
class Padded:
    """One row a sequence; `real` (B, S) marks what is not padding, wherever the padding stands."""

    real: Tensor
    gaps: bool = True  # whether it may stand between tokens

    @property
    def at(self) -> Tensor:
        return (self.real.cumsum(1) - 1).clamp(min=0)  # (B, S)

    @property
    def mask(self) -> Visible:
        return self.real[:, None, None, :]  # (B, 1, 1, S)

    @property
    def cross(self) -> Visible:
        return self.mask

    def longest_within(self, context: int) -> int:
        width = self.real.shape[1]
        return width if width <= context else int(self.real.sum(1).max())

    def first(self, x: Tensor) -> Tensor:
        """Of x (B, S, D), what stands at the first token of each sequence; an empty one has none but its padding."""
        begin = self.real.int().argmax(1)  # (B,)
        return x.gather(1, begin[:, None, None].expand(-1, 1, x.shape[2]))[:, 0]  # (B, D)

    def past(self, layers: int) -> Past:
        return Cache((None,) * layers)


def real_first(real: Tensor) -> Tensor:
    """The column (B, S) of each token once the padding of its row has moved to the end."""
    ahead = real.cumsum(1)  # (B, S)
    behind = ahead[:, -1:] + (~real).cumsum(1)  # (B, S)
    return torch.where(real, ahead, behind) - 1


@dataclass(frozen=True)
class Rows:
    """Sequences packed in one row: the sequence and position of each column; columns left over attend to nothing."""

    number: Tensor  # (S,) sequence 0 ... N - 1, and N for what is left over
    at: Tensor  # (S,) position within the sequence
    begin: Tensor  # (N + 1,) where each sequence begins
    end: Tensor  # (N + 1,) one past its last column; what is left over ends where it begins

    @classmethod
    def of(cls, lengths: Tensor, room: int) -> "Rows":
        """Sequences of these lengths (N,) in a row of `room` columns."""
        end = torch.cat([lengths, room - lengths.sum(0, keepdim=True)]).cumsum(0)  # (N + 1,)
        begin = torch.cat([end.new_zeros(1), end[:-1]])  # (N + 1,)
        place = torch.arange(room, device=lengths.device)  # (S,)
        number = torch.searchsorted(end, place, right=True)  # (S,)
        at = torch.where(number < len(lengths), place - begin[number], 0)  # (S,)
        return cls(number, at, begin, torch.cat([end[:-1], begin[-1:]]))


def ranges(queries: Rows, keys: Rows, causal: bool) -> Ranges:
    """The rule "same sequence" (and "not later"): a query sees a range of keys, a key is seen by a range of queries."""
    lo, hi = keys.begin[queries.number], keys.end[queries.number]  # (T,)
    first, last = queries.begin[keys.number], queries.end[keys.number]  # (S,)
    if causal:
        hi = torch.minimum(hi, torch.arange(1, len(hi) + 1, device=hi.device))
        first = torch.maximum(first, torch.arange(len(first), device=first.device))
    return Ranges(lo.int(), hi.int(), first.int(), last.int())


@dataclass(frozen=True)
class EndToEnd:
    """Sequences end to end in one row, for models that only read."""

    at: Tensor  # (S,)
    mask: Together
    longest: int

    @classmethod
    def of(cls, lengths: Tensor, room: int, longest: int) -> "EndToEnd":
        """Sequences of these lengths (N,) in a row of `room` columns."""
        rows = Rows.of(lengths, room)
        return cls(rows.at, Together(rows.begin.int(), rows.end.int(), longest, rows.number), longest)

    def longest_within(self, context: int) -> int:
        return self.longest

    def first(self, x: Tensor) -> Tensor:
        """Of x (1, S, D), what stands at the first token of each sequence."""
        return x[0, self.mask.begin[:-1]]  # (N, D)


Reading = Whole | Padded | EndToEnd  # layouts of models that only read


@dataclass(frozen=True)
class OneByOne:
    """One row a sequence, all of one length, each token seeing those before it."""

    tokens: Tensor  # (B, T)

    def past(self, layers: int) -> Past:
        width = self.tokens.shape[1]
        return AllAtOnce(layers, width, torch.arange(width, device=self.tokens.device), causal())

    def laid(self, x: Tensor) -> Tensor:
        return x


@dataclass(frozen=True)
class Documents:
    """Rows in which documents follow each other, each token seeing those before it in its own document alone.

    A document that began in another row stands as if it began in this one. Rows may stand end to end in a single one.
    """

    shape: tuple[int, int]
    width: int
    at: Tensor  # (B, T), or (B * T,) in one row
    mask: Visible

    @classmethod
    def of(cls, documents: Tensor, in_one_row: bool) -> "Documents":
        """Of which document (B, T) of its row each token is, counted up."""
        rows, width = documents.shape
        place = torch.arange(width, device=documents.device).expand(rows, -1)  # (B, T)
        new = documents[:, 1:] != documents[:, :-1]  # (B, T - 1)
        opens, closes = (torch.nn.functional.pad(new, side, value=True) for side in ((1, 0), (0, 1)))  # (B, T)
        begin = torch.where(opens, place, 0).cummax(1).values  # (B, T)
        if not in_one_row:
            return cls((rows, width), width, place - begin, causal() & same(documents))
        row = torch.arange(rows, device=documents.device)[:, None] * width  # (B, 1)
        end = torch.where(closes, place + 1, width).flip(1).cummin(1).values.flip(1)  # (B, T)
        lo, own, last = ((row + x).flatten().int() for x in (begin, place, end))
        return cls((1, rows * width), width, (place - begin).flatten(), Ranges(lo, own + 1, own, last))

    def past(self, layers: int) -> Past:
        return AllAtOnce(layers, self.width, self.at, self.mask)

    def laid(self, x: Tensor) -> Tensor:
        return x.reshape(self.shape)


@dataclass(frozen=True)
class Packed:
    """Source and target sequences end to end in one row each, in the same order."""

    gaps: ClassVar = False

    at: Tensor  # (S,)
    target_at: Tensor  # (T,)
    mask: Visible
    cross: Visible
    attend_cached: Visible
    longest: int

    @property
    def real(self) -> Tensor:
        raise ValueError("a recurrent net reads a row from its first token to its last: give each sentence its own row")

    @classmethod
    def of(cls, source: Tensor, target: Tensor, source_room: int, target_room: int, longest: int) -> "Packed":
        """Sequences of these lengths, source and target (N,) each, in rows of this many columns."""
        read, write = Rows.of(source, source_room), Rows.of(target, target_room)
        return cls(
            read.at,
            write.at,
            mask=ranges(read, read, causal=False),
            cross=ranges(write, read, causal=False),
            attend_cached=ranges(write, write, causal=True),
            longest=longest,
        )

    def longest_within(self, context: int) -> int:
        return self.longest

    def past(self, layers: int) -> Past:
        return AllAtOnce(layers, self.longest, self.target_at, self.attend_cached)
