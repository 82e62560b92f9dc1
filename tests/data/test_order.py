"""Random orders as functions of a seed and counters."""

import numpy as np
import pytest

from heedful.data.order import permutation, random_bits


@pytest.mark.parametrize("n", [0, 1, 2, 1000])
def test_permutation_is_a_permutation(n: int) -> None:
    assert sorted(permutation(3, 5, n).tolist()) == list(range(n))


def test_permutation_is_pure_and_differs_by_seed_epoch_and_stream() -> None:
    first = permutation(1, 2, 100)
    np.random.default_rng(0).random(10)  # other generators do not matter
    np.testing.assert_array_equal(first, permutation(1, 2, 100))
    others = [permutation(2, 1, 100), permutation(1, 3, 100), permutation(2, 2, 100), permutation(1, 2, 100, stream=1)]
    assert all((first != other).any() for other in others)


def test_permutation_is_stable_across_versions() -> None:
    # A resumed run reads data in this order, so it must never change.
    assert permutation(0, 0, 10).tolist() == [0, 2, 9, 1, 8, 5, 4, 3, 6, 7]
    assert permutation(7, 3, 10).tolist() == [2, 5, 9, 7, 3, 0, 6, 8, 4, 1]


def test_permutation_is_uniform() -> None:
    places = np.stack([permutation(0, epoch, 8) for epoch in range(4000)])
    counts = np.stack([(places == number).sum(axis=0) for number in range(8)])  # expected 500, deviation 21
    assert counts.min() > 400
    assert counts.max() < 600


def test_streams_do_not_overlap() -> None:
    assert not set(random_bits(0, 0, 0, 10_000).tolist()) & set(random_bits(0, 0, 1, 10_000).tolist())


@pytest.mark.parametrize("seed", [0, 2**63 - 1, 2**64 - 1])
def test_large_seeds(seed: int) -> None:
    assert len(permutation(seed, 2**40, 5)) == 5
