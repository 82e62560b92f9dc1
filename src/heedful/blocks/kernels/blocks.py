"""Block-sparse attention over lists of blocks, with dropout on its weights, in Triton, for GPUs.

Tests compare it with `attention.attend`. The lists are those of `sparse.py`: a program takes M queries (or keys) and
runs through its blocks of N = 64 keys (or queries), first those without a mask, then those with one word of bits per
row. Rows with many blocks are divided among several programs, whose results are added by a second kernel.

B batch, H heads, T queries, S keys, K width of a head.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from heedful.blocks.kernels.sequences import LOG2E, _dropout_constants, _hash_pos

WIDTH = 64  # positions of a column of blocks


@triton.jit
def _tile(x, place, column, limit, t0, K: tl.constexpr, C: tl.constexpr, EVEN: tl.constexpr):
    """Rows of x at some places, (places, C); zeros past the end."""
    spot = x + place[:, None] * t0 + column[None, :]
    if EVEN and K == C:
        return tl.load(spot)
    return tl.load(spot, mask=(place < limit)[:, None] & (column < K)[None, :], other=0.0)


@triton.jit
def _allowed(bits, line, M: tl.constexpr, N: tl.constexpr):
    """The mask (M, N) of a partial block."""
    word = tl.load(bits + line.to(tl.int64) * M + tl.arange(0, M))
    return ((word[:, None] >> tl.arange(0, N)[None, :].to(tl.int64)) & 1) != 0


@triton.jit
def _share(work, group, programs):
    """Row, begin and end of this program, and the number of its part."""
    item = work + (group * programs + tl.program_id(0)) * 4
    return tl.load(item), tl.load(item + 1), tl.load(item + 2), tl.load(item + 3)


@triton.jit
def _attend_tile(query, keys, values, row, place, row_hash, bits, line, slope, running_max, running_sum, acc, scale,
                 threshold, PARTIAL: tl.constexpr, LINEAR: tl.constexpr, DROP: tl.constexpr,
                 EXACT: tl.constexpr, M: tl.constexpr, N: tl.constexpr):  # fmt: skip
    """Online softmax: update M queries with a block of keys."""
    score = tl.dot(query, tl.trans(keys), input_precision=EXACT)
    if LINEAR:
        score = score * scale - slope * tl.abs(row[:, None] - place[None, :]).to(tl.float32)
        scale = 1.0
    if PARTIAL:
        score = tl.where(_allowed(bits, line, M, N), score, float("-inf"))
    peak = tl.maximum(running_max, tl.max(score, 1) * scale)
    safe = tl.where(peak == float("-inf"), 0.0, peak) if PARTIAL else peak  # no key so far
    weight = tl.exp2(score * scale - safe[:, None])  # one fused multiply-add
    decay = tl.exp2(running_max - safe)
    running_sum = running_sum * decay + tl.sum(weight, 1)
    if DROP:
        weight = tl.where(row_hash[:, None] * _hash_pos(place, 1)[None, :] >= threshold, weight, 0.0)
    acc = tl.dot(weight.to(values.dtype), values, acc * decay[:, None], input_precision=EXACT)
    return peak, running_sum, acc


@triton.jit
def _forward(q, k, v, columns, full, first, bits, work, slopes, seed, o, lse, part_o, part_lse,
             heads, by_row, by_head, count, blocks, masks, programs, slots, queries, keys,
             q0, q1, q2, k0, k1, k2, v0, v1, v2, o0, o1, o2, scale, keep_scale, threshold,
             K: tl.constexpr, C: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
             EVEN: tl.constexpr, LINEAR: tl.constexpr, DROP: tl.constexpr, EXACT: tl.constexpr):  # fmt: skip
    """A tile of M queries of one head: dropout(softmax(scores)) v; zeros where a query attends to no key."""
    b, h = tl.program_id(1) // heads, tl.program_id(1) % heads
    group = b * by_row + h * by_head
    tile, begin, end, part = _share(work, group, programs)
    if tile >= 0:
        spot = group * count + tile
        whole, line = tl.load(full + spot), group * masks + tl.load(first + spot)
        columns += spot.to(tl.int64) * blocks
        k, v = k + b.to(tl.int64) * k0 + h * k1, v + b.to(tl.int64) * v0 + h * v1
        row, column = tile * M + tl.arange(0, M), tl.arange(0, C)
        query = _tile(q + b.to(tl.int64) * q0 + h * q1, row, column, queries, q2, K, C, EVEN)
        row_hash = _hash_pos(row, tl.load(seed) * 40503 + tl.program_id(1) * 7919) if DROP else 0
        slope = tl.load(slopes + h) * 1.4426950408889634 if LINEAR else 0.0
        running_max = tl.full([M], float("-inf"), tl.float32)
        running_sum, acc = tl.zeros([M], tl.float32), tl.zeros([M, C], tl.float32)
        after = tl.load(columns + begin)  # one block ahead, so that loads are not behind one another
        for i in range(begin, tl.minimum(end, whole)):
            place = after * N + tl.arange(0, N)
            after = tl.load(columns + i + 1, mask=i + 1 < end, other=0)
            key = _tile(k, place, column, keys, k2, K, C, EVEN)
            value = _tile(v, place, column, keys, v2, K, C, EVEN)
            running_max, running_sum, acc = _attend_tile(
                query, key, value, row, place, row_hash, bits, line, slope, running_max, running_sum, acc, scale,
                threshold, False, LINEAR, DROP, EXACT, M, N,
            )  # fmt: skip
        for i in range(tl.maximum(begin, whole), end):
            place = after * N + tl.arange(0, N)
            after = tl.load(columns + i + 1, mask=i + 1 < end, other=0)
            key = _tile(k, place, column, keys, k2, K, C, EVEN)
            value = _tile(v, place, column, keys, v2, K, C, EVEN)
            running_max, running_sum, acc = _attend_tile(
                query, key, value, row, place, row_hash, bits, line + i - whole, slope, running_max, running_sum, acc,
                scale, threshold, True, LINEAR, DROP, EXACT, M, N,
            )  # fmt: skip
        some = running_sum > 0
        total = tl.where(some, running_sum, 1.0)
        acc = acc * (keep_scale / total)[:, None]
        log_sum = tl.where(some, running_max + tl.log2(total), float("inf"))
        if part < 0:
            here = (row < queries)[:, None] & (column < K)[None, :]
            into = o + b.to(tl.int64) * o0 + h * o1 + row[:, None] * o2 + column[None, :]
            tl.store(into, acc.to(o.dtype.element_ty), mask=here)
            tl.store(lse + tl.program_id(1) * queries + row, log_sum, mask=row < queries)
        else:
            lines = (tl.program_id(1) * slots + part) * M + tl.arange(0, M)
            tl.store(part_o + lines[:, None].to(tl.int64) * C + column[None, :], acc)
            tl.store(part_lse + lines, log_sum)


@triton.jit
def _combine(part_o, part_lse, parts, o, lse, heads, by_row, by_head, slots, queries, o0, o1, o2,
             K: tl.constexpr, C: tl.constexpr, M: tl.constexpr):  # fmt: skip
    """The output of a tile of queries from those of its parts."""
    b, h = tl.program_id(1) // heads, tl.program_id(1) % heads
    item = parts + ((b * by_row + h * by_head) * tl.num_programs(0) + tl.program_id(0)) * 3
    tile, start, count = tl.load(item), tl.load(item + 1), tl.load(item + 2)
    if count > 0:
        row, column = tile * M + tl.arange(0, M), tl.arange(0, C)
        running_max = tl.full([M], float("-inf"), tl.float32)
        running_sum, acc = tl.zeros([M], tl.float32), tl.zeros([M, C], tl.float32)
        for part in range(start, start + count):
            place = (tl.program_id(1) * slots + part) * M + tl.arange(0, M)
            log_sum = tl.load(part_lse + place)
            log_sum = tl.where(log_sum == float("inf"), float("-inf"), log_sum)  # no key in this part
            peak = tl.maximum(running_max, log_sum)
            safe = tl.where(peak == float("-inf"), 0.0, peak)
            weight, decay = tl.exp2(log_sum - safe), tl.exp2(running_max - safe)
            out = tl.load(part_o + place[:, None].to(tl.int64) * C + column[None, :])
            acc = acc * decay[:, None] + out * weight[:, None]
            running_sum = running_sum * decay + weight
            running_max = peak
        some = running_sum > 0
        total = tl.where(some, running_sum, 1.0)
        here = (row < queries)[:, None] & (column < K)[None, :]
        spot = o + b.to(tl.int64) * o0 + h * o1 + row[:, None] * o2 + column[None, :]
        tl.store(spot, (acc / total[:, None]).to(o.dtype.element_ty), mask=here)
        log_sum = tl.where(some, running_max + tl.log2(total), float("inf"))
        tl.store(lse + tl.program_id(1) * queries + row, log_sum, mask=row < queries)


@triton.jit
def _sum_parts(parted, parts, out, heads, by_row, by_head, slots, length, o0, o1, o2, factor,
               K: tl.constexpr, C: tl.constexpr, M: tl.constexpr):  # fmt: skip
    """The gradient of a tile: the sum of those of its parts, times a factor."""
    b, h = tl.program_id(1) // heads, tl.program_id(1) % heads
    item = parts + ((b * by_row + h * by_head) * tl.num_programs(0) + tl.program_id(0)) * 3
    tile, start, count = tl.load(item), tl.load(item + 1), tl.load(item + 2)
    if count > 0:
        row, column = tile * M + tl.arange(0, M), tl.arange(0, C)
        acc = tl.zeros([M, C], tl.float32)
        for part in range(start, start + count):
            place = (tl.program_id(1) * slots + part) * M + tl.arange(0, M)
            acc += tl.load(parted + place[:, None].to(tl.int64) * C + column[None, :])
        here = (row < length)[:, None] & (column < K)[None, :]
        spot = out + b.to(tl.int64) * o0 + h * o1 + row[:, None] * o2 + column[None, :]
        tl.store(spot, (acc * factor).to(out.dtype.element_ty), mask=here)


@triton.jit
def _write(value, parted, out, part, row, column, length, offset, t0, slots, factor,
           K: tl.constexpr, C: tl.constexpr, M: tl.constexpr):  # fmt: skip
    """Store a gradient times a factor or, for a part, as it is."""
    if part < 0:
        here = (row < length)[:, None] & (column < K)[None, :]
        spot = out + offset + row[:, None] * t0 + column[None, :]
        tl.store(spot, (value * factor).to(out.dtype.element_ty), mask=here)
    else:
        place = (tl.program_id(1) * slots + part) * M + tl.arange(0, M)
        tl.store(parted + place[:, None].to(tl.int64) * C + column[None, :], value)


@triton.jit
def _grad_tile(query, grad, keys, values, row, place, row_hash, bits, line, slope, log_sum, offset, result, scale,
               keep_scale, threshold, PARTIAL: tl.constexpr, LINEAR: tl.constexpr, DROP: tl.constexpr,
               EXACT: tl.constexpr, M: tl.constexpr, N: tl.constexpr):  # fmt: skip
    """The gradient of M queries, updated with a block of keys."""
    score = tl.dot(query, tl.trans(keys), input_precision=EXACT) * scale
    if LINEAR:
        score -= slope * tl.abs(row[:, None] - place[None, :]).to(tl.float32)
    weight = tl.exp2(score - log_sum[:, None])
    if PARTIAL:
        weight = tl.where(_allowed(bits, line, M, N), weight, 0.0)
    change = tl.dot(grad, tl.trans(values), input_precision=EXACT)
    if DROP:
        change = tl.where(row_hash[:, None] * _hash_pos(place, 1)[None, :] >= threshold, change * keep_scale, 0.0)
    change = weight * (change - offset[:, None])
    return tl.dot(change.to(keys.dtype), keys, result, input_precision=EXACT)


@triton.jit
def _queries(q, k, v, columns, full, first, bits, work, slopes, seed, lse, go, o, delta, dq, part_dq,
             heads, by_row, by_head, count, blocks, masks, programs, slots, queries, keys,
             q0, q1, q2, k0, k1, k2, v0, v1, v2, g0, g1, g2, o0, o1, o2, d0, d1, d2,
             scale, plain, keep_scale, threshold,
             K: tl.constexpr, C: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
             EVEN: tl.constexpr, LINEAR: tl.constexpr, DROP: tl.constexpr, EXACT: tl.constexpr):  # fmt: skip
    """The gradient of a tile of queries; stores delta = sum(o * do) for the keys."""
    b, h = tl.program_id(1) // heads, tl.program_id(1) % heads
    group = b * by_row + h * by_head
    tile, begin, end, part = _share(work, group, programs)
    if tile >= 0:
        spot = group * count + tile
        whole, line = tl.load(full + spot), group * masks + tl.load(first + spot)
        columns += spot.to(tl.int64) * blocks
        k, v = k + b.to(tl.int64) * k0 + h * k1, v + b.to(tl.int64) * v0 + h * v1
        row, column = tile * M + tl.arange(0, M), tl.arange(0, C)
        grad = _tile(go + b.to(tl.int64) * g0 + h * g1, row, column, queries, g2, K, C, EVEN)
        out = _tile(o + b.to(tl.int64) * o0 + h * o1, row, column, queries, o2, K, C, EVEN)
        offset = tl.sum(out.to(tl.float32) * grad.to(tl.float32), 1)
        tl.store(delta + tl.program_id(1) * queries + row, offset, mask=row < queries)
        log_sum = tl.load(lse + tl.program_id(1) * queries + row, mask=row < queries, other=float("inf"))
        query = _tile(q + b.to(tl.int64) * q0 + h * q1, row, column, queries, q2, K, C, EVEN)
        row_hash = _hash_pos(row, tl.load(seed) * 40503 + tl.program_id(1) * 7919) if DROP else 0
        slope = tl.load(slopes + h) * 1.4426950408889634 if LINEAR else 0.0
        result = tl.zeros([M, C], tl.float32)
        after = tl.load(columns + begin)  # one block ahead, so that loads are not behind one another
        for i in range(begin, tl.minimum(end, whole)):
            place = after * N + tl.arange(0, N)
            after = tl.load(columns + i + 1, mask=i + 1 < end, other=0)
            key = _tile(k, place, column, keys, k2, K, C, EVEN)
            value = _tile(v, place, column, keys, v2, K, C, EVEN)
            result = _grad_tile(
                query, grad, key, value, row, place, row_hash, bits, line, slope, log_sum, offset, result, scale,
                keep_scale, threshold, False, LINEAR, DROP, EXACT, M, N,
            )  # fmt: skip
        for i in range(tl.maximum(begin, whole), end):
            place = after * N + tl.arange(0, N)
            after = tl.load(columns + i + 1, mask=i + 1 < end, other=0)
            key = _tile(k, place, column, keys, k2, K, C, EVEN)
            value = _tile(v, place, column, keys, v2, K, C, EVEN)
            result = _grad_tile(
                query, grad, key, value, row, place, row_hash, bits, line + i - whole, slope, log_sum, offset, result,
                scale, keep_scale, threshold, True, LINEAR, DROP, EXACT, M, N,
            )  # fmt: skip
        start = b.to(tl.int64) * d0 + h * d1
        _write(result, part_dq, dq, part, row, column, queries, start, d2, slots, plain, K, C, M)


@triton.jit
def _grad_tile_keys(key, value, query, grad, place, row, column_hash, salt, bits, line, slope, log_sum, offset,
                    grad_k, grad_v, scale, keep_scale, threshold, PARTIAL: tl.constexpr, LINEAR: tl.constexpr,
                    DROP: tl.constexpr, EXACT: tl.constexpr, M: tl.constexpr, N: tl.constexpr):  # fmt: skip
    """The gradients of M keys and values, updated with a block of queries."""
    score = tl.dot(key, tl.trans(query), input_precision=EXACT) * scale
    if LINEAR:
        score -= slope * tl.abs(place[:, None] - row[None, :]).to(tl.float32)
    weight = tl.exp2(score - log_sum[None, :])  # queries past the end have an infinite log-sum, so no weight
    if PARTIAL:
        weight = tl.where(_allowed(bits, line, M, N), weight, 0.0)
    change = tl.dot(value, tl.trans(grad), input_precision=EXACT)
    used = weight
    if DROP:
        kept = column_hash[:, None] * _hash_pos(row, salt)[None, :] >= threshold
        change = tl.where(kept, change * keep_scale, 0.0)
        used = tl.where(kept, weight, 0.0)
    grad_v = tl.dot(used.to(grad.dtype), grad, grad_v, input_precision=EXACT)
    change = weight * (change - offset[None, :])
    grad_k = tl.dot(change.to(query.dtype), query, grad_k, input_precision=EXACT)
    return grad_k, grad_v


@triton.jit
def _keys(q, k, v, columns, full, first, bits, work, slopes, seed, lse, go, delta, dk, dv, part_dk, part_dv,
          heads, by_row, by_head, count, blocks, masks, programs, slots, queries, keys,
          q0, q1, q2, k0, k1, k2, v0, v1, v2, g0, g1, g2, d0, d1, d2,
          scale, plain, keep_scale, threshold,
          K: tl.constexpr, C: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
          EVEN: tl.constexpr, LINEAR: tl.constexpr, DROP: tl.constexpr, EXACT: tl.constexpr):  # fmt: skip
    """The gradients of a tile of M keys and values."""
    b, h = tl.program_id(1) // heads, tl.program_id(1) % heads
    group = b * by_row + h * by_head
    tile, begin, end, part = _share(work, group, programs)
    if tile >= 0:
        spot = group * count + tile
        whole, line = tl.load(full + spot), group * masks + tl.load(first + spot)
        columns += spot.to(tl.int64) * blocks
        q, go = q + b.to(tl.int64) * q0 + h * q1, go + b.to(tl.int64) * g0 + h * g1
        lse, delta = lse + tl.program_id(1) * queries, delta + tl.program_id(1) * queries
        place, column = tile * M + tl.arange(0, M), tl.arange(0, C)
        key = _tile(k + b.to(tl.int64) * k0 + h * k1, place, column, keys, k2, K, C, EVEN)
        value = _tile(v + b.to(tl.int64) * v0 + h * v1, place, column, keys, v2, K, C, EVEN)
        column_hash = _hash_pos(place, 1) if DROP else 0
        salt = tl.load(seed) * 40503 + tl.program_id(1) * 7919
        slope = tl.load(slopes + h) * 1.4426950408889634 if LINEAR else 0.0
        grad_k, grad_v = tl.zeros([M, C], tl.float32), tl.zeros([M, C], tl.float32)
        after = tl.load(columns + begin)  # one block ahead, so that loads are not behind one another
        for i in range(begin, tl.minimum(end, whole)):
            row = after * N + tl.arange(0, N)
            after = tl.load(columns + i + 1, mask=i + 1 < end, other=0)
            query = _tile(q, row, column, queries, q2, K, C, EVEN)
            grad = _tile(go, row, column, queries, g2, K, C, EVEN)
            log_sum = tl.load(lse + row, mask=row < queries, other=float("inf"))
            offset = tl.load(delta + row, mask=row < queries, other=0.0)
            grad_k, grad_v = _grad_tile_keys(
                key, value, query, grad, place, row, column_hash, salt, bits, line, slope, log_sum, offset,
                grad_k, grad_v, scale, keep_scale, threshold, False, LINEAR, DROP, EXACT, M, N,
            )  # fmt: skip
        for i in range(tl.maximum(begin, whole), end):
            row = after * N + tl.arange(0, N)
            after = tl.load(columns + i + 1, mask=i + 1 < end, other=0)
            query = _tile(q, row, column, queries, q2, K, C, EVEN)
            grad = _tile(go, row, column, queries, g2, K, C, EVEN)
            log_sum = tl.load(lse + row, mask=row < queries, other=float("inf"))
            offset = tl.load(delta + row, mask=row < queries, other=0.0)
            grad_k, grad_v = _grad_tile_keys(
                key, value, query, grad, place, row, column_hash, salt, bits, line + i - whole, slope, log_sum, offset,
                grad_k, grad_v, scale, keep_scale, threshold, True, LINEAR, DROP, EXACT, M, N,
            )  # fmt: skip
        start = b.to(tl.int64) * d0 + h * d1
        _write(grad_k, part_dk, dk, part, place, column, keys, start, d2, slots, plain, K, C, M)
        _write(grad_v, part_dv, dv, part, place, column, keys, start, d2, slots, keep_scale, K, C, M)


TILES = {  # warps and stages of each kernel, by the rows of a tile
    ("_forward", 64): (4, 3),
    ("_forward", 128): (4, 3),
    ("_queries", 64): (4, 3),
    ("_queries", 128): (8, 3),
    ("_keys", 64): (4, 2),
    ("_keys", 128): (8, 2),
}


class _Setting:
    """What all kernels over some lists share."""

    def __init__(self, lists: Sequence[Tensor], q: Tensor, k: Tensor, slope: Tensor, dropout: float) -> None:
        columns, full, _, first, bits, work, self.parts = lists
        self.pointers = (columns, full, first, bits, work)
        self.rows, self.heads, self.queries, self.width = q.shape
        self.keys, self.dtype = k.shape[2], q.dtype
        by_row, by_head, count, blocks = columns.shape
        self.groups = (self.heads, by_head if by_row > 1 else 0, int(by_head > 1))
        self.tile = bits.shape[3]
        self.programs, self.some = work.shape[2], self.parts.shape[2]
        self.slots = 2 * (self.programs - count)
        self.sizes = (
            *self.groups,
            count,
            blocks,
            bits.shape[2],
            self.programs,
            self.slots,
            self.queries,
            self.keys,
        )
        self.padded = max(16, triton.next_power_of_2(self.width))
        self.even = self.queries % max(self.tile, WIDTH) == 0 == self.keys % max(self.tile, WIDTH)
        self.linear, self.drop = len(slope) > 0, dropout > 0

    def scratch(self, like: Tensor, *shape: int) -> Tensor:
        """Room for the results of parts."""
        return torch.empty(self.rows * self.heads, max(1, self.slots), self.tile, *shape, device=like.device)

    def launch(self, kernel, *given) -> None:
        name = kernel.fn.__name__
        warps, stages = TILES[name, self.tile]
        if self.dtype == torch.float32 or self.padded > 64:  # whose tiles take twice the memory
            warps, stages = 8 if self.tile == 128 or name == "_keys" else 4, 1 if self.dtype == torch.float32 else 2
        kernel[(self.programs, self.rows * self.heads)](
            *given, K=self.width, C=self.padded, M=self.tile, N=WIDTH, EVEN=self.even, LINEAR=self.linear,
            DROP=self.drop, EXACT="tf32x3" if self.dtype == torch.float32 else "tf32",
            num_warps=warps, num_stages=stages,
        )  # fmt: skip

    def sum_parts(self, parted: Tensor, out: Tensor, length: int, factor: float) -> None:
        if not self.some:
            return
        _sum_parts[(self.some, self.rows * self.heads)](
            parted, self.parts, out, *self.groups, self.slots, length, *out.stride()[:3], factor,
            K=self.width, C=self.padded, M=self.tile,
        )  # fmt: skip


def _by_position(x: Tensor) -> Tensor:
    """An empty tensor of the shape (B, H, T, K) of x, in which positions are before heads."""
    return x.new_empty(x.shape[0], x.shape[2], x.shape[1], x.shape[3]).transpose(1, 2)


def computes(q: Tensor, v: Tensor) -> bool:
    """Whether the kernels can compute it: heads of up to 128 (float32: 64), whose tiles fit into the device."""
    widest = {torch.bfloat16: 128, torch.float16: 128, torch.float32: 64}.get(q.dtype, 0)
    return q.shape[3] == v.shape[3] <= widest


def attend(
    q: Tensor, k: Tensor, v: Tensor, lists: Sequence[Tensor], slope: Tensor, seed: Tensor, dropout: float
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The output (B, H, T, K), and the logarithm to base 2 of each query's sum of exp(scores), (B, H, T)."""
    q, k, v = (x if x.stride(3) == 1 else x.contiguous() for x in (q, k, v))
    rows, heads, queries, width = q.shape
    s = _Setting(lists, q, k, slope, dropout)
    o = _by_position(q)
    lse = torch.empty(rows, heads, queries, device=q.device)
    part_o, part_lse = s.scratch(q, s.padded), s.scratch(q)
    s.launch(
        _forward, q, k, v, *s.pointers, slope, seed, o, lse, part_o, part_lse, *s.sizes,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *o.stride()[:3],
        width**-0.5 * LOG2E, *_dropout_constants(dropout),
    )  # fmt: skip
    if s.some:
        _combine[(s.some, rows * heads)](
            part_o, part_lse, s.parts, o, lse, *s.groups, s.slots, queries, *o.stride()[:3],
            K=width, C=s.padded, M=s.tile,
        )  # fmt: skip
    return o, lse


def attend_backward(
    q: Tensor, k: Tensor, v: Tensor, lists: Sequence[Tensor], back: Sequence[Tensor], slope: Tensor, seed: Tensor,
    dropout: float, o: Tensor, sums: Tensor, grad: Tensor, into: tuple[Tensor, Tensor, Tensor],
) -> None:  # fmt: skip
    """The gradients of queries, keys and values, from that of the output; those of keys and values lie alike."""
    q, k, v, grad = (x if x.stride(3) == 1 else x.contiguous() for x in (q, k, v, grad))
    width = q.shape[3]
    delta = torch.empty_like(sums)
    dq, dk, dv = into
    steps = (*q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *grad.stride()[:3])
    keep_scale, threshold = _dropout_constants(dropout)
    numbers = (width**-0.5 * LOG2E, width**-0.5, keep_scale, threshold)
    s = _Setting(lists, q, k, slope, dropout)
    part_dq = s.scratch(q, s.padded)
    s.launch(
        _queries, q, k, v, *s.pointers, slope, seed, sums, grad, o, delta, dq, part_dq, *s.sizes,
        *steps, *o.stride()[:3], *dq.stride()[:3], *numbers,
    )  # fmt: skip
    s.sum_parts(part_dq, dq, q.shape[2], width**-0.5)
    s = _Setting(back, q, k, slope, dropout)
    part_dk, part_dv = s.scratch(q, s.padded), s.scratch(q, s.padded)
    s.launch(
        _keys, q, k, v, *s.pointers, slope, seed, sums, grad, delta, dk, dv, part_dk, part_dv, *s.sizes,
        *steps, *dk.stride()[:3], *numbers,
    )  # fmt: skip
    s.sum_parts(part_dk, dk, k.shape[2], width**-0.5)
    s.sum_parts(part_dv, dv, k.shape[2], keep_scale)
