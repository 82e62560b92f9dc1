"""Noise from counters: what a sample gets depends on a seed, the epoch and its own number, not on its batch.

B batch, N numbers of a sample.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

GOLDEN = -0x61C8864680B583EB  # 2^64 over the golden ratio, as a number with a sign


def gaussian(seed: int, epoch: Tensor, indices: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Values from N(0, 1) for each sample: a hash of their indices, made normal by Box and Muller (1958)."""
    size = math.prod(shape)
    key = mixed(mixed(epoch.new_full((), seed % 2**63)) + epoch)  # ()
    places = indices[:, None] * size + torch.arange(size, device=indices.device)  # (B, N)
    bits = mixed(places + key)  # (B, N)
    radius = (_right(bits, 40) + 1).float().mul_(2.0**-24).log_().mul_(-2.0).sqrt_()  # (B, N)
    angle = (_right(bits, 16) & 0xFFFFFF).float().mul_(2 * math.pi * 2.0**-24)  # (B, N)
    return radius.mul_(angle.cos_()).view(-1, *shape)


def mixed(x: Tensor) -> Tensor:
    """A hash of 64 independent bits for each: SplitMix64 (Steele et al., 2014)."""
    x = (x + 1) * GOLDEN
    x = (x ^ _right(x, 30)) * -0x40A7B892E31B1A47
    x = (x ^ _right(x, 27)) * -0x6B2FB644ECCEEE15
    return x ^ _right(x, 31)


def _right(x: Tensor, by: int) -> Tensor:
    """The bits of each number moved to the right, zeros coming in on the left."""
    return (x >> by) & ((1 << (64 - by)) - 1)
