"""Cross-entropy and its gradient in the logits, a row at a time and in place.

N rows, V vocabulary.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

WHOLE = 32_768  # logits of a row that fit into a multiprocessor's registers
SPARE = 64  # columns that a matrix may have too many to be even


@triton.jit
def _row(logits, bias, targets, total, plain, V, room, stride, smoothing, ignore, C: tl.constexpr, BIAS: tl.constexpr):
    """One row that is held whole: the losses, and the logits replaced by the loss's gradient in them.

    Between V and `room` a row holds nothing, but a GPU fetches numbers in groups, and does so only up to round figures.
    """
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets + row)
    column = tl.arange(0, C)
    inside = column < V
    here = logits + row * stride + column
    value = tl.load(here, mask=column < room, other=0.0).to(tl.float32)
    if BIAS:
        value += tl.load(bias + column, mask=column < room, other=0.0).to(tl.float32)
    value = tl.where(inside, value, -float("inf"))
    peak = tl.max(value, 0)
    norm = peak + tl.log(tl.sum(tl.exp(value - peak), 0))
    used = target != ignore
    hit = tl.sum(tl.where(column == target, value, 0.0), 0)
    mean = tl.sum(tl.where(inside, value, 0.0), 0) / V
    tl.store(plain + row, tl.where(used, norm - hit, 0.0))
    tl.store(total + row, tl.where(used, (1 - smoothing) * (norm - hit) + smoothing * (norm - mean), 0.0))
    grad = tl.exp(value - norm) - smoothing / V - tl.where(column == target, 1 - smoothing, 0.0)
    tl.store(here, tl.where(used & inside, grad, 0.0).to(logits.dtype.element_ty), mask=column < room)


@triton.jit
def _rows(logits, bias, targets, total, plain, V, room, stride, smoothing, ignore, C: tl.constexpr, BIAS: tl.constexpr):
    """The same for a row that is read piece by piece, twice."""
    row = tl.program_id(0).to(tl.int64)
    here = logits + row * stride
    target = tl.load(targets + row)
    column = tl.arange(0, C)
    if target == ignore:
        for start in range(0, room, C):
            tl.store(here + start + column, tl.zeros([C], logits.dtype.element_ty), mask=start + column < room)
        tl.store(total + row, 0.0)
        tl.store(plain + row, 0.0)
    else:
        peak, mass, mean = -float("inf"), 0.0, 0.0
        for start in tl.range(0, room, C, num_stages=3):
            value = tl.load(here + start + column, mask=start + column < room, other=0.0).to(tl.float32)
            if BIAS:
                value += tl.load(bias + start + column, mask=start + column < room, other=0.0).to(tl.float32)
            inside = start + column < V
            mean += tl.sum(tl.where(inside, value, 0.0), 0)
            value = tl.where(inside, value, -float("inf"))
            higher = tl.maximum(peak, tl.max(value, 0))
            mass = mass * tl.exp(peak - higher) + tl.sum(tl.exp(value - higher), 0)
            peak = higher
        norm = peak + tl.log(mass)
        hit = tl.load(here + target).to(tl.float32)
        if BIAS:
            hit += tl.load(bias + target).to(tl.float32)
        tl.store(plain + row, norm - hit)
        tl.store(total + row, (1 - smoothing) * (norm - hit) + smoothing * (norm - mean / V))
        tl.debug_barrier()  # the target's logit is read before it is overwritten
        for start in tl.range(0, room, C, num_stages=3):
            value = tl.load(here + start + column, mask=start + column < room, other=0.0).to(tl.float32)
            if BIAS:
                value += tl.load(bias + start + column, mask=start + column < room, other=0.0).to(tl.float32)
            goal = tl.where(start + column == target, 1 - smoothing, 0.0)
            grad = tl.where(start + column < V, tl.exp(value - norm) - smoothing / V - goal, 0.0)
            tl.store(here + start + column, grad.to(logits.dtype.element_ty), mask=start + column < room)


def cross_entropy_(
    logits: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float, ignore: int
) -> tuple[Tensor, Tensor]:
    """The summed losses of `losses.cross_entropy` for logits + bias; afterwards `logits` (N, V) hold their gradient."""
    rows, vocab = logits.shape
    total, plain = (torch.empty(rows, device=logits.device, dtype=torch.float32) for _ in range(2))
    stride, has_bias, wide = logits.stride(0), bias is not None, triton.next_power_of_2(vocab)
    room = stride if vocab < stride < vocab + SPARE else vocab  # what lies between rows is no one else's
    shift = logits if bias is None else torch.nn.functional.pad(bias, (0, room - vocab))
    given = (logits, shift, targets, total, plain, vocab)
    if vocab <= WHOLE:
        _row[(rows,)](*given, room, stride, smoothing, ignore, C=wide, BIAS=has_bias, num_warps=max(1, wide // 1024))
    else:
        _rows[(rows,)](*given, room, stride, smoothing, ignore, C=4096, BIAS=has_bias, num_warps=8)
    return total.sum(), plain.sum()
