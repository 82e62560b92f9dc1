"""Power laws with known exponents are fitted, and their intervals have the stated coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest

from heedful.extras.scaling.fits import LEVEL, MIN_RUNS_WITH_FLOOR, Estimate, Run, fit, fit_line, fit_surface, frontier


def along(n: int, exponent: float, scatter: float, seed: int, floor: float = 0.0, span: float = 100.0) -> list[Run]:
    """Runs of growing size on L = floor + 0.6 (1e8 / N)^exponent, but for their scatter."""
    sizes = np.geomspace(1e5, 1e5 * span, n).round()
    noise = np.exp(scatter * np.random.default_rng(seed).standard_normal(n))
    losses = (floor + 0.6 * (1e8 / sizes) ** exponent) * noise
    return [Run(f"run{i}", f"size{i}", int(sizes[i]), 10**7, float(losses[i])) for i in range(n)]


def both(size: float, tokens: float) -> float:
    return 1.3 + 20 / size**0.3 + 100 / tokens**0.35


def grid(scatter: float, seed: int) -> list[Run]:
    chance = np.random.default_rng(seed)
    return [
        Run(f"{n}-{d}", str(n), int(n), int(d), float(both(n, d) * np.exp(scatter * chance.standard_normal())))
        for n in np.geomspace(1e5, 3e6, 4)
        for d in np.geomspace(5e6, 8e7, 4)
    ]


def holds(found: Estimate | None, value: float) -> bool:
    assert found is not None
    return found.low <= value <= found.high


def test_exact_power_law_is_fitted_exactly() -> None:
    line = fit_line("N", along(5, 0.1, 0.0, 0))
    assert line.plain is not None and line.plain.scale is not None
    assert line.plain.exponent.value == pytest.approx(0.1, rel=1e-6)
    assert line.plain.exponent.high - line.plain.exponent.low < 1e-6
    assert line.plain.scale == pytest.approx(1e8 * 0.6 ** (1 / 0.1), rel=1e-4)
    assert not line.has_floor


@pytest.mark.slow
def test_intervals_of_exponents_have_ninety_percent_coverage() -> None:
    seeds = range(400)
    found = [fit_line("N", along(3, 0.1, 0.01, seed), seed, draws=200).plain for seed in seeds]
    share = np.mean([holds(law.exponent, 0.1) for law in found if law])
    assert LEVEL - 0.05 <= share <= LEVEL + 0.05  # three deviations of a share of 400, and the quantiles' own chance


def test_floor_is_fitted_with_its_interval() -> None:
    lines = [fit_line("N", along(7, 0.3, 0.003, seed, floor=1.2, span=200), seed, draws=100) for seed in range(30)]
    laws = [line.above_floor for line in lines if line.above_floor]
    assert all(line.has_floor for line in lines)
    assert sum(holds(law.exponent, 0.3) for law in laws) >= 23
    assert sum(holds(law.floor, 1.2) for law in laws) >= 23
    assert np.median([law.exponent.value for law in laws]) == pytest.approx(0.3, rel=0.03)
    assert np.median([line.plain.exponent.value for line in lines if line.plain]) < 0.25  # a floor flattens the line


def test_missing_floor_is_rarely_significant() -> None:
    lines = [fit_line("N", along(6, 0.1, 0.01, seed), seed, draws=100) for seed in range(30)]
    assert sum(line.has_floor for line in lines) <= 5


@pytest.mark.slow
def test_predictions_of_larger_runs_have_ninety_percent_coverage() -> None:
    inside = []
    for seed in range(15):
        measured = both(1e7, 2e8) * math.exp(0.004 * np.random.default_rng([seed, 1]).standard_normal())
        surface, (said,) = fit_surface(grid(0.004, seed), [(10**7, 2 * 10**8)], seed, draws=100)
        assert surface.missing is None and said is not None
        assert said.value == pytest.approx(both(1e7, 2e8), rel=0.05)
        inside.append(holds(said, measured))
    assert sum(inside) >= 10


def test_surface_of_exact_losses_is_fitted_exactly() -> None:
    surface, (said,) = fit_surface(grid(0.0, 0), [(10**7, 2 * 10**8)], draws=50)
    assert surface.size_exponent is not None and surface.data_exponent is not None and surface.floor is not None
    assert surface.size_exponent.value == pytest.approx(0.3, rel=0.02)
    assert surface.data_exponent.value == pytest.approx(0.35, rel=0.02)
    assert surface.floor.value == pytest.approx(1.3, rel=0.01)
    assert said is not None and said.value == pytest.approx(both(1e7, 2e8), rel=1e-3)


def test_band_contains_the_law_and_is_narrowest_in_the_middle() -> None:
    line = fit_line("N", along(5, 0.1, 0.01, 3))
    assert line.band is not None
    low, middle, high = (np.array(part) for part in (line.band.low, line.band.middle, line.band.high))
    assert (low < middle).all() and (middle < high).all()
    widths = np.log(high / low)
    assert widths[20] < 0.8 * min(widths[0], widths[-1])


def test_same_seed_gives_the_same_intervals() -> None:
    runs = grid(0.01, 0)
    assert fit(runs, [(10**7, 10**9)], seed=5, draws=50) == fit(runs, [(10**7, 10**9)], seed=5, draws=50)
    assert fit(runs, seed=5, draws=50) != fit(runs, seed=6, draws=50)


@pytest.mark.parametrize("count", [3, 7])
def test_scatter_of_runs_is_estimated(count: int) -> None:
    found = [fit_line("N", along(count, 0.1, 0.01, seed), seed, draws=10).plain for seed in range(300 // (count - 2))]
    assert np.mean([law.scatter**2 for law in found if law]) == pytest.approx(0.01**2, rel=0.25)


def test_no_floor_is_below_zero() -> None:
    sizes = np.geomspace(1e5, 1e7, 6)
    bent = [Run(f"run{i}", "", int(n), 10**7, float(3.0 - 0.1 * i**1.5)) for i, n in enumerate(sizes)]  # ever steeper
    line = fit_line("N", bent)
    assert line.above_floor is not None and line.above_floor.floor is not None
    assert line.above_floor.floor.value == 0
    assert not line.has_floor


def test_equal_losses_give_a_flat_line() -> None:
    runs = [Run(f"run{i}", "", 1000 * 2**i, 10**6, 2.0) for i in range(5)]
    line = fit_line("N", runs)
    assert line.plain is not None
    assert line.plain.exponent.value == pytest.approx(0.0, abs=1e-9)
    assert line.plain.scale is None or line.plain.exponent.value > 0
    assert not line.has_floor
    assert line.band is not None and np.isfinite([*line.band.low, *line.band.high]).all()


@pytest.mark.parametrize("count", [0, 1, 2])
def test_too_few_runs_give_a_reason_and_no_line(count: int) -> None:
    laws = fit(along(5, 0.1, 0.01, 0)[:count], [(10**8, 10**8)], draws=20)
    for line in laws.lines:
        assert line.law is None and line.band is None
        assert line.missing is not None and "needs 3" in line.missing
    assert laws.predicted == (None,)
    assert laws.surface.missing is not None


def test_three_runs_have_a_line_but_no_floor() -> None:
    line = fit_line("N", along(MIN_RUNS_WITH_FLOOR - 1, 0.1, 0.01, 0))
    assert line.plain is not None and line.above_floor is None


def test_two_sizes_are_too_few_for_predictions() -> None:
    runs = [run for run in grid(0.01, 0) if run.parameters <= 320_000]
    surface, (said,) = fit_surface(runs, [(10**7, 10**8)])
    assert said is None
    assert surface.missing is not None and "2 sizes" in surface.missing


def test_frontier_has_the_runs_that_beat_all_cheaper_ones() -> None:
    runs = [
        Run("cheap", "a", 10, 10, 3.0),
        Run("worse", "b", 20, 10, 3.1),
        Run("better", "c", 30, 10, 2.5),
        Run("twin", "d", 10, 30, 2.7),
        Run("best", "e", 40, 10, 2.4),
    ]
    assert [run.name for run in frontier(runs)] == ["cheap", "better", "best"]
    assert runs[0].compute == 600


def test_lines_use_the_largest_budget_and_the_largest_size() -> None:
    names = {line.variable: line.runs for line in fit(grid(0.0, 0), draws=20).lines}
    assert len(names["N"]) == len(names["D"]) == 4
    assert {name.split("-")[1] for name in names["N"]} == {str(np.geomspace(5e6, 8e7, 4)[-1])}
    assert {name.split("-")[0] for name in names["D"]} == {str(np.geomspace(1e5, 3e6, 4)[-1])}
