"""Convolution in channels-last memory format, which is nearly twice as fast on a CPU.

B batch, C channels, Y rows, X columns, F filters.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Convolution(nn.Module):
    """W * x + b: each filter covers a small square around every pixel, in all channels."""

    def __init__(self, channels: int, filters: int, size: int, padding: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(filters, channels, size, size))
        self.bias = nn.Parameter(torch.zeros(filters))
        self.padding = padding

    def forward(self, x: Tensor) -> Tensor:
        # The layout of the weights decides that of the result, even of one channel. It is a copy that has it: what is
        # trained and saved keeps the usual one.
        weight = self.weight.clone(memory_format=torch.channels_last)
        return functional.conv2d(x, weight, self.bias, padding=self.padding)  # (B, F, Y, X)
