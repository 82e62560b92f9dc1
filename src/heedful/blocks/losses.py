"""Losses are a sum and a count, so that accumulation, several processes and evaluation average correctly.

N predictions (positions of all rows), D width, V vocabulary.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from heedful.blocks.regularizers import entropy

MAX_LOGITS = 1 << 29  # held in memory at a time
EVEN = 64  # matrix products on a GPU are faster for multiples of this


@dataclass(frozen=True)
class Loss:
    """A summed loss (with gradient), the same without label smoothing (for reporting), and the number of items.

    A weighted sum of several losses also has `parts`, each of them summed like `plain`, without its weight.
    """

    total: Tensor
    plain: Tensor
    count: Tensor
    parts: Mapping[str, Tensor] = field(default_factory=dict)  # by name, without gradient; each batch has the same


def weighted_sum(count: Tensor, parts: Mapping[str, tuple[float, Tensor]]) -> Loss:
    """sum_i weight_i loss_i of losses that are summed over the same items, each of them reported by its name."""
    total = sum(weight * loss for weight, loss in parts.values())
    assert isinstance(total, Tensor)  # there is at least one loss
    return Loss(total, total.detach(), count, {name: loss.detach() for name, (_, loss) in parts.items()})


def cross_entropy(
    logits: Tensor, targets: Tensor, smoothing: float = 0.0, ignore: int = -100, weights: Tensor | None = None
) -> Loss:
    """-sum log p(target), with the target's mass smoothed evenly over the vocabulary (Szegedy et al., 2016).

    `weights` (V,) multiply the loss of each target, not the reported one. `projected_cross_entropy` computes the same
    without storing all logits.
    """
    logs = _at_least_float32(logits).log_softmax(-1)  # (N, V)
    keep = targets != ignore
    # By `where`, since indexing with a mask gives shapes that a CUDA graph cannot capture.
    plain = -torch.where(keep, logs.gather(-1, targets.clamp(min=0)[:, None]).squeeze(-1), 0.0).sum()
    if weights is not None:
        each = logs.gather(-1, targets.clamp(min=0)[:, None]).squeeze(-1)
        smooth = (1 - smoothing) * each + smoothing * logs.mean(-1)  # (N,)
        total = -torch.where(keep, weights[targets.clamp(min=0)] * smooth, 0.0).sum()
        return Loss(total, plain.detach(), keep.sum())
    even = -torch.where(keep, logs.mean(-1), 0.0).sum()
    return Loss((1 - smoothing) * plain + smoothing * even, plain.detach(), keep.sum())


def confidence_penalty(loss: Loss, logits: Tensor, keep: Tensor, weight: float) -> Loss:
    """The loss minus the weighted entropy of softmax(logits) (N, V) where `keep` (N,) is true (Pereyra et al., 2017).

    A positive weight keeps predictions from being too certain; without one, the loss is as it was.
    """
    if weight == 0:
        return loss
    certain = torch.where(keep, entropy(_at_least_float32(logits)), 0.0).sum()
    parts = loss.parts or {"cross_entropy": loss.plain}
    return replace(
        loss, total=loss.total - weight * certain, plain=loss.plain - weight * certain.detach(),
        parts={**parts, "entropy": certain.detach()},
    )  # fmt: skip


def squared_error(output: Tensor, target: Tensor) -> Tensor:
    """sum (output - target)^2 over all elements; only the difference is stored for the gradient."""
    total: Tensor = _SquaredError.apply(output, target)  # type: ignore[no-untyped-call]
    return total


class _SquaredError(torch.autograd.Function):
    """The sum of squares; its gradient is twice the difference."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, target: Tensor) -> Tensor:
        difference = output.to(target.dtype) - target
        ctx.save_for_backward(difference)
        ctx.dtype = output.dtype
        flat = difference.flatten()
        return flat.dot(flat)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (difference,) = ctx.saved_tensors
        return (difference * (2 * grads[0])).to(ctx.dtype), None


def projected_cross_entropy(
    x: Tensor,
    weight: Tensor | None,
    targets: Tensor,
    smoothing: float = 0.0,
    ignore: int = -100,
    bias: Tensor | None = None,
) -> Loss:
    """`cross_entropy(x weight^T + bias, targets)` for x (N, D) and weight (V, D), computed a slice of rows at a time.

    The gradients are computed slice by slice along with the loss, so N x V logits are never stored at once. Without a
    weight, x (N, V) are logits.
    """
    if weight is None:
        return cross_entropy(x, targets, smoothing, ignore)
    if torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
        x, weight = x.to(dtype), weight.to(dtype)
    total, plain = _Projected.apply(x, weight, bias, targets, smoothing, ignore)
    return Loss(total, plain, (targets != ignore).sum())


def _at_least_float32(x: Tensor) -> Tensor:
    """At least float32."""
    return x if x.dtype == torch.float64 else x.float()


def _slice_loss(
    logits: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float, ignore: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Loss, loss without smoothing, and gradient with respect to the logits, for one slice."""
    if logits.is_cuda:
        from heedful.blocks.kernels import losses  # needs Triton, which comes with torch's GPU builds only

        total, plain = losses.cross_entropy_(logits, bias, targets, smoothing, ignore)
        return total, plain, logits
    wide, vocab = _at_least_float32(logits if bias is None else logits + bias), logits.shape[-1]
    keep = (targets != ignore).to(wide.dtype)
    norm = wide.logsumexp(-1)  # (N,)
    hit = wide.gather(-1, targets.clamp(min=0)[:, None]).squeeze(-1)  # (N,)
    plain = ((norm - hit) * keep).sum()
    even = ((norm - wide.mean(-1)) * keep).sum()
    grad = (wide - norm[:, None]).exp().sub_(smoothing / vocab)  # (N, V)
    grad.scatter_add_(-1, targets.clamp(min=0)[:, None], wide.new_full((len(targets), 1), smoothing - 1))
    return (1 - smoothing) * plain + smoothing * even, plain, grad.mul_(keep[:, None]).to(logits.dtype)


def _pad_rows(weight: Tensor) -> Tensor:
    """The weight with rows of zeros up to a multiple of `EVEN`, on a GPU; their logits and gradients are zero."""
    more = -len(weight) % EVEN if weight.is_cuda else 0
    return torch.nn.functional.pad(weight, (0, 0, 0, more)) if more else weight


def _slice(rows: int, vocab: int, even: int) -> int:
    """The number of rows per slice: equal slices with at most about `MAX_LOGITS` logits."""
    slices = max(1, -(-rows * vocab // MAX_LOGITS))
    return max(1, -(-rows // (slices * even)) * even)


def _accumulate(sum: Tensor | None, more: Tensor) -> Tensor:
    """A running sum, in float32 from the second term on."""
    return more if sum is None else _at_least_float32(sum) + more


def _accumulate_product(sum: Tensor | None, a: Tensor, b: Tensor) -> Tensor:
    """A running sum of matrix products; on a GPU, half-precision products are accumulated in float32."""
    if not a.is_cuda or a.dtype not in (torch.bfloat16, torch.float16):
        return _accumulate(sum, a @ b)
    if sum is None:
        return torch.mm(a, b, out_dtype=torch.float32)
    return torch.addmm(sum, a, b, out_dtype=torch.float32, out=sum)


class _Projected(torch.autograd.Function):
    """Forward computes loss and gradients slice by slice; backward only scales them."""

    apply: ClassVar[Callable[..., tuple[Tensor, Tensor]]]  # inherited, where it has no type

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float, ignore: int
    ) -> tuple[Tensor, Tensor]:
        vocab = len(weight)
        rows = _slice(len(x), vocab, EVEN if x.is_cuda else 1)
        wants_x, wants_weight, wants_bias, *_ = ctx.needs_input_grad
        total = plain = _at_least_float32(x.new_zeros(()))
        grad_x, grad_weight, grad_bias, even = torch.empty_like(x), None, None, _pad_rows(weight)
        for at in range(0, x.shape[0], rows):
            part = slice(at, at + rows)
            logits = x[part] @ even.mT  # (N, V), and the columns that make it even
            more, more_plain, grad = _slice_loss(logits[:, :vocab], bias, targets[part], smoothing, ignore)
            total, plain = total + more, plain + more_plain
            grad = (
                logits if grad.is_cuda else grad
            )  # on a GPU the gradient is written over the logits, padding included
            if wants_x:
                torch.mm(grad, even, out=grad_x[part])
            if wants_weight:
                grad_weight = _accumulate_product(grad_weight, grad.mT, x[part])
            if wants_bias:
                grad_bias = _accumulate(grad_bias, grad.sum(0, dtype=_at_least_float32(x).dtype))
        ctx.save_for_backward(grad_x, grad_weight, grad_bias)
        ctx.mark_non_differentiable(plain)
        ctx.vocab, ctx.dtype, ctx.wants_x = vocab, weight.dtype, wants_x
        return total, plain

    @staticmethod
    def backward(ctx: Any, total: Tensor, plain: Tensor) -> tuple[Tensor | None, ...]:
        grad_x, grad_weight, grad_bias = ctx.saved_tensors
        return (
            grad_x * total.to(grad_x.dtype) if ctx.wants_x else None,
            None if grad_weight is None else (grad_weight[: ctx.vocab] * total).to(ctx.dtype),
            None if grad_bias is None else grad_bias[: ctx.vocab] * total,
            None,
            None,
            None,
        )
