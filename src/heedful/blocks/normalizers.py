"""How scores become attention weights that sum to one: softmax, sparsemax and 1.5-entmax.

sparsemax(z) = argmin_p ||p - z||^2 (Martins and Astudillo, 2016) and 1.5-entmax (Peters et al., 2019) maximize
p . z + H(p) over the probability simplex, as softmax does, with entropies H that let small weights be exactly zero:

    p_i = max((alpha - 1) z_i - tau, 0)^(1 / (alpha - 1)), with alpha = 2 or 1.5, and tau such that they sum to one.

Each takes scores (..., S) and a mask that broadcasts to them. A masked key has weight zero and passes no gradient; a
query that may attend to no key has weights of zero.

S keys.
"""

import math
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

Normalize = Callable[[Tensor, Tensor | None], Tensor]
OUTSIDE = -4.0  # relative to the largest score, those below -1 (sparsemax) or -2 (1.5-entmax) have weight zero


def softmax(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """exp(z_i) / sum_j exp(z_j) over the keys that the mask allows."""
    if mask is None:
        return scores.softmax(-1)
    return hidden(scores, mask).softmax(-1).masked_fill(~mask, 0.0)


def sparsemax(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """The point of the simplex that is nearest to the scores (Martins and Astudillo, 2016, algorithm 1)."""
    return _sparse(_Sparsemax.apply, scores, mask)


def entmax15(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """1.5-entmax, between softmax and sparsemax (Peters et al., 2019, algorithm 2)."""
    return _sparse(_Entmax15.apply, scores, mask)


NORMALIZERS: dict[str, Normalize] = {"softmax": softmax, "sparsemax": sparsemax, "entmax15": entmax15}


def normalizer(named: Normalize | str) -> Normalize:
    """The function of a name, softmax, sparsemax or entmax15; a function is returned as it is."""
    if not isinstance(named, str):
        return named
    if named not in NORMALIZERS:
        raise ValueError(f"normalize is {named!r}; it may be {', '.join(NORMALIZERS)} or a function (scores, mask)")
    return NORMALIZERS[named]


def attention_weights(scores: Tensor, mask: Tensor | None, normalize: Normalize) -> Tensor:
    """Attention weights by any `normalize(scores, mask)`, which need not handle queries that attend to no key.

    For such queries it gets scores of zero without a mask, and their weights are then set to zero.
    """
    if mask is None or normalize in NORMALIZERS.values():
        return normalize(scores, mask)
    empty = ~mask.any(-1, keepdim=True)
    return normalize(scores.masked_fill(empty, 0.0), mask | empty).masked_fill(~mask, 0.0)


def hidden(scores: Tensor, mask: Tensor) -> Tensor:
    """Scores with -inf for masked keys, and zeros for a query that may attend to no key."""
    return scores.masked_fill(~mask, -math.inf).masked_fill(~mask.any(-1, keepdim=True), 0.0)


def _sparse(apply: Callable[[Tensor], Tensor], scores: Tensor, mask: Tensor | None) -> Tensor:
    z = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if mask is None:
        return apply(_below_zero(z)).to(scores.dtype)
    return apply(_below_zero(hidden(z, mask))).to(scores.dtype).masked_fill(~mask, 0.0)


def _below_zero(z: Tensor) -> Tensor:
    """Scores minus their maximum, which changes no weight; scores far below it, and masked ones, are clamped."""
    return (z - z.detach().amax(-1, keepdim=True)).clamp(min=OUTSIDE)


class _Sparsemax(torch.autograd.Function):
    apply: ClassVar[Callable[..., Tensor]]  # inherited, where it has no type

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        ranked = z.sort(-1, descending=True).values  # (..., S)
        count = torch.arange(1, z.shape[-1] + 1, device=z.device, dtype=z.dtype)
        sums = ranked.cumsum(-1) - 1  # (..., S)
        support = (count * ranked > sums).sum(-1, keepdim=True)  # (..., 1)
        tau = sums.gather(-1, support - 1) / support  # (..., 1)
        p = (z - tau).clamp(min=0)  # (..., S)
        ctx.save_for_backward(p)
        return p

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """J g = s (g - mean of g over the support), s its indicator (section 2.5)."""
        (p,) = ctx.saved_tensors
        inside = p > 0
        grad = grad.masked_fill(~inside, 0.0)
        return (grad - grad.sum(-1, keepdim=True) / inside.sum(-1, keepdim=True)).masked_fill(~inside, 0.0)


class _Entmax15(torch.autograd.Function):
    apply: ClassVar[Callable[..., Tensor]]

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        z = z / 2
        ranked = z.sort(-1, descending=True).values  # (..., S)
        count = torch.arange(1, z.shape[-1] + 1, device=z.device, dtype=z.dtype)
        mean = ranked.cumsum(-1) / count  # (..., S)
        spread = ranked.square().cumsum(-1) - count * mean.square()  # (..., S)
        taus = mean - ((1 - spread) / count).clamp(min=0).sqrt()  # (..., S)
        support = (taus <= ranked).sum(-1, keepdim=True)  # (..., 1)
        p = (z - taus.gather(-1, support - 1)).clamp(min=0).square()  # (..., S)
        ctx.save_for_backward(p)
        return p

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """J g = s (g - (s . g) / sum of s), s = p^(2 - alpha) (proposition 2)."""
        (p,) = ctx.saved_tensors
        inside = p > 0
        s = p.masked_fill(~inside, 1.0).sqrt().masked_fill(~inside, 0.0)  # (..., S)
        grad = grad.masked_fill(~inside, 0.0)
        return s * (grad - (s * grad).sum(-1, keepdim=True) / s.sum(-1, keepdim=True))
