"""relu(norm(x) + y), with norm the batch norm of training, in three passes over memory; its gradient in two.

Images have channels-last memory format, so that a pixel is a row of its channels. M pixels of all images, C channels.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

PROGRAMS = 1056  # eight per multiprocessor of an H100; each sums the tiles of its part of the pixels
COLUMNS, TILE = 128, 4096  # channels of a tile, at most, and its values
AHEAD = 3  # tiles that are loaded while others are summed
STRIP = 8  # channels whose partial sums are added at a time


@triton.jit
def _sums(x, partial, M, C, R: tl.constexpr, W: tl.constexpr, STAGES: tl.constexpr):
    """Partial sums of x - x_0 and of its square, for the first pixel x_0, so that a large mean costs no digits."""
    first, every, column = tl.program_id(0), tl.num_programs(0), tl.program_id(1) * W + tl.arange(0, W)
    wide = column < C
    origin = tl.load(x + column, mask=wide, other=0.0).to(tl.float32)
    total, squares = tl.zeros([R, W], tl.float32), tl.zeros([R, W], tl.float32)
    for tile in tl.range(first * R, M, every * R, num_stages=STAGES):
        row = tile + tl.arange(0, R)
        there = (row < M)[:, None] & wide
        value = tl.load(x + row.to(tl.int64)[:, None] * C + column, mask=there, other=0.0).to(tl.float32)
        value = tl.where(there, value - origin, 0.0)
        total += value
        squares += value * value
    tl.store(partial + first * 2 * C + column, tl.sum(total, 0), mask=wide)
    tl.store(partial + first * 2 * C + C + column, tl.sum(squares, 0), mask=wide)


@triton.jit
def _moments(x, partial, moments, M, C, count, eps, P: tl.constexpr, W: tl.constexpr):
    """Mean, variance and 1 / std of each channel, from `count` partial sums."""
    row, column = tl.arange(0, P), tl.program_id(0) * W + tl.arange(0, W)
    wide = column < C
    there, place = (row < count)[:, None] & wide, row[:, None] * 2 * C + column
    total = tl.sum(tl.load(partial + place, mask=there, other=0.0), 0) / M
    squares = tl.sum(tl.load(partial + place + C, mask=there, other=0.0), 0) / M
    var = tl.maximum(squares - total * total, 0.0)
    origin = tl.load(x + column, mask=wide, other=0.0).to(tl.float32)
    tl.store(moments + column, origin + total, mask=wide)
    tl.store(moments + C + column, var, mask=wide)
    tl.store(moments + 2 * C + column, 1.0 / tl.sqrt(var + eps), mask=wide)


@triton.jit
def _apply(x, y, weight, bias, moments, o, M, C, R: tl.constexpr, W: tl.constexpr, ADD: tl.constexpr,
           RELU: tl.constexpr):  # fmt: skip
    """A tile of (x - mean) / std * weight + bias, to which y is added, and of its relu."""
    row, column = tl.program_id(0) * R + tl.arange(0, R), tl.program_id(1) * W + tl.arange(0, W)
    wide = column < C
    there, place = (row < M)[:, None] & wide, row.to(tl.int64)[:, None] * C + column
    scale = tl.load(weight + column, mask=wide, other=0.0).to(tl.float32)
    scale *= tl.load(moments + 2 * C + column, mask=wide, other=0.0)
    shift = tl.load(bias + column, mask=wide, other=0.0).to(tl.float32)
    shift -= tl.load(moments + column, mask=wide, other=0.0) * scale
    value = tl.load(x + place, mask=there, other=0.0).to(tl.float32) * scale + shift
    if ADD:
        value += tl.load(y + place, mask=there, other=0.0).to(tl.float32)
    if RELU:
        value = tl.maximum(value, 0.0)
    tl.store(o + place, value.to(o.dtype.element_ty), mask=there)


@triton.jit
def _gradient_sums(g, x, o, weight, bias, moments, dy, partial, M, C, R: tl.constexpr, W: tl.constexpr,
                   ADD: tl.constexpr, RELU: tl.constexpr, STAGES: tl.constexpr):  # fmt: skip
    """Partial sums of the gradient behind the relu, and of its product with the normalized x; stores it if ADD."""
    first, every, column = tl.program_id(0), tl.num_programs(0), tl.program_id(1) * W + tl.arange(0, W)
    wide = column < C
    mean = tl.load(moments + column, mask=wide, other=0.0)
    rstd = tl.load(moments + 2 * C + column, mask=wide, other=0.0)
    w = tl.load(weight + column, mask=wide, other=0.0).to(tl.float32)
    b = tl.load(bias + column, mask=wide, other=0.0).to(tl.float32)
    total, products = tl.zeros([R, W], tl.float32), tl.zeros([R, W], tl.float32)
    for tile in tl.range(first * R, M, every * R, num_stages=STAGES):
        row = tile + tl.arange(0, R)
        there, place = (row < M)[:, None] & wide, row.to(tl.int64)[:, None] * C + column
        grad = tl.load(g + place, mask=there, other=0.0).to(tl.float32)
        value = (tl.load(x + place, mask=there, other=0.0).to(tl.float32) - mean) * rstd
        if ADD:
            grad = tl.where(tl.load(o + place, mask=there, other=0.0).to(tl.float32) > 0, grad, 0.0) if RELU else grad
            tl.store(dy + place, grad.to(dy.dtype.element_ty), mask=there)
        elif RELU:
            grad = tl.where(value * w + b > 0, grad, 0.0)
        value = tl.where(there, value, 0.0)
        total += grad
        products += grad * value
    tl.store(partial + first * 2 * C + column, tl.sum(total, 0), mask=wide)
    tl.store(partial + first * 2 * C + C + column, tl.sum(products, 0), mask=wide)


@triton.jit
def _add_sums(partial, sums, C, count, P: tl.constexpr, W: tl.constexpr):
    """Both sums of each channel, from `count` partial sums."""
    row, column = tl.arange(0, P), tl.program_id(0) * W + tl.arange(0, W)
    there = (row < count)[:, None] & (column < 2 * C)
    parts = tl.load(partial + row[:, None] * 2 * C + column, mask=there, other=0.0)
    tl.store(sums + column, tl.sum(parts, 0), mask=column < 2 * C)


@triton.jit
def _gradient(g, x, weight, bias, moments, sums, dx, M, C, R: tl.constexpr, W: tl.constexpr, RELU: tl.constexpr):
    """A tile of the gradient of x; with RELU, g is that in front of the relu."""
    row, column = tl.program_id(0) * R + tl.arange(0, R), tl.program_id(1) * W + tl.arange(0, W)
    wide = column < C
    there, place = (row < M)[:, None] & wide, row.to(tl.int64)[:, None] * C + column
    mean = tl.load(moments + column, mask=wide, other=0.0)
    rstd = tl.load(moments + 2 * C + column, mask=wide, other=0.0)
    w = tl.load(weight + column, mask=wide, other=0.0).to(tl.float32)
    grad = tl.load(g + place, mask=there, other=0.0).to(tl.float32)
    value = (tl.load(x + place, mask=there, other=0.0).to(tl.float32) - mean) * rstd
    if RELU:
        grad = tl.where(value * w + tl.load(bias + column, mask=wide, other=0.0).to(tl.float32) > 0, grad, 0.0)
    total = tl.load(sums + column, mask=wide, other=0.0) / M
    product = tl.load(sums + C + column, mask=wide, other=0.0) / M
    tl.store(dx + place, ((grad - total - value * product) * (w * rstd)).to(dx.dtype.element_ty), mask=there)


class _Tiles(NamedTuple):
    """How a tensor is divided among programs."""

    pixels: int
    channels: int
    rows: int  # of a tile
    width: int  # of a tile
    strips: int  # of tiles beside each other
    sums: int  # programs that sum the tiles of a strip

    @classmethod
    def of(cls, x: Tensor) -> "_Tiles":
        channels = x.shape[1]
        pixels, width = x.numel() // channels, min(COLUMNS, triton.next_power_of_2(channels))
        rows, strips = TILE // width, triton.cdiv(channels, width)
        sums = min(triton.cdiv(pixels, rows), max(1, PROGRAMS // strips))
        return cls(pixels, channels, rows, width, strips, sums)

    @property
    def tile(self) -> dict[str, int]:
        return {"R": self.rows, "W": self.width, "num_warps": 4}

    @property
    def all_sums(self) -> dict[str, int]:
        return {"P": triton.next_power_of_2(self.sums), "W": STRIP, "num_warps": 8 if self.sums > 256 else 4}


def _rows(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


@torch.library.custom_op("heedful::batch_norm", mutates_args=())
def _batch_norm(
    x: Tensor, y: Tensor | None, weight: Tensor, bias: Tensor, eps: float, relu: bool
) -> tuple[Tensor, Tensor]:
    x = _rows(x)
    o, t = torch.empty_like(x), _Tiles.of(x)
    partial = torch.empty(t.sums, 2 * t.channels, device=x.device, dtype=torch.float32)
    moments = torch.empty(3, t.channels, device=x.device, dtype=torch.float32)
    _sums[(t.sums, t.strips)](x, partial, t.pixels, t.channels, STAGES=AHEAD, **t.tile)
    _moments[(triton.cdiv(t.channels, STRIP),)](x, partial, moments, t.pixels, t.channels, t.sums, eps, **t.all_sums)
    _apply[(triton.cdiv(t.pixels, t.rows), t.strips)](
        x, x if y is None else _rows(y), weight, bias, moments, o, t.pixels, t.channels,
        ADD=y is not None, RELU=relu, **t.tile,
    )  # fmt: skip
    return o, moments


@_batch_norm.register_fake
def _(x: Tensor, y: Tensor | None, weight: Tensor, bias: Tensor, eps: float, relu: bool) -> tuple[Tensor, Tensor]:
    moments = x.new_empty(3, x.shape[1], dtype=torch.float32)
    return torch.empty_like(x, memory_format=torch.channels_last), moments


@torch.library.custom_op("heedful::batch_norm_backward", mutates_args=())
def _batch_norm_backward(
    g: Tensor, x: Tensor, o: Tensor | None, weight: Tensor, bias: Tensor, moments: Tensor, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    g, x, added = _rows(g), _rows(x), o is not None
    dx, t = torch.empty_like(x), _Tiles.of(x)
    dy = torch.empty_like(x) if added else x.new_empty(0)
    partial = torch.empty(t.sums, 2 * t.channels, device=x.device, dtype=torch.float32)
    sums = torch.empty(2, t.channels, device=x.device, dtype=torch.float32)
    _gradient_sums[(t.sums, t.strips)](
        g, x, x if o is None else _rows(o), weight, bias, moments, dy, partial, t.pixels, t.channels,
        ADD=added, RELU=relu, STAGES=AHEAD, **t.tile,
    )  # fmt: skip
    _add_sums[(triton.cdiv(2 * t.channels, STRIP),)](partial, sums, t.channels, t.sums, **t.all_sums)
    _gradient[(triton.cdiv(t.pixels, t.rows), t.strips)](
        dy if added else g, x, weight, bias, moments, sums, dx, t.pixels, t.channels,
        RELU=relu and not added, **t.tile,
    )  # fmt: skip
    return dx, dy, sums


@_batch_norm_backward.register_fake
def _(
    g: Tensor, x: Tensor, o: Tensor | None, weight: Tensor, bias: Tensor, moments: Tensor, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    dx = torch.empty_like(x, memory_format=torch.channels_last)
    dy = x.new_empty(0) if o is None else torch.empty_like(x, memory_format=torch.channels_last)
    return dx, dy, x.new_empty(2, x.shape[1], dtype=torch.float32)


def _setup_context(ctx, inputs, output) -> None:
    x, y, weight, bias, _, ctx.relu = inputs
    o, moments = output
    ctx.mark_non_differentiable(moments)
    ctx.save_for_backward(x, None if y is None else o, weight, bias, moments)


def _gradients(ctx, g: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    x, o, weight, bias, moments = ctx.saved_tensors
    dx, dy, sums = _batch_norm_backward(g, x, o, weight, bias, moments, ctx.relu)
    db, dw = sums.to(weight.dtype).unbind()
    return dx, None if o is None else dy, dw, db, None, None


_batch_norm.register_autograd(_gradients, setup_context=_setup_context)


def batch_norm(
    x: Tensor, y: Tensor | None, weight: Tensor, bias: Tensor, eps: float, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """relu(norm(x) + y), or without the relu or y, in x's precision; the mean and the variance (C,) of each channel."""
    o, moments = _batch_norm(x, None if y is None else y.to(x.dtype), weight, bias, eps, relu)
    return o, moments[0], moments[1]
