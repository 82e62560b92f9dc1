"""Masks and biases: which keys a query may attend to, and what position adds to a score, as rules over (b, h, q, k).

The rules have FlexAttention's signature, are combined with `&`, `|` and `+`, and become tensors where they are needed.
Masks can also be asked for whole blocks of queries and keys: `sparse.py` computes only those that have pairs.

B batch, H heads, T queries, S keys, K width of one head, R rows and C columns of blocks.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import torch
from torch import Tensor

if TYPE_CHECKING:
    from heedful.blocks.sparse import BlockSparse

Rule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
BLOCK_KINDS = ("masked", "window", "global", "random", "every token", "padding")  # why a block attends to another


class Span(NamedTuple):
    """Consecutive positions, of queries or of keys: first and last."""

    first: Tensor
    last: Tensor


class Grid(NamedTuple):
    """Queries and keys in blocks: how many of each there are, and how many a block has."""

    queries: int
    keys: int
    height: int
    width: int

    @property
    def rows(self) -> int:
        return -(-self.queries // self.height)

    @property
    def columns(self) -> int:
        return -(-self.keys // self.width)

    @property
    def crossed(self) -> int:
        """The most blocks in which a diagonal line may begin or end, in all rows."""
        return self.rows * -(-(self.height + self.width) // self.width)

    def divides(self, size: int) -> bool:
        """Whether blocks of this size consist of whole blocks of the grid."""
        return size % self.height == 0 == size % self.width

    def spans(self, device: torch.device | str | None = None) -> tuple[Span, Span]:
        """The queries of each row of blocks (R, 1), and the keys of each column (C,)."""
        row = torch.arange(0, self.queries, self.height, device=device)[:, None]  # (R, 1)
        column = torch.arange(0, self.keys, self.width, device=device)  # (C,)
        last = (row + self.height - 1).clamp(max=self.queries - 1)  # (R, 1)
        return Span(row, last), Span(column, (column + self.width - 1).clamp(max=self.keys - 1))


SpanRule = Callable[[Tensor, Tensor, Span, Span], Tensor]


def touched(some: Tensor, every: Tensor) -> Tensor:
    """0 where a block has no pair, 1 for some (or where this is not known), 2 for every pair."""
    return some.to(torch.int8) + every.to(torch.int8)


@dataclass(frozen=True, eq=False)
class Mask:
    """Which keys a query may attend to: a rule over indices (b, h, q, k) -> bool, with FlexAttention's signature.

    `diagonal` is set when the rule is exactly k <= q + diagonal, for kernels with a causal mode. `spans` is the rule of
    spans of queries and of keys: 0 if it holds for no pair of them, 2 for every pair, 1 otherwise; 1 is never wrong.
    `partial` is an upper bound of how many blocks of a grid have a 1, in one row of the batch and one head.
    """

    rule: Rule
    diagonal: int | None = None
    spans: SpanRule | None = None
    partial: Callable[[Grid], int] | None = None

    def __call__(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return self.rule(b, h, q, k)

    def __and__(self, other: "Mask") -> "Mask":
        return Mask(
            lambda b, h, q, k: self(b, h, q, k) & other(b, h, q, k),
            spans=lambda b, h, q, k: torch.minimum(self.over(b, h, q, k), other.over(b, h, q, k)),
            partial=lambda grid: self.most(grid) + other.most(grid),
        )

    def __or__(self, other: "Mask") -> "Mask":
        return Mask(
            lambda b, h, q, k: self(b, h, q, k) | other(b, h, q, k),
            spans=lambda b, h, q, k: torch.maximum(self.over(b, h, q, k), other.over(b, h, q, k)),
            partial=lambda grid: self.most(grid) + other.most(grid),
        )

    def over(self, b: Tensor, h: Tensor, q: Span, k: Span) -> Tensor:
        """0, 1 or 2 for spans of queries and keys."""
        if self.spans is not None:
            return self.spans(b, h, q, k)
        return torch.ones_like(self(b, h, q.first, k.first), dtype=torch.int8)

    def most(self, grid: Grid) -> int:
        """An upper bound of the number of blocks with 1."""
        every = grid.rows * grid.columns
        return every if self.partial is None else min(self.partial(grid), every)

    def blocks(self, rows: int, heads: int, grid: Grid, device: torch.device | str | None = None) -> Tensor:
        """Which blocks have pairs, (1 or B, 1 or H, R, C) int8: 0 none, 1 some (or not known), 2 every pair."""
        b, h = torch.arange(rows, device=device), torch.arange(heads, device=device)
        q, k = grid.spans(device)
        found = self.over(b[:, None, None, None], h[:, None, None], q, k)
        found = found[(None,) * (4 - found.dim())] if found.dim() < 4 else found
        return found.expand(-1, -1, grid.rows, grid.columns)  # (A, G, R, C)


@dataclass(frozen=True, eq=False)
class Ranges:
    """A mask for sequences packed end to end in one row: query t attends to keys lo[t] ... hi[t] - 1.

    For the backward pass, queries first[s] ... last[s] - 1 attend to key s. lo, hi (T,) and first, last (S,) are int32.
    """

    lo: Tensor
    hi: Tensor
    first: Tensor
    last: Tensor

    def dense(self) -> Tensor:
        keys = torch.arange(len(self.first), device=self.lo.device)  # (S,)
        return (keys >= self.lo[:, None]) & (keys < self.hi[:, None])  # (T, S)


@dataclass(frozen=True, eq=False)
class BlockDiagonal:
    """Each of the sequences packed in one row attends to itself: columns begin[n] ... end[n] - 1, int32 (N + 1,).

    None is longer than `longest`. The last one is empty: the unused columns start there.
    """

    begin: Tensor
    end: Tensor
    longest: int
    number: Tensor  # (T,) the sequence of each column, N for unused columns

    def dense(self) -> Tensor:
        same = self.number == self.number[:, None]  # (T, T)
        return same & (self.number < len(self.begin) - 1)  # (T, T)


@dataclass(frozen=True, eq=False)
class Bias:
    """What is added to a score: a rule over indices (b, h, q, k) -> float; rules are added with `+`.

    `whole` is the same rule for the indices of all queries and keys at once, where there is a faster way than indexing.
    `linear` is the number of heads when the rule is exactly -slopes(H)[h] * abs(q - k), for kernels that compute it.
    """

    rule: Rule
    whole: Rule | None = None
    linear: int | None = None

    def __call__(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return self.rule(b, h, q, k)

    def dense(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        """The rule for the indices of all queries and keys."""
        return self.rule(b, h, q, k) if self.whole is None else self.whole(b, h, q, k)

    def __add__(self, other: "Bias") -> "Bias":
        return Bias(
            lambda b, h, q, k: self(b, h, q, k) + other(b, h, q, k),
            lambda b, h, q, k: self.dense(b, h, q, k) + other.dense(b, h, q, k),
        )


AnyMask: TypeAlias = "Mask | Ranges | BlockDiagonal | BlockSparse | Tensor | None"  # None: no mask


def causal(offset: int | Tensor = 0) -> Mask:
    """A query attends to keys up to its own position; `offset` is the position of query 0, after cached keys."""
    return Mask(
        lambda b, h, q, k: k <= q + offset,
        offset if isinstance(offset, int) else None,
        lambda b, h, q, k: touched(k.first <= q.last + offset, k.last <= q.first + offset),
        lambda grid: grid.crossed,
    )


def window(size: int, offset: int | Tensor = 0) -> Mask:
    """Local attention: keys at most `size` positions away."""

    def spans(b: Tensor, h: Tensor, q: Span, k: Span) -> Tensor:
        least, most = k.first - q.last - offset, k.last - q.first - offset
        return touched((least <= size) & (most >= -size), (least >= -size) & (most <= size))

    return Mask(lambda b, h, q, k: (k - q - offset).abs() <= size, spans=spans, partial=lambda grid: 2 * grid.crossed)


def global_tokens(count: int, first: int = 0) -> Mask:
    """Global attention: these `count` positions attend to all keys, and all queries attend to them."""
    end = first + count

    def spans(b: Tensor, h: Tensor, q: Span, k: Span) -> Tensor:
        some = ((q.first < end) & (q.last >= first)) | ((k.first < end) & (k.last >= first))
        every = ((q.first >= first) & (q.last < end)) | ((k.first >= first) & (k.last < end))
        return touched(some, every)

    return Mask(
        lambda b, h, q, k: ((q >= first) & (q < end)) | ((k >= first) & (k < end)),
        spans=spans,
        partial=lambda grid: (
            sum(x % grid.height > 0 for x in (first, end) if x < grid.queries) * grid.columns
            + sum(x % grid.width > 0 for x in (first, end) if x < grid.keys) * grid.rows
        ),
    )


def sink(count: int, at: Tensor | None = None) -> Mask:
    """Attention sink (Xiao et al., 2024): every query attends to the first `count` keys.

    Where a row has several texts, or padding before it, `at` (B, S) are the positions of the keys in their own texts.
    """
    if at is not None:
        return real(at < count)
    return Mask(
        lambda b, h, q, k: k < count,
        spans=lambda b, h, q, k: touched(k.first < count, k.last < count),
        partial=lambda grid: grid.rows if count % grid.width else 0,
    )


@dataclass(frozen=True)
class Local:
    """Which earlier keys a query attends to: the last `window`, its own included, and the first `sink` of its text."""

    window: int
    sink: int = 0

    @property
    def most(self) -> int:
        """The most keys that later queries still attend to."""
        return self.sink + self.window - 1

    def mask(self, at: Tensor | None = None) -> Mask:
        """The rule for whole texts; `at` is that of `sink`."""
        near = window(self.window - 1)
        return causal() & (near | sink(self.sink, at) if self.sink else near)

    def seen(self, query: Tensor, key: Tensor, begin: Tensor | int = 0) -> Tensor:
        """Whether a query sees a key, by their columns in a row whose text begins at `begin`; a key of -1 is none."""
        near = (key > query - self.window) | (key < begin + self.sink)
        return (key >= begin) & (key <= query) & near


def block_table(allowed: Tensor, block: int) -> Mask:
    """Blocks of `block` queries and keys by a table (1 or B, 1 or H, R, C) of bool; the batch may be left out."""
    allowed = allowed[None] if allowed.dim() == 3 else allowed  # (B, H, R, C)
    sums = torch.nn.functional.pad(allowed.int().cumsum(-1).cumsum(-2), (1, 0, 1, 0))  # (B, H, R + 1, C + 1)
    rows, heads = allowed.shape[:2]

    def index(b: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        return b[:1] if rows == 1 else b, h[:1] if heads == 1 else h

    def spans(b: Tensor, h: Tensor, q: Span, k: Span) -> Tensor:
        up, down, left, right = q.first // block, q.last // block + 1, k.first // block, k.last // block + 1
        b, h = index(b, h)
        count = sums[b, h, down, right] - sums[b, h, up, right] - sums[b, h, down, left] + sums[b, h, up, left]
        return touched(count > 0, count == (down - up) * (right - left))

    return Mask(
        lambda b, h, q, k: allowed[(*index(b, h), q // block, k // block)],
        spans=spans,
        partial=lambda grid: 0 if grid.divides(block) else grid.rows * grid.columns,
    )


def random_blocks(
    count: int,
    block: int,
    heads: int,
    seed: int,
    queries: int,
    keys: int | None = None,
    exclude: Tensor | None = None,
    device: torch.device | str | None = None,
) -> Mask:
    """Random attention (Zaheer et al., 2020): each block of queries attends to `count` blocks of keys in each head.

    The choice depends on the seed and on the number of blocks, not on the device. Blocks where the table `exclude`,
    which broadcasts to (H, R, C) or has rows of the batch too, is True are not chosen, nor is any block where fewer
    than `count` are left.
    """
    rows, columns = -(-queries // block), -(-(keys or queries) // block)
    h, row, column = (torch.arange(n, device=device) for n in (heads, rows, columns))
    salt = mixed(mixed(h[:, None, None] * 7919 + seed * 40503 + 1) + row[:, None])
    draw = mixed(salt + column * 65537)  # (H, R, C)
    draw = draw if exclude is None else torch.where(exclude, 1 << 32, draw)
    chosen = draw.argsort(dim=-1, stable=True)[..., :count]  # (H, R, count)
    table = torch.zeros_like(draw, dtype=torch.bool).scatter(-1, chosen, True)  # (H, R, C)

    def partial(grid: Grid) -> int:
        wide, high = (block // n + 2 for n in (grid.width, grid.height))  # the most that a chosen block reaches into
        return 0 if grid.divides(block) else rows * count * wide * high

    return replace(block_table(table if exclude is None else table & ~exclude, block), partial=partial)


def mixed(x: Tensor) -> Tensor:
    """A 32-bit hash of each integer; the same as in the kernels."""
    low = 0xFFFFFFFF
    x = x & low
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & low
    x = ((x ^ (x >> 15)) * 0x846CA68B) & low
    return x ^ (x >> 16)


def padding(lengths: Tensor) -> Mask:
    """Keys before each row's length; lengths (B,)."""
    return Mask(
        lambda b, h, q, k: k < lengths[b],
        spans=lambda b, h, q, k: touched(k.first < lengths[b], k.last < lengths[b]),
        partial=lambda grid: grid.rows,
    )


def real(keys: Tensor, gaps: bool = True) -> Mask:
    """Keys that are not padding; keys (B, S) bool. Padding may be on the left, on the right, or, with gaps, between."""
    before = torch.nn.functional.pad(keys.cumsum(1), (1, 0))  # (B, S + 1)

    def spans(b: Tensor, h: Tensor, q: Span, k: Span) -> Tensor:
        count = before[b, k.last + 1] - before[b, k.first]
        return touched(count > 0, count == k.last - k.first + 1)

    return Mask(lambda b, h, q, k: keys[b, k], spans=spans, partial=None if gaps else lambda grid: 2 * grid.rows)


def same(segments: Tensor, queries: Tensor | None = None, ascending: bool = False) -> Mask:
    """Keys of the query's own segment; segments (B, S), and those of the queries (B, T) where they are not the same.

    If the numbers never decrease within a row, `ascending`, it is known which blocks have pairs.
    """
    of_queries = segments if queries is None else queries

    def spans(b: Tensor, h: Tensor, q: Span, k: Span) -> Tensor:
        least, most = (of_queries[b, x] for x in q)
        first, last = (segments[b, x] for x in k)
        return touched((first <= most) & (last >= least), (first == last) & (least == most) & (first == least))

    return Mask(lambda b, h, q, k: segments[b, k] == of_queries[b, q], spans=spans if ascending else None)


def within(lo: Tensor, hi: Tensor) -> Mask:
    """Keys lo[b, q] ... hi[b, q] - 1; both (B, T), and neither decreases within a row."""

    def spans(b: Tensor, h: Tensor, q: Span, k: Span) -> Tensor:
        some = (k.first < hi[b, q.last]) & (k.last >= lo[b, q.first])
        return touched(some, (k.first >= lo[b, q.last]) & (k.last < hi[b, q.first]))

    return Mask(lambda b, h, q, k: (k >= lo[b, q]) & (k < hi[b, q]), spans=spans)


def prefix(lengths: Tensor) -> Mask:
    """Every query attends to the first lengths[b] keys."""
    return padding(lengths)


def order(ranks: Tensor, queries: Tensor | None = None) -> Mask:
    """A query attends to the keys that come before it in a given order; ranks (B, S) is each position's rank.

    Where the queries are at other positions than the keys, `queries` (B, T) are their ranks.
    """
    of_queries = ranks if queries is None else queries
    return Mask(lambda b, h, q, k: ranks[b, k] < of_queries[b, q])


def slopes(heads: int, h: Tensor) -> Tensor:
    """The slope of each head h in `alibi`: 2^(-8 (h + 1) / H)."""
    return torch.exp2(-8.0 * (h + 1) / heads)


def alibi(heads: int, offset: int | Tensor = 0, at: Tensor | None = None, queries: Tensor | None = None) -> Bias:
    """Attention with linear biases (Press et al., 2022): a slope per head times the distance.

    Where padding may be between tokens, `at`, (S,) or (B, S), are their positions; `queries`, (T,) or (B, T), are those
    of the queries, where they are not the same.
    """

    def position(at: Tensor | None, b: Tensor, i: Tensor) -> Tensor:
        if at is None:
            return i
        return at[i] if at.dim() == 1 else at[b, i]

    def rule(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        distance = position(at if queries is None else queries, b, q) + offset - position(at, b, k)
        return -slopes(heads, h) * distance.abs()

    return Bias(rule, linear=heads if at is None and isinstance(offset, int) and not offset else None)


def dense(rule: Mask | Bias, queries: Tensor, keys: Tensor) -> Tensor:
    """The rule as a tensor that broadcasts to (B, H, T, S), for queries (B, H, T, K) and keys (B, H, S, K)."""
    b, h, q = (torch.arange(n, device=queries.device) for n in queries.shape[:3])
    k = torch.arange(keys.shape[2], device=queries.device)
    whole = rule.dense if isinstance(rule, Bias) else rule
    return whole(b[:, None, None, None], h[:, None, None], q[:, None], k)
