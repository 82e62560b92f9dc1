"""A linear map.

B batch, T positions, D width in, E width out.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROWS, LEAST = 4, 2**20  # from these numbers of rows and multiplications on, oneDNN's product is faster


class Linear(nn.Module):
    """x W^T + b, initialized with Glorot's uniform weights and b = 0."""

    def __init__(self, width: int, out: int, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out, width))
        self.bias = nn.Parameter(torch.zeros(out)) if bias else None
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b (..., E) for x (..., D) and W (E, D).

    In inference on a CPU large ones are products by oneDNN, which has AVX-512 on AMD's CPUs too: about twice as fast
    there as MKL's.
    """
    if onednn(x, weight):
        found: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return found
    return F.linear(x, weight, bias)


def onednn(x: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN's product can replace `F.linear`, and is faster; it has no gradient and cannot be compiled."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or x.numel() * weight.shape[0] < LEAST:
        return False
    plain = x.device.type == "cpu" and x.dtype == weight.dtype == torch.float32
    rows = x.dim() > 1 and x.numel() >= ROWS * x.shape[-1]
    return plain and rows and not torch.is_autocast_enabled("cpu") and torch.backends.mkldnn.is_available()
