"""Kernels of a decoding step of a Transformer that are batch-invariant.

A row is one token of one text. Sums are computed in the same order whatever else is in the batch, so that a row has the
same bits in any batch. Tiles have 16 or 32 rows, which use the same instructions.

R rows, D width, H heads, K width of a head, S length of the cache, N and M columns of a matrix.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

DEPTH = 128  # tile size along the inner dimension
KEYS = 128  # tile size of keys
PLAIN, GELU, SPLIT_QKV, PARTIAL = range(4)  # what is done with a product


@triton.jit
def _norm(x, weight, bias, column, D, eps):
    """Layer norm of one row."""
    inside = column < D
    x = tl.where(inside, x, 0.0)
    x = tl.where(inside, x - tl.sum(x, 0) / D, 0.0)
    scale = tl.rsqrt(tl.sum(x * x, 0) / D + eps)
    w = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    return x * scale * w + b


@triton.jit
def _embed(tokens, place, table, places, weight, bias, x, h, D, eps, C: tl.constexpr, PLACES: tl.constexpr):
    """x = E[token] + P[position], and its layer norm."""
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, C)
    inside = column < D
    token = tl.load(tokens + row).to(tl.int64)
    value = tl.load(table + token * D + column, mask=inside, other=0.0).to(tl.float32)
    if PLACES:
        at = tl.load(place + row).to(tl.int64)
        value += tl.load(places + at * D + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(x + row * D + column, value, mask=inside)
    tl.store(h + row * D + column, _norm(value, weight, bias, column, D, eps).to(h.dtype.element_ty), mask=inside)


@triton.jit
def _add_norm(x, parts, shift, weight, bias, h, R, D, eps, C: tl.constexpr, PARTS: tl.constexpr):
    """x + shift + the partial sums of a product, and its layer norm."""
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, C)
    inside = column < D
    value = tl.load(x + row * D + column, mask=inside, other=0.0)
    value += tl.load(shift + column, mask=inside, other=0.0).to(tl.float32)
    for part in tl.static_range(PARTS):
        value += tl.load(parts + (part * R + row) * D + column, mask=inside, other=0.0)
    tl.store(x + row * D + column, value, mask=inside)
    tl.store(h + row * D + column, _norm(value, weight, bias, column, D, eps).to(h.dtype.element_ty), mask=inside)


@triton.jit
def _product(h, weight, bias, out, keys, values, owner, place, R, N, M, room, deep, width, K: tl.constexpr,
             BR: tl.constexpr, BN: tl.constexpr, BM: tl.constexpr, WHAT: tl.constexpr):  # fmt: skip
    """A tile of h (R, M) times weight (N, M)^T, over one of the parts of the M columns (split-K)."""
    row = tl.program_id(1) * BR + tl.arange(0, BR)
    column = tl.program_id(0) * BN + tl.arange(0, BN)
    part, depth = tl.program_id(2), tl.arange(0, BM)
    real, wide = row < R, column < N
    at = h + row.to(tl.int64)[:, None] * M + part * deep + depth[None, :]
    of = weight + column.to(tl.int64)[:, None] * M + part * deep + depth[None, :]
    sum = tl.zeros([BR, BN], tl.float32)
    for start in range(0, deep, BM):
        left = (start + depth < deep) & (part * deep + start + depth < M)
        a = tl.load(at + start, mask=real[:, None] & left[None, :], other=0.0)
        b = tl.load(of + start, mask=wide[:, None] & left[None, :], other=0.0)
        sum = tl.dot(a, tl.trans(b), sum, input_precision="tf32x3")  # three products for float32: error 1e-6
    tile = real[:, None] & wide[None, :]
    if WHAT == 3:  # PARTIAL
        tl.store(out + (part * R + row.to(tl.int64))[:, None] * N + column[None, :], sum, mask=tile)
    else:
        if bias is not None:
            sum += tl.load(bias + column, mask=wide, other=0.0).to(tl.float32)[None, :]
        if WHAT == 1:  # GELU
            sum = sum * tl.sigmoid(1.5957691216057308 * sum * (1.0 + 0.044715 * sum * sum))
        if WHAT == 2:  # SPLIT_QKV
            kind, inner = column // width, column % width
            own = tl.load(owner + row, mask=real, other=0).to(tl.int64)
            spot = tl.load(place + row, mask=real, other=0).to(tl.int64)
            head, cell = inner // K, inner % K
            where = own[:, None] * width * room + spot[:, None] * K + (head * room * K + cell)[None, :]
            value = sum.to(out.dtype.element_ty)
            tl.store(keys + where, value, mask=tile & (kind == 1)[None, :])
            tl.store(values + where, value, mask=tile & (kind == 2)[None, :])
            tl.store(out + row.to(tl.int64)[:, None] * width + inner[None, :], value, mask=tile & (kind == 0)[None, :])
        else:
            value = sum.to(out.dtype.element_ty)
            tl.store(out + row.to(tl.int64)[:, None] * N + column[None, :], value, mask=tile)


@triton.jit
def _attend_cached(q, keys, values, table, owner, place, o, room, width, scale,
               K: tl.constexpr, C: tl.constexpr, S: tl.constexpr):  # fmt: skip
    """One row and head: softmax(q . k / sqrt(K)) v over the keys up to the row's own position."""
    row, head, column = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.arange(0, C)
    wide = column < K
    query = tl.load(q + row * width + head * K + column, mask=wide, other=0.0).to(tl.float32) * scale
    last, own = tl.load(place + row), tl.load(owner + row).to(tl.int64)
    running_max, running_sum, acc = float("-inf"), 0.0, tl.zeros([C], tl.float32)
    for start in range(0, last + 1, S):
        spot = start + tl.arange(0, S)
        seen = spot <= last
        cache_row = own
        if table is not None:
            before = tl.load(table + row * room + spot, mask=spot < last, other=0).to(tl.int64)
            cache_row = tl.where(spot < last, before, own)
        offset = (cache_row * width * room + head * room * K + spot * K)[:, None] + column[None, :]
        block = seen[:, None] & wide[None, :]
        key = tl.load(keys + offset, mask=block, other=0.0).to(tl.float32)
        value = tl.load(values + offset, mask=block, other=0.0).to(tl.float32)
        score = tl.where(seen, tl.sum(key * query[None, :], 1), float("-inf"))
        new_max = tl.maximum(running_max, tl.max(score, 0))
        weight, rescale = tl.exp2(score - new_max), tl.exp2(running_max - new_max)
        acc = acc * rescale + tl.sum(value * weight[:, None], 0)
        running_sum, running_max = running_sum * rescale + tl.sum(weight, 0), new_max
    tl.store(o + row * width + head * K + column, (acc / running_sum).to(o.dtype.element_ty), mask=wide)


def embed(
    tokens: Tensor, place: Tensor, table: Tensor, places: Tensor | None, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """The embeddings x (R, D) in float32, and their layer norms in the precision of the weights."""
    rows, width = len(tokens), table.shape[1]
    x = torch.empty(rows, width, device=table.device, dtype=torch.float32)
    h = torch.empty(rows, width, device=table.device, dtype=table.dtype)
    wide = triton.next_power_of_2(width)
    _embed[(rows,)](
        tokens, place, table, table if places is None else places, weight, bias, x, h, width, eps,
        C=wide, PLACES=places is not None, num_warps=max(1, min(8, wide // 256)),
    )  # fmt: skip
    return x, h


def add_norm_(x: Tensor, parts: Tensor, shift: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """x (R, D) += shift + the sum of the parts (P, R, D); returns the layer norm in the precision of the weights."""
    rows, width = x.shape
    h = torch.empty(rows, width, device=x.device, dtype=weight.dtype)
    wide = triton.next_power_of_2(width)
    _add_norm[(rows,)](
        x, parts, shift, weight, bias, h, rows, width, eps,
        C=wide, PARTS=len(parts), num_warps=max(1, min(8, wide // 256)),
    )  # fmt: skip
    return h


def _split_k(columns: int, depth: int) -> tuple[int, int]:
    """The number of parts of the inner dimension (split-K), enough to keep a GPU busy, and the size of each.

    It depends only on the matrix, not on the number of rows, so that results are batch-invariant.
    """
    parts = max(1, min(8, 160 // triton.cdiv(columns, 16), depth // (2 * DEPTH)))
    deep = triton.cdiv(triton.cdiv(depth, parts), DEPTH) * DEPTH
    return triton.cdiv(depth, deep), deep


def _launch(
    h: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, what: int, parts: int, deep: int,
    cache: Tensor | None = None, owner: Tensor | None = None, place: Tensor | None = None,
) -> None:  # fmt: skip
    (rows, depth), columns = h.shape, len(weight)
    few = rows <= 16
    tall, broad = 16 if few else 32, (16 if columns < 8192 else 64) if few else (32 if columns < 8192 else 64)
    keys, values = (h, h) if cache is None else cache
    _product[(triton.cdiv(columns, broad), triton.cdiv(rows, tall), parts)](
        h, weight, bias, out, keys, values, owner, place, rows, columns, depth, keys.shape[-2], deep, columns // 3,
        K=keys.shape[-1], BR=tall, BN=broad, BM=DEPTH if h.element_size() == 2 else DEPTH // 2, WHAT=what,
        num_warps=4, num_stages=4 if h.element_size() == 2 else 3,
    )  # fmt: skip


def product(h: Tensor, weight: Tensor, bias: Tensor | None = None, wide: bool = False) -> Tensor:
    """h weight^T + bias (R, N), in float32 where `wide`."""
    out = torch.empty(len(h), len(weight), device=h.device, dtype=torch.float32 if wide else h.dtype)
    _launch(h, weight, bias, out, PLAIN, 1, h.shape[1])
    return out


def gelu(h: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """gelu(h weight^T + bias) (R, N), with the tanh approximation."""
    out = torch.empty(len(h), len(weight), device=h.device, dtype=h.dtype)
    _launch(h, weight, bias, out, GELU, 1, h.shape[1])
    return out


def parts(h: Tensor, weight: Tensor) -> Tensor:
    """h weight^T as partial sums (P, R, N) in float32, still to be added."""
    count, deep = _split_k(len(weight), h.shape[1])
    out = torch.empty(count, len(h), len(weight), device=h.device, dtype=torch.float32)
    _launch(h, weight, None, out, PARTIAL, count, deep)
    return out


def queries(h: Tensor, weight: Tensor, bias: Tensor, cache: Tensor, owner: Tensor, place: Tensor) -> Tensor:
    """The queries (R, D) of rows h; their keys and values are written to a cache (2, rows, H, S, K).

    Row r belongs to row owner[r] of the cache, at position place[r].
    """
    out = torch.empty_like(h)
    _launch(h, weight, bias, out, SPLIT_QKV, 1, h.shape[1], cache, owner, place)
    return out


def attend_cached(q: Tensor, cache: Tensor, owner: Tensor, place: Tensor, table: Tensor | None = None) -> Tensor:
    """Attention of queries (R, D) to the cached keys up to their own positions.

    With table (R, S), key s is in row table[r, s] of the cache.
    """
    o = torch.empty_like(q)
    _, _, heads, room, width = cache.shape
    _attend_cached[(len(q), heads)](
        q, *cache, table, owner, place, o, room, heads * width, width**-0.5 * 1.4426950408889634,
        K=width, C=triton.next_power_of_2(width), S=KEYS, num_warps=4,
    )  # fmt: skip
    return o
