"""Power laws fitted to the losses of runs, with confidence intervals.

A line is L = (c / x)^a, straight in log-log, or the same above a floor: L = floor + (c / x)^a. The losses of all sizes
and budgets together follow L = E + A / N^a + B / D^b (Hoffmann et al., 2022). Errors are relative ones.

Intervals come from a bootstrap over the runs: each run's residual is resampled many times from a normal
distribution with the standard deviation of all residuals, the law is fitted again, and its change is measured in units
of the new standard deviation. For a straight line this is Student's t, exact for as few as three runs.

R resamples, G points of a grid of exponents, n runs, k terms of a law, m kept terms, p exponents.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, combinations, product
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Variable = Literal["N", "D", "C"]

LEVEL = 0.9  # of all intervals
DRAWS, STRAIGHT = 500, 10  # resamples; ten times as many for a straight line, which is cheap
MIN_RUNS = 3  # of a line
MIN_RUNS_WITH_FLOOR = 4
MIN_SIZES, MIN_RUNS_OF_SURFACE = 3, 6  # different sizes, and budgets, of a law of both; and runs
SIGNIFICANCE = 0.05  # a floor is used if it is significant at this level
ROUNDING = 1e-13  # of the logs of losses, relative to the largest
MIN_EXPONENT, MAX_EXPONENT = 0.02, 3.0  # of a law with a floor
HALVINGS = 7  # of the grid's step around its best exponents
EXACT = 1e-9  # residuals below this count as zero


@dataclass(frozen=True)
class Run:
    """A complete run: its size, its tokens and its loss."""

    name: str
    size: str  # the name of its model
    parameters: int  # N
    tokens: int  # D
    loss: float  # L

    @property
    def compute(self) -> float:
        """C = 6 N D, the floating-point operations of training as estimated by Kaplan et al. (2020)."""
        return 6.0 * self.parameters * self.tokens

    def at(self, variable: Variable) -> float:
        """Its value on an axis."""
        return {"N": float(self.parameters), "D": float(self.tokens), "C": self.compute}[variable]


@dataclass(frozen=True)
class Estimate:
    """A value and its 90 % confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Law:
    """L = floor + (scale / x)^exponent; the scale is None where the loss does not fall."""

    exponent: Estimate
    scale: float | None
    floor: Estimate | None
    scatter: float  # standard deviation of the relative errors of runs


@dataclass(frozen=True)
class Band:
    """The curve of a law and its confidence interval over an axis."""

    x: tuple[float, ...]
    middle: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class Line:
    """The law along one axis; `missing` has the reason if there are too few runs."""

    variable: Variable
    runs: tuple[str, ...]
    missing: str | None = None
    plain: Law | None = None
    above_floor: Law | None = None
    has_floor: bool = False  # which of the two is used
    band: Band | None = None

    @property
    def law(self) -> Law | None:
        """The law that is used."""
        return self.above_floor if self.has_floor else self.plain


@dataclass(frozen=True)
class Surface:
    """L = E + A / N^a + B / D^b over all runs; `missing` has the reason if there are too few runs."""

    missing: str | None = None
    floor: Estimate | None = None
    size_exponent: Estimate | None = None
    data_exponent: Estimate | None = None
    scatter: float = 0.0
    terms: tuple[float, float] = (0.0, 0.0)  # A and B


@dataclass(frozen=True)
class Laws:
    """All laws of a sweep, and their predictions for runs that were not fitted."""

    lines: tuple[Line, ...]
    surface: Surface
    predicted: tuple[Estimate | None, ...]  # the loss of a single run at each point


def fit(runs: Sequence[Run], points: Sequence[tuple[int, int]] = (), seed: int = 0, draws: int = DRAWS) -> Laws:
    """The three lines and the law of both sizes and tokens; `points` are the (N, D) to predict."""
    largest_data = max((run.tokens for run in runs), default=0)
    largest_size = max((run.parameters for run in runs), default=0)
    fitted: dict[Variable, Sequence[Run]] = {
        "N": [run for run in runs if run.tokens == largest_data],
        "D": [run for run in runs if run.parameters == largest_size],
        "C": frontier(runs),
    }
    lines = tuple(fit_line(variable, some, seed, draws) for variable, some in fitted.items())
    surface, predicted = fit_surface(runs, points, seed, draws)
    return Laws(lines, surface, predicted)


def frontier(runs: Sequence[Run]) -> list[Run]:
    """The compute-efficient frontier: runs with a lower loss than all cheaper ones, the cheapest first."""
    best: list[Run] = []
    for run in sorted(runs, key=lambda run: (run.compute, run.loss)):
        if not best or run.loss < best[-1].loss:
            best.append(run)
    return best


# ------------------------------------------------------------------ one axis
def fit_line(variable: Variable, runs: Sequence[Run], seed: int = 0, draws: int = DRAWS) -> Line:
    """The power law along one axis, plain and above a floor, and which of the two the runs support."""
    runs = sorted(runs, key=lambda run: run.at(variable))
    names = tuple(run.name for run in runs)
    if len({run.at(variable) for run in runs}) < MIN_RUNS:
        what = {
            "N": "sizes at the largest budget",
            "D": "budgets of the largest size",
            "C": "runs on the compute-efficient frontier",
        }
        found = f"{len(names)} ({', '.join(names)})" if names else "none"
        return Line(variable, names, f"a line needs {MIN_RUNS} {what[variable]}; there are {found}")
    x, y = np.array([run.at(variable) for run in runs]), np.array([run.loss for run in runs])
    middle = float(np.exp(np.log(x).mean()))
    grid = np.geomspace(x[0], x[-1], 41)
    straight = _Straight(x / middle, y)
    noise = np.random.default_rng([seed, "NDC".index(variable)]).standard_normal((STRAIGHT * draws, len(runs)))
    resamples, noise = straight.fitted(noise), noise[:draws]
    plain, band = straight.law(resamples, middle), straight.band(resamples, grid / middle)
    above: Law | None = None
    has_floor = False
    if len(x) >= MIN_RUNS_WITH_FLOOR:
        curved = _Terms((x / middle,), y)
        above = _above_floor(curved, curved.fitted(noise), middle)
        gained = _gains(straight, curved) > _quantile(_null_gains(straight, noise), 1 - SIGNIFICANCE)
        has_floor = gained and not straight.is_exact
        if has_floor:
            band = curved.band(curved.fitted(noise), grid / middle)
    return Line(variable, names, None, plain, above, has_floor, Band(tuple(grid.tolist()), *band))


class _Straight:
    """log L = log c - a log x by least squares."""

    def __init__(self, x: Numbers, y: Numbers) -> None:
        self.design = np.stack([np.ones_like(x), -np.log(x)], axis=1)  # (n, 2)
        self.inverse = np.linalg.pinv(self.design)  # (2, n)
        self.logs = np.log(y)  # (n,)
        self.terms = self.inverse @ self.logs  # (2,)
        self.fit = self.design @ self.terms  # (n,)
        self.scatter = float(_scatter(self.logs - self.fit, 2))

    @property
    def is_exact(self) -> bool:
        """Whether losses differ from the law by rounding alone, of which no second law can be better."""
        return self.scatter <= ROUNDING * float(np.abs(self.logs).max(initial=1.0))

    def fitted(self, noise: Numbers) -> tuple[Numbers, Numbers]:
        """The law of each resample (R, 2), and its scatter (R,)."""
        logs = self.fit + self.scatter * noise  # (R, n)
        terms = logs @ self.inverse.T  # (R, 2)
        return terms, _scatter(logs - terms @ self.design.T, 2)

    def law(self, resamples: tuple[Numbers, Numbers], middle: float) -> Law:
        terms, scatters = resamples
        exponent = _pivot(self.terms[1], terms[:, 1], self.scatter, scatters)
        return Law(exponent, _scale(float(np.exp(self.terms[0])), exponent.value, middle), None, self.scatter)

    def band(
        self, resamples: tuple[Numbers, Numbers], x: Numbers
    ) -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]:
        terms, scatters = resamples
        design = np.stack([np.ones_like(x), -np.log(x)])  # (2, P)
        return _bands(self.terms @ design, terms @ design, self.scatter, scatters)


class _Terms:
    """L = E + the sum of A x^-a over axes, with no term below zero, by least squares of relative errors."""

    def __init__(self, axes: Sequence[Numbers], y: Numbers) -> None:
        self.axes, self.fitted_parameters = axes, 1 + 2 * len(axes)
        steps = 60 if len(axes) == 1 else 20
        grid = np.geomspace(MIN_EXPONENT, MAX_EXPONENT, steps)  # of exponents
        self.step = math.log(grid[1] / grid[0])
        self.grid = np.array(list(product(grid, repeat=len(axes))))  # (G, p)
        self.coarse = self.design(axes, self.grid)  # (G, n, k)
        exponents, terms = self._least(y[None], y)
        self.exponents, self.terms = exponents[0], terms[0]  # (p,), (k,)
        self.fit = self.at(axes, exponents, terms)[0]  # (n,)
        self.scatter = float(_scatter(np.log(y / self.fit), self.fitted_parameters))

    @staticmethod
    def design(axes: Sequence[Numbers], exponents: Numbers) -> Numbers:
        """The terms of the law with exponents (..., p), for every run: (..., n, k)."""
        powers = [axis ** -exponents[..., index, None] for index, axis in enumerate(axes)]
        return np.stack([np.ones_like(powers[0]), *powers], axis=-1)

    def at(self, axes: Sequence[Numbers], exponents: Numbers, terms: Numbers) -> Numbers:
        """The losses (R, n) that laws of exponents (R, p) and terms (R, k) give."""
        return (self.design(axes, exponents) @ terms[..., None])[..., 0]

    def fitted(self, noise: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """Exponents (R, p), terms (R, k) and scatter (R,) of each resample."""
        losses = self.fit * np.exp(self.scatter * noise)  # (R, n)
        exponents, terms = self._least(losses, self.fit)
        return exponents, terms, _scatter(np.log(losses / self.at(self.axes, exponents, terms)), self.fitted_parameters)

    def _least(self, losses: Numbers, sizes: Numbers) -> tuple[Numbers, Numbers]:
        """The least-squares exponents (R, p) and terms (R, k), for errors in units of `sizes` (n,)."""
        relative = losses / sizes  # (R, n)
        best, terms = _best(self.coarse[None] / sizes[:, None], relative)
        exponents, step = self.grid[best], self.step
        around = np.array(list(product((-1.0, 0.0, 1.0), repeat=len(self.axes))))  # (G, p)
        for _ in range(HALVINGS):
            step /= 2
            near = np.clip(exponents[:, None] * np.exp(step * around), MIN_EXPONENT, MAX_EXPONENT)  # (R, G, p)
            best, terms = _best(self.design(self.axes, near) / sizes[:, None], relative)
            exponents = near[np.arange(len(near)), best]
        return exponents, terms

    def band(
        self, resamples: tuple[Numbers, Numbers, Numbers], x: Numbers
    ) -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]:
        exponents, terms, scatters = resamples
        middle = np.log(self.at((x,), self.exponents[None], self.terms[None]))[0]
        return _bands(middle, np.log(self.at((x,), exponents, terms)), self.scatter, scatters)


def _best(designs: Numbers, ys: Numbers) -> tuple[NDArray[np.int64], Numbers]:
    """For each of ys (R, n) the best index (R,) of designs (R or 1, G, n, k), and its nonnegative terms (R, k)."""
    k, rows = designs.shape[-1], np.arange(len(ys))
    least, best = np.full(len(ys), np.inf), np.zeros(len(ys), dtype=np.int64)
    found = np.zeros((len(ys), k))
    for subset in chain.from_iterable(combinations(range(k), m) for m in range(1, k + 1)):
        q, r = np.linalg.qr(designs[..., list(subset)])  # (R, G, n, m), (R, G, m, m)
        onto = (q.swapaxes(-1, -2) @ ys[:, None, :, None])[..., 0]  # (R, G, m)
        terms = np.linalg.solve(r, onto[..., None])[..., 0]  # (R, G, m)
        residual = (ys**2).sum(1)[:, None] - (onto**2).sum(-1)  # (R, G)
        residual[(terms < 0).any(-1)] = np.inf
        index = residual.argmin(1)  # (R,)
        better = residual[rows, index] < least
        least, best = np.where(better, residual[rows, index], least), np.where(better, index, best)
        whole = np.zeros_like(found)
        whole[:, list(subset)] = terms[rows, index]
        found = np.where(better[:, None], whole, found)
    return best, found


def _above_floor(curved: _Terms, resamples: tuple[Numbers, Numbers, Numbers], middle: float) -> Law:
    exponents, terms, scatters = resamples
    exponent = _clip(_pivot(curved.exponents[0], exponents[:, 0], curved.scatter, scatters), MAX_EXPONENT)
    floor = _clip(_pivot(curved.terms[0], terms[:, 0], curved.scatter, scatters), math.inf)
    return Law(exponent, _scale(float(curved.terms[1]), exponent.value, middle), floor, curved.scatter)


def _gains(straight: _Straight, curved: _Terms) -> float:
    """The ratio of the residual sums of squares without and with a floor."""
    return float(_ratio(straight.logs - straight.fit, straight.logs - np.log(curved.fit)))


def _null_gains(straight: _Straight, noise: Numbers) -> Numbers:
    """The same ratio (R,) under the null hypothesis: runs on a straight line with random residuals."""
    logs = straight.fit + straight.scatter * noise  # (R, n)
    curved = _Terms((np.exp(-straight.design[:, 1]),), np.exp(straight.fit))
    exponents, terms = curved._least(np.exp(logs), np.exp(straight.fit))
    above = np.log(curved.at(curved.axes, exponents, terms))
    return _ratio(logs - straight.fitted(noise)[0] @ straight.design.T, logs - above)


def _ratio(plain: Numbers, above: Numbers) -> Numbers:
    return ((plain**2).sum(-1) + EXACT**2) / ((above**2).sum(-1) + EXACT**2)


# ------------------------------------------------------------------ sizes and budgets together
def fit_surface(
    runs: Sequence[Run], points: Sequence[tuple[int, int]], seed: int = 0, draws: int = DRAWS
) -> tuple[Surface, tuple[Estimate | None, ...]]:
    """The law of sizes and tokens, and the loss of a single run at each point (N, D), with its interval."""
    sizes, budgets = {run.parameters for run in runs}, {run.tokens for run in runs}
    if min(len(sizes), len(budgets)) < MIN_SIZES or len(runs) < MIN_RUNS_OF_SURFACE:
        found = f"{len(runs)} runs of {len(sizes)} sizes and {len(budgets)} budgets"
        needs = f"{MIN_SIZES} sizes, {MIN_SIZES} budgets and {MIN_RUNS_OF_SURFACE} runs"
        return Surface(f"the law of both sizes and tokens needs {needs}; there are {found}"), (None,) * len(points)
    y = np.array([run.loss for run in runs])
    axes = [np.array([run.at(variable) for run in runs]) for variable in ("N", "D")]
    middles = [float(np.exp(np.log(axis).mean())) for axis in axes]
    law = _Terms([axis / middle for axis, middle in zip(axes, middles, strict=True)], y)
    random = np.random.default_rng([seed, 3])
    exponents, terms, scatters = law.fitted(random.standard_normal((draws, len(runs))))

    def estimate(value: float, resampled: Numbers, upper: float) -> Estimate:
        return _clip(_pivot(value, resampled, law.scatter, scatters), upper)

    a, b = (estimate(law.exponents[index], exponents[:, index], MAX_EXPONENT) for index in (0, 1))
    scaled = [float(law.terms[1 + index] * middles[index] ** law.exponents[index]) for index in (0, 1)]
    surface = Surface(
        None, estimate(law.terms[0], terms[:, 0], math.inf), a, b, law.scatter, (scaled[0], scaled[1])
    )  # fmt: skip
    predicted: list[Estimate | None] = []
    for point in points:
        at = [np.array([value / middle]) for value, middle in zip(point, middles, strict=True)]
        middle = float(law.at(at, law.exponents[None], law.terms[None])[0, 0])
        resampled = law.at(at, exponents, terms)[:, 0]  # (R,)
        single = math.log(middle) + law.scatter * random.standard_normal(draws)
        moved = _standard(single - np.log(resampled), scatters)
        low, high = (middle * math.exp(law.scatter * _quantile(moved, share)) for share in _tails())
        predicted.append(Estimate(middle, low, high))
    return surface, tuple(predicted)


# ------------------------------------------------------------------ numbers
def _scatter(residuals: Numbers, fitted_parameters: int) -> Any:
    """The standard deviation of residuals (..., n), by the remaining degrees of freedom."""
    free = max(1, residuals.shape[-1] - fitted_parameters)
    deviation = np.sqrt((residuals**2).sum(-1) / free)
    return np.where(deviation < EXACT, 0.0, deviation)


def _standard(moved: Numbers, scatters: Numbers) -> Numbers:
    """Changes in units of the scatter of each resample."""
    return np.divide(moved, scatters, out=np.zeros_like(moved), where=scatters > 0)


def _pivot(value: float, resampled: Numbers, scatter: float, scatters: Numbers) -> Estimate:
    """The confidence interval of a value, from its standardized changes between resamples (bootstrap-t)."""
    moved = _standard(resampled - value, scatters)
    low, high = (float(value + scatter * _quantile(moved, share)) for share in _tails())
    return Estimate(float(value), low, high)


def _bands(
    middle: Numbers, resampled: Numbers, scatter: float, scatters: Numbers
) -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]:
    """The law, and its interval, at each point of an axis; all given as logarithms, (P,) and (R, P)."""
    found = [_pivot(value, resampled[:, index], scatter, scatters) for index, value in enumerate(middle)]
    middles, lows, highs = zip(*((one.value, one.low, one.high) for one in found), strict=True)
    return tuple(np.exp(middles).tolist()), tuple(np.exp(lows).tolist()), tuple(np.exp(highs).tolist())


def _clip(estimate: Estimate, upper: float) -> Estimate:
    """An interval within the possible values, from 0 to `upper`."""
    return Estimate(estimate.value, max(0.0, estimate.low), min(upper, estimate.high))


def _tails() -> tuple[float, float]:
    return (1 - LEVEL) / 2, (1 + LEVEL) / 2


def _quantile(values: Numbers, share: float) -> float:
    return float(np.quantile(values, share))


def _scale(term: float, exponent: float, middle: float) -> float | None:
    """The c of (c / x)^a, for a term fitted with x in units of `middle`; None if the loss does not fall."""
    if exponent <= 0 or term <= 0:
        return None
    power = math.log10(middle) + math.log10(term) / exponent
    return 10**power if power < 300 else None
