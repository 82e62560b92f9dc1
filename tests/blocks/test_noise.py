"""Counter-based noise: the hash against integers, normal numbers, independent streams."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from heedful.blocks.noise import gaussian, splitmix64
from tolerance import near

MASK = 2**64 - 1


def split_mix(x: int) -> int:
    """SplitMix64 (Steele et al., 2014) in Python integers."""
    z = (x + 1) * 0x9E3779B97F4A7C15 & MASK
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


def sample(seed: int = 0, epoch: int = 0, start: int = 0, count: int = 500, size: int = 400) -> np.ndarray:  # type: ignore[type-arg]
    return gaussian(seed, torch.tensor(epoch), torch.arange(start, start + count), (size,)).double().numpy()


@pytest.mark.parametrize("x", [0, 1, 2, 783, 2**31, 2**62 + 12345, -1, -(2**63), 2**63 - 1])
def test_hash_matches_64_bit_integers(x: int) -> None:
    found = int(splitmix64(torch.tensor([x]))) & MASK
    assert found == split_mix(x & MASK)


def test_first_numbers_are_the_published_ones() -> None:
    # SplitMix64 from 0: 0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F
    found = [int(one) & MASK for one in splitmix64(torch.arange(3))]
    assert found == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


@pytest.mark.parametrize(
    ("seed", "epoch", "index", "place"), [(0, 0, 0, 0), (7, 3, 59_999, 783), (2**63 - 1, -1, 5, 2)]
)
def test_gaussian_matches_its_formula(seed: int, epoch: int, index: int, place: int) -> None:
    key = split_mix(split_mix(seed) + epoch & MASK)
    bits = split_mix(index * 784 + place + key & MASK)
    radius = math.sqrt(-2 * math.log(((bits >> 40) + 1) / 2**24))
    angle = 2 * math.pi * ((bits >> 16) & 0xFFFFFF) / 2**24
    found = gaussian(seed, torch.tensor(epoch), torch.tensor([index]), (1, 28, 28))
    assert float(found.view(-1)[place]) == near(radius * math.cos(angle), 32)


def test_gaussian_is_normal() -> None:
    x = sample()
    n = x.size
    assert abs(x.mean()) <= 4 / math.sqrt(n)
    assert abs(x.var() - 1) <= 4 * math.sqrt(2 / n)
    assert abs((x**3).mean()) <= 4 * math.sqrt(15 / n)
    assert abs((x**4).mean() - 3) <= 4 * math.sqrt(96 / n)
    shares = [(np.abs(x) > bound).mean() for bound in (1, 2, 3)]
    assert shares == pytest.approx([0.3173, 0.0455, 0.0027], abs=0.002)
    assert np.isfinite(x).all() and 4 < np.abs(x).max() < 5.8


@pytest.mark.parametrize(
    "other",
    [
        sample(epoch=1),
        sample(seed=1),
        sample(seed=2**40),
        sample(start=500),
        np.roll(sample(), 1, 1),
        np.roll(sample(), 1, 0),
    ],
    ids=["epoch", "seed", "far seed", "images", "neighbour", "image above"],
)
def test_streams_are_independent(other: np.ndarray) -> None:  # type: ignore[type-arg]
    x = sample()
    assert not np.array_equal(x, other)
    limit = 4 / math.sqrt(x.size)
    assert abs((x * other).mean()) <= limit
    assert abs((x**2 * other**2).mean() - 1) <= 3 * limit
    assert abs((x * np.abs(other)).mean()) <= limit


def test_noise_of_an_image_does_not_depend_on_its_batch() -> None:
    def noise_of(indices: list[int]) -> Tensor:
        return gaussian(4, torch.tensor(2), torch.tensor(indices, dtype=torch.long), (3, 2, 2))

    together = noise_of([5, 9, 2])
    assert together.shape == (3, 3, 2, 2)
    assert torch.equal(noise_of([2, 5]), together[[2, 0]])
    assert noise_of([]).shape == (0, 3, 2, 2)
