"""Gradients that are not as they should be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor


class Spoilt(torch.autograd.Function):
    """A number as it is, with gradients times some factors, one after the other."""

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


def too_large(x: Tensor) -> Tensor:
    """A number as it is, with gradients that no float holds."""
    return Spoilt.apply(x, 1e38, 1e38)
