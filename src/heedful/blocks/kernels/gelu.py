"""gelu(x + b), exact or by its tanh approximation, in one pass over memory; both gradients in another.

N rows, F width.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, COLUMNS = 4, 1024  # of a tile, chosen by timing
PROGRAMS = 4224  # 32 per multiprocessor of an H100; each sums the gradients of its part of the rows


@triton.jit
def _normal_cdf(x):
    """The cumulative distribution function (with an error below 8e-8) and the density of the normal distribution.

    Abramowitz and Stegun (1964), 7.1.26.
    """
    z = tl.abs(x) * 0.7071067811865476
    t = 1.0 / (1.0 + 0.3275911 * z)
    density = tl.exp(-0.5 * x * x)
    tail = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    tail = 0.5 * tail * density
    return tl.where(x < 0, tail, 1.0 - tail), density * 0.3989422804014327


@triton.jit
def _tanh_cdf(x):
    """The tanh approximation (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2 of the CDF, and its derivative."""
    cdf = tl.sigmoid(1.5957691216057308 * x * (1.0 + 0.044715 * x * x))
    return cdf, cdf * (1.0 - cdf) * 1.5957691216057308 * (1.0 + 0.134145 * x * x)


@triton.jit
def _forward(x, bias, o, count, width, R: tl.constexpr, C: tl.constexpr, TANH: tl.constexpr):
    """A tile of gelu(x + b)."""
    row, column = tl.program_id(0) * R + tl.arange(0, R), tl.program_id(1) * C + tl.arange(0, C)
    in_tile = (row < count)[:, None] & (column < width)
    offset = row.to(tl.int64)[:, None] * width + column
    value = tl.load(x + offset, mask=in_tile, other=0.0).to(tl.float32)
    value += tl.load(bias + column, mask=column < width, other=0.0).to(tl.float32)
    cdf, _ = _tanh_cdf(value) if TANH else _normal_cdf(value)
    tl.store(o + offset, (value * cdf).to(o.dtype.element_ty), mask=in_tile)


@triton.jit
def _backward(g, x, bias, dx, partial, count, width, R: tl.constexpr, C: tl.constexpr, TANH: tl.constexpr):
    """Some columns of every n-th tile of rows: the gradient of x, and a partial sum of that of b."""
    first, every, column = tl.program_id(0), tl.num_programs(0), tl.program_id(1) * C + tl.arange(0, C)
    wide = column < width
    b = tl.load(bias + column, mask=wide, other=0.0).to(tl.float32)
    total = tl.zeros([C], tl.float32)
    for tile in tl.range(first * R, count, every * R, num_stages=3):  # loads are ahead of the sums
        row = tile + tl.arange(0, R)
        in_tile = (row < count)[:, None] & wide
        offset = row.to(tl.int64)[:, None] * width + column
        value = tl.load(x + offset, mask=in_tile, other=0.0).to(tl.float32) + b
        grad = tl.load(g + offset, mask=in_tile, other=0.0).to(tl.float32)
        cdf, density = _tanh_cdf(value) if TANH else _normal_cdf(value)
        grad = grad * (cdf + value * density)
        tl.store(dx + offset, grad.to(dx.dtype.element_ty), mask=in_tile)
        total += tl.sum(grad, 0)
    tl.store(partial + first * width + column, total, mask=wide)


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
    programs = min(triton.cdiv(count, ROWS), max(1, PROGRAMS // strips))
    partial = torch.empty(programs, width, device=x.device, dtype=torch.float32)
    _backward[(programs, strips)](g, x, bias, dx, partial, count, width, R=ROWS, C=COLUMNS, TANH=tanh, num_warps=4)
    return dx, partial.sum(0)


@_gelu_backward.register_fake
def _(g: Tensor, x: Tensor, bias: Tensor, tanh: bool) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape[-1], dtype=torch.float32)


def _setup_context(ctx, inputs, output) -> None:
    x, bias, ctx.tanh = inputs
    ctx.save_for_backward(x, bias)


def _gradients(ctx, g: Tensor) -> tuple[Tensor, Tensor, None]:
    x, bias = ctx.saved_tensors
    dx, db = _gelu_backward(g, x, bias, ctx.tanh)
    return dx, db.to(bias.dtype), None


_gelu.register_autograd(_gradients, setup_context=_setup_context)


def gelu(x: Tensor, bias: Tensor, tanh: bool = False) -> Tensor:
    """gelu(x + bias): exact like torch's default, up to the last bit of half precision, or with tanh."""
    return _gelu(x, bias, tanh)  # (N, F)
