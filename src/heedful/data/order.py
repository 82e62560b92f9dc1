"""The order of samples: random permutations as pure functions of a seed and counters, with no state to save."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


def random_bits(seed: int, counter: int, stream: int, count: int) -> NDArray[np.uint64]:
    """Random 64-bit integers for a seed, a counter such as the epoch, and a stream per purpose."""
    # Raw Philox output is fixed by its definition, while numpy may change its shuffle.
    key = np.array([seed, counter], dtype=np.uint64)
    return np.random.Philox(key=key, counter=np.array([0, 0, 0, stream], dtype=np.uint64)).random_raw(count)


def permutation(seed: int, epoch: int, n: int, stream: int = 0) -> NDArray[np.int64]:
    """The integers 0..n-1 in the random order of one epoch."""
    return np.argsort(random_bits(seed, epoch, stream, n), kind="stable")


def random_bits_at(seed: int, counter: int, stream: int, indices: NDArray[np.int64]) -> NDArray[np.uint64]:
    """A random 64-bit integer for each index, independent of the others: SplitMix64 (Steele et al., 2014) of a key."""
    mixed = (indices.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + _key(seed, counter, stream)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


@lru_cache(maxsize=256)
def _key(seed: int, counter: int, stream: int) -> np.uint64:
    """One random number, which takes longer to make than the indices of a few images."""
    return random_bits(seed, counter, stream, 1)[0]


def balanced_order(seed: int, epoch: int, labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """As many images of each class, and as many as there are examples in all; in random order.

    A class is shuffled and repeated until there are enough. An example in its t-th repetition has N * t added to its
    number, so that an image is augmented in another way.
    """
    classes, total = np.unique(labels), len(labels)
    chosen = []
    for number, label in enumerate(classes):
        members = np.flatnonzero(labels == label)
        wanted = (number + 1) * total // len(classes) - number * total // len(classes)
        shuffled = members[permutation(seed, epoch, len(members), stream=2 + int(label))]
        turns = np.arange(wanted) // len(members)
        chosen.append(shuffled[np.arange(wanted) % len(members)] + total * turns)
    return np.concatenate(chosen)[permutation(seed, epoch, total, stream=1)]
