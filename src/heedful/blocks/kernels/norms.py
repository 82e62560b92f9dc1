"""norm(x + dropout(y)) in a Triton kernel that reads memory once, and its gradient in another.

N rows, D width.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

PROGRAMS = 528  # four per multiprocessor of an H100; each sums the gradients of every 528th tile of rows


@triton.jit
def _uniform(seed, offset):
    """A uniform random number in [0, 1) for each offset: a 32-bit hash, several times cheaper than Philox."""
    x = (offset * -1640531527).to(tl.uint32) ^ seed.to(tl.uint32)
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    x = x ^ (x >> 16)
    return (x >> 8).to(tl.float32) * 5.9604644775390625e-08


@triton.jit
def _forward(x, y, weight, bias, seed, o, s, mean, scale, rows, D, p, eps,
             R: tl.constexpr, C: tl.constexpr, DROP: tl.constexpr):  # fmt: skip
    """R rows: s = x + dropout(y), o = norm(s); stores s, its mean and 1 / std for the backward pass."""
    row, column = tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, C)
    valid = (row < rows)[:, None] & (column < D)
    offset = row[:, None] * D + column
    add = tl.load(y + offset, mask=valid, other=0.0).to(tl.float32)
    if DROP:
        add = tl.where(_uniform(tl.load(seed), offset) >= p, add / (1 - p), 0.0)
    value = tl.load(x + offset, mask=valid, other=0.0).to(tl.float32) + add
    tl.store(s + offset, value.to(s.dtype.element_ty), mask=valid)
    mu = tl.sum(value, 1) / D
    value = tl.where(valid, value - mu[:, None], 0.0)
    rstd = tl.rsqrt(tl.sum(value * value, 1) / D + eps)
    tl.store(mean + row, mu, mask=row < rows)
    tl.store(scale + row, rstd, mask=row < rows)
    w, b = tl.load(weight + column, mask=column < D, other=0.0), tl.load(bias + column, mask=column < D, other=0.0)
    tl.store(o + offset, (value * rstd[:, None] * w + b).to(o.dtype.element_ty), mask=valid)


@triton.jit
def _backward(g, s, weight, seed, mean, scale, dx, dy, partial, rows, D, p,
              R: tl.constexpr, C: tl.constexpr, DROP: tl.constexpr, OTHER: tl.constexpr):  # fmt: skip
    """Gradients with respect to x and y for some rows, and the partial sums of those for weight and bias.

    Without OTHER, y has the gradient of x.
    """
    first, count, column = tl.program_id(0), tl.num_programs(0), tl.arange(0, C)
    w = tl.load(weight + column, mask=column < D, other=0.0).to(tl.float32)
    grad_w, grad_b = tl.zeros([R, C], tl.float32), tl.zeros([R, C], tl.float32)
    for tile in range(first * R, rows, count * R):
        row = tile + tl.arange(0, R)
        valid = (row < rows)[:, None] & (column < D)
        offset = row[:, None] * D + column
        grad = tl.load(g + offset, mask=valid, other=0.0).to(tl.float32)
        value = tl.load(s + offset, mask=valid, other=0.0).to(tl.float32)
        rstd = tl.load(scale + row, mask=row < rows, other=0.0)[:, None]
        mu = tl.load(mean + row, mask=row < rows, other=0.0)[:, None]
        value = tl.where(valid, (value - mu) * rstd, 0.0)
        grad_w += grad * value
        grad_b += grad
        grad = grad * w
        c1, c2 = tl.sum(grad * value, 1) / D, tl.sum(grad, 1) / D
        change = (grad - value * c1[:, None] - c2[:, None]) * rstd
        tl.store(dx + offset, change.to(dx.dtype.element_ty), mask=valid)
        if OTHER:
            if DROP:
                change = tl.where(_uniform(tl.load(seed), offset) >= p, change / (1 - p), 0.0)
            tl.store(dy + offset, change.to(dy.dtype.element_ty), mask=valid)
    tl.store(partial + first * 2 * D + column, tl.sum(grad_w, 0), mask=column < D)
    tl.store(partial + first * 2 * D + D + column, tl.sum(grad_b, 0), mask=column < D)


def _launch_options(width: int, p: float) -> dict[str, int | bool]:
    """Tile sizes (about 2048 values) and warps."""
    wide = triton.next_power_of_2(width)
    return {"R": max(1, 2048 // wide), "C": wide, "DROP": p > 0, "num_warps": 4 if wide <= 2048 else 8}


def _differ(g: Tensor, p: float, like: Tensor) -> bool:
    """Whether x and y have other gradients, because of dropout or of their precision."""
    return p > 0 or g.dtype != like.dtype


@torch.library.custom_op("heedful::add_norm", mutates_args=())
def _add_norm(
    x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, seed: Tensor, p: float, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x, y = x.contiguous(), y.contiguous()
    o, s = torch.empty_like(y), torch.empty_like(y)
    rows = y.numel() // y.shape[-1]
    mean, scale = (torch.empty(rows, device=y.device, dtype=torch.float32) for _ in range(2))
    width = y.shape[-1]
    options = _launch_options(width, p)
    _forward[(triton.cdiv(rows, options["R"]),)](
        x, y, weight, bias, seed, o, s, mean, scale, rows, width, p, eps, **options
    )
    return o, s, mean, scale


@_add_norm.register_fake
def _(
    x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, seed: Tensor, p: float, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows = y.numel() // y.shape[-1]
    o, s = (y.new_empty(y.shape) for _ in range(2))
    mean, scale = (y.new_empty(rows, dtype=torch.float32) for _ in range(2))
    return o, s, mean, scale


@torch.library.custom_op("heedful::add_norm_backward", mutates_args=())
def _add_norm_backward(
    g: Tensor, s: Tensor, weight: Tensor, seed: Tensor, mean: Tensor, scale: Tensor, p: float, like: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    g, width, rows = g.contiguous(), g.shape[-1], mean.numel()
    other = _differ(g, p, like)
    dx, dy = torch.empty_like(g, dtype=like.dtype), torch.empty_like(g) if other else g.new_empty(0)
    options = _launch_options(width, p)
    programs = min(triton.cdiv(rows, options["R"]), PROGRAMS)
    partial = torch.empty(programs, 2 * width, device=g.device, dtype=torch.float32)
    _backward[(programs,)](g, s, weight, seed, mean, scale, dx, dy, partial, rows, width, p, OTHER=other, **options)
    return dx, dy, partial.sum(0)


@_add_norm_backward.register_fake
def _(
    g: Tensor, s: Tensor, weight: Tensor, seed: Tensor, mean: Tensor, scale: Tensor, p: float, like: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    sums = g.new_empty(2 * g.shape[-1], dtype=torch.float32)
    dy = g.new_empty(g.shape if _differ(g, p, like) else 0)
    return g.new_empty(g.shape, dtype=like.dtype), dy, sums


def _setup_context(ctx, inputs, output) -> None:
    x, _, weight, _, seed, ctx.p, _ = inputs
    _, s, mean, scale = output
    ctx.save_for_backward(s, weight, seed, mean, scale, x.new_empty(0))


def _gradients(ctx, g: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    s, weight, seed, mean, scale, like = ctx.saved_tensors
    dx, dy, sums = _add_norm_backward(g, s, weight, seed, mean, scale, ctx.p, like)
    dw, db = sums.to(weight.dtype).chunk(2)
    return dx, dy if _differ(g, ctx.p, like) else dx, dw, db, None, None, None


_add_norm.register_autograd(_gradients, setup_context=_setup_context)


def add_norm(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, p: float, eps: float) -> Tensor:
    """norm(x + dropout(y)) in y's precision; the dropout mask follows from one random seed."""
    seed = (
        torch.randint(2**31 - 1, (1,), device=y.device) if p > 0 else torch.zeros(1, dtype=torch.long, device=y.device)
    )
    o, *_ = _add_norm(x, y, weight, bias, seed, p, eps)
    return o  # (N, D)
