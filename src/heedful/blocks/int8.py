"""Linear layers quantized to int8, for inference on a CPU.

Weights have one scale per row. Inputs are quantized per token to 254 levels between the token's minimum and maximum, so
that an outlier in one token does not affect others.

M rows, D width in, E width out.
"""

from copy import deepcopy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.blocks.linear import Linear

LEVELS = 127  # of a weight, on either side of zero
STEPS = 254  # levels of an input: one less than a byte has, since both ends are rounded
SHIFT = 1.5 * 2**23  # added to a float32, it leaves the nearest integer in the lowest bits
TINY = 1e-12  # smallest scale


class OneDnnInt8:
    """Integers (E, D) in oneDNN's packed format; copied and pickled as a plain tensor."""

    def __init__(self, whole: Tensor) -> None:
        self.packed: Tensor = torch.ops.onednn.qlinear_prepack(whole, None)
        self.zeros = torch.zeros(len(whole), dtype=torch.int32)

    def __reduce__(self) -> tuple[type["OneDnnInt8"], tuple[Tensor]]:
        return OneDnnInt8, (self.packed.to_dense().t().contiguous(),)

    def product(self, x: Tensor, step: Tensor) -> Tensor:
        """The same as `PlainInt8`, in one kernel."""
        found: Tensor = torch.ops.onednn.qlinear_pointwise(
            x, 1.0, 0, self.packed, step, self.zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )
        return found  # (M, E)


class PlainInt8:
    """Integers (E, D) in a plain tensor."""

    def __init__(self, whole: Tensor) -> None:
        self.whole = whole

    def product(self, x: Tensor, step: Tensor) -> Tensor:
        """The product with integers x (M, D), times the scale of each row (E,)."""
        return F.linear(x.double(), self.whole.double()).float() * step  # (M, E)


class Int8Linear(nn.Module):
    """x W^T + b, with W as integers times a scale for each row, and x as integers times a scale for each token."""

    step: Tensor
    total: Tensor
    bias: Tensor

    def __init__(self, linear: Linear) -> None:
        super().__init__()
        weight = linear.weight.detach().float()  # (E, D)
        step = (weight.abs().amax(1) / LEVELS).clamp(min=TINY)  # (E,)
        whole = (weight / step[:, None]).round().to(torch.int8)  # (E, D)
        step = step / STEPS  # scale of a product, relative to the span of the input
        self.register_buffer("step", step, persistent=False)
        self.register_buffer("total", whole.sum(1) * step, persistent=False)  # multiplied by a token's minimum
        bias = torch.zeros_like(step) if linear.bias is None else linear.bias.detach().float()
        self.register_buffer("bias", bias, persistent=False)
        self.weight = OneDnnInt8(whole) if has_kernel(whole, step) else PlainInt8(whole)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1]).float()  # (M, D)
        low = rows.amin(1, keepdim=True)  # (M, 1)
        span = (rows.amax(1, keepdim=True) - low).clamp_(min=TINY)  # (M, 1)
        often = STEPS / span  # (M, 1)
        zero = low.mul_(often).round_()  # (M, 1)
        whole = torch.mul(rows, often).add_(SHIFT - zero).view(torch.int32).to(torch.uint8)  # (M, D)
        y = self.weight.product(whole, self.step)  # (M, E)
        y = torch.addcmul(torch.addcmul(self.bias, zero.mul_(span), self.total), y, span, out=y)  # (M, E)
        return y.view(*x.shape[:-1], -1).to(x.dtype)


def has_kernel(whole: Tensor, step: Tensor) -> bool:
    """Whether there is a kernel for these integers (E, D) whose sums do not overflow."""
    if whole.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    largest = torch.full((1, whole.shape[1]), 255, dtype=torch.uint8)
    found, right = (kind(whole).product(largest, step)[0].double() for kind in (OneDnnInt8, PlainInt8))  # (E,)
    return torch.allclose(found, right, rtol=1e-4, atol=float(step.max()))


def int8(model: nn.Module) -> nn.Module:
    """A copy of a model with all linear layers of its blocks in int8."""
    copied = deepcopy(model).cpu().eval().requires_grad_(False)
    for module in copied.get_submodule("blocks").modules():
        for name, part in list(module.named_children()):
            if isinstance(part, Linear):
                setattr(module, name, Int8Linear(part))
    return copied
