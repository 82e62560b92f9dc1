"""A linear map.

B batch, T positions, D width in, E width out.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Linear(nn.Module):
    """x W^T + b, initialized with Glorot's uniform weights and b = 0."""

    def __init__(self, width: int, out: int, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out, width))
        self.bias = nn.Parameter(torch.zeros(out)) if bias else None
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)
