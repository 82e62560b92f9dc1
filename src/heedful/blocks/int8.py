"""Linear maps in eight bits, for models that only read on a CPU.

Weights have a step a row. What comes in is cut into 254 steps between its smallest and its largest value, each token's
own, so that a token with one large value spoils no other.

M rows, D width in, E width out.
"""

from copy import deepcopy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.blocks.linear import Linear

LEVELS = 127  # of a weight, on either side of zero
STEPS = 254  # of what comes in: one less than a byte has, since both ends are rounded
SHIFT = 1.5 * 2**23  # added to a float32, it leaves the nearest whole number in the lowest bits
TINY = 1e-12  # a step is never smaller


class Laid:
    """Integers (E, D) as a kernel of oneDNN reads them; copied and pickled as a plain tensor."""

    def __init__(self, whole: Tensor) -> None:
        self.laid: Tensor = torch.ops.onednn.qlinear_prepack(whole, None)
        self.zeros = torch.zeros(len(whole), dtype=torch.int32)

    def __reduce__(self) -> tuple[type["Laid"], tuple[Tensor]]:
        return Laid, (self.laid.to_dense().t().contiguous(),)

    def product(self, x: Tensor, step: Tensor) -> Tensor:
        """What `Plain` computes, in one kernel."""
        found: Tensor = torch.ops.onednn.qlinear_pointwise(
            x, 1.0, 0, self.laid, step, self.zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )
        return found  # (M, E)


class Plain:
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
        step = step / STEPS  # of a product: times the span of what comes in, which is its step times their number
        self.register_buffer("step", step, persistent=False)
        self.register_buffer("total", whole.sum(1) * step, persistent=False)  # what a token's lowest value is times
        bias = torch.zeros_like(step) if linear.bias is None else linear.bias.detach().float()
        self.register_buffer("bias", bias, persistent=False)
        self.weight = Laid(whole) if suits(whole, step) else Plain(whole)

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


def suits(whole: Tensor, step: Tensor) -> bool:
    """Whether there is a kernel for these integers (E, D), and its sums do not overflow."""
    if whole.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    largest = torch.full((1, whole.shape[1]), 255, dtype=torch.uint8)
    found, right = (kind(whole).product(largest, step)[0].double() for kind in (Laid, Plain))  # (E,)
    return torch.allclose(found, right, rtol=1e-4, atol=float(step.max()))


def int8(model: nn.Module) -> nn.Module:
    """A copy of a model that has blocks, with all linear maps in these in eight bits."""
    copied = deepcopy(model).cpu().eval().requires_grad_(False)
    for module in copied.get_submodule("blocks").modules():
        for name, part in list(module.named_children()):
            if isinstance(part, Linear):
                setattr(module, name, Int8Linear(part))
    return copied
