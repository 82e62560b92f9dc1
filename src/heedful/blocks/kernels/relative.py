"""Attention with relative distances and segments, and dropout on its weights, in Triton, for GPUs.

    score(t, s) = (q_t . k_s + terms[t, base_t + s] + same[t] where s is in the segment of t) / sqrt(K),
    for the keys with rank_s < limit_t

Held equal to `attention.attend` with the biases of `relative.py` by tests. The products of queries and distances are a
plain matrix product; a kernel reads the part of each row that belongs to its keys, and writes its gradient. These parts
begin one place further left from query to query, so that 16 bytes are read at once only if the rows are sorted into C
classes, of every C-th query each, whose rows are shifted until their parts begin at multiples of C.

B batch, H heads, T queries, S keys, P distances, K width of one head, C classes of queries.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from heedful.blocks.kernels.sequences import LOG2E, _dropout_constants, _hash_pos


@triton.jit
def _lines(terms, b, h, row, heads, batch, queries, distances, CLASSES: tl.constexpr):
    """Where the products of queries and distances of some rows begin."""
    line = ((row % CLASSES) * heads + h) * batch + b
    return terms + (line.to(tl.int64) * (queries // CLASSES) + row // CLASSES) * distances


@triton.jit
def _scores(query, keys, terms, base, same, segment, segments, limit, ranks, place, inside, scale, EXACT: tl.constexpr):
    """The scores (M, N) of a tile, in base 2; -inf where masked. `terms` points to the rows of the queries."""
    score = tl.dot(query, tl.trans(keys), input_precision=EXACT)
    distance = tl.load(terms[:, None] + (base[:, None] + place[None, :]), mask=inside, other=0.0)
    score += distance.to(tl.float32) + tl.where(segment[:, None] == segments[None, :], same[:, None], 0.0)
    return tl.where((ranks[None, :] < limit[:, None]) & inside, score * scale, float("-inf"))


@triton.jit
def _forward(q, k, v, terms, same, base, segment, segments, limit, ranks, seed, o, lse,
             heads, batch, queries, keys, distances,
             q0, q1, q2, k0, k1, k2, v0, v1, v2, o0, o1, o2, scale, keep_scale, threshold,
             K: tl.constexpr, C: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
             CLASSES: tl.constexpr, DROP: tl.constexpr, EXACT: tl.constexpr):  # fmt: skip
    """A tile of M queries of one head: dropout(softmax(scores)) v; zeros where a query attends to no key."""
    b, h = tl.program_id(1) // heads, tl.program_id(1) % heads
    row, column = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, C)
    there, wide = row < queries, column < K
    query = tl.load(q + b * q0 + h * q1 + row[:, None] * q2 + column, mask=there[:, None] & wide, other=0.0)
    line = (b * heads + h).to(tl.int64) * queries + row
    same = tl.load(same + line, mask=there, other=0.0).to(tl.float32)
    base = tl.multiple_of(tl.load(base + b * queries + row, mask=there, other=0), CLASSES)
    limit = tl.load(limit + b * queries + row, mask=there, other=0)
    segment = tl.load(segment + b * queries + row, mask=there, other=0)
    row_hash = _hash_pos(row, tl.load(seed) * 40503 + tl.program_id(1) * 7919)
    running_max = tl.full([M], float("-inf"), tl.float32)
    running_sum, acc = tl.zeros([M], tl.float32), tl.zeros([M, C], tl.float32)
    for start in range(0, keys, N):
        place = start + tl.arange(0, N)
        real = place < keys
        rank = tl.load(ranks + b * keys + place, mask=real, other=1 << 30)
        other = tl.load(segments + b * keys + place, mask=real, other=0)
        key = tl.load(k + b * k0 + h * k1 + place[:, None] * k2 + column, mask=real[:, None] & wide, other=0.0)
        value = tl.load(v + b * v0 + h * v1 + place[:, None] * v2 + column, mask=real[:, None] & wide, other=0.0)
        inside = there[:, None] & real[None, :]
        lines = _lines(terms, b, h, row, heads, batch, queries, distances, CLASSES)
        score = _scores(query, key, lines, base, same, segment, other, limit, rank, place, inside,
                        scale, EXACT)  # fmt: skip
        peak = tl.maximum(running_max, tl.max(score, 1))
        safe = tl.where(peak == float("-inf"), 0.0, peak)  # no key so far
        weight = tl.exp2(score - safe[:, None])
        decay = tl.exp2(running_max - safe)
        running_sum = running_sum * decay + tl.sum(weight, 1)
        if DROP:
            weight = tl.where(row_hash[:, None] * _hash_pos(place, 1)[None, :] >= threshold, weight, 0.0)
        acc = tl.dot(weight.to(value.dtype), value, acc * decay[:, None], input_precision=EXACT)
        running_max = peak
    some = running_sum > 0
    acc = acc * tl.where(some, keep_scale / tl.where(some, running_sum, 1.0), 0.0)[:, None]
    spot = o + b * o0 + h * o1 + row[:, None] * o2 + column
    tl.store(spot, acc.to(o.dtype.element_ty), mask=there[:, None] & wide)
    tl.store(
        lse + line, tl.where(some, running_max + tl.log2(tl.where(some, running_sum, 1.0)), float("inf")), mask=there
    )


@triton.jit
def _queries(q, k, v, terms, same, base, segment, segments, limit, ranks, seed, lse, go, o, delta, dq, dterms, dsame,
             heads, batch, queries, keys, distances,
             q0, q1, q2, k0, k1, k2, v0, v1, v2, o0, o1, o2, g0, g1, g2, scale, plain, keep_scale, threshold,
             K: tl.constexpr, C: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
             CLASSES: tl.constexpr, DROP: tl.constexpr, EXACT: tl.constexpr):  # fmt: skip
    """The gradients in a tile of queries, their distances and segments; leaves delta = sum(o * do) for the keys."""
    b, h = tl.program_id(1) // heads, tl.program_id(1) % heads
    row, column = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, C)
    there, wide = row < queries, column < K
    here = there[:, None] & wide
    query = tl.load(q + b * q0 + h * q1 + row[:, None] * q2 + column, mask=here, other=0.0)
    grad = tl.load(go + b * g0 + h * g1 + row[:, None] * g2 + column, mask=here, other=0.0)
    out = tl.load(o + b * o0 + h * o1 + row[:, None] * o2 + column, mask=here, other=0.0)
    line = (b * heads + h).to(tl.int64) * queries + row
    norm = tl.load(lse + line, mask=there, other=float("inf"))
    offset = tl.sum(out.to(tl.float32) * grad.to(tl.float32), 1)
    tl.store(delta + line, offset, mask=there)
    same = tl.load(same + line, mask=there, other=0.0).to(tl.float32)
    base = tl.multiple_of(tl.load(base + b * queries + row, mask=there, other=0), CLASSES)
    limit = tl.load(limit + b * queries + row, mask=there, other=0)
    segment = tl.load(segment + b * queries + row, mask=there, other=0)
    row_hash = _hash_pos(row, tl.load(seed) * 40503 + tl.program_id(1) * 7919)
    result, alike = tl.zeros([M, C], tl.float32), tl.zeros([M], tl.float32)
    for start in range(0, keys, N):
        place = start + tl.arange(0, N)
        real = place < keys
        rank = tl.load(ranks + b * keys + place, mask=real, other=1 << 30)
        other = tl.load(segments + b * keys + place, mask=real, other=0)
        key = tl.load(k + b * k0 + h * k1 + place[:, None] * k2 + column, mask=real[:, None] & wide, other=0.0)
        value = tl.load(v + b * v0 + h * v1 + place[:, None] * v2 + column, mask=real[:, None] & wide, other=0.0)
        inside = there[:, None] & real[None, :]
        lines = _lines(terms, b, h, row, heads, batch, queries, distances, CLASSES)
        score = _scores(query, key, lines, base, same, segment, other, limit, rank, place, inside,
                        scale, EXACT)  # fmt: skip
        weight = tl.exp2(score - norm[:, None])
        change = tl.dot(grad, tl.trans(value), input_precision=EXACT)
        if DROP:
            change = tl.where(row_hash[:, None] * _hash_pos(place, 1)[None, :] >= threshold, change, 0.0)
        change = weight * (change * keep_scale - offset[:, None])
        alike += tl.sum(tl.where(segment[:, None] == other[None, :], change, 0.0), 1)
        lines = _lines(dterms, b, h, row, heads, batch, queries, distances, CLASSES)
        spot = lines[:, None] + (base[:, None] + place[None, :])
        tl.store(spot, (change * plain).to(dterms.dtype.element_ty), mask=inside)
        result = tl.dot(change.to(key.dtype), key, result, input_precision=EXACT)
    spot = dq + line[:, None] * K + column
    tl.store(spot, (result * plain).to(dq.dtype.element_ty), mask=here)
    tl.store(dsame + line, (alike * plain).to(dsame.dtype.element_ty), mask=there)


@triton.jit
def _keys(q, k, v, terms, same, base, segment, segments, limit, ranks, seed, lse, go, delta, dk, dv,
          heads, batch, queries, keys, distances,
          q0, q1, q2, k0, k1, k2, v0, v1, v2, g0, g1, g2, scale, plain, keep_scale, threshold,
          K: tl.constexpr, C: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
          CLASSES: tl.constexpr, DROP: tl.constexpr, EXACT: tl.constexpr):  # fmt: skip
    """The gradients in a tile of N keys and values."""
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
    for start in range(0, queries, M):
        row = start + tl.arange(0, M)
        there = row < queries
        line = (b * heads + h).to(tl.int64) * queries + row
        query = tl.load(q + b * q0 + h * q1 + row[:, None] * q2 + column, mask=there[:, None] & wide, other=0.0)
        grad = tl.load(go + b * g0 + h * g1 + row[:, None] * g2 + column, mask=there[:, None] & wide, other=0.0)
        norm = tl.load(lse + line, mask=there, other=float("inf"))
        offset = tl.load(delta + line, mask=there, other=0.0)
        alike = tl.load(same + line, mask=there, other=0.0).to(tl.float32)
        first = tl.multiple_of(tl.load(base + b * queries + row, mask=there, other=0), CLASSES)
        most = tl.load(limit + b * queries + row, mask=there, other=0)
        own = tl.load(segment + b * queries + row, mask=there, other=0)
        inside = there[:, None] & real[None, :]
        lines = _lines(terms, b, h, row, heads, batch, queries, distances, CLASSES)
        score = _scores(query, key, lines, first, alike, own, other, most, rank, place, inside,
                        scale, EXACT)  # fmt: skip
        weight = tl.exp2(score - norm[:, None])
        change = tl.dot(grad, tl.trans(value), input_precision=EXACT)
        used = weight
        if DROP:
            kept = _hash_pos(row, salt)[:, None] * column_hash[None, :] >= threshold
            change = tl.where(kept, change, 0.0)
            used = tl.where(kept, weight, 0.0)
        grad_v = tl.dot(tl.trans(used.to(grad.dtype)), grad, grad_v, input_precision=EXACT)
        change = weight * (change * keep_scale - offset[:, None])
        grad_k = tl.dot(tl.trans(change.to(query.dtype)), query, grad_k, input_precision=EXACT)
    spot = ((b * heads + h).to(tl.int64) * keys + place)[:, None] * K + column
    tl.store(dk + spot, (grad_k * plain).to(dk.dtype.element_ty), mask=here)
    tl.store(dv + spot, (grad_v * keep_scale).to(dv.dtype.element_ty), mask=here)


TILES = {
    "_forward": (64, 64, 4, 2),
    "_queries": (64, 64, 4, 2),
    "_keys": (64, 64, 4, 2),
}  # queries, keys, warps, stages


def _launch(kernel, rows, blocks, *given, width, classes, dtype, drop) -> None:
    m, n, warps, stages = TILES[kernel.fn.__name__]
    if dtype == torch.float32:  # whose tiles take twice the memory
        m, n, warps, stages = 32, 32, 4, 1
    count = triton.cdiv(blocks, n if kernel.fn.__name__ == "_keys" else m)
    kernel[(count, rows)](
        *given, K=width, C=max(16, triton.next_power_of_2(width)), M=m, N=n, CLASSES=classes, DROP=drop,
        EXACT="ieee" if dtype == torch.float32 else "tf32", num_warps=warps, num_stages=stages,
    )  # fmt: skip


@torch.library.custom_op("heedful::relative", mutates_args=())
def _attend(
    q: Tensor, k: Tensor, v: Tensor, terms: Tensor, same: Tensor,
    base: Tensor, segment: Tensor, segments: Tensor, limit: Tensor, ranks: Tensor, seed: Tensor, dropout: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    rows, heads, queries, width = q.shape
    o = torch.empty(rows, queries, heads, width, device=q.device, dtype=q.dtype).transpose(1, 2)
    lse = torch.empty(rows, heads, queries, device=q.device, dtype=torch.float32)
    _launch(
        _forward, rows * heads, queries, q, k, v, terms, same, base, segment, segments, limit, ranks, seed, o, lse,
        heads, rows, queries, k.shape[2], terms.shape[3],
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *o.stride()[:3],
        width**-0.5 * LOG2E, *_dropout_constants(dropout), width=width, classes=len(terms), dtype=q.dtype,
        drop=dropout > 0,
    )  # fmt: skip
    return o, lse


@_attend.register_fake
def _(q, k, v, terms, same, base, segment, segments, limit, ranks, seed, dropout) -> tuple[Tensor, Tensor]:
    rows, heads, queries, width = q.shape
    o = q.new_empty(rows, queries, heads, width).transpose(1, 2)
    return o, q.new_empty(rows, heads, queries, dtype=torch.float32)


@torch.library.custom_op("heedful::relative_backward", mutates_args=())
def _attend_backward(
    q: Tensor, k: Tensor, v: Tensor, terms: Tensor, same: Tensor,
    base: Tensor, segment: Tensor, segments: Tensor, limit: Tensor, ranks: Tensor, seed: Tensor, dropout: float,
    o: Tensor, lse: Tensor, grad: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    rows, heads, queries, width = q.shape
    grad = grad if grad.stride(3) == 1 else grad.contiguous()
    dq, dk, dv = (x.new_empty(x.shape) for x in (q, k, v))
    dterms, dsame, delta = torch.zeros_like(terms), torch.empty_like(same), torch.empty_like(lse)
    shared = (q, k, v, terms, same, base, segment, segments, limit, ranks, seed, lse, grad)
    sizes = (heads, rows, queries, k.shape[2], terms.shape[3])
    steps = (*q.stride()[:3], *k.stride()[:3], *v.stride()[:3])
    numbers = (width**-0.5 * LOG2E, width**-0.5, *_dropout_constants(dropout))
    kind = {"width": width, "classes": len(terms), "dtype": q.dtype, "drop": dropout > 0}
    _launch(
        _queries, rows * heads, queries, *shared, o, delta, dq, dterms, dsame,
        *sizes, *steps, *o.stride()[:3], *grad.stride()[:3], *numbers, **kind,
    )  # fmt: skip
    _launch(
        _keys, rows * heads, k.shape[2], *shared, delta, dk, dv, *sizes, *steps, *grad.stride()[:3], *numbers, **kind
    )
    return dq, dk, dv, dterms, dsame


@_attend_backward.register_fake
def _(q, k, v, terms, same, base, segment, segments, limit, ranks, seed, dropout, o, lse, grad):
    return *(x.new_empty(x.shape) for x in (q, k, v)), torch.empty_like(terms), torch.empty_like(same)


def _keep(ctx, inputs, output) -> None:
    *tensors, ctx.dropout = inputs
    ctx.save_for_backward(*tensors, *output)


def _backward(ctx, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    *tensors, o, lse = ctx.saved_tensors
    return *_attend_backward(*tensors, ctx.dropout, o, lse, grad), *(None,) * 7


_attend.register_autograd(_backward, setup_context=_keep)


def attend(
    q: Tensor, k: Tensor, v: Tensor, terms: Tensor, same: Tensor,
    base: Tensor, segment: Tensor, segments: Tensor, limit: Tensor, ranks: Tensor, dropout: float,
) -> Tensor:  # fmt: skip
    """Queries (B, H, T, K), keys and values (B, H, S, K) -> (B, H, T, K).

    terms (C, H, B * T / C, P), contiguous, are products of queries and distances, those of every C-th query together;
    key s is at base (B, T) + s, a multiple of C for s = 0. same (B, H, T) is added for keys of a query's own segment,
    by segment (B, T) and segments (B, S). A query attends to the keys whose ranks (B, S) are below its limit (B, T).
    These five are int32, and none of the terms is scaled yet.
    """
    seed = (
        torch.randint(2**31 - 1, (1,), device=q.device)
        if dropout > 0
        else torch.zeros(1, dtype=torch.long, device=q.device)
    )
    o, _ = _attend(q, k, v, terms, same, base, segment, segments, limit, ranks, seed, dropout)
    return o
