"""Positions: where a token stands. Some schemes act on the vectors (here), one is a bias (`masks.alibi`).

Places are given as integers `at`, (T,) or (B, T), so that padding and caches never move a token.

B batch, T positions, D width, H heads, K width of one head.
"""

import torch
from torch import Tensor, nn


def sinusoids(places: int, width: int) -> Tensor:
    """P[i, 2j] = sin(i / 10000^(2j/D)), P[i, 2j+1] = cos(i / 10000^(2j/D)): the interleaved layout."""
    if width % 2:
        raise ValueError(f"sinusoids come in pairs: the width must be even, got {width}")
    rate = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angle = torch.arange(places, dtype=torch.float64)[:, None] * rate
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(1).float()  # (T, D)


def sinusoid_halves(places: int, width: int) -> Tensor:
    """The same columns in another order: all sines on the left, all cosines on the right (Tensor2Tensor's layout)."""
    table = sinusoids(places, width)
    return torch.cat([table[:, 0::2], table[:, 1::2]], -1)  # (T, D)


class Fixed(nn.Module):
    """x + P[at], P a given table that is not trained and not stored in checkpoints."""

    table: Tensor

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.register_buffer("table", table, persistent=False)

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        return x + self.table[at].to(x.dtype)


class Learned(nn.Module):
    """x + P[at], P trained."""

    def __init__(self, places: int, width: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(places, width) * width**-0.5)

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        return x + self.table[at].to(x.dtype)


class Absent(nn.Module):
    """x: no position is added to the vectors."""

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        return x


class Rotary(nn.Module):
    """Each pair (x_j, x_{j+K/2}) turned by at / 10000^(2j/K), so that q . k sees at - at' (Su et al., 2021)."""

    cos: Tensor
    sin: Tensor

    def __init__(self, places: int, head_width: int) -> None:
        super().__init__()
        table = sinusoids(places, head_width)
        self.register_buffer("sin", table[:, 0::2].contiguous(), persistent=False)
        self.register_buffer("cos", table[:, 1::2].contiguous(), persistent=False)

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        sin, cos = (table[at].to(x.dtype) for table in (self.sin, self.cos))
        if at.dim() == 2:
            sin, cos = sin[:, None], cos[:, None]  # (B, 1, T, K / 2)
        left, right = x.chunk(2, -1)
        return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)  # (B, H, T, K)
