"""A whole run through the real command, which crashes before or after any of its writes."""

from __future__ import annotations

import random
import shutil
import signal
from pathlib import Path

import pytest

from torture.child import CHANGES, Change, Orders
from torture.command import SHORT, Trial, assert_same, committed, resumed
from torture.report import FULL, counted


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Change]]:
    """An uninterrupted run, and its changes and marks in order."""
    trial = Trial(tmp_path_factory.mktemp("whole"), SHORT)
    return trial.run, trial.finish(Orders(reports=True)).reported


def saves_until(reported: list[Change], change: int) -> int:
    """How many saves have ended before a change, counted from one."""
    places = [place for place, found in enumerate(reported) if found.name in CHANGES]
    return sum(found.name == "save ends" for found in reported[: places[change - 1]])


def points(changes: list[Change]) -> list[tuple[int, bool]]:
    """Each change of a run, before and after; in the small scale one of each kind, and some more."""
    every = [(number, after) for number in range(1, len(changes) + 1) for after in (False, True)]
    if FULL:
        return every
    rng = random.Random(1)
    kinds = [[point for point in every if changes[point[0] - 1].name == name] for name in CHANGES]
    return [rng.choice(kind) for kind in kinds] + rng.sample(every, 2)


@pytest.mark.slow
def test_run_that_crashes_at_any_write_resumes_to_the_same_result(
    whole: tuple[Path, list[Change]], tmp_path: Path
) -> None:
    unbroken, reported = whole
    changes = [found for found in reported if found.name in CHANGES]
    assert {found.name for found in reported} == {*CHANGES, "save begins", "save ends"}

    def attempt(change: int, after: bool) -> None:
        trial = Trial(tmp_path / f"{change}-{after}", SHORT)
        died = trial.start(Orders(die_at=change, after=after)).wait()
        assert died.code == -signal.SIGKILL, f"it did not die there:\n{died.output}"
        at = committed(trial.run)
        assert at >= 3 * saves_until(reported, change), f"only step {at} is left"
        assert resumed(trial.finish()) == at
        assert_same(trial.run, unbroken)
        shutil.rmtree(trial.place)

    with counted("crash points") as row:
        for change, after in points(changes):
            with row.trial(f"{'after' if after else 'before'} change {change}, {changes[change - 1]}"):
                attempt(change, after)
        row.worst = f"{len(changes)} changes"
