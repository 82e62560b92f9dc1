"""Convolutions, and the blocks of ConvNets: conv-norm-relu, residual, inception.

B batch, C channels, Y rows, X columns, F filters.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from heedful.blocks.taps import Tap


class Convolution(nn.Module):
    """W * x + b: each filter covers a small square around every pixel, in all channels.

    The result has channels-last memory format, in which convolutions are nearly twice as fast on a CPU.
    """

    def __init__(self, channels: int, filters: int, size: int, padding: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(filters, channels, size, size))
        self.bias = nn.Parameter(torch.zeros(filters))
        self.kernel_size, self.stride, self.padding = size, 1, padding

    def forward(self, x: Tensor) -> Tensor:
        # The layout of the weights decides that of the result, even of one channel. It is a copy that has it: what is
        # trained and saved keeps the usual one.
        weight = self.weight.clone(memory_format=torch.channels_last)
        return functional.conv2d(x, weight, self.bias, padding=self.padding)  # (B, F, Y, X)


class ConvRelu(nn.Module):
    """relu(W * x + b); by default, zeros around the image keep its size."""

    def __init__(self, channels: int, filters: int, size: int = 3, stride: int = 1, padding: int | None = None) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, filters, size, stride, size // 2 if padding is None else padding)
        self.output = Tap()

    def forward(self, x: Tensor) -> Tensor:
        return self.output(functional.relu(self.conv(x)))  # (B, F, Y, X)


class ConvNorm(nn.Module):
    """norm(W * x): a convolution, usually without bias, and batch norm (Ioffe and Szegedy, 2015)."""

    def __init__(
        self, channels: int, filters: int, size: int = 3, stride: int = 1, bias: bool = False, eps: float = 1e-5
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, filters, size, stride, size // 2, bias=bias)
        self.norm = nn.BatchNorm2d(filters, eps)
        self.output = Tap()

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.norm(self.conv(x)))  # (B, F, Y, X)


class ConvNormRelu(ConvNorm):
    """relu(norm(W * x))."""

    def forward(self, x: Tensor) -> Tensor:
        return self.output(functional.relu(self.norm(self.conv(x))))  # (B, F, Y, X)


class Residual(nn.Module):
    """relu(body(x) + shortcut(x)); the shortcut is the identity where shapes allow it (He et al., 2016)."""

    def __init__(self, body: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.body, self.shortcut = body, shortcut
        self.output = Tap()

    def forward(self, x: Tensor) -> Tensor:
        return self.output(functional.relu(self.body(x) + self.shortcut(x)))  # (B, F, Y, X)


class Inception(nn.Module):
    """Four branches, whose filters stand beside each other: 1 x 1, 3 x 3, 5 x 5, and a max pool (Szegedy et al., 2015).

    In front of the larger filters, a 1 x 1 convolution reduces the channels: `filters` are the numbers of the branch
    1 x 1, of reduction and branch 3 x 3, of reduction and branch 5 x 5, and of the 1 x 1 convolution after the pool.
    """

    def __init__(self, channels: int, filters: tuple[int, int, int, int, int, int], large: int, eps: float) -> None:
        super().__init__()
        one, reduce3, three, reduce5, five, pool = filters
        self.channels = one + three + five + pool
        self.branches = nn.ModuleList(
            (
                ConvNormRelu(channels, one, 1, eps=eps),
                nn.Sequential(ConvNormRelu(channels, reduce3, 1, eps=eps), ConvNormRelu(reduce3, three, 3, eps=eps)),
                nn.Sequential(ConvNormRelu(channels, reduce5, 1, eps=eps), ConvNormRelu(reduce5, five, large, eps=eps)),
                nn.Sequential(nn.MaxPool2d(3, 1, padding=1), ConvNormRelu(channels, pool, 1, eps=eps)),
            )
        )
        self.output = Tap()

    def forward(self, x: Tensor) -> Tensor:
        branches = [branch(x) for branch in self.branches]
        return self.output(torch.cat(branches, 1))  # (B, F, Y, X)


def init_he(module: nn.Module) -> None:
    """Normally distributed weights of variance 2 / n, for n inputs, so that relu keeps the size (He et al., 2015)."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
