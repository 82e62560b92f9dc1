"""Paired comparisons against scipy's t test, and the bootstrap interval against its own definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from heedful.extras.tuning.comparing import compare
from tolerance import near


@pytest.mark.parametrize("count", [2, 3, 5, 20])
def test_t_test_and_interval_are_those_of_scipy(count: int) -> None:
    draws = np.random.default_rng(count)
    a, b = draws.normal(90, 1, count), draws.normal(89, 1, count)
    found, right = compare(a.tolist(), b.tolist()), stats.ttest_rel(a, b)
    interval = right.confidence_interval(0.95)
    assert found.interval is not None and found.t is not None and found.p is not None
    for ours, theirs in zip(
        (found.t, found.p, *found.interval), (right.statistic, right.pvalue, interval.low, interval.high), strict=True
    ):
        assert ours == near(float(theirs), slack=1e5, dtype=torch.float64)
    assert found.difference == near(float((a - b).mean()), dtype=torch.float64, of=90.0)


def test_bootstrap_interval_has_the_percentiles_of_resampled_means() -> None:
    draws = np.random.default_rng(0)
    a, b = draws.normal(1, 1, 12), draws.normal(0, 1, 12)
    found = compare(a.tolist(), b.tolist())
    right = stats.bootstrap((a - b,), np.mean, method="percentile", n_resamples=20_000, rng=np.random.default_rng(5))
    width = right.confidence_interval.high - right.confidence_interval.low
    assert found.bootstrap is not None
    assert abs(found.bootstrap[0] - right.confidence_interval.low) < 0.05 * width
    assert abs(found.bootstrap[1] - right.confidence_interval.high) < 0.05 * width


def test_one_seed_and_equal_differences_have_no_p() -> None:
    assert compare([1.0], [0.5]).interval is None and "needs two or more" in compare([1.0], [0.5]).text
    same = compare([2.0, 3.0], [1.0, 2.0])
    assert same.t is None and same.interval == (1.0, 1.0) and "all differences are equal" in same.text
