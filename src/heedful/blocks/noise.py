"""Counter-based noise: it depends on a seed, the epoch and the sample's index, not on its batch.

B batch, N values of a sample.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

GOLDEN = -0x61C8864680B583EB  # 2^64 over the golden ratio, as a signed integer


def gaussian(seed: int, epoch: Tensor, indices: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Values from N(0, 1) for each sample: a hash of the indices, made normal by the Box-Muller transform (1958)."""
    size = math.prod(shape)
    key = splitmix64(splitmix64(epoch.new_full((), seed % 2**63)) + epoch)  # ()
    counters = indices[:, None] * size + torch.arange(size, device=indices.device)  # (B, N)
    bits = splitmix64(counters + key)  # (B, N)
    radius = (_shift_right(bits, 40) + 1).float().mul_(2.0**-24).log_().mul_(-2.0).sqrt_()  # (B, N)
    angle = (_shift_right(bits, 16) & 0xFFFFFF).float().mul_(2 * math.pi * 2.0**-24)  # (B, N)
    return radius.mul_(angle.cos_()).view(-1, *shape)


def splitmix64(x: Tensor) -> Tensor:
    """A 64-bit hash of each integer: SplitMix64 (Steele et al., 2014)."""
    x = (x + 1) * GOLDEN
    x = (x ^ _shift_right(x, 30)) * -0x40A7B892E31B1A47
    x = (x ^ _shift_right(x, 27)) * -0x6B2FB644ECCEEE15
    return x ^ _shift_right(x, 31)


def _shift_right(x: Tensor, by: int) -> Tensor:
    """Logical shift to the right."""
    return (x >> by) & ((1 << (64 - by)) - 1)
