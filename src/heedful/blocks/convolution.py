"""Convolutions, and the blocks of ConvNets: conv-norm-relu, residual, inception.

B batch, C channels, Y rows, X columns, F filters.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from heedful.blocks.taps import Tap, tapped


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


def convolve(conv: nn.Conv2d, x: Tensor) -> Tensor:
    """conv(x); with stride 2 and few channels, a GPU takes 2 x 2 pixels as one of four times the channels."""
    size, pad = conv.kernel_size[0], conv.padding[0]
    halves = conv.stride == (2, 2) and conv.kernel_size == (size, size) and conv.padding == (pad, pad)
    even = x.shape[2] % 2 == x.shape[3] % 2 == 0 and size % 2 == 1 and pad == size // 2
    if x.is_cuda and conv.in_channels <= 4 and halves and even:
        return in_blocks(x, conv.weight, conv.bias)
    y: Tensor = conv(x)
    return y


def in_blocks(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The convolution with stride 2, and half the filter's odd size around the image, over blocks of 2 x 2 pixels."""
    size, channels = weight.shape[2], x.shape[1]
    before = size // 2 % 2  # so that a filter begins at the first pixel of a block
    after = -(size + before) % 2
    blocks, rest = (size + before + after) // 2, -4 * channels % 8
    left = (size // 2 + before) // 2
    weight = functional.pad(weight, (before, after, before, after))
    weight = weight.unflatten(3, (blocks, 2)).unflatten(2, (blocks, 2)).permute(0, 1, 3, 5, 2, 4).flatten(1, 3)
    edges = (left, blocks - 1 - left)
    x = functional.pixel_unshuffle(x, 2)  # (B, 4 * channels, Y / 2, X / 2)
    x = functional.pad(x, (*edges, *edges, 0, rest))
    weight = functional.pad(weight, (0, 0, 0, 0, 0, rest))  # matrix products are faster with multiples of eight
    return functional.conv2d(x.contiguous(memory_format=torch.channels_last), weight, bias)  # (B, F, Y / 2, X / 2)


def batch_norm(x: Tensor, norm: nn.BatchNorm2d, add: Tensor | None = None, relu: bool = False) -> Tensor:
    """relu(norm(x) + add), or without one of both; on a GPU, training uses fused kernels."""
    plain = type(norm) is nn.BatchNorm2d and norm.momentum is not None  # not one that processes share
    last = x.is_contiguous(memory_format=torch.channels_last) and x.numel() > x.shape[1]
    if norm.training and plain and last and x.is_cuda and x.dtype != torch.float64:
        from heedful.blocks.kernels import batch_norm as fused  # needs Triton, which comes with torch's GPU builds only

        y, mean, var = fused.batch_norm(x, add, norm.weight, norm.bias, norm.eps, relu)
        track(norm, mean, var, x.numel() // x.shape[1])
        return y
    y = norm(x)  # (B, F, Y, X)
    y = y if add is None else y + add
    return functional.relu(y) if relu else y


@torch.no_grad()
def track(norm: nn.BatchNorm2d, mean: Tensor, var: Tensor, count: int) -> None:
    """Move the running statistics of a batch norm towards those (F,) of `count` pixels."""
    assert norm.running_mean is not None and norm.running_var is not None and norm.num_batches_tracked is not None
    assert norm.momentum is not None
    norm.num_batches_tracked.add_(1)
    norm.running_mean.lerp_(mean, norm.momentum)
    norm.running_var.lerp_(var * (count / (count - 1)), norm.momentum)


class NormedConvolution(nn.Module):
    """A convolution, usually without bias, and batch norm (Ioffe and Szegedy, 2015)."""

    def __init__(
        self, channels: int, filters: int, size: int = 3, stride: int = 1, bias: bool = False, eps: float = 1e-5
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, filters, size, stride, size // 2, bias=bias)
        self.norm = nn.BatchNorm2d(filters, eps)
        self.output = Tap()


class ConvNorm(NormedConvolution):
    """norm(W * x)."""

    def forward(self, x: Tensor, shortcut: Tensor | None = None) -> Tensor:
        """norm(W * x), or relu(norm(W * x) + shortcut)."""
        return self.output(batch_norm(self.conv(x), self.norm, shortcut, shortcut is not None))  # (B, F, Y, X)


class ConvNormRelu(NormedConvolution):
    """relu(norm(W * x))."""

    def forward(self, x: Tensor) -> Tensor:
        return self.output(batch_norm(convolve(self.conv, x), self.norm, relu=True))  # (B, F, Y, X)


class Residual(nn.Module):
    """relu(body(x) + shortcut(x)); the shortcut is the identity where shapes allow it (He et al., 2016)."""

    def __init__(self, body: nn.Sequential, shortcut: nn.Module) -> None:
        super().__init__()
        self.body, self.shortcut = body, shortcut
        self.output = Tap()

    def forward(self, x: Tensor) -> Tensor:
        *layers, last = self.body
        assert isinstance(last.output, Tap)
        y, shortcut = x, self.shortcut(x)  # (B, F, Y, X)
        for layer in layers:
            y = layer(y)
        if tapped(last.output):
            return self.output(functional.relu(last(y) + shortcut))  # (B, F, Y, X)
        return self.output(last(y, shortcut))  # (B, F, Y, X)


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
