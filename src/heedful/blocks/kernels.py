"""Attention of one query a row to keys that lie in other rows: what beam search needs, in one Triton kernel.

R rows, H heads, S keys, K width of one head.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _look_back(q, k, v, rows, length, out, heads, room, scale, K: tl.constexpr, TILE: tl.constexpr):
    """One row and head: softmax(q . k / sqrt(K)) v over the keys 0 ... length - 1, key s taken from row rows[r, s]."""
    row, head = tl.program_id(0), tl.program_id(1)
    column = tl.arange(0, K)
    query = tl.load(q + (row * heads + head) * K + column).to(tl.float32) * scale
    used = tl.load(length)
    top = tl.full([1], float("-inf"), tl.float32)
    total = tl.zeros([1], tl.float32)
    mixed = tl.zeros([K], tl.float32)
    for begin in range(0, used, TILE):
        place = begin + tl.arange(0, TILE)
        valid = place < used
        owner = tl.load(rows + row * room + place, mask=valid, other=0)
        offset = ((owner * heads + head) * room + place) * K
        keys = tl.load(k + offset[:, None] + column[None, :], mask=valid[:, None], other=0.0).to(tl.float32)
        score = tl.where(valid, tl.sum(keys * query[None, :], 1), float("-inf"))
        peak = tl.maximum(top, tl.max(score, 0))
        weight = tl.exp(score - peak)
        values = tl.load(v + offset[:, None] + column[None, :], mask=valid[:, None], other=0.0).to(tl.float32)
        fade = tl.exp(top - peak)
        mixed = mixed * fade + tl.sum(values * weight[:, None], 0)
        total = total * fade + tl.sum(weight, 0)
        top = peak
    tl.store(out + (row * heads + head) * K + column, (mixed / total).to(out.dtype.element_ty))


def look_back(q: Tensor, k: Tensor, v: Tensor, rows: Tensor, length: Tensor) -> Tensor:
    """q (R, H, 1, K) attends to the first `length` of the keys k (R, H, S, K), key s of row r standing in row rows[r, s]."""
    count, heads, _, width = q.shape
    q = q.contiguous()
    out = torch.empty_like(q)
    _look_back[(count, heads)](
        q, k, v, rows, length, out, heads, k.shape[2], width**-0.5, K=width, TILE=32, num_warps=2
    )
    return out  # (R, H, 1, K)
