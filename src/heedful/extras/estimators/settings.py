"""What all estimators do with their settings: storing, checking, the random seed, and torch's threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state

DEVICES = ("auto", "cpu", "cuda")


def store_arguments(estimator: BaseEstimator, given: dict[str, Any]) -> None:
    """Store the arguments of an estimator under their own names, as scikit-learn requires."""
    for name in type(estimator)._get_param_names():
        setattr(estimator, name, given[name])


def seed_of(state: int | np.random.RandomState | None) -> int:
    """`random_state` if it is an integer, else a random seed."""
    generator = check_random_state(state)
    return int(state) if isinstance(state, Integral) else int(generator.randint(2**31 - 1))


def require_one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")


def require_positive_integer(name: str, found: object) -> None:
    if not isinstance(found, Integral) or isinstance(found, bool) or int(found) < 1:
        raise ValueError(f"{name} must be a positive integer, got {found!r}")


def require_positive_integers(name: str, found: object) -> None:
    if not isinstance(found, tuple | list | np.ndarray):
        raise ValueError(f"{name} must be a tuple of integers, got {found!r}")
    for one in found:
        require_positive_integer(f"each of {name}", one)


@contextmanager
def isolated(device: torch.device, threads: int) -> Iterator[None]:
    """Limit torch to this many threads, and restore its random state and threads afterwards."""
    before = torch.get_num_threads()
    with torch.random.fork_rng([torch.cuda.current_device()] if device.type == "cuda" else []):
        torch.set_num_threads(max(1, min(before, threads)))
        try:
            yield
        finally:
            torch.set_num_threads(before)
