"""Functions with deliberately wrong gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor


class ScaledGradient(torch.autograd.Function):
    """The identity, whose gradient is multiplied by each of the given factors in turn."""

    apply: ClassVar[Callable[..., Tensor]]

    @staticmethod
    def forward(ctx: Any, x: Tensor, *factors: float) -> Tensor:
        ctx.factors = factors
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        for factor in ctx.factors:
            grad = grad * factor
        return grad, *(None for _ in ctx.factors)


def overflowing_gradient(x: Tensor) -> Tensor:
    """The identity with a gradient that overflows to inf."""
    return ScaledGradient.apply(x, 1e38, 1e38)
