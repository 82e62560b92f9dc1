"""Attention with relative distances and segments, and dropout on its weights, in Triton, for GPUs.

    score(t, s) = (q_t . k_s + terms[t, base_t + s] + same[t] where s is in the segment of t) / sqrt(K),
    for the keys with rank_s < limit_t

Held equal to `attention.attend` with the biases of `relative.py` by tests. The products of queries and distances are a
plain matrix product; a kernel reads the part of each row that belongs to its keys, and writes its gradient. These parts
begin one place further left from query to query, so that a group of G queries in a row needs G + S distances. Within a
group, 16 bytes are read at once only if the rows are sorted into C classes, of every C-th query each, whose rows are
shifted until their parts begin at multiples of C. Each tile of products is loaded one step before it is used.

The queries are those of several streams, one after the other, each with products of its own: Q in all.

B batch, H heads, T queries of a stream, S keys, P distances, K width of one head, G queries of a group, C classes of
one.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from heedful.blocks.kernels.sequences import LOG2E, _dropout_constants, _hash_pos


@triton.jit
def _lines(terms, b, h, row, heads, batch, queries, distances, GROUP: tl.constexpr, CLASSES: tl.constexpr):
    """Where the products of queries and distances of some rows begin."""
    if GROUP == 0:
        line = (row % CLASSES * heads + h) * batch + b
        return terms + (line.to(tl.int64) * (queries // CLASSES) + row // CLASSES) * distances
    line = ((row // GROUP * CLASSES + row % CLASSES) * heads + h) * batch + b
    return terms + (line.to(tl.int64) * (GROUP // CLASSES) + row % GROUP // CLASSES) * distances


@triton.jit
def _base(base, b, row, start, queries, total, GROUP: tl.constexpr, CLASSES: tl.constexpr):
    """Where key 0 is in these rows."""
    if CLASSES == 1:
        return tl.load(base + b * total + start + row, mask=row < queries, other=0)
    length = GROUP if GROUP else queries
    return length - row % length // CLASSES * CLASSES


@triton.jit
def _distances(lines, base, place, there, keys):
    """The products (M, N) of queries, whose rows begin at `lines`, and the distances of some keys."""
    inside = there[:, None] & (place < keys)[None, :]
    return tl.load(lines[:, None] + (base[:, None] + place[None, :]), mask=inside, other=0.0)


@triton.jit
def _scores(query, keys, distance, same, segment, segments, limit, ranks, EXACT: tl.constexpr):
    """The scores (M, N) of a tile, not scaled yet; -inf where masked."""
    score = tl.dot(query, tl.trans(keys), input_precision=EXACT)
    score += distance.to(tl.float32) + tl.where(segment[:, None] == segments[None, :], same[:, None], 0.0)
    return tl.where(ranks[None, :] < limit[:, None], score, float("-inf"))


@triton.jit
def _forward(q, k, v, terms, same, base, segment, segments, limit, ranks, seed, o, lse,
             heads, batch, start, queries, total, keys, distances,
             q0, q1, q2, k0, k1, k2, v0, v1, v2, o0, o1, o2, scale, keep_scale, threshold,
             K: tl.constexpr, C: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
             GROUP: tl.constexpr, CLASSES: tl.constexpr, DROP: tl.constexpr, EXACT: tl.constexpr):  # fmt: skip
    """A tile of M queries of one head: dropout(softmax(scores)) v; zeros where a query attends to no key."""
    b, h = tl.program_id(1) // heads, tl.program_id(1) % heads
    row, column = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, C)
    there, wide, at = row < queries, column < K, start + row
    query = tl.load(q + b * q0 + h * q1 + at[:, None] * q2 + column, mask=there[:, None] & wide, other=0.0)
    line = (b * heads + h).to(tl.int64) * total + at
    same = tl.load(same + line, mask=there, other=0.0).to(tl.float32)
    base = _base(base, b, row, start, queries, total, GROUP, CLASSES)
    limit = tl.load(limit + b * total + at, mask=there, other=0)
    segment = tl.load(segment + b * total + at, mask=there, other=0)
    row_hash = _hash_pos(at, tl.load(seed) * 40503 + tl.program_id(1) * 7919)
    running_max = tl.full([M], float("-inf"), tl.float32)
    running_sum, acc = tl.zeros([M], tl.float32), tl.zeros([M, C], tl.float32)
    lines = _lines(terms, b, h, row, heads, batch, queries, distances, GROUP, CLASSES)
    distance = _distances(lines, base, tl.arange(0, N), there, keys)
    for first in range(0, keys, N):
        place = first + tl.arange(0, N)
        following = _distances(lines, base, place + N, there, keys)
        real = place < keys
        rank = tl.load(ranks + b * keys + place, mask=real, other=1 << 30)
        other = tl.load(segments + b * keys + place, mask=real, other=0)
        key = tl.load(k + b * k0 + h * k1 + place[:, None] * k2 + column, mask=real[:, None] & wide, other=0.0)
        value = tl.load(v + b * v0 + h * v1 + place[:, None] * v2 + column, mask=real[:, None] & wide, other=0.0)
        score = _scores(query, key, distance, same, segment, other, limit, rank, EXACT)
        distance = following
        peak = tl.maximum(running_max, tl.max(score, 1))
        safe = tl.where(peak == float("-inf"), 0.0, peak)  # no key so far
        weight = tl.exp2(score * scale - (safe * scale)[:, None])
        decay = tl.exp2((running_max - safe) * scale)
        running_sum = running_sum * decay + tl.sum(weight, 1)
        if DROP:
            weight = tl.where(row_hash[:, None] * _hash_pos(place, 1)[None, :] >= threshold, weight, 0.0)
        acc = tl.dot(weight.to(value.dtype), value, acc * decay[:, None], input_precision=EXACT)
        running_max = peak
    some = running_sum > 0
    acc = acc * tl.where(some, keep_scale / tl.where(some, running_sum, 1.0), 0.0)[:, None]
    spot = o + b * o0 + h * o1 + at[:, None] * o2 + column
    tl.store(spot, acc.to(o.dtype.element_ty), mask=there[:, None] & wide)
    tl.store(
        lse + line,
        tl.where(some, running_max * scale + tl.log2(tl.where(some, running_sum, 1.0)), float("inf")),
        mask=there,
    )


@triton.jit
def _offsets(o, go, delta, heads, queries, o0, o1, o2, g0, g1, g2,
             K: tl.constexpr, C: tl.constexpr, M: tl.constexpr):  # fmt: skip
    """delta = sum(o * do) of a tile of queries, which the gradients of their scores need."""
    b, h = tl.program_id(1) // heads, tl.program_id(1) % heads
    row, column = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, C)
    here = (row < queries)[:, None] & (column < K)
    out = tl.load(o + b * o0 + h * o1 + row[:, None] * o2 + column, mask=here, other=0.0).to(tl.float32)
    grad = tl.load(go + b * g0 + h * g1 + row[:, None] * g2 + column, mask=here, other=0.0).to(tl.float32)
    tl.store(delta + tl.program_id(1).to(tl.int64) * queries + row, tl.sum(out * grad, 1), mask=row < queries)


@triton.jit
def _keys(q, k, v, terms, same, base, segment, segments, limit, ranks, seed, lse, go, delta, dk, dv, dterms,
          heads, batch, start, queries, total, keys, distances,
          q0, q1, q2, k0, k1, k2, v0, v1, v2, g0, g1, g2, scale, plain, keep_scale, threshold,
          K: tl.constexpr, C: tl.constexpr, M: tl.constexpr, N: tl.constexpr, GROUP: tl.constexpr,
          CLASSES: tl.constexpr, ADD: tl.constexpr, DROP: tl.constexpr, EXACT: tl.constexpr):  # fmt: skip
    """The gradients in a tile of N keys and values, and those of their scores, in dterms.

    ADD: to the gradients of an earlier stream.
    """
    b, h = tl.program_id(1) // heads, tl.program_id(1) % heads
    place, column = tl.program_id(0) * N + tl.arange(0, N), tl.arange(0, C)
    real, wide = place < keys, column < K
    here = real[:, None] & wide
    key = tl.load(k + b * k0 + h * k1 + place[:, None] * k2 + column, mask=here, other=0.0)
    value = tl.load(v + b * v0 + h * v1 + place[:, None] * v2 + column, mask=here, other=0.0)
    rank = tl.load(ranks + b * keys + place, mask=real, other=1 << 30)
    other = tl.load(segments + b * keys + place, mask=real, other=0)
    column_hash, salt = _hash_pos(place, 1), tl.load(seed) * 40503 + tl.program_id(1) * 7919
    grad_k, grad_v = tl.zeros([N, C], tl.float32), tl.zeros([N, C], tl.float32)
    row = tl.arange(0, M)
    lines = _lines(terms, b, h, row, heads, batch, queries, distances, GROUP, CLASSES)
    distance = _distances(lines, _base(base, b, row, start, queries, total, GROUP, CLASSES), place, row < queries, keys)
    first = _base(base, b, row + M, start, queries, total, GROUP, CLASSES)
    for skip in range(0, queries, M):
        row = skip + tl.arange(0, M)
        there, at = row < queries, start + row
        lines = _lines(terms, b, h, row + M, heads, batch, queries, distances, GROUP, CLASSES)
        following = _distances(lines, first, place, row + M < queries, keys)
        first = _base(base, b, row + 2 * M, start, queries, total, GROUP, CLASSES)
        line = (b * heads + h).to(tl.int64) * total + at
        query = tl.load(q + b * q0 + h * q1 + at[:, None] * q2 + column, mask=there[:, None] & wide, other=0.0)
        grad = tl.load(go + b * g0 + h * g1 + at[:, None] * g2 + column, mask=there[:, None] & wide, other=0.0)
        norm = tl.load(lse + line, mask=there, other=float("inf"))
        offset = tl.load(delta + line, mask=there, other=0.0)
        alike = tl.load(same + line, mask=there, other=0.0).to(tl.float32)
        most = tl.load(limit + b * total + at, mask=there, other=0)
        own = tl.load(segment + b * total + at, mask=there, other=0)
        score = _scores(query, key, distance, alike, own, other, most, rank, EXACT)
        distance = following
        weight = tl.exp2(score * scale - norm[:, None])
        change = tl.dot(grad, tl.trans(value), input_precision=EXACT)
        factor = plain
        if DROP:
            kept = _hash_pos(at, salt)[:, None] * column_hash[None, :] >= threshold
            factor = tl.where(kept, plain * keep_scale, 0.0)
        grad_v = tl.dot(tl.trans((weight * factor).to(grad.dtype)), grad, grad_v, input_precision=EXACT)
        change = (weight * (change * factor - (offset * plain)[:, None])).to(query.dtype)
        grad_k = tl.dot(tl.trans(change), query, grad_k, input_precision=EXACT)
        lines = _lines(dterms, b, h, row, heads, batch, queries, distances, GROUP, CLASSES)
        begin = _base(base, b, row, start, queries, total, GROUP, CLASSES)
        tl.store(lines[:, None] + (begin[:, None] + place[None, :]), change, mask=there[:, None] & real[None, :])
    spot = ((b * heads + h).to(tl.int64) * keys + place)[:, None] * K + column
    grad_v = grad_v / plain
    if ADD:
        grad_k += tl.load(dk + spot, mask=here, other=0.0).to(tl.float32)
        grad_v += tl.load(dv + spot, mask=here, other=0.0).to(tl.float32)
    tl.store(dk + spot, grad_k.to(dk.dtype.element_ty), mask=here)
    tl.store(dv + spot, grad_v.to(dv.dtype.element_ty), mask=here)


@triton.jit
def _queries(k, base, segment, segments, dterms, dq, dsame,
             heads, batch, start, queries, total, keys, distances, k0, k1, k2,
             K: tl.constexpr, C: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
             GROUP: tl.constexpr, CLASSES: tl.constexpr, EXACT: tl.constexpr):  # fmt: skip
    """The gradients in a tile of queries and their segments, from those of the scores, which are in dterms.

    Writes zeros to the products of distances that belong to no key.
    """
    b, h = tl.program_id(1) // heads, tl.program_id(1) % heads
    row, column = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, C)
    there, wide = row < queries, column < K
    base = _base(base, b, row, start, queries, total, GROUP, CLASSES)
    segment = tl.load(segment + b * total + start + row, mask=there, other=0)
    lines = _lines(dterms, b, h, row, heads, batch, queries, distances, GROUP, CLASSES)
    result, alike = tl.zeros([M, C], tl.float32), tl.zeros([M], tl.float32)
    change = _distances(lines, base, tl.arange(0, N), there, keys)
    for first in range(0, keys, N):
        place = first + tl.arange(0, N)
        following = _distances(lines, base, place + N, there, keys)
        real = place < keys
        other = tl.load(segments + b * keys + place, mask=real, other=0)
        key = tl.load(k + b * k0 + h * k1 + place[:, None] * k2 + column, mask=real[:, None] & wide, other=0.0)
        alike += tl.sum(tl.where(segment[:, None] == other[None, :], change.to(tl.float32), 0.0), 1)
        result = tl.dot(change, key, result, input_precision=EXACT)
        change = following
    for first in range(0, distances, N):
        place = first + tl.arange(0, N)
        outside = (place[None, :] < base[:, None]) | (place[None, :] >= base[:, None] + keys)
        outside &= there[:, None] & (place < distances)[None, :]
        tl.store(lines[:, None] + place[None, :], tl.zeros([M, N], dterms.dtype.element_ty), mask=outside)
    line = tl.program_id(1).to(tl.int64) * total + start + row
    tl.store(dq + line[:, None] * K + column, result.to(dq.dtype.element_ty), mask=there[:, None] & wide)
    tl.store(dsame + line, alike.to(dsame.dtype.element_ty), mask=there)


TILES = {
    "_forward": ((64, 64, 4, 3), (64, 128, 4, 2)),
    "_keys": ((32, 64, 4, 2), (64, 64, 4, 2)),
    "_queries": ((32, 64, 4, 3), (64, 64, 4, 3)),
}  # queries, keys, warps, stages: without and with classes


def _streams(q: Tensor, k: Tensor, terms: Sequence[Tensor]) -> Iterator[tuple[Tensor, tuple[int, ...], dict[str, Any]]]:
    """The products of each stream, the sizes that its kernels take, and what they are compiled for."""
    rows, heads, total, width = q.shape
    start = 0
    for each in terms:
        groups, classes, _, count, distances = each.shape
        queries = groups * classes * count // rows
        wide = max(16, triton.next_power_of_2(width))
        kind = {"K": width, "C": wide, "GROUP": 0 if groups == 1 else queries // groups, "CLASSES": classes}
        yield each, (heads, rows, start, queries, total, k.shape[2], distances), kind
        start += queries


def _launch(kernel, rows, blocks, *given, dtype, CLASSES, **more) -> None:
    m, n, warps, stages = TILES[kernel.fn.__name__][CLASSES > 1]
    if dtype == torch.float32:  # whose tiles take twice the memory
        m, n, warps, stages = 32, 32, 4, 1
    count = triton.cdiv(blocks, n if kernel.fn.__name__ == "_keys" else m)
    precision = "ieee" if dtype == torch.float32 else "tf32"
    kernel[(count, rows)](
        *given, M=m, N=n, CLASSES=CLASSES, EXACT=precision, num_warps=warps, num_stages=stages, **more
    )


@torch.library.custom_op("heedful::relative", mutates_args=())
def _attend(
    q: Tensor, k: Tensor, v: Tensor, same: Tensor, terms: Sequence[Tensor],
    base: Tensor, segment: Tensor, segments: Tensor, limit: Tensor, ranks: Tensor, seed: Tensor, dropout: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    rows, heads, total, width = q.shape
    o = torch.empty(rows, total, heads, width, device=q.device, dtype=q.dtype).transpose(1, 2)
    lse = torch.empty(rows, heads, total, device=q.device, dtype=torch.float32)
    for each, sizes, kind in _streams(q, k, terms):
        _launch(
            _forward, rows * heads, sizes[3], q, k, v, each, same, base, segment, segments, limit, ranks, seed, o, lse,
            *sizes, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *o.stride()[:3],
            width**-0.5 * LOG2E, *_dropout_constants(dropout), DROP=dropout > 0, dtype=q.dtype, **kind,
        )  # fmt: skip
    return o, lse


@_attend.register_fake
def _(q, k, v, same, terms, base, segment, segments, limit, ranks, seed, dropout) -> tuple[Tensor, Tensor]:
    rows, heads, total, width = q.shape
    o = q.new_empty(rows, total, heads, width).transpose(1, 2)
    return o, q.new_empty(rows, heads, total, dtype=torch.float32)


@torch.library.custom_op("heedful::relative_backward", mutates_args=())
def _attend_backward(
    q: Tensor, k: Tensor, v: Tensor, same: Tensor, terms: Sequence[Tensor],
    base: Tensor, segment: Tensor, segments: Tensor, limit: Tensor, ranks: Tensor, seed: Tensor, dropout: float,
    o: Tensor, lse: Tensor, grad: Tensor,
) -> list[Tensor]:  # fmt: skip
    rows, heads, total, width = q.shape
    grad = grad if grad.stride(3) == 1 else grad.contiguous()
    dq, dk, dv = (x.new_empty(x.shape) for x in (q, k, v))
    dsame, delta, dterms = torch.empty_like(same), torch.empty_like(lse), [torch.empty_like(x) for x in terms]
    outs, grads = o.stride()[:3], grad.stride()[:3]
    _offsets[(triton.cdiv(total, 64), rows * heads)](
        o, grad, delta, heads, total, *outs, *grads, K=width, C=max(16, triton.next_power_of_2(width)), M=64
    )
    for change, (each, sizes, kind) in zip(dterms, _streams(q, k, terms), strict=True):
        _launch(
            _keys, rows * heads, k.shape[2], q, k, v, each, same, base, segment, segments, limit, ranks, seed, lse,
            grad, delta, dk, dv, change, *sizes, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *grads,
            width**-0.5 * LOG2E, width**-0.5, *_dropout_constants(dropout),
            ADD=sizes[2] > 0, DROP=dropout > 0, dtype=q.dtype, **kind,
        )  # fmt: skip
        _launch(
            _queries, rows * heads, sizes[3], k, base, segment, segments, change, dq, dsame,
            *sizes, *k.stride()[:3], dtype=q.dtype, **kind,
        )  # fmt: skip
    return [dq, dk, dv, dsame, *dterms]


@_attend_backward.register_fake
def _(q, k, v, same, terms, base, segment, segments, limit, ranks, seed, dropout, o, lse, grad) -> list[Tensor]:
    return [*(x.new_empty(x.shape) for x in (q, k, v)), *(torch.empty_like(x) for x in (same, *terms))]


def _keep(ctx, inputs, output) -> None:
    q, k, v, same, terms, *rules, ctx.dropout = inputs
    ctx.streams = len(terms)
    ctx.save_for_backward(q, k, v, same, *terms, *rules, *output)


def _backward(ctx, grad: Tensor, _: Tensor) -> tuple[Any, ...]:
    q, k, v, same, *rest, o, lse = ctx.saved_tensors
    terms, rules = rest[: ctx.streams], rest[ctx.streams :]
    dq, dk, dv, dsame, *dterms = _attend_backward(q, k, v, same, terms, *rules, ctx.dropout, o, lse, grad)
    return dq, dk, dv, dsame, dterms, *(None,) * 7


_attend.register_autograd(_backward, setup_context=_keep)


def attend(
    q: Tensor, k: Tensor, v: Tensor, same: Tensor, terms: Sequence[Tensor],
    base: Tensor, segment: Tensor, segments: Tensor, limit: Tensor, ranks: Tensor, dropout: float,
) -> Tensor:  # fmt: skip
    """Queries of all streams (B, H, Q, K), keys and values (B, H, S, K) -> (B, H, Q, K).

    same (B, H, Q) is added for keys of a query's own segment, by segment (B, Q) and segments (B, S). The terms of each
    stream, (T / G, C, H, B * G / C, P), contiguous, are products of queries and distances, by group and class; key s of
    a query is at base (B, Q) + s or, where there are classes, at G - t % G // C * C + s. A query attends to the keys
    whose ranks (B, S) are below its limit (B, Q). These five are int32, and none of the terms is scaled yet.
    """
    seed = (
        torch.randint(2**31 - 1, (1,), device=q.device)
        if dropout > 0
        else torch.zeros(1, dtype=torch.long, device=q.device)
    )
    o, _ = _attend(q, k, v, same, terms, base, segment, segments, limit, ranks, seed, dropout)
    return o
