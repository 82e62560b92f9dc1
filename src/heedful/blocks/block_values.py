"""The weights of block-sparse attention, as blocks: what a watcher of a long text gets, without a tensor of T x S.

`attend_in_blocks` is the definition of `attend`, computed for some rows of blocks at a time, each with the keys that it
has. Up to 1,024 queries and keys (`BlockSparse.long`), taps give plain tensors instead.

B batch, H heads, T queries, S keys, K width of one head, E of values; R rows of blocks of M positions, C columns of
blocks of N = 64; L blocks in all. A part of the lists has n rows of Y heads each, with c columns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.blocks.masks import Bias
from heedful.blocks.normalizers import Normalize, attention_weights
from heedful.blocks.scores import Score
from heedful.blocks.sparse import WIDTH, BlockSparse, Part, grouped, in_groups, parts, ungrouped
from heedful.blocks.taps import Tap, tapped


@dataclass(frozen=True, eq=False)
class BlockValues:
    """Scores or attention weights (B, H, T, S) of the blocks that a mask has; all others are `fill`.

    A block has the values of M queries, from M row on, for 64 keys, from 64 column on, in head h of row b of the batch.
    """

    values: Tensor  # (L, M, N)
    places: Tensor  # (L, 4): b, h, row, column
    shape: tuple[int, int, int, int]
    fill: float = 0.0

    @property
    def height(self) -> int:
        """The queries of a block: M."""
        return self.values.shape[1]

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + self.places.nbytes

    def detach(self) -> BlockValues:
        return replace(self, values=self.values.detach())

    def of_row(self, b: int) -> BlockValues:
        """Those of one row of the batch, as a batch of one."""
        own = self.places[:, 0] == b
        places = self.places[own] * torch.tensor([0, 1, 1, 1], device=self.places.device)
        return BlockValues(self.values[own], places, (1, *self.shape[1:]), self.fill)

    def without_heads(self, heads: Sequence[int]) -> BlockValues:
        """The same with zeros in some heads; what is masked (-inf, of scores) stays so."""
        off = torch.isin(self.places[:, 1], torch.tensor(heads, device=self.places.device))[:, None, None]
        return replace(self, values=self.values.masked_fill(off & (self.values != -math.inf), 0.0))

    def sums(self) -> Tensor:
        """The sum of each block: of weights, how much of the attention of its queries a block gets."""
        found = self.values.new_zeros(*self.shape[:2], *self._table)  # (B, H, R, C)
        return found.index_put(tuple(self.places.unbind(1)), self.values.sum((1, 2)))  # (B, H, R, C)

    def block(self, b: int, h: int, row: int, column: int) -> Tensor:
        """The values of one block, those of positions that there are: up to (M, N)."""
        at = (self.places == torch.tensor([b, h, row, column], device=self.places.device)).all(1)
        found = self.values[at][0] if at.any() else self.values.new_full((self.height, WIDTH), self.fill)
        return found[: self.shape[2] - row * self.height, : self.shape[3] - column * WIDTH]

    def dense(self) -> Tensor:
        """All of them as one tensor (B, H, T, S): T x S values in each head."""
        b, h, row, column = self.places.unbind(1)
        rows, columns = self._table
        found = self.values.new_full((*self.shape[:2], rows, self.height, columns, WIDTH), self.fill)
        every = torch.arange(self.height, device=b.device)  # (M,)
        index = (*(x[:, None] for x in (b, h, row)), every, column[:, None])
        found = found.index_put(index, self.values).flatten(4).flatten(2, 3)
        return found[:, :, : self.shape[2], : self.shape[3]]  # (B, H, T, S)

    @property
    def _table(self) -> tuple[int, int]:
        return -(-self.shape[2] // self.height), -(-self.shape[3] // WIDTH)


def in_blocks(x: Tensor, part: Part) -> Tensor:
    """Values (n, Y, M, c * N) of a part as blocks (n * Y * c, M, N)."""
    return x.unflatten(-1, (-1, WIDTH)).transpose(2, 3).flatten(0, 2)


def in_rows(x: Tensor, part: Part) -> Tensor:
    """The inverse of `in_blocks`."""
    return x.unflatten(0, (*part.shape, -1)).transpose(2, 3).flatten(3)


def places_of(part: Part, numbers: Tensor, heads: int, rows: int, columns: int) -> Tensor:
    """Row of the batch, head, row and column of each block of a part, (n * Y * c, 4)."""
    each = len(part.columns) // len(part.rows)
    row, column = part.rows.repeat_interleave(each), part.columns
    number = numbers.flatten()[row // rows]
    return torch.stack([number // heads, number % heads, row % rows, column % columns], 1)


def tap_blocks(
    found: list[Tensor], every: Sequence[Part], places: Tensor, q: Tensor, k: Tensor, tap: Tap | None, fill: float
) -> list[Tensor]:
    """The values of all parts after a tap, which gets them at once."""
    if tap is None or not tapped(tap):
        return found
    values = torch.cat([in_blocks(x, part) for x, part in zip(found, every, strict=True)])
    values = tap.blocks(BlockValues(values, places, (*q.shape[:3], k.shape[2]), fill)).values
    split = values.split([len(part.columns) for part in every])
    return [in_rows(x, part) for x, part in zip(split, every, strict=True)]


def scores_of(
    part: Part, q: Tensor, k: Tensor, sizes: tuple[int, int, int], bias: Bias | None, score: Score
) -> tuple[Tensor, Tensor]:
    """The scores of a part, and which of its pairs the mask has; sizes are heads, queries and keys."""
    (number, query, key), (heads, queries, keys) = part.pairs, sizes
    a = score(part.queries(q), part.keys(k))  # (n, Y, M, c * N)
    if bias is not None:
        at = query.clamp(max=queries - 1), key.clamp(max=keys - 1)
        a = a + bias(number // heads, number % heads, *at)
    allowed = (query < queries).expand(-1, -1, -1, a.shape[-1])  # (n, 1, M, c * N)
    if part.shift is not None:
        allowed = allowed & (part.shift > -math.inf)
    return a, allowed if part.empty is None else allowed & ~part.empty


def attend_in_blocks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: BlockSparse,
    bias: Bias | None,
    score: Score,
    normalize: Normalize,
    scores: Tap | None,
    weights: Tap | None,
    dropout: float,
) -> Tensor:
    """normalize(score(q, k) + bias, where mask) v of the blocks of a mask, with its scores and weights at taps."""
    lists, heads, (queries, keys) = mask.lists, q.shape[1], (q.shape[2], k.shape[2])
    shape, height, numbers = lists.columns.shape, lists.bits.shape[3], in_groups(q, lists)
    held = grouped(v, shape, WIDTH)
    lead = (*numbers.shape, shape[2])
    o = held.new_zeros(math.prod(lead), height, v.shape[-1])
    every = list(parts(lists, numbers, q.new_empty(0), q.dtype))
    if not every:
        return ungrouped(o.unflatten(0, lead), shape, len(q), queries)
    places = torch.cat([places_of(part, numbers, heads, shape[2], shape[3]) for part in every])  # (L, 4)
    queried, keyed = grouped(q, shape, height), grouped(k, shape, WIDTH)
    scored = [scores_of(part, queried, keyed, (heads, queries, keys), bias, score) for part in every]
    found, allowed = [a for a, _ in scored], [some for _, some in scored]
    found = tap_blocks(found, every, places, q, k, scores, -math.inf)
    if scores is not None and tapped(scores):
        allowed = [some & (a > -math.inf) for a, some in zip(found, allowed, strict=True)]
    found = [attention_weights(a, some, normalize) for a, some in zip(found, allowed, strict=True)]
    if weights is not None and tapped(weights):  # no gradient passes through weights of zero, as in `attend`
        found = tap_blocks([b.masked_fill(b == 0, 0.0) for b in found], every, places, q, k, weights, 0.0)
        found = [b.masked_fill(~some.any(-1, keepdim=True), 0.0) for b, some in zip(found, allowed, strict=True)]
    found = [F.dropout(b.to(v.dtype), dropout) @ part.keys(held) for part, b in zip(every, found, strict=True)]
    rows = torch.cat([part.rows for part in every])
    o = o.index_copy(0, rows, torch.cat([each.flatten(0, 1) for each in found]))
    return ungrouped(o.unflatten(0, lead), shape, len(q), queries)  # (B, H, T, E)
