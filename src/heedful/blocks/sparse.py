"""Block-sparse attention: a mask as lists of blocks, so that the cost grows with the pairs that it has.

Queries and keys are divided into blocks. Where a mask has no pair in a block, nothing is computed; where it has every
pair, no mask is needed; for the other blocks the lists hold the mask as bits. Lists are made from a rule once for each
input, without a mask of T x S.

B batch, H heads, T queries, S keys, K width of one head; A = 1 or B and G = 1 or H, if the mask differs between rows of
the batch or heads; R rows and C columns of blocks, P partial ones, M positions of a row of blocks, N = 64 of a column.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.blocks.masks import AnyMask, Bias, BlockDiagonal, Grid, Mask, Ranges, mixed, real, same, slopes, within

WIDTH = 64  # positions of a column of blocks: one word of bits
ROOM = 1 << 21  # pairs that are held at once
LEAST = 16  # blocks of a part, if a row of blocks is divided among several programs
PROGRAMS = 1024  # for the parts of all heads
DENSE = 1024  # positions up to which whole tensors of T x S are watched


class BlockLists(NamedTuple):
    """For each row of blocks the columns with pairs: first those with every pair, then the partial ones."""

    columns: Tensor  # (A, G, R, C) int32: the columns; those without pairs come last
    full: Tensor  # (A, G, R) int32: how many columns have every pair
    touched: Tensor  # (A, G, R) int32: how many have pairs
    first: Tensor  # (A, G, R) int32: where the bits of a row's partial blocks begin
    bits: Tensor  # (A, G, P, M) int64: one word, of 64 columns, for each position of a partial block
    work: Tensor  # (A, G, R + E, 4) int32: row (or -1), begin and end in its list, number of the part (or -1: whole)
    parts: Tensor  # (A, G, E, 3) int32: of rows with several parts: row, number of the first part, how many (or 0)


Pairs = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # a rule over (b, h, row, column)


class Plan(NamedTuple):
    """Which blocks have pairs, and among how many programs each row of them is divided."""

    blocks: Tensor  # (A, G, R, C) int8: 0 no pair, 1 some, 2 every pair
    full: Tensor  # (A, G, R) int32: how many blocks have every pair
    touched: Tensor  # (A, G, R) int32: how many have pairs
    pieces: Tensor  # (A, G, R) int64: programs

    @classmethod
    def of(cls, blocks: Tensor, columns: int, extra: int) -> Plan:
        """The plan for `columns` positions, not all in whole blocks, with at most `extra` more programs than rows.

        A program has at least 16 blocks, and twice, four times, ... as many if there would be too many programs.
        """
        if columns % WIDTH:  # the last block is not whole
            blocks = torch.cat([blocks[..., :-1], blocks[..., -1:].clamp(max=1)], -1)  # (A, G, R, C)
        blocks = blocks.contiguous()  # (A, G, R, C)
        full, touched = (blocks == 2).sum(-1, dtype=torch.int32), (blocks > 0).sum(-1, dtype=torch.int32)  # (A, G, R)
        lengths = LEAST << torch.arange(columns.bit_length(), device=blocks.device)  # (L,)
        more = (touched[..., None] - 1).clamp(min=0) // lengths  # (A, G, R, L)
        chosen = (more.sum(2) <= extra).int().argmax(-1)[..., None, None]  # (A, G, 1, 1)
        return cls(blocks, full, touched, more.gather(-1, chosen.expand(-1, -1, more.shape[2], -1))[..., 0] + 1)

    @property
    def counts(self) -> Tensor:
        """The most partial blocks, and the most additional programs, of any head of a row of the batch."""
        return torch.stack([(self.touched - self.full).sum(-1).max(), (self.pieces - 1).sum(-1).max()])  # (2,)


def block_lists(plan: Plan, allowed: Pairs, sizes: tuple[int, int], height: int, room: int, extra: int) -> BlockLists:
    """The lists of a plan with at most `room` partial blocks, and `extra` more programs than rows.

    `allowed` is the rule; there are no pairs beyond the `sizes`, of rows and columns.
    """
    blocks, full, touched, _ = plan
    lead, columns, room = blocks.shape[:2], blocks.shape[3], max(1, room)
    index = (2 - blocks).argsort(dim=-1, stable=True).int()  # (A, G, R, C)
    end = (touched - full).cumsum(-1)  # (A, G, R)
    first = end - (touched - full)  # (A, G, R)
    place = torch.arange(room, device=blocks.device)  # (P,)
    row = span_of(end, room)  # (A, G, P)
    used = row < blocks.shape[2]  # (A, G, P)
    row = row.clamp(max=blocks.shape[2] - 1)  # (A, G, P)
    spot = (place - first.gather(-1, row) + full.gather(-1, row)).clamp(max=columns - 1)  # (A, G, P)
    column = index.flatten(2).gather(-1, row * columns + spot)  # (A, G, P)
    step = max(1, ROOM // (height * WIDTH * math.prod(lead)))  # that many blocks at once
    words = [
        bits(allowed, sizes, row[..., i : i + step], column[..., i : i + step], used[..., i : i + step], height)
        for i in range(0, room, step)
    ]
    return BlockLists(index, full, touched, first.int(), torch.cat(words, 2), *shares(plan, extra))


def span_of(end: Tensor, count: int) -> Tensor:
    """Which of consecutive spans, by their ends (A, G, R), each of `count` positions is in; R for those after all."""
    places = end.clamp(max=count).long()  # (A, G, R)
    ended = places.new_zeros(*end.shape[:-1], count + 1).scatter_add(-1, places, torch.ones_like(places))
    return ended.cumsum(-1)[..., :count]  # (A, G, count)


def bits(allowed: Pairs, sizes: tuple[int, int], row: Tensor, column: Tensor, used: Tensor, height: int) -> Tensor:
    """The mask in blocks (A, G, P) as words of 64 bits (A, G, P, M)."""
    device = row.device
    b = torch.arange(row.shape[0], device=device)[:, None, None, None, None]  # (A, 1, 1, 1, 1)
    h = torch.arange(row.shape[1], device=device)[:, None, None, None]  # (G, 1, 1, 1)
    i = row[..., None, None] * height + torch.arange(height, device=device)[:, None]  # (A, G, P, M, 1)
    j = column[..., None, None] * WIDTH + torch.arange(WIDTH, device=device)  # (A, G, P, 1, N)
    inside = used[..., None, None] & (i < sizes[0]) & (j < sizes[1])  # (A, G, P, M, N)
    found = inside & allowed(b, h, i.clamp(max=sizes[0] - 1), j.clamp(max=sizes[1] - 1))  # (A, G, P, M, N)
    return (found.long() << torch.arange(WIDTH, device=device)).sum(-1)  # (A, G, P, M)


def shares(plan: Plan, extra: int) -> tuple[Tensor, Tensor]:
    """Rows of blocks, the longest first, and long ones in parts: `work` and `parts` of the lists."""
    touched, rows, device = plan.touched, plan.touched.shape[2], plan.touched.device
    held, row = touched.sort(dim=-1, descending=True, stable=True)  # (A, G, R)
    count = plan.pieces.gather(-1, row)  # (A, G, R)
    end = count.cumsum(-1)  # (A, G, R)
    number = torch.arange(rows + extra, device=device)  # (R + E,)
    at = span_of(end, rows + extra)  # (A, G, R + E)
    spare, at = at >= rows, at.clamp(max=rows - 1)  # (A, G, R + E)
    pieces, size = count.gather(-1, at), held.gather(-1, at)  # (A, G, R + E)
    part = number - end.gather(-1, at) + pieces  # (A, G, R + E)
    step = (size + pieces - 1) // pieces  # (A, G, R + E)
    begin = part * step  # (A, G, R + E)
    work = torch.stack(
        [
            row.gather(-1, at).masked_fill(spare, -1),
            begin,
            torch.minimum(begin + step, size),
            number.masked_fill(pieces == 1, -1),
        ],
        -1,
    )  # (A, G, R + E, 4)
    some = min(rows, extra)
    parts = torch.stack([row, end - count, count.masked_fill(count == 1, 0)], -1)[:, :, :some]  # (A, G, E, 3)
    return work.int(), parts.int().contiguous()


@dataclass(frozen=True, eq=False)
class BlockSparse:
    """A mask as lists of blocks: the keys of each row of queries, and the queries of each row of keys.

    lists and back are for queries and keys in rows of 64 or 128; their columns have 64.
    """

    queries: int
    keys: int
    lists: BlockLists
    back: BlockLists

    @classmethod
    def of(
        cls,
        mask: Mask,
        rows: int,
        heads: int,
        queries: int,
        keys: int | None = None,
        size: int = 64,
        device: torch.device | str | None = None,
    ) -> BlockSparse:
        """The mask of a batch of `rows`, with `heads`; rows of blocks have `size` positions, a multiple of 64."""
        keys = queries if keys is None else keys
        grids = Grid(queries, keys, size, WIDTH), Grid(queries, keys, WIDTH, size)
        forth = mask.blocks(rows, heads, grids[0], device)  # (A, G, R, C)
        back = forth if size == WIDTH else mask.blocks(rows, heads, grids[1], device)
        extra = max(LEAST, PROGRAMS // (rows * heads))
        plans = Plan.of(forth, keys, extra), Plan.of(back.mT, queries, extra)
        if torch.compiler.is_compiling() or (forth.is_cuda and torch.cuda.is_current_stream_capturing()):
            edges = grids[0].rows * (keys % WIDTH > 0), grids[1].columns * (queries % WIDTH > 0)  # last, partial ones
            counts = [(mask.most(grid) + edge, extra) for grid, edge in zip(grids, edges, strict=True)]
        else:
            counts = torch.stack([plan.counts for plan in plans]).tolist()  # the only time that a device is waited for
        return cls(
            queries,
            keys,
            block_lists(plans[0], mask, (queries, keys), size, *counts[0]),
            block_lists(plans[1], lambda b, h, k, q: mask(b, h, q, k), (keys, queries), size, *counts[1]),
        )

    @property
    def long(self) -> bool:
        """Whether its weights are watched as blocks, not as tensors of T x S."""
        return max(self.queries, self.keys) > DENSE

    def dense(self) -> Tensor:
        """The mask as a tensor (A, G, T, S)."""
        index, full, touched, first, words, *_ = self.lists
        columns, (height, device) = index.shape[3], (words.shape[3], words.device)
        place = torch.arange(columns, device=device)  # (C,)
        whole, some = place < full[..., None], place < touched[..., None]  # (A, G, R, C)
        spot = (first[..., None] + place - full[..., None]).clamp(0, words.shape[2] - 1).long()  # (A, G, R, C)
        word = words.gather(2, spot.flatten(2)[..., None].expand(-1, -1, -1, height)).unflatten(2, spot.shape[2:])
        word = torch.where(whole[..., None], -1, word).masked_fill(~some[..., None], 0)  # (A, G, R, C, M)
        word = torch.zeros_like(word).scatter(3, index[..., None].expand_as(word).long(), word)  # (A, G, R, C, M)
        found = (word[..., None] >> torch.arange(WIDTH, device=device)) & 1  # (A, G, R, C, M, N)
        found = found.bool().transpose(3, 4).flatten(4, 5).flatten(2, 3)  # (A, G, R * M, C * N)
        return found[:, :, : self.queries, : self.keys]  # (A, G, T, S)


def rule_of(mask: AnyMask) -> Mask | None:
    """A mask of a layout as a rule."""
    if isinstance(mask, BlockDiagonal):
        number, count = mask.number[None], len(mask.begin) - 1
        return same(number, ascending=True) & real(number < count, gaps=False)
    if isinstance(mask, Ranges):
        return within(mask.lo[None], mask.hi[None])
    if isinstance(mask, Tensor):
        if mask.shape[1:3] != (1, 1):
            raise ValueError(f"a mask of keys has the shape (B, 1, 1, S), found {tuple(mask.shape)}")
        return real(mask[:, 0, 0])
    if isinstance(mask, BlockSparse):
        raise ValueError("a block-sparse mask is not a rule any more; combine rules before")
    return mask


def grouped(x: Tensor, shape: torch.Size, size: int) -> Tensor:
    """x (B, H, T, K), padded to whole blocks, as (A * G, B / A * H / G, blocks, size, K), for lists of `shape` A, G."""
    rest = -x.shape[2] % size
    x = (F.pad(x, (0, 0, 0, rest)) if rest else x).unflatten(2, (-1, size))
    x = x.unflatten(1, (shape[1], -1)).unflatten(0, (shape[0], -1))
    return x.permute(0, 2, 1, 3, 4, 5, 6).flatten(2, 3).flatten(0, 1).contiguous()


def ungrouped(x: Tensor, shape: torch.Size, rows: int, length: int) -> Tensor:
    """The inverse of `grouped`, for a batch of `rows`."""
    x = x.unflatten(1, (rows // shape[0], -1)).unflatten(0, (shape[0], shape[1])).transpose(1, 2)
    return x.flatten(0, 1).flatten(1, 2).flatten(2, 3)[:, :, :length]


def kept(seed: Tensor, program: Tensor, q: Tensor, k: Tensor, dropout: float) -> Tensor:
    """Where dropout keeps a weight: a function of the seed, the head of a row, the query and the key, as in kernels."""
    row = mixed(q * 2 + seed * 40503 + program * 7919) | 1
    column = mixed(k * 2 + 1) | 1
    return ((row * column) & 0xFFFFFFFF) >= min(round(dropout * 2**32), 2**32 - 1)


class Part(NamedTuple):
    """Some rows of blocks, n, of Y heads each, that have equally many columns, c, and as many partial ones."""

    rows: Tensor  # (n * Y,) in queries (X * Y * R, M, K)
    columns: Tensor  # (n * Y * c,) in keys (X * Y * C, N, K)
    shift: Tensor | None  # (n, 1 or Y, M, c * N): what is added to the scores; -inf for masked pairs
    empty: Tensor | None  # (n, 1, M, 1): whether a query attends to no key; then nothing is added to its scores
    shape: tuple[int, int]  # n and Y
    pairs: tuple[Tensor, Tensor, Tensor]  # number of the head (n, Y, 1, 1), query (n, 1, M, 1), key (n, 1, 1, c * N)

    def queries(self, x: Tensor) -> Tensor:
        """The parts of x (X, Y, R, M, K) that belong to these rows: (n, Y, M, K)."""
        return x.flatten(0, 2).index_select(0, self.rows).unflatten(0, self.shape)

    def keys(self, x: Tensor) -> Tensor:
        """The parts of x (X, Y, C, N, K) that these rows see: (n, Y, c * N, K)."""
        found = x.flatten(0, 2).index_select(0, self.columns)
        return found.view(*self.shape, -1, x.shape[-1])


def parts(lists: BlockLists, numbers: Tensor, slope: Tensor, dtype: torch.dtype) -> Iterator[Part]:
    """The lists part by part, for heads (X, Y) with these numbers in the batch: X = A * G lists, Y heads of each."""
    each, (height, columns) = numbers.shape[1], (lists.bits.shape[3], lists.columns.shape[3])
    kinds = (lists.full.long() * (columns + 1) + lists.touched).flatten()  # (X * R)
    for kind in kinds.unique().tolist():
        whole, count = divmod(kind, columns + 1)
        found = (kinds == kind).nonzero()[:, 0]
        for some in found.split(max(1, ROOM // (each * height * count * WIDTH))) if count else ():
            yield part_of(lists, some, whole, count, numbers, slope, dtype)


def part_of(
    lists: BlockLists, some: Tensor, whole: int, count: int, numbers: Tensor, slope: Tensor, dtype: torch.dtype
) -> Part:
    """Some rows of blocks (n,), which have `count` columns, of which the first `whole` have every pair."""
    index, _, _, first, words, *_ = (x.flatten(0, 1) for x in lists)
    (_, rows, columns), height, each, device = index.shape, words.shape[2], numbers.shape[1], index.device
    column = torch.arange(WIDTH, device=device)  # (N,)
    x, row = some // rows, some % rows  # (n,)
    head = x[:, None] * each + torch.arange(each, device=device)  # (n, Y)
    at = index[x, row, :count].long()  # (n, c)
    number = numbers.flatten()[head][..., None, None]  # (n, Y, 1, 1)
    query = (row[:, None] * height + torch.arange(height, device=device))[:, None, :, None]  # (n, 1, M, 1)
    key = (at[..., None] * WIDTH + column).flatten(1)[:, None, None]  # (n, 1, 1, c * N)
    shift = empty = None
    if len(slope):
        shift = (-slope[number % len(slope)] * (query - key).abs()).to(dtype)  # (n, Y, M, c * N)
    if whole < count:
        spot = first[x, row][:, None] + torch.arange(count - whole, device=device)  # (n, p)
        word = words[x[:, None], spot].mT  # (n, M, p)
        hidden = (((word[..., None] >> column) & 1) == 0).flatten(2)[:, None]  # (n, 1, M, p * N)
        if not whole:
            empty = hidden.all(-1, keepdim=True)  # (n, 1, M, 1)
            hidden = hidden & ~empty  # (n, 1, M, p * N)
        if shift is None:
            shift = torch.zeros(len(some), 1, height, count * WIDTH, dtype=dtype, device=device)
        shift[..., whole * WIDTH :].masked_fill_(hidden, -math.inf)
    places = (head * rows + row[:, None]).flatten()  # (n * Y)
    seen = (head[..., None] * columns + at[:, None]).flatten()  # (n * Y * c)
    return Part(places, seen, shift, empty, (len(some), each), (number, query, key))


def by_position(x: Tensor, width: int | None = None) -> Tensor:
    """An empty tensor of the shape of x (B, H, T, K), or of another width, in which positions are before heads."""
    rows, heads, length, own = x.shape
    return x.new_empty(rows, length, heads, own if width is None else width).transpose(1, 2)  # (B, H, T, E)


def sums_like(q: Tensor) -> Tensor:
    """Room for the log of each query's sum, (B, H, T)."""
    return torch.zeros(q.shape[:3], device=q.device)  # (B, H, T)


def in_groups(q: Tensor, lists: BlockLists) -> Tensor:
    """The numbers of all heads in the batch, (X, Y)."""
    numbers = torch.arange(q.shape[0] * q.shape[1], device=q.device).view(*q.shape[:2], 1, 1)
    return grouped(numbers, lists.columns.shape, 1)[..., 0, 0, 0]


def weigh(q: Tensor, k: Tensor, part: Part) -> Tensor:
    """The weights (n, Y, M, c * N) of a part, before dropout."""
    a = (q / math.sqrt(q.shape[-1])) @ k.mT  # (n, Y, M, c * N)
    if part.shift is not None:
        a += part.shift
    return a.softmax(-1) if part.empty is None else a.softmax(-1).masked_fill_(part.empty, 0.0)


def attend_blocks(
    q: Tensor, k: Tensor, v: Tensor, lists: list[Tensor], back: list[Tensor], slope: Tensor, seed: Tensor,
    dropout: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """softmax(q k / sqrt(K), where the lists have pairs) v and, of kernels, the log of each query's sum (B, H, T).

    slope is empty, or (H,).
    """
    made = BlockLists(*lists)
    shape, height = made.columns.shape, made.bits.shape[3]
    queries, keys, values = grouped(q, shape, height), grouped(k, shape, WIDTH), grouped(v, shape, WIDTH)
    o = values.new_zeros(*queries.shape[:-1], v.shape[-1])
    for part in parts(made, in_groups(q, made), slope, q.dtype):
        query, key, value = part.queries(queries), part.keys(keys), part.keys(values)
        if dropout:
            out = (weigh(query, key, part) * kept(seed, *part.pairs, dropout)) @ value / (1 - dropout)
        else:
            out = F.scaled_dot_product_attention(query, key, value, part.shift)
        out = out if part.empty is None else out.masked_fill(part.empty, 0.0)
        o.view(-1, *o.shape[3:]).index_copy_(0, part.rows, out.flatten(0, 1))
    return by_position(q, v.shape[3]).copy_(ungrouped(o, shape, len(q), q.shape[2])), sums_like(q)


block_attention = torch.library.custom_op("heedful::blocks", attend_blocks, mutates_args=(), device_types="cpu")


@block_attention.register_kernel("cuda")
def _(
    q: Tensor, k: Tensor, v: Tensor, lists: list[Tensor], back: list[Tensor], slope: Tensor, seed: Tensor,
    dropout: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    from heedful.blocks.kernels import blocks  # needs Triton, which comes with torch's GPU builds only

    if not blocks.computes(q, v):
        return attend_blocks(q, k, v, lists, back, slope, seed, dropout)
    return blocks.attend(q, k, v, lists, slope, seed, dropout)


@block_attention.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, lists: list[Tensor], back: list[Tensor], slope: Tensor, seed: Tensor,
    dropout: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return by_position(q, v.shape[3]), sums_like(q)


def attend_blocks_backward(
    q: Tensor, k: Tensor, v: Tensor, lists: list[Tensor], back: list[Tensor], slope: Tensor, seed: Tensor,
    dropout: float, o: Tensor, sums: Tensor, grad: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of queries, keys and values; the weights are computed again."""
    made = BlockLists(*lists)
    shape, height = made.columns.shape, made.bits.shape[3]
    queries, keys, values = grouped(q, shape, height), grouped(k, shape, WIDTH), grouped(v, shape, WIDTH)
    grads, deltas = grouped(grad, shape, height), grouped((o * grad).sum(-1, keepdim=True), shape, height)
    dq, dk, dv = torch.zeros_like(queries), torch.zeros_like(keys), torch.zeros_like(values)
    into = [x.view(-1, *x.shape[3:]) for x in (dq, dk, dv)]
    for part in parts(made, in_groups(q, made), slope, q.dtype):
        query, key, value, change = part.queries(queries), part.keys(keys), part.keys(values), part.queries(grads)
        weights = used = weigh(query, key, part)
        of_weights = change @ value.mT
        if dropout:
            scale = kept(seed, *part.pairs, dropout).to(q.dtype) / (1 - dropout)
            used, of_weights = weights * scale, of_weights * scale
        of_scores = of_weights.sub_(part.queries(deltas)).mul_(weights)
        query /= math.sqrt(q.shape[-1])
        into[0].index_copy_(0, part.rows, (of_scores @ key).div_(math.sqrt(q.shape[-1])).flatten(0, 1))
        into[1].index_add_(0, part.columns, (of_scores.mT @ query).view(-1, WIDTH, q.shape[-1]))
        into[2].index_add_(0, part.columns, (used.mT @ change).view(-1, WIDTH, v.shape[-1]))
    found = [by_position(x).copy_(ungrouped(d, shape, len(q), x.shape[2])) for x, d in ((q, dq), (k, dk), (v, dv))]
    return found[0], found[1], found[2]


block_attention_backward = torch.library.custom_op(
    "heedful::blocks_backward", attend_blocks_backward, mutates_args=(), device_types="cpu"
)


@block_attention_backward.register_kernel("cuda")
def _(
    q: Tensor, k: Tensor, v: Tensor, lists: list[Tensor], back: list[Tensor], slope: Tensor, seed: Tensor,
    dropout: float, o: Tensor, sums: Tensor, grad: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    from heedful.blocks.kernels import blocks

    if not blocks.computes(q, v):
        return attend_blocks_backward(q, k, v, lists, back, slope, seed, dropout, o, sums, grad)
    found = by_position(q), by_position(k), by_position(v)
    blocks.attend_backward(q, k, v, lists, back, slope, seed, dropout, o, sums, grad, found)
    return found


@block_attention_backward.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, lists: list[Tensor], back: list[Tensor], slope: Tensor, seed: Tensor,
    dropout: float, o: Tensor, sums: Tensor, grad: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return by_position(q), by_position(k), by_position(v)


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    q, k, v, lists, back, slope, seed, ctx.dropout = inputs
    ctx.save_for_backward(q, k, v, *lists, *back, slope, seed, *output)


def _backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Any, ...]:
    q, k, v, *lists, slope, seed, o, sums = ctx.saved_tensors
    half = len(lists) // 2
    grads = block_attention_backward(q, k, v, lists[:half], lists[half:], slope, seed, ctx.dropout, o, sums, grad)
    return *grads, [None] * half, [None] * half, None, None, None


block_attention.register_autograd(_backward, setup_context=_keep)


# ------------------------------------------------------------------ self-attention: q, k and v of one tensor
def split_heads(qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values (B, H, T, K) of qkv (B, T, 3, H, K)."""
    q, k, v = qkv.transpose(1, 3).unbind(2)
    return q, k, v


@torch.library.custom_op("heedful::self_blocks", mutates_args=())
def self_attention(
    qkv: Tensor, lists: list[Tensor], back: list[Tensor], slope: Tensor, seed: Tensor, dropout: float
) -> tuple[Tensor, Tensor]:
    """Block attention among the positions of qkv (B, T, 3, H, K); one tensor of gradients needs no copies."""
    return block_attention(*split_heads(qkv), lists, back, slope, seed, dropout)


@self_attention.register_fake
def _(
    qkv: Tensor, lists: list[Tensor], back: list[Tensor], slope: Tensor, seed: Tensor, dropout: float
) -> tuple[Tensor, Tensor]:
    q, _, v = split_heads(qkv)
    return by_position(q, v.shape[3]), sums_like(q)


@torch.library.custom_op("heedful::self_blocks_backward", mutates_args=())
def self_attention_backward(
    qkv: Tensor, lists: list[Tensor], back: list[Tensor], slope: Tensor, seed: Tensor, dropout: float, o: Tensor,
    sums: Tensor, grad: Tensor,
) -> Tensor:  # fmt: skip
    """The gradient of qkv."""
    from heedful.blocks.kernels import blocks

    given, found = split_heads(qkv), torch.empty_like(qkv)
    blocks.attend_backward(*given, lists, back, slope, seed, dropout, o, sums, grad, split_heads(found))
    return found


@self_attention_backward.register_fake
def _(
    qkv: Tensor, lists: list[Tensor], back: list[Tensor], slope: Tensor, seed: Tensor, dropout: float, o: Tensor,
    sums: Tensor, grad: Tensor,
) -> Tensor:  # fmt: skip
    return torch.empty_like(qkv)


def _keep_self(ctx: Any, inputs: Any, output: Any) -> None:
    qkv, lists, back, slope, seed, ctx.dropout = inputs
    ctx.save_for_backward(qkv, *lists, *back, slope, seed, *output)


def _backward_self(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Any, ...]:
    qkv, *lists, slope, seed, o, sums = ctx.saved_tensors
    half = len(lists) // 2
    found = self_attention_backward(qkv, lists[:half], lists[half:], slope, seed, ctx.dropout, o, sums, grad)
    return found, [None] * half, [None] * half, None, None, None


self_attention.register_autograd(_backward_self, setup_context=_keep_self)


def has_kernel(qkv: Tensor) -> bool:
    """Whether a kernel computes self-attention of qkv (B, T, 3, H, K)."""
    if not qkv.is_cuda:
        return False
    from heedful.blocks.kernels import blocks

    q, _, v = split_heads(qkv)
    return blocks.computes(q, v)


def sparse_attention(q: Tensor, k: Tensor, v: Tensor, mask: BlockSparse, bias: Bias | None, dropout: float) -> Tensor:
    """Scaled dot-product attention of the pairs of a block-sparse mask; the same values as `attend` with `dense()`.

    The bias is `linear`, if there is one.
    """
    o, _ = block_attention(q, k, v, *arguments(q, mask, bias, dropout))
    return o  # (B, H, T, E)


def sparse_self_attention(qkv: Tensor, mask: BlockSparse, bias: Bias | None, dropout: float) -> Tensor:
    """The same among the positions of qkv (B, T, 3, H, K), where it has a kernel."""
    o, _ = self_attention(qkv, *arguments(qkv, mask, bias, dropout))
    return o


def arguments(
    x: Tensor, mask: BlockSparse, bias: Bias | None, dropout: float
) -> tuple[list[Tensor], list[Tensor], Tensor, Tensor, float]:
    """Lists, slopes and the random seed of a call."""
    if dropout:
        seed = torch.randint(2**31 - 1, (1,), device=x.device)
    else:
        seed = torch.zeros(1, dtype=torch.long, device=x.device)
    linear = 0 if bias is None or bias.linear is None else bias.linear
    slope = slopes(linear, torch.arange(linear, device=x.device))  # (linear,)
    return list(mask.lists), list(mask.back), slope, seed, dropout
