"""Add & norm: a residual connection around a sublayer, with the norm after the sum or before the sublayer.

B batch, T positions, D width.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn


class PostNorm(nn.Module):
    """norm(x + dropout(sublayer(x))) (Vaswani et al., 2017).

    Sum and norm are computed in float32; the result has the sublayer's precision. On a GPU, training uses one kernel.
    """

    def __init__(self, width: int, dropout: float, eps: float = 1e-5) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, eps)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        y = sublayer(x)
        if self.training and y.is_cuda and y.dtype != torch.float64:
            from heedful.blocks.kernels import norms  # needs Triton, which comes with torch's GPU builds only

            return norms.add_norm(x, y, self.norm.weight, self.norm.bias, self.dropout.p, self.norm.eps)
        return self.norm(x + self.dropout(y)).to(y.dtype)


class PreNorm(nn.Module):
    """x + dropout(sublayer(norm(x))) (Xiong et al., 2020); the stack then needs one more norm at its end.

    The sum is computed in float32; the result has the sublayer's precision.
    """

    def __init__(self, width: int, dropout: float, eps: float = 1e-5) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, eps)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        y = sublayer(self.norm(x))
        return (x + self.dropout(y)).to(y.dtype)
