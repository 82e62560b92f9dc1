"""Losses come as a sum and a count, so that accumulation, processes and evaluation can average rightly.

N predictions (positions of all rows), D width, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor


@dataclass(frozen=True)
class Loss:
    """A summed loss (with gradient), the same without label smoothing (for reporting), and how many items it sums."""

    total: Tensor
    plain: Tensor
    count: Tensor


def cross_entropy(logits: Tensor, targets: Tensor, smoothing: float = 0.0, ignore: int = -100) -> Loss:
    """-sum log p(target), with the target's mass smoothed evenly over the vocabulary (Szegedy et al., 2016).

    The definition; `projected_cross_entropy` gives the same without ever holding all logits.
    """
    logs = _wide(logits).log_softmax(-1)  # (N, V)
    keep = targets != ignore
    plain = -logs.gather(-1, targets.clamp(min=0)[:, None]).squeeze(-1)[keep].sum()
    even = -logs.mean(-1)[keep].sum()
    return Loss((1 - smoothing) * plain + smoothing * even, plain.detach(), keep.sum())


def projected_cross_entropy(
    x: Tensor, weight: Tensor, targets: Tensor, smoothing: float = 0.0, ignore: int = -100
) -> Loss:
    """`cross_entropy(x weight^T, targets)` for x (N, D) and weight (V, D), computed a slice of rows at a time.

    The gradients are made slice by slice along with the loss, so N x V logits never exist at once.
    """
    if torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
        x, weight = x.to(dtype), weight.to(dtype)
    total, plain = _Projected.apply(x, weight, targets, smoothing, ignore)
    return Loss(total, plain, (targets != ignore).sum())


def _wide(x: Tensor) -> Tensor:
    """At least float32."""
    return x if x.dtype == torch.float64 else x.float()


def _slice_loss(logits: Tensor, targets: Tensor, smoothing: float, ignore: int) -> tuple[Tensor, Tensor, Tensor]:
    """Loss, plain loss and the loss's gradient in the logits, for one slice."""
    if logits.is_cuda:
        from heedful.blocks.kernels import losses  # needs Triton, which comes with torch's GPU builds only

        total, plain = losses.cross_entropy_(logits, targets, smoothing, ignore)
        return total, plain, logits
    wide, vocab = _wide(logits), logits.shape[-1]
    keep = (targets != ignore).to(wide.dtype)
    norm = wide.logsumexp(-1)  # (N,)
    hit = wide.gather(-1, targets.clamp(min=0)[:, None]).squeeze(-1)  # (N,)
    plain = ((norm - hit) * keep).sum()
    even = ((norm - wide.mean(-1)) * keep).sum()
    grad = (wide - norm[:, None]).exp().sub_(smoothing / vocab)  # (N, V)
    grad.scatter_add_(-1, targets.clamp(min=0)[:, None], wide.new_full((len(targets), 1), smoothing - 1))
    return (1 - smoothing) * plain + smoothing * even, plain, grad.mul_(keep[:, None]).to(logits.dtype)


class _Projected(torch.autograd.Function):
    """Forward makes loss and gradients slice by slice; backward only scales them."""

    apply: ClassVar[Callable[..., tuple[Tensor, Tensor]]]  # inherited, where it has no type

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, targets: Tensor, smoothing: float, ignore: int
    ) -> tuple[Tensor, Tensor]:
        rows = max(1, (1 << 28) // weight.shape[0])  # about 268 M logits at a time
        wants = ctx.needs_input_grad
        total = plain = _wide(x.new_zeros(()))
        grad_x = torch.empty_like(x) if wants[0] else None
        grad_weight = torch.zeros_like(_wide(weight)) if wants[1] else None
        for at in range(0, x.shape[0], rows):
            part = slice(at, at + rows)
            more, more_plain, grad = _slice_loss(x[part] @ weight.mT, targets[part], smoothing, ignore)
            total, plain = total + more, plain + more_plain
            if grad_x is not None:
                grad_x[part] = grad @ weight
            if grad_weight is not None:
                grad_weight += grad.mT @ x[part]
        ctx.save_for_backward(grad_x, grad_weight)
        ctx.mark_non_differentiable(plain)
        ctx.dtype = weight.dtype
        return total, plain

    @staticmethod
    def backward(ctx: Any, total: Tensor, plain: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        grad_x, grad_weight = ctx.saved_tensors
        return (
            None if grad_x is None else grad_x * total.to(grad_x.dtype),
            None if grad_weight is None else (grad_weight * total).to(ctx.dtype),
            None,
            None,
            None,
        )
