"""Layouts: how sequences of different lengths lie in one tensor.

`Padded` gives each its own row, filled up to the longest. `Packed` lays them end to end in a single row, so that no place
is wasted and every batch has the same shape. Models ask a layout where each token stands and what it may see.

B batch, S source positions, T target positions, N sequences.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from heedful.blocks.attention import KV, Mask, Visible
from heedful.blocks.state import Cache, Grown, Past, Slot

BLOCK = 64  # tokens a tile of the packed kernel: a few short sentences


class Layout(Protocol):
    """What a model asks."""

    @property
    def at(self) -> Tensor:
        """The place of each source token in its own sequence, (S,) or (B, S)."""

    @property
    def mask(self) -> Visible:
        """What a source position may see of the source."""

    @property
    def cross(self) -> Visible:
        """What a target position may see of the source."""

    @property
    def longest(self) -> int:
        """No sequence is longer than this."""

    def past(self, layers: int) -> Past:
        """The past of a decoder before the first target token."""


@dataclass(frozen=True)
class Whole:
    """One row a sequence, all of one length."""

    tokens: Tensor  # (B, S)

    @property
    def at(self) -> Tensor:
        return torch.arange(self.tokens.shape[1], device=self.tokens.device)  # (S,)

    @property
    def mask(self) -> Visible:
        return None

    @property
    def cross(self) -> Visible:
        return None

    @property
    def longest(self) -> int:
        return self.tokens.shape[1]

    def past(self, layers: int) -> Past:
        return Cache((None,) * layers)


@dataclass(frozen=True)
class Padded:
    """One row a sequence; `real` (B, S) marks what is not padding, wherever the padding stands."""

    real: Tensor

    @property
    def at(self) -> Tensor:
        return (self.real.cumsum(1) - 1).clamp(min=0)  # (B, S)

    @property
    def mask(self) -> Visible:
        return self.real[:, None, None, :]  # (B, 1, 1, S)

    @property
    def cross(self) -> Visible:
        return self.mask

    @property
    def longest(self) -> int:
        return self.real.shape[1]

    def past(self, layers: int) -> Past:
        return Cache((None,) * layers)


@dataclass(frozen=True)
class Rows:
    """Sequences end to end in one row: which one a place belongs to and where in it; what is left over is one more."""

    number: Tensor  # (S,) sequence 0 ... N - 1, and N for what is left over
    at: Tensor  # (S,) place within the sequence
    begin: Tensor  # (N + 1,) where each sequence begins
    end: Tensor  # (N + 1,) one past its last place

    @classmethod
    def of(cls, lengths: Tensor, room: int) -> "Rows":
        """Sequences of these lengths (N,) in a row of `room` places."""
        end = torch.cat([lengths, room - lengths.sum(0, keepdim=True)]).cumsum(0)  # (N + 1,)
        begin = torch.cat([end.new_zeros(1), end[:-1]])  # (N + 1,)
        place = torch.arange(room, device=lengths.device)  # (S,)
        number = torch.searchsorted(end, place, right=True)  # (S,)
        at = torch.where(number < len(lengths), place - begin[number], 0)  # (S,)
        return cls(number, at, begin, end)


def blocks(queries: Rows, keys: Rows, causal: bool) -> BlockMask:
    """The rule "same sequence" (and "not later") with the tiles that hold anything, for FlexAttention."""
    seen, other = queries.number, keys.number
    tiles, across = len(seen) // BLOCK, len(other) // BLOCK
    first = keys.begin[seen[::BLOCK]] // BLOCK  # (tiles,)
    last = (keys.end[seen[BLOCK - 1 :: BLOCK]] - 1).clamp(min=0) // BLOCK  # (tiles,)
    if causal:
        last = torch.minimum(last, torch.arange(tiles, device=seen.device))
    count = (last - first + 1).clamp(min=0, max=across)
    index = (first[:, None] + torch.arange(across, device=seen.device)) % across

    def same(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return seen[q] == other[k]

    def same_and_before(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (seen[q] == other[k]) & (k <= q)

    return BlockMask.from_kv_blocks(
        count[None, None].int(),
        index[None, None].int(),
        BLOCK_SIZE=BLOCK,
        mask_mod=same_and_before if causal else same,
        seq_lengths=(len(seen), len(other)),
    )


@dataclass(frozen=True)
class PackedPast:
    """The past of packed targets, which come all at once."""

    layout: "Packed"
    layers: int
    length: int = 0

    def reach(self, queries: int) -> int:
        return self.layout.longest

    def places(self, queries: int) -> Tensor:
        return self.layout.target.at  # (T,)

    def visible(self, queries: int) -> Visible:
        return self.layout.look_back

    def slots(self, queries: int) -> Sequence[Slot]:
        return [Grown(None)] * self.layers

    def after(self, layers: Sequence[KV]) -> Past:
        return Cache(tuple(layers))


@dataclass(frozen=True)
class Packed:
    """Source and target sequences end to end in one row each, in the same order."""

    source: Rows
    target: Rows
    longest: int

    @property
    def at(self) -> Tensor:
        return self.source.at

    @cached_property
    def mask(self) -> Visible:
        return self._visible(self.source, self.source, causal=False)

    @cached_property
    def cross(self) -> Visible:
        return self._visible(self.target, self.source, causal=False)

    @cached_property
    def look_back(self) -> Visible:
        return self._visible(self.target, self.target, causal=True)

    def past(self, layers: int) -> Past:
        return PackedPast(self, layers)

    @staticmethod
    def _visible(queries: Rows, keys: Rows, causal: bool) -> Visible:
        if queries.number.is_cuda:
            return blocks(queries, keys, causal)
        seen, other = queries.number, keys.number
        return Mask(lambda b, h, q, k: (seen[q] == other[k]) & ((k <= q) | (not causal)))
