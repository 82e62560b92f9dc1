"""Cross-entropy and its gradient in the logits, a row at a time and in place.

N rows, V vocabulary.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _rows(logits, targets, total, plain, V, stride, smoothing, ignore, C: tl.constexpr):
    """One row: the losses, and the logits replaced by the loss's gradient in them."""
    row = tl.program_id(0).to(tl.int64)
    here = logits + row * stride
    target = tl.load(targets + row)
    column = tl.arange(0, C)
    if target == ignore:
        for start in range(0, V, C):
            tl.store(here + start + column, tl.zeros([C], logits.dtype.element_ty), mask=start + column < V)
        tl.store(total + row, 0.0)
        tl.store(plain + row, 0.0)
    else:
        peak, mass, mean = -float("inf"), 0.0, 0.0
        for start in range(0, V, C):
            inside = start + column < V
            value = tl.load(here + start + column, mask=inside, other=-float("inf")).to(tl.float32)
            higher = tl.maximum(peak, tl.max(value, 0))
            mass = mass * tl.exp(peak - higher) + tl.sum(tl.exp(value - higher), 0)
            mean += tl.sum(tl.where(inside, value, 0.0), 0)
            peak = higher
        norm = peak + tl.log(mass)
        hit = tl.load(here + target).to(tl.float32)
        tl.store(plain + row, norm - hit)
        tl.store(total + row, (1 - smoothing) * (norm - hit) + smoothing * (norm - mean / V))
        tl.debug_barrier()  # the target's logit is read before it is overwritten
        for start in range(0, V, C):
            inside = start + column < V
            value = tl.load(here + start + column, mask=inside, other=-float("inf")).to(tl.float32)
            goal = tl.where(start + column == target, 1 - smoothing, 0.0)
            grad = tl.exp(value - norm) - smoothing / V - goal
            tl.store(here + start + column, grad.to(logits.dtype.element_ty), mask=inside)


def cross_entropy_(logits: Tensor, targets: Tensor, smoothing: float, ignore: int) -> tuple[Tensor, Tensor]:
    """The summed losses of `losses.cross_entropy`; afterwards `logits` (N, V) hold their gradient."""
    rows, vocab = logits.shape
    total, plain = (torch.empty(rows, device=logits.device, dtype=torch.float32) for _ in range(2))
    wide = min(triton.next_power_of_2(vocab), 8192)
    _rows[(rows,)](logits, targets, total, plain, vocab, logits.stride(0), smoothing, ignore, C=wide, num_warps=8)
    return total.sum(), plain.sum()
