"""Samplers: a grid, random points, and Optuna's own suggestions for the same seed."""

from __future__ import annotations

import math

import pytest

from heedful.errors import UserError
from heedful.extras.tuning import samplers
from heedful.extras.tuning.samplers import OptunaSampler, random_points, sampler_for
from heedful.extras.tuning.space import Choice, Point, Range, read_space

WORDS = ("model.layers=1..8", "train.optimizer.lr=1e-5..1e-2", "model.norm=pre,post", "x=0.1..0.4")
SPACE = read_space(["numbers", *WORDS])


def value_of(point: Point) -> float:
    """A function with one best point."""
    layers, lr = float(point["model.layers"]), float(point["train.optimizer.lr"])
    return -((layers - 5) ** 2) - (math.log10(lr) + 3) ** 2 - (point["model.norm"] == "post") - float(point["x"])


def test_grid_has_all_points_in_order() -> None:
    sampler, count = sampler_for("grid", read_space(["numbers", "a=1,2", "b=x,y"]), None, 0, "maximize", False)
    found = [sampler.ask() for _ in range(5)]
    assert count == 4 and found[-1] is None
    assert found[:2] == [{"a": "1", "b": "x"}, {"a": "1", "b": "y"}]


def test_random_points_fill_their_ranges_and_more_of_them_begin_with_the_same() -> None:
    points = random_points(SPACE, 400, seed=1)
    assert points[:50] == random_points(SPACE, 50, seed=1) and points[:3] != random_points(SPACE, 3, seed=2)
    assert {point["model.layers"] for point in points} == set(range(1, 9))
    assert {point["model.norm"] for point in points} == {"pre", "post"}
    rates = [float(point["train.optimizer.lr"]) for point in points]
    assert min(rates) >= 1e-5 and max(rates) <= 1e-2
    assert 120 < sum(rate < 1e-4 for rate in rates) < 146 + 40  # a third of them in each decade
    assert all(0.1 <= float(point["x"]) <= 0.4 for point in points)


@pytest.mark.parametrize("prune", [False, True])
def test_optuna_suggests_what_it_does_alone(prune: bool) -> None:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler, ours = OptunaSampler(SPACE, 30, seed=3, direction="maximize", prune=prune), list[Point]()
    while (point := sampler.ask()) is not None:
        number, state = len(ours), "complete"
        ours.append(point)
        for step in range(1, 10):
            if sampler.report(number, step, value_of(point) * (10 - step)):
                state = "pruned"
                break
        sampler.tell(number, "pruned" if state == "pruned" else "complete", value_of(point))

    def objective(trial: optuna.Trial) -> float:
        point: Point = {}
        for axis in SPACE.axes:
            if isinstance(axis, Choice):
                point[axis.key] = trial.suggest_categorical(axis.key, axis.values)
            elif axis.key == "model.layers":
                point[axis.key] = trial.suggest_int(axis.key, 1, 8)
            elif axis.key == "x":
                point[axis.key] = trial.suggest_float(axis.key, 0.1, 0.4)
            else:
                point[axis.key] = trial.suggest_float(axis.key, 1e-5, 1e-2, log=True)
        for step in range(1, 10):
            trial.report(value_of(point) * (10 - step), step)
            if trial.should_prune():
                raise optuna.TrialPruned
        return value_of(point)

    pruner: optuna.pruners.BasePruner = optuna.pruners.NopPruner()
    if prune:
        pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=3), pruner=pruner)
    study.optimize(objective, n_trials=30)
    assert ours == [trial.params for trial in study.trials]
    pruned = [trial.state == optuna.trial.TrialState.PRUNED for trial in study.trials]
    assert any(pruned) == prune
    assert pruned == [trial.state == optuna.trial.TrialState.PRUNED for trial in sampler.study.trials]


def test_a_search_that_learns_comes_nearer_than_random_points() -> None:
    sampler, values = OptunaSampler(SPACE, 60, seed=0, direction="maximize", prune=False), []
    while (point := sampler.ask()) is not None:
        values.append(value_of(point))
        sampler.tell(len(values) - 1, "complete", values[-1])
    others = [value_of(point) for point in random_points(SPACE, 60, seed=0)]
    assert sum(values[30:]) / 30 > sum(others[30:]) / 30 + 1


def test_missing_optuna_and_ranges_in_a_grid_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(UserError, match="a range has no grid"):
        sampler_for("grid", SPACE, None, 0, "maximize", False)
    with pytest.raises(UserError, match="only Optuna prunes"):
        sampler_for("random", SPACE, 3, 0, "maximize", True)
    monkeypatch.setattr(samplers, "has_optuna", lambda: False)
    with pytest.raises(UserError, match="Optuna is not installed") as error:
        sampler_for("tpe", SPACE, 3, 0, "maximize", False)
    assert "pip install 'heedful[tune]'" in str(error.value) and "--sampler random" in str(error.value)


def test_ranges_of_whole_numbers_are_whole() -> None:
    axis = SPACE.axes[0]
    assert isinstance(axis, Range) and axis.whole
