"""Linear maps in eight bits, for models that only read on a CPU.

Weights have a step a row. What comes in is cut into 254 steps between its smallest and its largest value, each token's
own, so that a token with one large value spoils no other.

M rows, D width in, E width out.
"""

from collections.abc import Callable
from copy import deepcopy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.blocks.linear import Linear

LEVELS = 127  # of a weight, on either side of zero
STEPS = 254  # of what comes in: one less than a byte has, since both ends are rounded
SHIFT = 1.5 * 2**23  # added to a float32, it leaves the nearest whole number in the lowest bits
TINY = 1e-12  # a step is never smaller

Product = Callable[[Tensor], Tensor]  # whole numbers (M, D) -> (M, E)


class Int8Linear(nn.Module):
    """x W^T + b, W as whole numbers times a step a row, x as whole numbers times a step a token, from its lowest up."""

    weight: Tensor
    step: Tensor
    total: Tensor
    bias: Tensor

    def __init__(self, linear: Linear) -> None:
        super().__init__()
        weight = linear.weight.detach().float()  # (E, D)
        step = (weight.abs().amax(1) / LEVELS).clamp(min=TINY)  # (E,)
        whole = (weight / step[:, None]).round().to(torch.int8)  # (E, D)
        step = step / STEPS  # of a product: times the span of what comes in, which is its step times their number
        self.register_buffer("weight", whole, persistent=False)
        self.register_buffer("step", step, persistent=False)
        self.register_buffer("total", whole.sum(1) * step, persistent=False)  # what a token's lowest value is times
        bias = torch.zeros_like(step) if linear.bias is None else linear.bias.detach().float()
        self.register_buffer("bias", bias, persistent=False)
        self.quickly = packed(whole, step)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1]).float()  # (M, D)
        low = rows.amin(1, keepdim=True)  # (M, 1)
        span = (rows.amax(1, keepdim=True) - low).clamp_(min=TINY)  # (M, 1)
        often = STEPS / span  # (M, 1)
        zero = low.mul_(often).round_()  # (M, 1)
        whole = torch.mul(rows, often).add_(SHIFT - zero).view(torch.int32).to(torch.uint8)  # (M, D)
        y = (self.quickly or self.product)(whole)  # (M, E)
        y = torch.addcmul(torch.addcmul(self.bias, zero.mul_(span), self.total), y, span, out=y)  # (M, E)
        return y.view(*x.shape[:-1], -1).to(x.dtype)

    def product(self, whole: Tensor) -> Tensor:
        """The product of the whole numbers, times the step of each row of W: what `quickly` computes."""
        return F.linear(whole.double(), self.weight.double()).float() * self.step  # (M, E)


def packed(weight: Tensor, step: Tensor) -> Product | None:
    """The same as one oneDNN kernel on weights laid out for it, where there is one and sums do not overflow in it."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return None
    laid, zeros = torch.ops.onednn.qlinear_prepack(weight, None), torch.zeros(len(step), dtype=torch.int32)

    def run(whole: Tensor) -> Tensor:
        found: Tensor = torch.ops.onednn.qlinear_pointwise(
            whole, 1.0, 0, laid, step, zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )
        return found  # (M, E)

    largest = torch.full((1, weight.shape[1]), 255, dtype=torch.uint8)
    right = 255 * weight.sum(1).double() * step  # (E,)
    return run if torch.allclose(run(largest)[0].double(), right, rtol=1e-4, atol=float(step.max())) else None


def int8(model: nn.Module) -> nn.Module:
    """A copy of a model that has blocks, with all linear maps in these in eight bits."""
    copied = deepcopy(model).cpu().eval().requires_grad_(False)
    for module in copied.get_submodule("blocks").modules():
        for name, part in list(module.named_children()):
            if isinstance(part, Linear):
                setattr(module, name, Int8Linear(part))
    return copied
