"""Attention within packed sequences, with dropout on its weights, in Triton.

Tests compare it with `attention.attend`. N sequences, H heads, T positions, K width of a head.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2E = 1.4426950408889634


@triton.jit
def _hash(x):
    """A 32-bit hash of each number."""
    x = x.to(tl.uint32)
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _hash_pos(pos, salt):
    """An odd hash of each position; the product of a query's and a key's decides whether dropout keeps their weight."""
    return _hash(pos * 2 + salt) | 1


@triton.jit
def _attend_tile(query, keys, values, pos, high, column_hash, row_hash, running_max, running_sum, acc, scale,
                 threshold, PARTIAL: tl.constexpr, DROP: tl.constexpr, EXACT: tl.constexpr):  # fmt: skip
    """Online softmax: update M queries with N more keys, of which some may be past the end if PARTIAL."""
    score = tl.dot(query, tl.trans(keys), input_precision=EXACT)
    if PARTIAL:
        score = tl.where((pos < high)[None, :], score, float("-inf"))
    new_max = tl.maximum(running_max, tl.max(score, 1) * scale)
    weight = tl.exp2(score * scale - new_max[:, None])
    rescale = tl.exp2(running_max - new_max)
    running_sum = running_sum * rescale + tl.sum(weight, 1)
    if DROP:
        weight = tl.where(row_hash[:, None] * column_hash[None, :] >= threshold, weight, 0.0)
    acc = tl.dot(weight.to(values.dtype), values, acc * rescale[:, None], input_precision=EXACT)
    return new_max, running_sum, acc


@triton.jit
def _forward(q, k, v, begin, end, seed, o, lse, places, t0, h0, o0, o1, scale, keep_scale, threshold,
             K: tl.constexpr, C: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
             DROP: tl.constexpr, EXACT: tl.constexpr):  # fmt: skip
    """A tile of M queries of one sequence and head: dropout(softmax(q . k / sqrt(K))) v."""
    sequence, head = tl.program_id(1), tl.program_id(2)
    low, high = tl.load(begin + sequence), tl.load(end + sequence)
    row, column = low + tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, C)
    if low + tl.program_id(0) * M < high:
        wide = column < K
        here = (row < high)[:, None] & wide
        q, k, v = q + head * h0, k + head * h0, v + head * h0
        query = tl.load(q + row[:, None] * t0 + column, mask=here, other=0.0)
        row_hash = _hash_pos(row, tl.load(seed) * 40503 + head * 7919)
        running_max = tl.full([M], float("-inf"), tl.float32)
        running_sum = tl.zeros([M], tl.float32)
        acc = tl.zeros([M, C], tl.float32)
        full = low + (high - low) // N * N
        for start in range(low, full, N):
            pos = start + tl.arange(0, N)
            keys = tl.load(k + pos[:, None] * t0 + column, mask=wide[None, :], other=0.0)
            values = tl.load(v + pos[:, None] * t0 + column, mask=wide[None, :], other=0.0)
            running_max, running_sum, acc = _attend_tile(
                query, keys, values, pos, high, _hash_pos(pos, 1), row_hash, running_max, running_sum, acc, scale,
                threshold, False, DROP, EXACT,
            )  # fmt: skip
        if full < high:
            pos = full + tl.arange(0, N)
            inside = (pos < high)[:, None] & wide
            keys = tl.load(k + pos[:, None] * t0 + column, mask=inside, other=0.0)
            values = tl.load(v + pos[:, None] * t0 + column, mask=inside, other=0.0)
            running_max, running_sum, acc = _attend_tile(
                query, keys, values, pos, high, _hash_pos(pos, 1), row_hash, running_max, running_sum, acc, scale,
                threshold, True, DROP, EXACT,
            )  # fmt: skip
        acc = acc * (keep_scale / running_sum)[:, None]
        tl.store(o + row[:, None] * o0 + head * o1 + column, acc.to(o.dtype.element_ty), mask=here)
        tl.store(lse + head * places + row, running_max + tl.log2(running_sum), mask=row < high)
    if sequence == tl.num_programs(1) - 1:
        _zero_rest(o, low, places, tl.num_programs(0) * M, o0, o1, K, C, M)


@triton.jit
def _zero_rest(x, rest, places, step, t0, h0, K: tl.constexpr, C: tl.constexpr, M: tl.constexpr):
    """Write zeros to the unused positions, from `rest` on, with the programs of the last sequence."""
    column = tl.arange(0, C)
    for start in range(rest + tl.program_id(0) * M, places, step):
        row = start + tl.arange(0, M)
        here = (row < places)[:, None] & (column < K)
        nothing = tl.zeros([M, C], x.dtype.element_ty)
        tl.store(x + row[:, None] * t0 + tl.program_id(2) * h0 + column, nothing, mask=here)


@triton.jit
def _grad_tile(query, grad, keys, values, pos, high, column_hash, row_hash, log_sum, offset, result, scale,
               keep_scale, threshold, PARTIAL: tl.constexpr, DROP: tl.constexpr, EXACT: tl.constexpr):  # fmt: skip
    """The gradient of M queries, updated with N more keys."""
    weight = tl.exp2(tl.dot(query, tl.trans(keys), input_precision=EXACT) * scale - log_sum[:, None])
    if PARTIAL:
        weight = tl.where((pos < high)[None, :], weight, 0.0)
    grad_score = tl.dot(grad, tl.trans(values), input_precision=EXACT)
    if DROP:
        grad_score = tl.where(row_hash[:, None] * column_hash[None, :] >= threshold, grad_score, 0.0)
    grad_score = weight * (grad_score * keep_scale - offset[:, None])
    return tl.dot(grad_score.to(keys.dtype), keys, result, input_precision=EXACT)


@triton.jit
def _queries(q, k, v, begin, end, seed, lse, go, o, delta, dq, dk, dv, places, t0, h0, g0, g1, o0, o1, d0, d1,
             scale, sm_scale, keep_scale, threshold,
             K: tl.constexpr, C: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
             DROP: tl.constexpr, EXACT: tl.constexpr):  # fmt: skip
    """The gradient of a tile of queries; stores delta = sum(o * do) for the keys."""
    sequence, head = tl.program_id(1), tl.program_id(2)
    low, high = tl.load(begin + sequence), tl.load(end + sequence)
    row, column = low + tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, C)
    if low + tl.program_id(0) * M < high:
        wide = column < K
        here = (row < high)[:, None] & wide
        q, k, v = q + head * h0, k + head * h0, v + head * h0
        query = tl.load(q + row[:, None] * t0 + column, mask=here, other=0.0)
        grad = tl.load(go + row[:, None] * g0 + head * g1 + column, mask=here, other=0.0)
        log_sum = tl.load(lse + head * places + row, mask=row < high, other=float("inf"))
        out = tl.load(o + row[:, None] * o0 + head * o1 + column, mask=here, other=0.0)
        offset = tl.sum(out.to(tl.float32) * grad.to(tl.float32), 1)
        tl.store(delta + head * places + row, offset, mask=row < high)
        row_hash = _hash_pos(row, tl.load(seed) * 40503 + head * 7919)
        result = tl.zeros([M, C], tl.float32)
        full = low + (high - low) // N * N
        for start in range(low, full, N):
            pos = start + tl.arange(0, N)
            keys = tl.load(k + pos[:, None] * t0 + column, mask=wide[None, :], other=0.0)
            values = tl.load(v + pos[:, None] * t0 + column, mask=wide[None, :], other=0.0)
            result = _grad_tile(
                query, grad, keys, values, pos, high, _hash_pos(pos, 1), row_hash, log_sum, offset, result, scale,
                keep_scale, threshold, False, DROP, EXACT,
            )  # fmt: skip
        if full < high:
            pos = full + tl.arange(0, N)
            inside = (pos < high)[:, None] & wide
            keys = tl.load(k + pos[:, None] * t0 + column, mask=inside, other=0.0)
            values = tl.load(v + pos[:, None] * t0 + column, mask=inside, other=0.0)
            result = _grad_tile(
                query, grad, keys, values, pos, high, _hash_pos(pos, 1), row_hash, log_sum, offset, result, scale,
                keep_scale, threshold, True, DROP, EXACT,
            )  # fmt: skip
        tl.store(dq + row[:, None] * d0 + head * d1 + column, (result * sm_scale).to(dq.dtype.element_ty), mask=here)
    if sequence == tl.num_programs(1) - 1:
        _zero_rest(dq, low, places, tl.num_programs(0) * M, d0, d1, K, C, M)
        _zero_rest(dk, low, places, tl.num_programs(0) * M, d0, d1, K, C, M)
        _zero_rest(dv, low, places, tl.num_programs(0) * M, d0, d1, K, C, M)


@triton.jit
def _keys(q, k, v, begin, end, seed, lse, go, delta, dk, dv, places, t0, h0, g0, g1, d0, d1,
          scale, sm_scale, keep_scale, threshold,
          K: tl.constexpr, C: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
          DROP: tl.constexpr, EXACT: tl.constexpr):  # fmt: skip
    """The gradients of a tile of N keys and values."""
    sequence, head = tl.program_id(1), tl.program_id(2)
    low, high = tl.load(begin + sequence), tl.load(end + sequence)
    pos, column = low + tl.program_id(0) * N + tl.arange(0, N), tl.arange(0, C)
    if low + tl.program_id(0) * N < high:
        wide = column < K
        here = (pos < high)[:, None] & wide
        q, k, v = q + head * h0, k + head * h0, v + head * h0
        keys = tl.load(k + pos[:, None] * t0 + column, mask=here, other=0.0)
        values = tl.load(v + pos[:, None] * t0 + column, mask=here, other=0.0)
        column_hash, salt = _hash_pos(pos, 1), tl.load(seed) * 40503 + head * 7919
        grad_k, grad_v = tl.zeros([N, C], tl.float32), tl.zeros([N, C], tl.float32)
        for start in range(low, high, M):
            row = start + tl.arange(0, M)
            inside = (row < high)[:, None] & wide
            query = tl.load(q + row[:, None] * t0 + column, mask=inside, other=0.0)
            grad = tl.load(go + row[:, None] * g0 + head * g1 + column, mask=inside, other=0.0)
            log_sum = tl.load(lse + head * places + row, mask=row < high, other=float("inf"))
            offset = tl.load(delta + head * places + row, mask=row < high, other=0.0)
            # Rows past the end have an infinite log-sum, so that their weights are zero.
            weight = tl.exp2(tl.dot(keys, tl.trans(query), input_precision=EXACT) * scale - log_sum[None, :])
            grad_score = tl.dot(values, tl.trans(grad), input_precision=EXACT)
            used = weight
            if DROP:
                kept = column_hash[:, None] * _hash_pos(row, salt)[None, :] >= threshold
                grad_score = tl.where(kept, grad_score, 0.0)
                used = tl.where(kept, weight, 0.0)
            grad_v = tl.dot(used.to(grad.dtype), grad, grad_v, input_precision=EXACT)
            grad_score = weight * (grad_score * keep_scale - offset[None, :])
            grad_k = tl.dot(grad_score.to(query.dtype), query, grad_k, input_precision=EXACT)
        tl.store(dk + pos[:, None] * d0 + head * d1 + column, (grad_k * sm_scale).to(dk.dtype.element_ty), mask=here)
        tl.store(dv + pos[:, None] * d0 + head * d1 + column, (grad_v * keep_scale).to(dv.dtype.element_ty), mask=here)


@triton.jit
def _whole(q, k, v, begin, end, seed, lse, go, o, delta, dq, dk, dv, places, t0, h0, g0, g1, o0, o1, d0, d1,
           scale, sm_scale, keep_scale, threshold,
           K: tl.constexpr, C: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
           DROP: tl.constexpr, EXACT: tl.constexpr):  # fmt: skip
    """All gradients of one head of a sequence that fits into one tile."""
    sequence, head = tl.program_id(1), tl.program_id(2)
    low, high = tl.load(begin + sequence), tl.load(end + sequence)
    pos, column = low + tl.arange(0, M), tl.arange(0, C)
    if low < high:
        here = (pos < high)[:, None] & (column < K)
        q, k, v = q + head * h0, k + head * h0, v + head * h0
        query = tl.load(q + pos[:, None] * t0 + column, mask=here, other=0.0)
        keys = tl.load(k + pos[:, None] * t0 + column, mask=here, other=0.0)
        values = tl.load(v + pos[:, None] * t0 + column, mask=here, other=0.0)
        grad = tl.load(go + pos[:, None] * g0 + head * g1 + column, mask=here, other=0.0)
        out = tl.load(o + pos[:, None] * o0 + head * o1 + column, mask=here, other=0.0)
        offset = tl.sum(out.to(tl.float32) * grad.to(tl.float32), 1)
        # Queries past the end have an infinite log-sum, so no weight; keys past the end are zero, and are not stored.
        log_sum = tl.load(lse + head * places + pos, mask=pos < high, other=float("inf"))
        weight = tl.exp2(tl.dot(keys, tl.trans(query), input_precision=EXACT) * scale - log_sum[None, :])
        grad_score = tl.dot(values, tl.trans(grad), input_precision=EXACT)
        used = weight
        if DROP:
            row_hash = _hash_pos(pos, tl.load(seed) * 40503 + head * 7919)
            kept = _hash_pos(pos, 1)[:, None] * row_hash[None, :] >= threshold
            grad_score = tl.where(kept, grad_score, 0.0)
            used = tl.where(kept, weight, 0.0)
        grad_v = tl.dot(used.to(grad.dtype), grad, input_precision=EXACT) * keep_scale
        spot = pos[:, None] * d0 + head * d1 + column
        tl.store(dv + spot, grad_v.to(dv.dtype.element_ty), mask=here)
        grad_score = (weight * (grad_score * keep_scale - offset[None, :])).to(query.dtype)
        grad_k = tl.dot(grad_score, query, input_precision=EXACT) * sm_scale
        tl.store(dk + spot, grad_k.to(dk.dtype.element_ty), mask=here)
        grad_q = tl.dot(tl.trans(grad_score), keys, input_precision=EXACT) * sm_scale
        tl.store(dq + spot, grad_q.to(dq.dtype.element_ty), mask=here)
    if sequence == tl.num_programs(1) - 1:
        _zero_rest(dq, low, places, tl.num_programs(0) * M, d0, d1, K, C, M)
        _zero_rest(dk, low, places, tl.num_programs(0) * M, d0, d1, K, C, M)
        _zero_rest(dv, low, places, tl.num_programs(0) * M, d0, d1, K, C, M)


@triton.jit
def _tall(q, k, v, begin, end, seed, lse, go, o, delta, dq, dk, dv, places, t0, h0, g0, g1, o0, o1, d0, d1,
          scale, sm_scale, keep_scale, threshold,
          K: tl.constexpr, C: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
          DROP: tl.constexpr, EXACT: tl.constexpr):  # fmt: skip
    """All gradients of one head of a sequence whose queries fit into one tile; its keys come N at a time."""
    sequence, head = tl.program_id(1), tl.program_id(2)
    low, high = tl.load(begin + sequence), tl.load(end + sequence)
    row, column = low + tl.arange(0, M), tl.arange(0, C)
    if low < high:
        here = (row < high)[:, None] & (column < K)
        q, k, v = q + head * h0, k + head * h0, v + head * h0
        query = tl.load(q + row[:, None] * t0 + column, mask=here, other=0.0)
        grad = tl.load(go + row[:, None] * g0 + head * g1 + column, mask=here, other=0.0)
        out = tl.load(o + row[:, None] * o0 + head * o1 + column, mask=here, other=0.0)
        offset = tl.sum(out.to(tl.float32) * grad.to(tl.float32), 1)
        # Queries past the end have an infinite log-sum, so no weight; keys past the end are zero, and are not stored.
        log_sum = tl.load(lse + head * places + row, mask=row < high, other=float("inf"))
        row_hash = _hash_pos(row, tl.load(seed) * 40503 + head * 7919)
        grad_q = tl.zeros([M, C], tl.float32)
        for start in range(low, high, N):
            pos = start + tl.arange(0, N)
            inside = (pos < high)[:, None] & (column < K)
            keys = tl.load(k + pos[:, None] * t0 + column, mask=inside, other=0.0)
            values = tl.load(v + pos[:, None] * t0 + column, mask=inside, other=0.0)
            weight = tl.exp2(tl.dot(query, tl.trans(keys), input_precision=EXACT) * scale - log_sum[:, None])
            change = tl.dot(grad, tl.trans(values), input_precision=EXACT)
            used = weight
            if DROP:
                kept = row_hash[:, None] * _hash_pos(pos, 1)[None, :] >= threshold
                change = tl.where(kept, change, 0.0)
                used = tl.where(kept, weight, 0.0)
            spot = pos[:, None] * d0 + head * d1 + column
            grad_v = tl.dot(tl.trans(used.to(grad.dtype)), grad, input_precision=EXACT) * keep_scale
            tl.store(dv + spot, grad_v.to(dv.dtype.element_ty), mask=inside)
            change = (weight * (change * keep_scale - offset[:, None])).to(query.dtype)
            grad_k = tl.dot(tl.trans(change), query, input_precision=EXACT) * sm_scale
            tl.store(dk + spot, grad_k.to(dk.dtype.element_ty), mask=inside)
            grad_q = tl.dot(change, keys, grad_q, input_precision=EXACT)
        spot = row[:, None] * d0 + head * d1 + column
        tl.store(dq + spot, (grad_q * sm_scale).to(dq.dtype.element_ty), mask=here)
    if sequence == tl.num_programs(1) - 1:
        _zero_rest(dq, low, places, tl.num_programs(0) * M, d0, d1, K, C, M)
        _zero_rest(dk, low, places, tl.num_programs(0) * M, d0, d1, K, C, M)
        _zero_rest(dv, low, places, tl.num_programs(0) * M, d0, d1, K, C, M)


ONE_TILE = 128  # the longest sequence that is one tile
TALL, WIDEST = 256, 64  # the longest sequence whose queries are one tile, and the widest head of it
TILES = {  # queries, keys, warps and stages of each kernel, by the maximum sequence length
    "_forward": ((ONE_TILE, (64, 64, 4, 3)), (TALL, (64, 32, 4, 3)), (1 << 30, (64, 64, 4, 3))),
    "_queries": ((1 << 30, (64, 64, 4, 3)),),
    "_keys": ((1 << 30, (64, 64, 4, 2)),),
    "_whole": ((64, (64, 64, 4, 1)), (ONE_TILE, (ONE_TILE, ONE_TILE, 8, 1))),
    "_tall": ((TALL, (TALL, 64, 8, 1)),),
}


def _launch(kernel, longest, sequences, heads, *given, width, dtype, drop) -> None:
    """Run a kernel with the tile size for the longest sequence."""
    name = kernel.fn.__name__
    m, n, warps, stages = next(tiles for limit, tiles in TILES[name] if longest <= limit)
    if dtype == torch.float32:  # its tiles need twice the memory
        m, n, warps, stages = min(m, 64), min(n, 32), 4, 1
    blocks = triton.cdiv(longest, n if name == "_keys" else m)
    exact = "ieee" if dtype == torch.float32 else "tf32"
    kernel[(blocks, sequences, heads)](
        *given, K=width, C=max(16, triton.next_power_of_2(width)), M=m, N=n, DROP=drop, EXACT=exact,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip


def _dropout_constants(dropout: float) -> tuple[float, int]:
    """The factor 1 / (1 - p) of kept weights, and the smallest 32-bit hash that is kept."""
    return 1 / (1 - dropout), min(round(dropout * 2**32), 2**32 - 1)


@torch.library.custom_op("heedful::sequences", mutates_args=())
def _attend(
    qkv: Tensor, begin: Tensor, end: Tensor, seed: Tensor, longest: int, dropout: float
) -> tuple[Tensor, Tensor]:
    places, _, heads, width = qkv.shape
    q, k, v = qkv.unbind(1)
    o = torch.empty(places, heads, width, device=qkv.device, dtype=qkv.dtype)
    lse = torch.empty(heads, places, device=qkv.device, dtype=torch.float32)
    _launch(
        _forward, longest, len(begin), heads,
        q, k, v, begin, end, seed, o, lse, places, q.stride(0), q.stride(1), o.stride(0), o.stride(1),
        width**-0.5 * LOG2E, *_dropout_constants(dropout), width=width, dtype=qkv.dtype, drop=dropout > 0,
    )  # fmt: skip
    return o, lse


@_attend.register_fake
def _(qkv: Tensor, begin: Tensor, end: Tensor, seed: Tensor, longest: int, dropout: float) -> tuple[Tensor, Tensor]:
    places, _, heads, width = qkv.shape
    return qkv.new_empty(places, heads, width), qkv.new_empty(heads, places, dtype=torch.float32)


@torch.library.custom_op("heedful::sequences_backward", mutates_args=())
def _attend_backward(
    qkv: Tensor, begin: Tensor, end: Tensor, seed: Tensor, longest: int, dropout: float,
    o: Tensor, lse: Tensor, grad: Tensor,
) -> Tensor:  # fmt: skip
    places, _, heads, width = qkv.shape
    q, k, v = qkv.unbind(1)
    grad = grad if grad.stride(2) == 1 else grad.contiguous()
    result, delta = torch.empty_like(qkv), torch.empty_like(lse)
    dq, dk, dv = result.unbind(1)
    steps, out, into = (q.stride(0), q.stride(1), *grad.stride()[:2]), o.stride()[:2], dq.stride()[:2]
    numbers = (width**-0.5 * LOG2E, width**-0.5, *_dropout_constants(dropout))
    kind = {"width": width, "dtype": qkv.dtype, "drop": dropout > 0}
    shared = (q, k, v, begin, end, seed, lse, grad)
    half = qkv.dtype != torch.float32
    one, tall = half and longest <= ONE_TILE, half and longest <= TALL and width <= WIDEST
    _launch(
        _whole if one else _tall if tall else _queries, longest, len(begin), heads,
        *shared, o, delta, dq, dk, dv, places, *steps, *out, *into, *numbers, **kind,
    )  # fmt: skip
    if not (one or tall):
        _launch(_keys, longest, len(begin), heads, *shared, delta, dk, dv, places, *steps, *into, *numbers, **kind)
    return result


@_attend_backward.register_fake
def _(
    qkv: Tensor, begin: Tensor, end: Tensor, seed: Tensor, longest: int, dropout: float,
    o: Tensor, lse: Tensor, grad: Tensor,
) -> Tensor:  # fmt: skip
    return torch.empty_like(qkv)


def _setup_context(ctx, inputs, output) -> None:
    qkv, begin, end, seed, ctx.longest, ctx.dropout = inputs
    ctx.save_for_backward(qkv, begin, end, seed, *output)


def _backward(ctx, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    qkv, begin, end, seed, o, lse = ctx.saved_tensors
    result = _attend_backward(qkv, begin, end, seed, ctx.longest, ctx.dropout, o, lse, grad)
    return result, None, None, None, None, None


_attend.register_autograd(_backward, setup_context=_setup_context)


def attend(qkv: Tensor, begin: Tensor, end: Tensor, longest: int, dropout: float) -> Tensor:
    """Attention of qkv (T, 3, H, K) within each sequence begin[n] ... end[n] - 1.

    The last element of begin (N + 1,) is the start of the unused positions, whose outputs are zero.
    """
    seed = (
        torch.randint(2**31 - 1, (1,), device=qkv.device)
        if dropout > 0
        else torch.zeros(1, dtype=torch.long, device=qkv.device)
    )
    o, _ = _attend(qkv, begin, end, seed, longest, dropout)
    return o  # (T, H, K)
