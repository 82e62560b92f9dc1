"""The position-wise feed-forward layer.

B batch, T positions, D width, F hidden width.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from heedful.blocks.linear import Linear

Activation = Callable[[Tensor], Tensor]


def quick_gelu(x: Tensor) -> Tensor:
    """x sigmoid(1.702 x), an approximation of GELU (Hendrycks and Gimpel, 2016)."""
    return x * torch.sigmoid(1.702 * x)


GELU_TANH = partial(F.gelu, approximate="tanh")
ACTIVATIONS: dict[str, Activation] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": GELU_TANH,
    "quick_gelu": quick_gelu,
    "swish": F.silu,
    "mish": F.mish,
    "tanh": torch.tanh,
}


class FeedForward(nn.Module):
    """max(0, x W_1 + b_1) W_2 + b_2, the same map at every position: two 1 x 1 convolutions.

    With `recompute`, the backward pass computes the hidden layer again, instead of keeping it (B, T, F) till then.
    """

    recompute = False

    def __init__(self, width: int, hidden: int, activation: Activation = F.relu) -> None:
        super().__init__()
        self.up = Linear(width, hidden)
        self.down = Linear(hidden, width)
        self.activation = activation
        self.gelu = {F.gelu: "exact", GELU_TANH: "tanh"}.get(activation)

    def forward(self, x: Tensor) -> Tensor:
        if self.recompute and self.training and torch.is_grad_enabled():
            random = isinstance(self.activation, nn.Module)  # which may have dropout
            return checkpoint(self.compute, x, use_reentrant=False, preserve_rng_state=random)
        return self.compute(x)  # (B, T, D)

    def compute(self, x: Tensor) -> Tensor:
        halved = torch.is_autocast_enabled(x.device.type) or x.dtype in (torch.bfloat16, torch.float16)
        if self.training and x.is_cuda and halved and self.gelu:
            from heedful.blocks.kernels import gelu  # needs Triton, which comes with torch's GPU builds only

            assert self.up.bias is not None
            return self.down(gelu.gelu(F.linear(x, self.up.weight), self.up.bias, self.gelu == "tanh"))
        return self.down(self.activation(self.up(x)))


def recompute_hidden(model: nn.Module) -> None:
    """Let the backward pass of a model compute the hidden layers of its feed-forward layers again."""
    for module in model.modules():
        if isinstance(module, FeedForward):
            module.recompute = True
