"""Regularizers: plain functions of distributions and of weights, each in closed form.

... any shape, N classes, K units of a code.
"""

import math
from collections.abc import Iterable

import torch
from torch import Tensor


def entropy(logits: Tensor) -> Tensor:
    """H(p) = -sum p log p (...) of distributions p = softmax(logits) (..., N).

    Subtracted from a loss it is the confidence penalty (Pereyra et al., 2017).
    """
    logs = logits.log_softmax(-1)  # (..., N)
    return torch.special.entr(logs.exp()).sum(-1)


def kl_divergence(logits: Tensor, targets: Tensor) -> Tensor:
    """KL(p || q) = sum p log(p / q) (...), with p = softmax(targets) and q = softmax(logits), both (..., N)."""
    logs, wanted = logits.log_softmax(-1), targets.log_softmax(-1)  # (..., N)
    return torch.where(wanted > -torch.inf, wanted.exp() * (wanted - logs), 0.0).sum(-1)


def normal_kl(mean: Tensor, log_variance: Tensor) -> Tensor:
    """KL(N(mean, variance) || N(0, 1)) of each unit (..., K): (mean^2 + variance - 1 - log variance) / 2."""
    return 0.5 * (mean.square() + torch.expm1(log_variance) - log_variance)


def normal_log_density(x: Tensor, mean: Tensor, log_variance: Tensor) -> Tensor:
    """log N(x; mean, variance) (...), summed over the units (..., K)."""
    each = math.log(2 * math.pi) + log_variance + (x - mean).square() * (-log_variance).exp()
    return -0.5 * each.sum(-1)


def l1(weights: Iterable[Tensor]) -> Tensor:
    """sum |w|: many weights become zero."""
    return torch.stack([weight.abs().sum() for weight in weights]).sum()


def l2(weights: Iterable[Tensor]) -> Tensor:
    """sum w^2 / 2, whose gradient is w: weight decay as a part of the loss."""
    return torch.stack([weight.square().sum() for weight in weights]).sum() / 2
