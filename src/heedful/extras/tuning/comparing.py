"""Two recipes trained with the same seeds: the mean difference, its intervals, and a paired t test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtr, stdtrit

LEVEL = 0.95
RESAMPLES = 10_000


@dataclass(frozen=True)
class Comparison:
    """The difference a - b over pairs of runs with one seed: its mean, and 95 % intervals of it."""

    pairs: int
    difference: float
    deviation: float  # standard deviation of the differences
    t: float | None  # None: all differences are equal, or there is only one
    p: float | None  # two-sided, of a paired t test
    interval: tuple[float, float] | None  # by Student's t
    bootstrap: tuple[float, float] | None  # percentiles of the means of resampled pairs

    @property
    def text(self) -> str:
        """The difference in words."""
        runs = f"{self.pairs} seed{'s' * (self.pairs > 1)}"
        if self.interval is None:
            return f"{self.difference:+.4g} with {runs}; an interval needs two or more"
        low, high = self.interval
        p = "all differences are equal" if self.p is None else f"p = {self.p:.2g}, paired t test"
        return f"{self.difference:+.4g} ({LEVEL:.0%} interval {low:+.4g} to {high:+.4g}) with {runs}; {p}"


def compare(a: Sequence[float], b: Sequence[float]) -> Comparison:
    """Compare the values of two recipes, seed by seed."""
    differences = np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64)  # (n,)
    count, mean = len(differences), float(differences.mean())
    if count < 2:
        return Comparison(count, mean, 0.0, None, None, None, None)
    deviation = float(differences.std(ddof=1))
    error = deviation / count**0.5
    half = float(stdtrit(count - 1, (1 + LEVEL) / 2)) * error
    t = mean / error if error > 0 else None
    p = None if t is None else 2 * float(stdtr(count - 1, -abs(t)))
    rows = np.random.default_rng(0).integers(count, size=(RESAMPLES, count))
    low, high = np.quantile(differences[rows].mean(1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2]).tolist()
    return Comparison(count, mean, deviation, t, p, (mean - half, mean + half), (low, high))
