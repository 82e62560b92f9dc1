"""A linear map.

B batch, T positions, D width in, E width out.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FEW = 512  # rows


def project(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b. For few rows on a CPU, (W x^T + b)^T is the same, and decoding is a quarter faster for it."""
    rows = math.prod(x.shape[:-1])
    if torch.is_grad_enabled() or x.device.type != "cpu" or not 0 < rows <= FEW:
        return F.linear(x, weight, bias)  # (B, T, E)
    columns = x.reshape(rows, -1).mT
    y = weight @ columns if bias is None else torch.addmm(bias[:, None], weight, columns)
    return y.mT.contiguous().view(*x.shape[:-1], -1)  # (B, T, E)


class Linear(nn.Module):
    """x W^T + b."""

    def __init__(self, width: int, out: int, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out, width))
        self.bias = nn.Parameter(torch.zeros(out)) if bias else None
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return project(x, self.weight, self.bias)
