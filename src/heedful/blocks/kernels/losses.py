"""Cross-entropy and its gradient with respect to the logits, row by row and in place.

N rows, V vocabulary.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_ROW = 32_768  # logits of a row that fit into the registers of a multiprocessor
MAX_PADDING = 64  # columns by which a row may be padded


@triton.jit
def _short_row(
    logits, bias, targets, total, plain, V, room, stride, smoothing, ignore, C: tl.constexpr, BIAS: tl.constexpr
):
    """One row in registers: the losses, and the logits replaced by their gradient.

    The columns from V to `room` are padding, which is read and written too so that memory accesses stay aligned.
    """
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets + row)
    column = tl.arange(0, C)
    inside = column < V
    pointer = logits + row * stride + column
    value = tl.load(pointer, mask=column < room, other=0.0).to(tl.float32)
    if BIAS:
        value += tl.load(bias + column, mask=column < room, other=0.0).to(tl.float32)
    value = tl.where(inside, value, -float("inf"))
    maximum = tl.max(value, 0)
    log_sum = maximum + tl.log(tl.sum(tl.exp(value - maximum), 0))
    used = target != ignore
    target_logit = tl.sum(tl.where(column == target, value, 0.0), 0)
    mean = tl.sum(tl.where(inside, value, 0.0), 0) / V
    tl.store(plain + row, tl.where(used, log_sum - target_logit, 0.0))
    tl.store(
        total + row, tl.where(used, (1 - smoothing) * (log_sum - target_logit) + smoothing * (log_sum - mean), 0.0)
    )
    grad = tl.exp(value - log_sum) - smoothing / V - tl.where(column == target, 1 - smoothing, 0.0)
    tl.store(pointer, tl.where(used & inside, grad, 0.0).to(logits.dtype.element_ty), mask=column < room)


@triton.jit
def _long_row(
    logits, bias, targets, total, plain, V, room, stride, smoothing, ignore, C: tl.constexpr, BIAS: tl.constexpr
):
    """The same for a longer row, which is read twice in chunks."""
    row = tl.program_id(0).to(tl.int64)
    pointer = logits + row * stride
    target = tl.load(targets + row)
    column = tl.arange(0, C)
    if target == ignore:
        for start in range(0, room, C):
            tl.store(pointer + start + column, tl.zeros([C], logits.dtype.element_ty), mask=start + column < room)
        tl.store(total + row, 0.0)
        tl.store(plain + row, 0.0)
    else:
        maximum, exp_sum, mean = -float("inf"), 0.0, 0.0
        for start in tl.range(0, room, C, num_stages=3):
            value = tl.load(pointer + start + column, mask=start + column < room, other=0.0).to(tl.float32)
            if BIAS:
                value += tl.load(bias + start + column, mask=start + column < room, other=0.0).to(tl.float32)
            inside = start + column < V
            mean += tl.sum(tl.where(inside, value, 0.0), 0)
            value = tl.where(inside, value, -float("inf"))
            new_maximum = tl.maximum(maximum, tl.max(value, 0))
            exp_sum = exp_sum * tl.exp(maximum - new_maximum) + tl.sum(tl.exp(value - new_maximum), 0)
            maximum = new_maximum
        log_sum = maximum + tl.log(exp_sum)
        target_logit = tl.load(pointer + target).to(tl.float32)
        if BIAS:
            target_logit += tl.load(bias + target).to(tl.float32)
        tl.store(plain + row, log_sum - target_logit)
        tl.store(total + row, (1 - smoothing) * (log_sum - target_logit) + smoothing * (log_sum - mean / V))
        tl.debug_barrier()  # the logit of the target must be read before it is overwritten
        for start in tl.range(0, room, C, num_stages=3):
            value = tl.load(pointer + start + column, mask=start + column < room, other=0.0).to(tl.float32)
            if BIAS:
                value += tl.load(bias + start + column, mask=start + column < room, other=0.0).to(tl.float32)
            target_prob = tl.where(start + column == target, 1 - smoothing, 0.0)
            grad = tl.where(start + column < V, tl.exp(value - log_sum) - smoothing / V - target_prob, 0.0)
            tl.store(pointer + start + column, grad.to(logits.dtype.element_ty), mask=start + column < room)


def cross_entropy_(
    logits: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float, ignore: int
) -> tuple[Tensor, Tensor]:
    """The summed losses of `losses.cross_entropy` for logits + bias; `logits` (N, V) is replaced by its gradient."""
    rows, vocab = logits.shape
    total, plain = (torch.empty(rows, device=logits.device, dtype=torch.float32) for _ in range(2))
    stride, has_bias, wide = logits.stride(0), bias is not None, triton.next_power_of_2(vocab)
    room = stride if vocab < stride < vocab + MAX_PADDING else vocab  # the padding between rows
    padded_bias = logits if bias is None else torch.nn.functional.pad(bias, (0, room - vocab))
    arguments = (logits, padded_bias, targets, total, plain, vocab)
    if vocab <= MAX_ROW:
        _short_row[(rows,)](
            *arguments, room, stride, smoothing, ignore, C=wide, BIAS=has_bias, num_warps=max(1, wide // 1024)
        )
    else:
        _long_row[(rows,)](*arguments, room, stride, smoothing, ignore, C=4096, BIAS=has_bias, num_warps=8)
    return total.sum(), plain.sum()
