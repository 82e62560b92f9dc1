"""Add & norm: a residual connection around a sublayer, with the norm after the sum or before the sublayer.

B batch, T positions, D width.
"""

from collections.abc import Callable

from torch import Tensor, nn


class PostNorm(nn.Module):
    """norm(x + dropout(sublayer(x))), as in the lectures (Vaswani et al., 2017)."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return self.norm(x + self.dropout(sublayer(x)))


class PreNorm(nn.Module):
    """x + dropout(sublayer(norm(x))) (Xiong et al., 2020); the stack then needs one more norm at its end."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return x + self.dropout(sublayer(self.norm(x)))
