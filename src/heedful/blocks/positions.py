"""Position encodings that act on the vectors; ALiBi, a bias on the scores, is `masks.alibi`.

Positions are passed as integers `at`, (T,) or (B, T), so that padding and caches do not shift a token.

B batch, T positions, D width, H heads, K width of one head.
"""

import torch
from torch import Tensor, nn


def sinusoids(positions: int, width: int) -> Tensor:
    """P[i, 2j] = sin(i / 10000^(2j/D)), P[i, 2j+1] = cos(i / 10000^(2j/D)): the interleaved layout."""
    if width % 2:
        raise ValueError(f"sinusoids come in pairs: the width must be even, got {width}")
    rate = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angle = torch.arange(positions, dtype=torch.float64)[:, None] * rate
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(1).float()  # (T, D)


def sinusoid_halves(positions: int, width: int) -> Tensor:
    """The same columns in another order: sines on the left, cosines on the right (Tensor2Tensor's layout)."""
    table = sinusoids(positions, width)
    return torch.cat([table[:, 0::2], table[:, 1::2]], -1)  # (T, D)


class FixedPositions(nn.Module):
    """x + P[at], where the table P is neither trained nor stored in checkpoints."""

    table: Tensor

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.register_buffer("table", table, persistent=False)

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        return x + self.table[at].to(x.dtype)


class LearnedPositions(nn.Module):
    """x + P[at], where the table P is trained."""

    def __init__(self, positions: int, width: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(positions, width) * width**-0.5)

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        return x + self.table[at].to(x.dtype)


class NoPositions(nn.Module):
    """x -> x: no position is added to the vectors."""

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        return x


class Rotary(nn.Module):
    """Rotates each pair (x_j, x_{j+K/2}) by at / 10000^(2j/K): q . k depends on at - at' (Su et al., 2021)."""

    cos: Tensor
    sin: Tensor

    def __init__(self, positions: int, head_width: int) -> None:
        super().__init__()
        table = sinusoids(positions, head_width)
        self.register_buffer("sin", table[:, 0::2].contiguous(), persistent=False)
        self.register_buffer("cos", table[:, 1::2].contiguous(), persistent=False)

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        sin, cos = (table[at].to(x.dtype) for table in (self.sin, self.cos))
        if at.dim() == 2:
            sin, cos = sin[:, None], cos[:, None]  # (B, 1, T, K / 2)
        left, right = x.chunk(2, -1)
        return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)  # (B, H, T, K)
