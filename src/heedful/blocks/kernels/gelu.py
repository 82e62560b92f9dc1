"""gelu(x + b), exact or by tanh, in one pass over memory; on the way back both gradients in another.

N rows, F width.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, COLUMNS = 4, 1024  # of a tile, chosen by timing
PROGRAMS = 4224  # 32 a multiprocessor of a large GPU; each sums the gradients of its own share of rows


@triton.jit
def _normal(x):
    """The normal distribution's integral up to x and its density at x; the integral is off by 8e-8 at most.

    Abramowitz and Stegun (1964), 7.1.26.
    """
    z = tl.abs(x) * 0.7071067811865476
    t = 1.0 / (1.0 + 0.3275911 * z)
    density = tl.exp(-0.5 * x * x)
    tail = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    tail = 0.5 * tail * density
    return tl.where(x < 0, tail, 1.0 - tail), density * 0.3989422804014327


@triton.jit
def _by_tanh(x):
    """Nearly the same integral, (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2, and its slope at x."""
    below = tl.sigmoid(1.5957691216057308 * x * (1.0 + 0.044715 * x * x))
    return below, below * (1.0 - below) * 1.5957691216057308 * (1.0 + 0.134145 * x * x)


@triton.jit
def _forward(x, bias, o, count, width, R: tl.constexpr, C: tl.constexpr, TANH: tl.constexpr):
    """A tile of gelu(x + b)."""
    row, column = tl.program_id(0) * R + tl.arange(0, R), tl.program_id(1) * C + tl.arange(0, C)
    inside = (row < count)[:, None] & (column < width)
    place = row.to(tl.int64)[:, None] * width + column
    value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    value += tl.load(bias + column, mask=column < width, other=0.0).to(tl.float32)
    below, _ = _by_tanh(value) if TANH else _normal(value)
    tl.store(o + place, (value * below).to(o.dtype.element_ty), mask=inside)


@triton.jit
def _backward(g, x, bias, dx, parts, count, width, R: tl.constexpr, C: tl.constexpr, TANH: tl.constexpr):
    """A strip of columns of every n-th tile of rows: the gradient in x, and this strip's part of that in b."""
    first, every, column = tl.program_id(0), tl.num_programs(0), tl.program_id(1) * C + tl.arange(0, C)
    wide = column < width
    b = tl.load(bias + column, mask=wide, other=0.0).to(tl.float32)
    total = tl.zeros([C], tl.float32)
    for tile in range(first * R, count, every * R):
        row = tile + tl.arange(0, R)
        inside = (row < count)[:, None] & wide
        place = row.to(tl.int64)[:, None] * width + column
        value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32) + b
        grad = tl.load(g + place, mask=inside, other=0.0).to(tl.float32)
        below, density = _by_tanh(value) if TANH else _normal(value)
        grad = grad * (below + value * density)
        tl.store(dx + place, grad.to(dx.dtype.element_ty), mask=inside)
        total += tl.sum(grad, 0)
    tl.store(parts + first * width + column, total, mask=wide)


@torch.library.custom_op("heedful::gelu", mutates_args=())
def _gelu(x: Tensor, bias: Tensor, tanh: bool) -> Tensor:
    x = x.contiguous()
    width = x.shape[-1]
    count, o = x.numel() // width, torch.empty_like(x)
    _forward[(triton.cdiv(count, ROWS), triton.cdiv(width, COLUMNS))](
        x, bias, o, count, width, R=ROWS, C=COLUMNS, TANH=tanh, num_warps=4
    )
    return o


@_gelu.register_fake
def _(x: Tensor, bias: Tensor, tanh: bool) -> Tensor:
    return x.new_empty(x.shape)


@torch.library.custom_op("heedful::gelu_backward", mutates_args=())
def _gelu_backward(g: Tensor, x: Tensor, bias: Tensor, tanh: bool) -> tuple[Tensor, Tensor]:
    g, x = g.contiguous(), x.contiguous()
    width = x.shape[-1]
    count, dx = x.numel() // width, torch.empty_like(x)
    strips = triton.cdiv(width, COLUMNS)
    tall = min(triton.cdiv(count, ROWS), max(1, PROGRAMS // strips))
    parts = torch.empty(tall, width, device=x.device, dtype=torch.float32)
    _backward[(tall, strips)](g, x, bias, dx, parts, count, width, R=ROWS, C=COLUMNS, TANH=tanh, num_warps=4)
    return dx, parts.sum(0)


@_gelu_backward.register_fake
def _(g: Tensor, x: Tensor, bias: Tensor, tanh: bool) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape[-1], dtype=torch.float32)


def _keep(ctx, inputs, output) -> None:
    x, bias, ctx.tanh = inputs
    ctx.save_for_backward(x, bias)


def _back(ctx, g: Tensor) -> tuple[Tensor, Tensor, None]:
    x, bias = ctx.saved_tensors
    dx, db = _gelu_backward(g, x, bias, ctx.tanh)
    return dx, db.to(bias.dtype), None


_gelu.register_autograd(_back, setup_context=_keep)


def gelu(x: Tensor, bias: Tensor, tanh: bool = False) -> Tensor:
    """gelu(x + bias), exact as torch's default is, to the last bit of half precision, or by tanh."""
    return _gelu(x, bias, tanh)  # (N, F)
