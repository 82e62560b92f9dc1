"""Two attention kernels in Triton, for GPUs: sequences packed end to end, and hypotheses whose keys lie in other rows.

Both are held equal to `attention.attend` by tests. R rows, H heads, T queries, S keys, K width of one head.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2E = 1.4426950408889634


# ------------------------------------------------------------------ packed sequences: each query sees a range of keys
@triton.jit
def _packed(q, k, v, lo, hi, o, lse, queries, q0, q1, k0, k1, v0, v1, o0, o1, scale,
            K: tl.constexpr, C: tl.constexpr, M: tl.constexpr, N: tl.constexpr, EXACT: tl.constexpr):  # fmt: skip
    """A tile of M queries in one head: softmax(q . k / sqrt(K)) v over the keys lo ... hi - 1 of each."""
    head, row, column = tl.program_id(1), tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, C)
    here, wide = row < queries, column < K
    query = tl.load(q + row[:, None] * q0 + head * q1 + column, mask=here[:, None] & wide, other=0.0)
    low, high = tl.load(lo + row, mask=here, other=2147483647), tl.load(hi + row, mask=here, other=0)
    begin, end = tl.min(low, 0), tl.max(high, 0)
    top = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    mixed = tl.zeros([M, C], tl.float32)
    for start in range(begin, end, N):
        place = start + tl.arange(0, N)
        inside = (place < end)[:, None] & wide
        keys = tl.load(k + place[:, None] * k0 + head * k1 + column, mask=inside, other=0.0)
        score = tl.dot(query, tl.trans(keys), input_precision=EXACT) * scale
        seen = (place[None, :] >= low[:, None]) & (place[None, :] < high[:, None])
        score = tl.where(seen, score, float("-inf"))
        peak = tl.maximum(top, tl.max(score, 1))
        level = tl.where(peak == float("-inf"), 0.0, peak)
        weight = tl.exp2(score - level[:, None])
        fade = tl.exp2(top - level)
        values = tl.load(v + place[:, None] * v0 + head * v1 + column, mask=inside, other=0.0)
        mixed = tl.dot(weight.to(values.dtype), values, mixed * fade[:, None], input_precision=EXACT)
        total, top = total * fade + tl.sum(weight, 1), peak
    mixed = mixed / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(o + row[:, None] * o0 + head * o1 + column, mixed.to(o.dtype.element_ty), mask=here[:, None] & wide)
    # A row that may attend to nothing stores infinity, so that its weights are zero in the backward pass.
    tl.store(lse + head * queries + row, tl.where(total == 0.0, float("inf"), top + tl.log2(total)), mask=here)


@triton.jit
def _packed_dq(q, k, v, lo, hi, o, lse, go, delta, dq, queries,
               q0, q1, k0, k1, v0, v1, o0, o1, g0, g1, d0, d1, scale, plain,
               K: tl.constexpr, C: tl.constexpr, M: tl.constexpr, N: tl.constexpr, EXACT: tl.constexpr):  # fmt: skip
    """The gradient in a tile of queries; leaves delta = sum(o * do) for the other kernel."""
    head, row, column = tl.program_id(1), tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, C)
    here, wide = row < queries, column < K
    block = here[:, None] & wide
    query = tl.load(q + row[:, None] * q0 + head * q1 + column, mask=block, other=0.0)
    grad = tl.load(go + row[:, None] * g0 + head * g1 + column, mask=block, other=0.0)
    out = tl.load(o + row[:, None] * o0 + head * o1 + column, mask=block, other=0.0)
    low, high = tl.load(lo + row, mask=here, other=2147483647), tl.load(hi + row, mask=here, other=0)
    norm = tl.load(lse + head * queries + row, mask=here, other=float("inf"))
    offset = tl.sum(out.to(tl.float32) * grad.to(tl.float32), 1)
    tl.store(delta + head * queries + row, offset, mask=here)
    begin, end = tl.min(low, 0), tl.max(high, 0)
    result = tl.zeros([M, C], tl.float32)
    for start in range(begin, end, N):
        place = start + tl.arange(0, N)
        inside = (place < end)[:, None] & wide
        keys = tl.load(k + place[:, None] * k0 + head * k1 + column, mask=inside, other=0.0)
        values = tl.load(v + place[:, None] * v0 + head * v1 + column, mask=inside, other=0.0)
        seen = (place[None, :] >= low[:, None]) & (place[None, :] < high[:, None])
        weight = tl.exp2(tl.dot(query, tl.trans(keys), input_precision=EXACT) * scale - norm[:, None])
        weight = tl.where(seen, weight, 0.0)
        change = weight * (tl.dot(grad, tl.trans(values), input_precision=EXACT) - offset[:, None])
        result = tl.dot(change.to(keys.dtype), keys, result, input_precision=EXACT)
    tl.store(dq + row[:, None] * d0 + head * d1 + column, (result * plain).to(dq.dtype.element_ty), mask=block)


@triton.jit
def _packed_dkv(q, k, v, lo, hi, lse, go, delta, dk, dv, queries, keys_count,
                q0, q1, k0, k1, v0, v1, g0, g1, d0, d1, scale, plain,
                K: tl.constexpr, C: tl.constexpr, M: tl.constexpr, N: tl.constexpr, EXACT: tl.constexpr):  # fmt: skip
    """The gradients in a tile of N keys and values, key s being seen by the queries lo[s] ... hi[s] - 1."""
    head, place, column = tl.program_id(1), tl.program_id(0) * N + tl.arange(0, N), tl.arange(0, C)
    here, wide = place < keys_count, column < K
    block = here[:, None] & wide
    keys = tl.load(k + place[:, None] * k0 + head * k1 + column, mask=block, other=0.0)
    values = tl.load(v + place[:, None] * v0 + head * v1 + column, mask=block, other=0.0)
    low, high = tl.load(lo + place, mask=here, other=2147483647), tl.load(hi + place, mask=here, other=0)
    begin, end = tl.min(low, 0), tl.max(high, 0)
    grad_k, grad_v = tl.zeros([N, C], tl.float32), tl.zeros([N, C], tl.float32)
    for start in range(begin, end, M):
        row = start + tl.arange(0, M)
        there = row < end
        inside = there[:, None] & wide
        query = tl.load(q + row[:, None] * q0 + head * q1 + column, mask=inside, other=0.0)
        grad = tl.load(go + row[:, None] * g0 + head * g1 + column, mask=inside, other=0.0)
        norm = tl.load(lse + head * queries + row, mask=there, other=float("inf"))
        offset = tl.load(delta + head * queries + row, mask=there, other=0.0)
        seen = (row[None, :] >= low[:, None]) & (row[None, :] < high[:, None])
        weight = tl.exp2(tl.dot(keys, tl.trans(query), input_precision=EXACT) * scale - norm[None, :])
        weight = tl.where(seen, weight, 0.0)
        grad_v = tl.dot(weight.to(grad.dtype), grad, grad_v, input_precision=EXACT)
        change = weight * (tl.dot(values, tl.trans(grad), input_precision=EXACT) - offset[None, :])
        grad_k = tl.dot(change.to(query.dtype), query, grad_k, input_precision=EXACT)
    tl.store(dk + place[:, None] * d0 + head * d1 + column, (grad_k * plain).to(dk.dtype.element_ty), mask=block)
    tl.store(dv + place[:, None] * d0 + head * d1 + column, grad_v.to(dv.dtype.element_ty), mask=block)


def _shape(width: int, dtype: torch.dtype, queries: int, keys: int, warps: int) -> dict[str, int | str]:
    """Tile sizes of queries and keys, which were chosen by timing sentences of about 28 tokens."""
    exact = "ieee" if dtype == torch.float32 else "tf32"
    wide = max(16, triton.next_power_of_2(width))
    return {"K": width, "C": wide, "M": queries, "N": keys, "EXACT": exact, "num_warps": warps, "num_stages": 2}


def _step(x: Tensor) -> tuple[int, int]:
    return x.stride(2), x.stride(1)


@torch.library.custom_op("heedful::packed", mutates_args=())
def _packed_op(
    q: Tensor, k: Tensor, v: Tensor, lo: Tensor, hi: Tensor, first: Tensor, last: Tensor
) -> tuple[Tensor, Tensor]:
    _, heads, queries, width = q.shape
    o = torch.empty(1, queries, heads, width, device=q.device, dtype=q.dtype).transpose(1, 2)  # (1, H, T, K)
    lse = torch.empty(heads, queries, device=q.device, dtype=torch.float32)
    shape = _shape(width, q.dtype, 64, 64, 4)
    _packed[(triton.cdiv(queries, shape["M"]), heads)](
        q, k, v, lo, hi, o, lse, queries, *_step(q), *_step(k), *_step(v), *_step(o), width**-0.5 * LOG2E, **shape
    )  # fmt: skip
    return o, lse


@_packed_op.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, lo: Tensor, hi: Tensor, first: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    _, heads, queries, width = q.shape
    return q.new_empty(1, queries, heads, width).transpose(1, 2), q.new_empty(heads, queries, dtype=torch.float32)


@torch.library.custom_op("heedful::packed_backward", mutates_args=())
def _packed_backward_op(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lo: Tensor,
    hi: Tensor,
    first: Tensor,
    last: Tensor,
    o: Tensor,
    lse: Tensor,
    grad: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    _, heads, queries, width = q.shape
    keys = k.shape[2]
    grad = grad if grad.stride(3) == 1 else grad.contiguous()
    dq = torch.empty(1, queries, heads, width, device=q.device, dtype=q.dtype).transpose(1, 2)  # (1, H, T, K)
    dk, dv = (torch.empty(1, keys, heads, width, device=q.device, dtype=q.dtype).transpose(1, 2) for _ in range(2))
    delta = torch.empty_like(lse)
    shape, plain = _shape(width, q.dtype, 64, 32, 4), width**-0.5
    _packed_dq[(triton.cdiv(queries, shape["M"]), heads)](
        q, k, v, lo, hi, o, lse, grad, delta, dq, queries,
        *_step(q), *_step(k), *_step(v), *_step(o), *_step(grad), *_step(dq), plain * LOG2E, plain, **shape,
    )  # fmt: skip
    shape = _shape(width, q.dtype, 64, 32, 2)
    _packed_dkv[(triton.cdiv(keys, shape["N"]), heads)](
        q, k, v, first, last, lse, grad, delta, dk, dv, queries, keys,
        *_step(q), *_step(k), *_step(v), *_step(grad), *_step(dk), plain * LOG2E, plain, **shape,
    )  # fmt: skip
    return dq, dk, dv


@_packed_backward_op.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lo: Tensor,
    hi: Tensor,
    first: Tensor,
    last: Tensor,
    o: Tensor,
    lse: Tensor,
    grad: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    _, heads, queries, width = q.shape
    dq = q.new_empty(1, queries, heads, width).transpose(1, 2)
    dk, dv = (q.new_empty(1, k.shape[2], heads, width).transpose(1, 2) for _ in range(2))
    return dq, dk, dv


def _keep(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs, *output)


def _backward(ctx, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    q, k, v, lo, hi, first, last, o, lse = ctx.saved_tensors
    return *_packed_backward_op(q, k, v, lo, hi, first, last, o, lse, grad), None, None, None, None


_packed_op.register_autograd(_backward, setup_context=_keep)


def packed(q: Tensor, k: Tensor, v: Tensor, lo: Tensor, hi: Tensor, first: Tensor, last: Tensor) -> Tensor:
    """Query t of q (1, H, T, K) sees keys lo[t] ... hi[t] - 1; key s is seen by queries first[s] ... last[s] - 1."""
    o, _ = _packed_op(q, k, v, lo, hi, first, last)
    return o  # (1, H, T, K)


# ------------------------------------------------------------------ beam search: keys that stand in other rows
@triton.jit
def _attend_cached(q, k, v, rows, length, skip, o, heads, room, scale,
               K: tl.constexpr, C: tl.constexpr, N: tl.constexpr):  # fmt: skip
    """One row and head: softmax(q . k / sqrt(K)) v over keys skip ... length - 1, key s taken from row rows[r, s]."""
    row, head, column = tl.program_id(0), tl.program_id(1), tl.arange(0, C)
    wide = column < K
    query = tl.load(q + (row * heads + head) * K + column, mask=wide, other=0.0).to(tl.float32) * scale
    used, begin = tl.load(length), 0
    if skip is not None:
        begin = tl.load(skip + row)
    top = tl.full([1], float("-inf"), tl.float32)
    total = tl.zeros([1], tl.float32)
    mixed = tl.zeros([C], tl.float32)
    for start in range(begin, used, N):
        place = start + tl.arange(0, N)
        inside = place < used
        owner = tl.load(rows + row * room + place, mask=inside, other=0)
        offset = ((owner * heads + head) * room + place)[:, None] * K + column
        block = inside[:, None] & wide
        keys = tl.load(k + offset, mask=block, other=0.0).to(tl.float32)
        score = tl.where(inside, tl.sum(keys * query, 1), float("-inf"))
        peak = tl.maximum(top, tl.max(score, 0))
        weight = tl.exp2(score - peak)
        values = tl.load(v + offset, mask=block, other=0.0).to(tl.float32)
        fade = tl.exp2(top - peak)
        mixed = mixed * fade + tl.sum(values * weight[:, None], 0)
        total, top = total * fade + tl.sum(weight, 0), peak
    tl.store(o + (row * heads + head) * K + column, (mixed / total).to(o.dtype.element_ty), mask=wide)


def attend_cached(q: Tensor, k: Tensor, v: Tensor, rows: Tensor, length: Tensor, skip: Tensor | None = None) -> Tensor:
    """q (R, H, 1, K) sees the first `length` keys of k (R, H, S, K), key s of row r standing in row rows[r, s].

    With skip (R,), the first of these hold nothing and are not seen.
    """
    count, heads, _, width = q.shape
    q, wide = q.contiguous(), triton.next_power_of_2(width)
    o = torch.empty_like(q)
    _attend_cached[(count, heads)](
        q, k, v, rows, length, skip, o, heads, k.shape[2], width**-0.5 * LOG2E, K=width, C=wide, N=32, num_warps=2
    )
    return o  # (R, H, 1, K)
