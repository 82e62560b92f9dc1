"""Which sample comes when: pure functions of a seed and counters, with no state to save."""

import numpy as np
from numpy.typing import NDArray


def draws(seed: int, counter: int, stream: int, count: int) -> NDArray[np.uint64]:
    """Random 64-bit numbers that belong to a seed, a counter such as the epoch, and a stream for each purpose."""
    # Raw Philox output is fixed by its definition, while numpy may change what its own shuffle gives.
    key = np.array([seed, counter], dtype=np.uint64)
    return np.random.Philox(key=key, counter=np.array([0, 0, 0, stream], dtype=np.uint64)).random_raw(count)


def permutation(seed: int, epoch: int, n: int, stream: int = 0) -> NDArray[np.int64]:
    """The numbers 0..n-1 in the random order of one epoch."""
    return np.argsort(draws(seed, epoch, stream, n), kind="stable")
