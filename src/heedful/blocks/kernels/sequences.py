"""Attention within sequences that lie end to end in one row, with dropout on its weights, in Triton, for GPUs.

Held equal to `attention.attend` by tests. N sequences, H heads, T places, K width of one head.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2E = 1.4426950408889634


@triton.jit
def _mixed(x):
    """A 32-bit hash of each number."""
    x = x.to(tl.uint32)
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _lucky(place, luck):
    """A number for each place, odd; the product of a query's and a key's decides whether their weight is kept."""
    return _mixed(place * 2 + luck) | 1


@triton.jit
def _looked(query, keys, values, place, high, columns, chance, top, total, mixed, scale, level,
            CUT: tl.constexpr, DROP: tl.constexpr, EXACT: tl.constexpr):  # fmt: skip
    """What M queries have after N more keys, of which some may stand past the end."""
    score = tl.dot(query, tl.trans(keys), input_precision=EXACT)
    if CUT:
        score = tl.where((place < high)[None, :], score, float("-inf"))
    peak = tl.maximum(top, tl.max(score, 1) * scale)
    weight = tl.exp2(score * scale - peak[:, None])
    fade = tl.exp2(top - peak)
    total = total * fade + tl.sum(weight, 1)
    if DROP:
        weight = tl.where(chance[:, None] * columns[None, :] >= level, weight, 0.0)
    mixed = tl.dot(weight.to(values.dtype), values, mixed * fade[:, None], input_precision=EXACT)
    return peak, total, mixed


@triton.jit
def _forward(q, k, v, begin, end, seed, o, lse, places, t0, h0, o0, o1, scale, share, level,
             K: tl.constexpr, C: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
             DROP: tl.constexpr, EXACT: tl.constexpr):  # fmt: skip
    """A tile of M queries of a sequence in one head: dropout(softmax(q . k / sqrt(K))) v over its sequence."""
    sequence, head = tl.program_id(1), tl.program_id(2)
    low, high = tl.load(begin + sequence), tl.load(end + sequence)
    row, column = low + tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, C)
    if low + tl.program_id(0) * M < high:
        wide = column < K
        here = (row < high)[:, None] & wide
        q, k, v = q + head * h0, k + head * h0, v + head * h0
        query = tl.load(q + row[:, None] * t0 + column, mask=here, other=0.0)
        chance = _lucky(row, tl.load(seed) * 40503 + head * 7919)
        top = tl.full([M], float("-inf"), tl.float32)
        total = tl.zeros([M], tl.float32)
        mixed = tl.zeros([M, C], tl.float32)
        full = low + (high - low) // N * N
        for start in range(low, full, N):
            place = start + tl.arange(0, N)
            keys = tl.load(k + place[:, None] * t0 + column, mask=wide[None, :], other=0.0)
            values = tl.load(v + place[:, None] * t0 + column, mask=wide[None, :], other=0.0)
            top, total, mixed = _looked(query, keys, values, place, high, _lucky(place, 1), chance, top, total, mixed,
                                        scale, level, False, DROP, EXACT)  # fmt: skip
        if full < high:
            place = full + tl.arange(0, N)
            inside = (place < high)[:, None] & wide
            keys = tl.load(k + place[:, None] * t0 + column, mask=inside, other=0.0)
            values = tl.load(v + place[:, None] * t0 + column, mask=inside, other=0.0)
            top, total, mixed = _looked(query, keys, values, place, high, _lucky(place, 1), chance, top, total, mixed,
                                        scale, level, True, DROP, EXACT)  # fmt: skip
        mixed = mixed * (share / total)[:, None]
        tl.store(o + row[:, None] * o0 + head * o1 + column, mixed.to(o.dtype.element_ty), mask=here)
        tl.store(lse + head * places + row, top + tl.log2(total), mask=row < high)
    if sequence == tl.num_programs(1) - 1:
        _cleared(o, low, places, tl.num_programs(0) * M, o0, o1, K, C, M)


@triton.jit
def _cleared(x, rest, places, step, t0, h0, K: tl.constexpr, C: tl.constexpr, M: tl.constexpr):
    """Zeros in the places, from `rest` on, that no sequence has, by as many programs as a sequence gets."""
    column = tl.arange(0, C)
    for start in range(rest + tl.program_id(0) * M, places, step):
        row = start + tl.arange(0, M)
        here = (row < places)[:, None] & (column < K)
        nothing = tl.zeros([M, C], x.dtype.element_ty)
        tl.store(x + row[:, None] * t0 + tl.program_id(2) * h0 + column, nothing, mask=here)


@triton.jit
def _blamed(query, grad, keys, values, place, high, columns, chance, norm, offset, result, scale, share, level,
            CUT: tl.constexpr, DROP: tl.constexpr, EXACT: tl.constexpr):  # fmt: skip
    """The gradient in M queries after N more keys."""
    weight = tl.exp2(tl.dot(query, tl.trans(keys), input_precision=EXACT) * scale - norm[:, None])
    if CUT:
        weight = tl.where((place < high)[None, :], weight, 0.0)
    change = tl.dot(grad, tl.trans(values), input_precision=EXACT)
    if DROP:
        change = tl.where(chance[:, None] * columns[None, :] >= level, change, 0.0)
    change = weight * (change * share - offset[:, None])
    return tl.dot(change.to(keys.dtype), keys, result, input_precision=EXACT)


@triton.jit
def _queries(q, k, v, begin, end, seed, lse, go, o, delta, dq, dk, dv, places, t0, h0, g0, g1, o0, o1, d0, d1,
             scale, plain, share, level,
             K: tl.constexpr, C: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
             DROP: tl.constexpr, EXACT: tl.constexpr):  # fmt: skip
    """The gradient in a tile of queries; leaves delta = sum(o * do) for the keys."""
    sequence, head = tl.program_id(1), tl.program_id(2)
    low, high = tl.load(begin + sequence), tl.load(end + sequence)
    row, column = low + tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, C)
    if low + tl.program_id(0) * M < high:
        wide = column < K
        here = (row < high)[:, None] & wide
        q, k, v = q + head * h0, k + head * h0, v + head * h0
        query = tl.load(q + row[:, None] * t0 + column, mask=here, other=0.0)
        grad = tl.load(go + row[:, None] * g0 + head * g1 + column, mask=here, other=0.0)
        norm = tl.load(lse + head * places + row, mask=row < high, other=float("inf"))
        out = tl.load(o + row[:, None] * o0 + head * o1 + column, mask=here, other=0.0)
        offset = tl.sum(out.to(tl.float32) * grad.to(tl.float32), 1)
        tl.store(delta + head * places + row, offset, mask=row < high)
        chance = _lucky(row, tl.load(seed) * 40503 + head * 7919)
        result = tl.zeros([M, C], tl.float32)
        full = low + (high - low) // N * N
        for start in range(low, full, N):
            place = start + tl.arange(0, N)
            keys = tl.load(k + place[:, None] * t0 + column, mask=wide[None, :], other=0.0)
            values = tl.load(v + place[:, None] * t0 + column, mask=wide[None, :], other=0.0)
            result = _blamed(query, grad, keys, values, place, high, _lucky(place, 1), chance, norm, offset, result,
                             scale, share, level, False, DROP, EXACT)  # fmt: skip
        if full < high:
            place = full + tl.arange(0, N)
            inside = (place < high)[:, None] & wide
            keys = tl.load(k + place[:, None] * t0 + column, mask=inside, other=0.0)
            values = tl.load(v + place[:, None] * t0 + column, mask=inside, other=0.0)
            result = _blamed(query, grad, keys, values, place, high, _lucky(place, 1), chance, norm, offset, result,
                             scale, share, level, True, DROP, EXACT)  # fmt: skip
        tl.store(dq + row[:, None] * d0 + head * d1 + column, (result * plain).to(dq.dtype.element_ty), mask=here)
    if sequence == tl.num_programs(1) - 1:
        _cleared(dq, low, places, tl.num_programs(0) * M, d0, d1, K, C, M)
        _cleared(dk, low, places, tl.num_programs(0) * M, d0, d1, K, C, M)
        _cleared(dv, low, places, tl.num_programs(0) * M, d0, d1, K, C, M)


@triton.jit
def _keys(q, k, v, begin, end, seed, lse, go, delta, dk, dv, places, t0, h0, g0, g1, d0, d1, scale, plain, share, level,
          K: tl.constexpr, C: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
          DROP: tl.constexpr, EXACT: tl.constexpr):  # fmt: skip
    """The gradients in a tile of N keys and values."""
    sequence, head = tl.program_id(1), tl.program_id(2)
    low, high = tl.load(begin + sequence), tl.load(end + sequence)
    place, column = low + tl.program_id(0) * N + tl.arange(0, N), tl.arange(0, C)
    if low + tl.program_id(0) * N < high:
        wide = column < K
        here = (place < high)[:, None] & wide
        q, k, v = q + head * h0, k + head * h0, v + head * h0
        keys = tl.load(k + place[:, None] * t0 + column, mask=here, other=0.0)
        values = tl.load(v + place[:, None] * t0 + column, mask=here, other=0.0)
        columns, luck = _lucky(place, 1), tl.load(seed) * 40503 + head * 7919
        grad_k, grad_v = tl.zeros([N, C], tl.float32), tl.zeros([N, C], tl.float32)
        for start in range(low, high, M):
            row = start + tl.arange(0, M)
            inside = (row < high)[:, None] & wide
            query = tl.load(q + row[:, None] * t0 + column, mask=inside, other=0.0)
            grad = tl.load(go + row[:, None] * g0 + head * g1 + column, mask=inside, other=0.0)
            norm = tl.load(lse + head * places + row, mask=row < high, other=float("inf"))
            offset = tl.load(delta + head * places + row, mask=row < high, other=0.0)
            # Rows past the end have an infinite norm, so that their weights come out as zeros.
            weight = tl.exp2(tl.dot(keys, tl.trans(query), input_precision=EXACT) * scale - norm[None, :])
            change = tl.dot(values, tl.trans(grad), input_precision=EXACT)
            used = weight
            if DROP:
                kept = columns[:, None] * _lucky(row, luck)[None, :] >= level
                change = tl.where(kept, change, 0.0)
                used = tl.where(kept, weight, 0.0)
            grad_v = tl.dot(used.to(grad.dtype), grad, grad_v, input_precision=EXACT)
            change = weight * (change * share - offset[None, :])
            grad_k = tl.dot(change.to(query.dtype), query, grad_k, input_precision=EXACT)
        tl.store(dk + place[:, None] * d0 + head * d1 + column, (grad_k * plain).to(dk.dtype.element_ty), mask=here)
        tl.store(dv + place[:, None] * d0 + head * d1 + column, (grad_v * share).to(dv.dtype.element_ty), mask=here)


@triton.jit
def _whole(q, k, v, begin, end, seed, lse, go, o, delta, dq, dk, dv, places, t0, h0, g0, g1, o0, o1, d0, d1,
           scale, plain, share, level,
           K: tl.constexpr, C: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
           DROP: tl.constexpr, EXACT: tl.constexpr):  # fmt: skip
    """All gradients of a sequence that fits into one tile, in one head."""
    sequence, head = tl.program_id(1), tl.program_id(2)
    low, high = tl.load(begin + sequence), tl.load(end + sequence)
    place, column = low + tl.arange(0, M), tl.arange(0, C)
    if low < high:
        here = (place < high)[:, None] & (column < K)
        q, k, v = q + head * h0, k + head * h0, v + head * h0
        query = tl.load(q + place[:, None] * t0 + column, mask=here, other=0.0)
        keys = tl.load(k + place[:, None] * t0 + column, mask=here, other=0.0)
        values = tl.load(v + place[:, None] * t0 + column, mask=here, other=0.0)
        grad = tl.load(go + place[:, None] * g0 + head * g1 + column, mask=here, other=0.0)
        out = tl.load(o + place[:, None] * o0 + head * o1 + column, mask=here, other=0.0)
        offset = tl.sum(out.to(tl.float32) * grad.to(tl.float32), 1)
        # Queries past the end have an infinite norm, and so no weight; keys past the end are zeros, and are not stored.
        norm = tl.load(lse + head * places + place, mask=place < high, other=float("inf"))
        weight = tl.exp2(tl.dot(keys, tl.trans(query), input_precision=EXACT) * scale - norm[None, :])
        change = tl.dot(values, tl.trans(grad), input_precision=EXACT)
        used = weight
        if DROP:
            chance = _lucky(place, tl.load(seed) * 40503 + head * 7919)
            kept = _lucky(place, 1)[:, None] * chance[None, :] >= level
            change = tl.where(kept, change, 0.0)
            used = tl.where(kept, weight, 0.0)
        grad_v = tl.dot(used.to(grad.dtype), grad, input_precision=EXACT) * share
        spot = place[:, None] * d0 + head * d1 + column
        tl.store(dv + spot, grad_v.to(dv.dtype.element_ty), mask=here)
        change = (weight * (change * share - offset[None, :])).to(query.dtype)
        grad_k = tl.dot(change, query, input_precision=EXACT) * plain
        tl.store(dk + spot, grad_k.to(dk.dtype.element_ty), mask=here)
        grad_q = tl.dot(tl.trans(change), keys, input_precision=EXACT) * plain
        tl.store(dq + spot, grad_q.to(dq.dtype.element_ty), mask=here)
    if sequence == tl.num_programs(1) - 1:
        _cleared(dq, low, places, tl.num_programs(0) * M, d0, d1, K, C, M)
        _cleared(dk, low, places, tl.num_programs(0) * M, d0, d1, K, C, M)
        _cleared(dv, low, places, tl.num_programs(0) * M, d0, d1, K, C, M)


ONE = 128  # the longest sequence that is one tile
TILES = {  # queries, keys, warps, stages of each kernel, by how long sequences may be
    "_forward": ((1 << 30, (64, 64, 4, 3)),),
    "_queries": ((1 << 30, (64, 64, 4, 3)),),
    "_keys": ((1 << 30, (64, 64, 4, 2)),),
    "_whole": ((64, (64, 64, 4, 1)), (ONE, (ONE, ONE, 8, 1))),
}


def _launch(kernel, longest, sequences, heads, *given, width, dtype, drop) -> None:
    """Run a kernel on tiles of a size that suits the longest sequence."""
    name = kernel.fn.__name__
    m, n, warps, stages = next(tiles for limit, tiles in TILES[name] if longest <= limit)
    if dtype == torch.float32:  # whose tiles take twice the memory
        m, n, warps, stages = min(m, 64), min(n, 32), 4, 1
    blocks = triton.cdiv(longest, n if name == "_keys" else m)
    exact = "ieee" if dtype == torch.float32 else "tf32"
    kernel[(blocks, sequences, heads)](
        *given, K=width, C=max(16, triton.next_power_of_2(width)), M=m, N=n, DROP=drop, EXACT=exact,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip


def _chances(dropout: float) -> tuple[float, int]:
    """By how much kept weights grow, and the least number of 32 bits that is kept."""
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
        width**-0.5 * LOG2E, *_chances(dropout), width=width, dtype=qkv.dtype, drop=dropout > 0,
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
    numbers = (width**-0.5 * LOG2E, width**-0.5, *_chances(dropout))
    kind = {"width": width, "dtype": qkv.dtype, "drop": dropout > 0}
    shared = (q, k, v, begin, end, seed, lse, grad)
    one = longest <= ONE and qkv.dtype != torch.float32
    _launch(
        _whole if one else _queries, longest, len(begin), heads,
        *shared, o, delta, dq, dk, dv, places, *steps, *out, *into, *numbers, **kind,
    )  # fmt: skip
    if not one:
        _launch(_keys, longest, len(begin), heads, *shared, delta, dk, dv, places, *steps, *into, *numbers, **kind)
    return result


@_attend_backward.register_fake
def _(
    qkv: Tensor, begin: Tensor, end: Tensor, seed: Tensor, longest: int, dropout: float,
    o: Tensor, lse: Tensor, grad: Tensor,
) -> Tensor:  # fmt: skip
    return torch.empty_like(qkv)


def _keep(ctx, inputs, output) -> None:
    qkv, begin, end, seed, ctx.longest, ctx.dropout = inputs
    ctx.save_for_backward(qkv, begin, end, seed, *output)


def _backward(ctx, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    qkv, begin, end, seed, o, lse = ctx.saved_tensors
    result = _attend_backward(qkv, begin, end, seed, ctx.longest, ctx.dropout, o, lse, grad)
    return result, None, None, None, None, None


_attend.register_autograd(_backward, setup_context=_keep)


def attend(qkv: Tensor, begin: Tensor, end: Tensor, longest: int, dropout: float) -> Tensor:
    """qkv (T, 3, H, K): the places begin[n] ... end[n] - 1 see each other.

    The last of begin (N + 1,) is where places begin that belong to no sequence, which give zeros.
    """
    seed = (
        torch.randint(2**31 - 1, (1,), device=qkv.device)
        if dropout > 0
        else torch.zeros(1, dtype=torch.long, device=qkv.device)
    )
    o, _ = _attend(qkv, begin, end, seed, longest, dropout)
    return o  # (T, H, K)
