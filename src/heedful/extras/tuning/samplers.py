"""How the points of a study are chosen: all of a grid, at random, or by Optuna, which learns from the results."""

from __future__ import annotations

import importlib.util
import math
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from heedful.errors import UserError
from heedful.extras.tuning.space import Choice, Point, Range, Space, Value

if TYPE_CHECKING:
    from optuna.trial import Trial

Kind = Literal["grid", "random", "tpe"]
Direction = Literal["maximize", "minimize"]
State = Literal["complete", "pruned", "failed"]
DIGITS = 4  # of a random number
REDUCTION = 3  # a third of the runs goes on from each rung of successive halving


class Sampler(Protocol):
    """Chooses the points of a study, one after the other, and learns their values."""

    def ask(self) -> Point | None:
        """The next point; None: there are no more."""

    def report(self, number: int, step: int, value: float) -> bool:
        """Take a value of an unfinished run, and say whether to end it."""

    def tell(self, number: int, state: State, value: float | None) -> None:
        """Take the value of a point, if it has one."""


class Listed(Sampler):
    """Points that are known from the start: a grid, or random ones."""

    def __init__(self, points: list[Point]) -> None:
        self.points = iter(points)

    def ask(self) -> Point | None:
        return next(self.points, None)

    def report(self, number: int, step: int, value: float) -> bool:
        return False

    def tell(self, number: int, state: State, value: float | None) -> None:
        pass


def random_points(space: Space, trials: int, seed: int) -> list[Point]:
    """Points with independent values: any of a list, uniform over a range or over its logarithm."""
    return [
        {axis.key: _random_value(axis, [seed, trial, place]) for place, axis in enumerate(space.axes)}
        for trial in range(trials)
    ]


def _random_value(axis: Choice | Range, seed: list[int]) -> Value:
    draws = np.random.default_rng(seed)
    if isinstance(axis, Choice):
        return axis.values[int(draws.integers(len(axis.values)))]
    if axis.log:
        value = math.exp(draws.uniform(math.log(axis.low), math.log(axis.high)))
        return round(value) if axis.whole else _rounded(value, axis)
    if axis.whole:
        return int(draws.integers(int(axis.low), int(axis.high) + 1))
    return _rounded(draws.uniform(axis.low, axis.high), axis)


def _rounded(value: float, axis: Range) -> float:
    """A number with few digits, which is still in its range."""
    return min(max(float(f"{value:.{DIGITS}g}"), axis.low), axis.high)


class OptunaSampler(Sampler):
    """Optuna's tree-structured Parzen estimator, with successive halving (ASHA) if runs may be pruned."""

    def __init__(self, space: Space, trials: int, seed: int, direction: Direction, prune: bool) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        halving: Any = optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=REDUCTION)
        self.space, self.left, self.trials = space, trials, list["Trial"]()
        self.study = optuna.create_study(
            direction=direction, sampler=optuna.samplers.TPESampler(seed=seed),
            pruner=halving if prune else optuna.pruners.NopPruner(),
        )  # fmt: skip

    def ask(self) -> Point | None:
        if not self.left:
            return None
        self.left -= 1
        self.trials.append(trial := self.study.ask())
        return {axis.key: suggestion(trial, axis) for axis in self.space.axes}

    def report(self, number: int, step: int, value: float) -> bool:
        self.trials[number].report(value, step)
        return self.trials[number].should_prune()

    def tell(self, number: int, state: State, value: float | None) -> None:
        from optuna.trial import TrialState

        found = {"complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "failed": TrialState.FAIL}[state]
        self.study.tell(self.trials[number], value if state == "complete" else None, found)


def suggestion(trial: Trial, axis: Choice | Range) -> Value:
    """Optuna's suggestion for a setting."""
    if isinstance(axis, Choice):
        found: Value = trial.suggest_categorical(axis.key, axis.values)
        return found
    if axis.whole:
        return trial.suggest_int(axis.key, int(axis.low), int(axis.high), log=axis.log)
    return trial.suggest_float(axis.key, axis.low, axis.high, log=axis.log)


def has_optuna() -> bool:
    """Whether Optuna is installed."""
    return importlib.util.find_spec("optuna") is not None


def sampler_for(
    kind: Kind, space: Space, trials: int | None, seed: int, direction: Direction, prune: bool
) -> tuple[Sampler, int]:
    """A sampler, and the number of its points."""
    if prune and kind != "tpe":
        raise UserError("only Optuna prunes runs", where="--prune", found=f"the sampler {kind}", todo="--sampler tpe")
    if kind == "grid":
        if not space.finite:
            some = next(axis.text for axis in space.axes if isinstance(axis, Range))
            raise UserError(
                "a range has no grid", where="--sampler", found=some, expected="lists, as in key=a,b,c",
                todo="--sampler random --trials 20",
            )  # fmt: skip
        points = space.grid()
        return Listed(points), len(points)
    if trials is None:
        raise UserError("the number of points is needed", where="--trials", todo="--trials 20")
    if kind == "random":
        return Listed(random_points(space, trials, seed)), trials
    if not has_optuna():
        raise UserError(
            "Optuna is not installed", where="--sampler", found=kind, expected="the package optuna",
            todo="pip install 'heedful[tune]'\nor without it: --sampler random",
        )  # fmt: skip
    return OptunaSampler(space, trials, seed, direction, prune), trials
