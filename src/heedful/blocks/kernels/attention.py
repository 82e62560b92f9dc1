"""Two attention kernels in Triton: for packed sequences, and for beam search with a cache shared between hypotheses.

Tests compare both with `attention.attend`. R rows, H heads, T queries, S keys, K width of a head.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2E = 1.4426950408889634


# ------------------------------------------------------------------ packed sequences: a range of keys for each query
@triton.jit
def _packed(q, k, v, lo, hi, o, lse, queries, q0, q1, k0, k1, v0, v1, o0, o1, scale,
            K: tl.constexpr, C: tl.constexpr, M: tl.constexpr, N: tl.constexpr, PREC: tl.constexpr):  # fmt: skip
    """A tile of M queries of one head: softmax(q . k / sqrt(K)) v over the keys lo ... hi - 1 of each query."""
    head, row, column = tl.program_id(1), tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, C)
    in_rows, in_width = row < queries, column < K
    query = tl.load(q + row[:, None] * q0 + head * q1 + column, mask=in_rows[:, None] & in_width, other=0.0)
    low, high = tl.load(lo + row, mask=in_rows, other=2147483647), tl.load(hi + row, mask=in_rows, other=0)
    begin, end = tl.min(low, 0), tl.max(high, 0)
    running_max = tl.full([M], float("-inf"), tl.float32)
    running_sum = tl.zeros([M], tl.float32)
    acc = tl.zeros([M, C], tl.float32)
    for start in range(begin, end, N):
        pos = start + tl.arange(0, N)
        tile = (pos < end)[:, None] & in_width
        keys = tl.load(k + pos[:, None] * k0 + head * k1 + column, mask=tile, other=0.0)
        score = tl.dot(query, tl.trans(keys), input_precision=PREC) * scale
        seen = (pos[None, :] >= low[:, None]) & (pos[None, :] < high[:, None])
        score = tl.where(seen, score, float("-inf"))
        new_max = tl.maximum(running_max, tl.max(score, 1))
        safe_max = tl.where(new_max == float("-inf"), 0.0, new_max)
        weight = tl.exp2(score - safe_max[:, None])
        rescale = tl.exp2(running_max - safe_max)
        values = tl.load(v + pos[:, None] * v0 + head * v1 + column, mask=tile, other=0.0)
        acc = tl.dot(weight.to(values.dtype), values, acc * rescale[:, None], input_precision=PREC)
        running_sum, running_max = running_sum * rescale + tl.sum(weight, 1), new_max
    acc = acc / tl.where(running_sum == 0.0, 1.0, running_sum)[:, None]
    tl.store(o + row[:, None] * o0 + head * o1 + column, acc.to(o.dtype.element_ty), mask=in_rows[:, None] & in_width)
    # A query without keys stores infinity, so that its weights are zero in the backward pass.
    tl.store(
        lse + head * queries + row,
        tl.where(running_sum == 0.0, float("inf"), running_max + tl.log2(running_sum)),
        mask=in_rows,
    )


@triton.jit
def _packed_dq(q, k, v, lo, hi, o, lse, go, delta, dq, queries,
               q0, q1, k0, k1, v0, v1, o0, o1, g0, g1, d0, d1, scale, sm_scale,
               K: tl.constexpr, C: tl.constexpr, M: tl.constexpr, N: tl.constexpr, PREC: tl.constexpr):  # fmt: skip
    """The gradient of a tile of queries; stores delta = sum(o * do) for the other kernel."""
    head, row, column = tl.program_id(1), tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, C)
    in_rows, in_width = row < queries, column < K
    own_tile = in_rows[:, None] & in_width
    query = tl.load(q + row[:, None] * q0 + head * q1 + column, mask=own_tile, other=0.0)
    grad = tl.load(go + row[:, None] * g0 + head * g1 + column, mask=own_tile, other=0.0)
    out = tl.load(o + row[:, None] * o0 + head * o1 + column, mask=own_tile, other=0.0)
    low, high = tl.load(lo + row, mask=in_rows, other=2147483647), tl.load(hi + row, mask=in_rows, other=0)
    log_sum = tl.load(lse + head * queries + row, mask=in_rows, other=float("inf"))
    offset = tl.sum(out.to(tl.float32) * grad.to(tl.float32), 1)
    tl.store(delta + head * queries + row, offset, mask=in_rows)
    begin, end = tl.min(low, 0), tl.max(high, 0)
    result = tl.zeros([M, C], tl.float32)
    for start in range(begin, end, N):
        pos = start + tl.arange(0, N)
        tile = (pos < end)[:, None] & in_width
        keys = tl.load(k + pos[:, None] * k0 + head * k1 + column, mask=tile, other=0.0)
        values = tl.load(v + pos[:, None] * v0 + head * v1 + column, mask=tile, other=0.0)
        seen = (pos[None, :] >= low[:, None]) & (pos[None, :] < high[:, None])
        weight = tl.exp2(tl.dot(query, tl.trans(keys), input_precision=PREC) * scale - log_sum[:, None])
        weight = tl.where(seen, weight, 0.0)
        grad_score = weight * (tl.dot(grad, tl.trans(values), input_precision=PREC) - offset[:, None])
        result = tl.dot(grad_score.to(keys.dtype), keys, result, input_precision=PREC)
    tl.store(dq + row[:, None] * d0 + head * d1 + column, (result * sm_scale).to(dq.dtype.element_ty), mask=own_tile)


@triton.jit
def _packed_dkv(q, k, v, lo, hi, lse, go, delta, dk, dv, queries, keys_count,
                q0, q1, k0, k1, v0, v1, g0, g1, d0, d1, scale, sm_scale,
                K: tl.constexpr, C: tl.constexpr, M: tl.constexpr, N: tl.constexpr, PREC: tl.constexpr):  # fmt: skip
    """The gradients of a tile of N keys and values; queries lo[s] ... hi[s] - 1 attend to key s."""
    head, pos, column = tl.program_id(1), tl.program_id(0) * N + tl.arange(0, N), tl.arange(0, C)
    in_rows, in_width = pos < keys_count, column < K
    own_tile = in_rows[:, None] & in_width
    keys = tl.load(k + pos[:, None] * k0 + head * k1 + column, mask=own_tile, other=0.0)
    values = tl.load(v + pos[:, None] * v0 + head * v1 + column, mask=own_tile, other=0.0)
    low, high = tl.load(lo + pos, mask=in_rows, other=2147483647), tl.load(hi + pos, mask=in_rows, other=0)
    begin, end = tl.min(low, 0), tl.max(high, 0)
    grad_k, grad_v = tl.zeros([N, C], tl.float32), tl.zeros([N, C], tl.float32)
    for start in range(begin, end, M):
        row = start + tl.arange(0, M)
        in_range = row < end
        tile = in_range[:, None] & in_width
        query = tl.load(q + row[:, None] * q0 + head * q1 + column, mask=tile, other=0.0)
        grad = tl.load(go + row[:, None] * g0 + head * g1 + column, mask=tile, other=0.0)
        log_sum = tl.load(lse + head * queries + row, mask=in_range, other=float("inf"))
        offset = tl.load(delta + head * queries + row, mask=in_range, other=0.0)
        seen = (row[None, :] >= low[:, None]) & (row[None, :] < high[:, None])
        weight = tl.exp2(tl.dot(keys, tl.trans(query), input_precision=PREC) * scale - log_sum[None, :])
        weight = tl.where(seen, weight, 0.0)
        grad_v = tl.dot(weight.to(grad.dtype), grad, grad_v, input_precision=PREC)
        grad_score = weight * (tl.dot(values, tl.trans(grad), input_precision=PREC) - offset[None, :])
        grad_k = tl.dot(grad_score.to(query.dtype), query, grad_k, input_precision=PREC)
    tl.store(dk + pos[:, None] * d0 + head * d1 + column, (grad_k * sm_scale).to(dk.dtype.element_ty), mask=own_tile)
    tl.store(dv + pos[:, None] * d0 + head * d1 + column, grad_v.to(dv.dtype.element_ty), mask=own_tile)


def _options(width: int, dtype: torch.dtype, queries: int, keys: int, warps: int) -> dict[str, int | str]:
    """Tile sizes of queries and keys, tuned on sentences of about 28 tokens."""
    precision = "ieee" if dtype == torch.float32 else "tf32"
    padded_width = max(16, triton.next_power_of_2(width))
    return {
        "K": width,
        "C": padded_width,
        "M": queries,
        "N": keys,
        "PREC": precision,
        "num_warps": warps,
        "num_stages": 2,
    }


def _strides(x: Tensor) -> tuple[int, int]:
    return x.stride(2), x.stride(1)


@torch.library.custom_op("heedful::packed", mutates_args=())
def _packed_op(
    q: Tensor, k: Tensor, v: Tensor, lo: Tensor, hi: Tensor, first: Tensor, last: Tensor
) -> tuple[Tensor, Tensor]:
    _, heads, queries, width = q.shape
    o = torch.empty(1, queries, heads, width, device=q.device, dtype=q.dtype).transpose(1, 2)  # (1, H, T, K)
    lse = torch.empty(heads, queries, device=q.device, dtype=torch.float32)
    options = _options(width, q.dtype, 64, 64, 4)
    _packed[(triton.cdiv(queries, options["M"]), heads)](
        q, k, v, lo, hi, o, lse, queries, *_strides(q), *_strides(k), *_strides(v), *_strides(o),
        width**-0.5 * LOG2E, **options,
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
    options, sm_scale = _options(width, q.dtype, 64, 32, 4), width**-0.5
    _packed_dq[(triton.cdiv(queries, options["M"]), heads)](
        q, k, v, lo, hi, o, lse, grad, delta, dq, queries,
        *_strides(q), *_strides(k), *_strides(v), *_strides(o), *_strides(grad), *_strides(dq),
        sm_scale * LOG2E, sm_scale, **options,
    )  # fmt: skip
    options = _options(width, q.dtype, 64, 32, 2)
    _packed_dkv[(triton.cdiv(keys, options["N"]), heads)](
        q, k, v, first, last, lse, grad, delta, dk, dv, queries, keys,
        *_strides(q), *_strides(k), *_strides(v), *_strides(grad), *_strides(dk),
        sm_scale * LOG2E, sm_scale, **options,
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


def _setup_context(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs, *output)


def _backward(ctx, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    q, k, v, lo, hi, first, last, o, lse = ctx.saved_tensors
    return *_packed_backward_op(q, k, v, lo, hi, first, last, o, lse, grad), None, None, None, None


_packed_op.register_autograd(_backward, setup_context=_setup_context)


def packed(q: Tensor, k: Tensor, v: Tensor, lo: Tensor, hi: Tensor, first: Tensor, last: Tensor) -> Tensor:
    """Query t of q (1, H, T, K) attends to keys lo[t] ... hi[t] - 1, and queries first[s] ... last[s] - 1 to key s."""
    o, _ = _packed_op(q, k, v, lo, hi, first, last)
    return o  # (1, H, T, K)


# ------------------------------------------------------------------ beam search: keys in other rows of the cache
@triton.jit
def _attend_cached(q, k, v, rows, length, skip, o, heads, room, scale,
               K: tl.constexpr, C: tl.constexpr, N: tl.constexpr):  # fmt: skip
    """One row and head: softmax(q . k / sqrt(K)) v over keys skip ... length - 1; key s is in row rows[r, s]."""
    row, head, column = tl.program_id(0), tl.program_id(1), tl.arange(0, C)
    in_width = column < K
    query = tl.load(q + (row * heads + head) * K + column, mask=in_width, other=0.0).to(tl.float32) * scale
    used, begin = tl.load(length), 0
    if skip is not None:
        begin = tl.load(skip + row)
    running_max = tl.full([1], float("-inf"), tl.float32)
    running_sum = tl.zeros([1], tl.float32)
    acc = tl.zeros([C], tl.float32)
    for start in range(begin, used, N):
        pos = start + tl.arange(0, N)
        tile = pos < used
        owner = tl.load(rows + row * room + pos, mask=tile, other=0)
        offset = ((owner * heads + head) * room + pos)[:, None] * K + column
        own_tile = tile[:, None] & in_width
        keys = tl.load(k + offset, mask=own_tile, other=0.0).to(tl.float32)
        score = tl.where(tile, tl.sum(keys * query, 1), float("-inf"))
        new_max = tl.maximum(running_max, tl.max(score, 0))
        weight = tl.exp2(score - new_max)
        values = tl.load(v + offset, mask=own_tile, other=0.0).to(tl.float32)
        rescale = tl.exp2(running_max - new_max)
        acc = acc * rescale + tl.sum(values * weight[:, None], 0)
        running_sum, running_max = running_sum * rescale + tl.sum(weight, 0), new_max
    tl.store(o + (row * heads + head) * K + column, (acc / running_sum).to(o.dtype.element_ty), mask=in_width)


def attend_cached(q: Tensor, k: Tensor, v: Tensor, rows: Tensor, length: Tensor, skip: Tensor | None = None) -> Tensor:
    """Attention of q (R, H, 1, K) to the first `length` keys of k (R, H, S, K); key s of row r is in row rows[r, s].

    The first skip[r] keys are padding.
    """
    count, heads, _, width = q.shape
    q, padded_width = q.contiguous(), triton.next_power_of_2(width)
    o = torch.empty_like(q)
    _attend_cached[(count, heads)](
        q,
        k,
        v,
        rows,
        length,
        skip,
        o,
        heads,
        k.shape[2],
        width**-0.5 * LOG2E,
        K=width,
        C=padded_width,
        N=32,
        num_warps=2,
    )
    return o  # (R, H, 1, K)
