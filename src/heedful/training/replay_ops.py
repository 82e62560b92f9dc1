"""Operations in smaller pieces, for recordings: pieces write into buffers, and one core is often done with them sooner.

B batch, T queries, S keys, H heads, K width of one head.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

aten = torch.ops.aten
SLOPE = 2 * math.sqrt(2 / math.pi)
CUBE = SLOPE * 0.044715


def forms() -> dict[OpOverload, Callable[..., Any]]:
    """What to do instead of some operations, for one recording."""
    gelu = Gelu()
    return {
        aten.gelu.default: gelu.forward,
        aten.gelu_backward.default: gelu.backward,
        aten._safe_softmax.default: safe_softmax,
        aten._scaled_dot_product_flash_attention_for_cpu.default: attention,
        aten._scaled_dot_product_flash_attention_for_cpu_backward.default: attention_backward,
    }


class Gelu:
    """x sigmoid(1.6 x + 0.07 x^3), which is GELU with its tanh; the sigmoids are kept for the way back."""

    def __init__(self) -> None:
        self.kept: dict[int, Tensor] = {}  # by where x lies, which stays there until its gradient is made

    def forward(self, x: Tensor, *, approximate: str = "none") -> Any:
        if approximate != "tanh":
            return NotImplemented
        gate = (x * x * CUBE + SLOPE).mul(x).sigmoid()
        self.kept[x.data_ptr()] = gate
        return x * gate

    def backward(self, grad: Tensor, x: Tensor, *, approximate: str = "none") -> Any:
        if approximate != "tanh":
            return NotImplemented
        gate = self.kept.pop(x.data_ptr())
        slope = (x * x * (3 * CUBE) + SLOPE).mul(x)
        return (aten.sigmoid_backward(slope, gate) + gate) * grad


def safe_softmax(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Softmax, and zeros where all is minus infinity."""
    nowhere = (x == -math.inf).all(dim, keepdim=True)
    return x.softmax(dim, dtype).masked_fill(nowhere, 0.0)


def attention(
    q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0, is_causal: bool = False, *,
    attn_mask: Tensor | None = None, scale: float | None = None,
) -> Any:  # fmt: skip
    """Attention (B, H, T, K) in two products; where the logarithms were, which only the way back needs, its weights."""
    shift = hidden(q, k) if is_causal else attn_mask
    rows, keys, values = (x.flatten(0, 1) for x in (q, k, v))  # (B * H, T, K)
    size = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    if shift is None:
        scores = rows.bmm(keys.mT) * size
    else:
        shift = shift.expand(*q.shape[:-1], k.shape[2]).flatten(0, 1) if shift.dim() > 2 else shift
        scores = torch.baddbmm(shift, rows, keys.mT, alpha=size)  # (B * H, T, S)
    weights = scores.softmax(-1)
    return weights.bmm(values).view(*q.shape[:-1], -1), weights


def attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, weights: Tensor, dropout: float, is_causal: bool, *,
    attn_mask: Tensor | None = None, scale: float | None = None,
) -> Any:  # fmt: skip
    """The gradients of queries, keys and values."""
    rows, keys, values, above = (x.flatten(0, 1) for x in (q, k, v, grad))  # (B * H, T, K)
    size = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    scores = aten._softmax_backward_data(above.bmm(values.mT), weights, -1, torch.float32)  # (B * H, T, S)
    none = q.new_zeros(())
    for_q = torch.baddbmm(none, scores, keys, beta=0, alpha=size)
    for_k = torch.baddbmm(none, scores.mT, rows, beta=0, alpha=size)
    for_v = weights.mT.bmm(above)
    return for_q.view_as(q), for_k.view_as(k), for_v.view_as(v)


def hidden(q: Tensor, k: Tensor) -> Tensor:
    """What shifts the scores (T, S) of keys that come later."""
    return q.new_full((q.shape[2], k.shape[2]), -math.inf).triu(1)
