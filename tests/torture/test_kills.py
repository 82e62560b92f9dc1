"""Runs that are killed at any moment, also during a save, and two runs in one folder."""

from __future__ import annotations

import random
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from torture.child import Orders
from torture.command import SAVE_EVERY, TINY, Trial, assert_same, committed, reached, resumed, wait_for_step
from torture.report import Row, counted

rng = random.Random(0)


def killed_again_and_again(
    row: Row, trial: Trial, unbroken: Trial, kill: Callable[[Trial], bool | None], most: int
) -> int:
    """Kill a run one to five times, let it end, compare it with the uninterrupted one, and return the most steps lost.

    `kill` says whether it counts, or None when the run had ended before.
    """
    kills = worst = 0
    for _ in range(rng.randint(1, min(5, row.wanted - row.done))):
        counts = kill(trial)
        if counts is None:
            break
        kills += counts
        worst = max(worst, reached(trial.run) - committed(trial.run))
    with row.trial(str(trial.place), kills):
        assert worst <= most, f"{worst} steps lost"
        at = committed(trial.run)
        assert resumed(trial.finish()) == at
        assert_same(trial.run, unbroken.run)
    return worst


@pytest.mark.slow
def test_run_killed_anywhere_resumes_to_the_same_result(unbroken: Trial, tmp_path: Path) -> None:
    life = Trial(tmp_path / "life").finish().seconds

    def kill(trial: Trial) -> bool | None:
        command = trial.start()
        time.sleep(rng.uniform(0, life))
        command.send(signal.SIGKILL)
        return True if command.wait().code == -signal.SIGKILL else None

    with counted("killed anywhere") as row:
        worst = runs = 0
        while row.open:
            runs += 1
            worst = max(worst, killed_again_and_again(row, Trial(tmp_path / f"{runs}"), unbroken, kill, SAVE_EVERY))
        row.worst = f"{worst} steps lost, with a save every {SAVE_EVERY}"


@pytest.mark.slow
def test_run_killed_at_its_start_resumes_to_the_same_result(unbroken: Trial, tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    command = trial.start()
    command.send(signal.SIGKILL)  # as a rule before it has opened its log; what follows holds at any moment
    command.wait()
    at = committed(trial.run)
    assert resumed(trial.finish()) == at
    assert_same(trial.run, unbroken.run)


def save_seconds(trial: Trial) -> float:
    """How long a save takes that deletes an old checkpoint, seen from outside."""
    command = trial.start(Orders(reports=True))
    assert command.until_save(4)
    began = time.monotonic()
    while (change := command.receive()) is not None and change.name != "save ends":
        pass
    seconds = time.monotonic() - began
    command.wait()
    return seconds


def killed_inside_saves(row: Row, unbroken: Trial, place: Path, most: int) -> None:
    """Kill runs at random moments of their saves, none of which may lose more than a number of steps."""
    length = save_seconds(Trial(place / "timed", unbroken.words))
    hit: set[tuple[str, int]] = set()

    def kill(trial: Trial) -> bool | None:
        command = trial.start(Orders(reports=True))
        if not command.until_save(rng.randint(1, 3)):
            command.wait()
            return None
        until = time.monotonic() + rng.uniform(0, length)
        while time.monotonic() < until:
            pass
        command.send(signal.SIGKILL)
        reported = [change.name for change in command.wait().reported]
        begun = len(reported) - 1 - reported[::-1].index("save begins")
        hit.add((reported[-1], len(reported) - begun))
        return "save ends" not in reported[begun:]

    worst = runs = 0
    while row.open:
        runs += 1
        trial = Trial(place / f"{runs}", unbroken.words)
        worst = max(worst, killed_again_and_again(row, trial, unbroken, kill, most))
    row.worst = f"{worst} steps lost, with a save every {SAVE_EVERY}; {len(hit)} different points hit"


@pytest.mark.slow
def test_run_killed_during_a_save_resumes_to_the_same_result(unbroken: Trial, tmp_path: Path) -> None:
    with counted("killed in a save") as row:
        killed_inside_saves(row, unbroken, tmp_path, SAVE_EVERY)


@pytest.mark.slow
def test_run_killed_during_a_background_save_resumes_to_the_same_result(tmp_path: Path) -> None:
    behind = Trial(tmp_path / "unbroken", (*TINY, "train.save_behind=true"))
    behind.finish()
    with counted("killed, saving in background") as row:
        killed_inside_saves(row, behind, tmp_path, 2 * SAVE_EVERY)


@pytest.mark.slow
def test_second_run_is_an_error_and_the_lock_of_a_killed_run_is_not(unbroken: Trial, tmp_path: Path) -> None:
    with counted("two at once") as row:
        slowest = 0.0
        while row.open:
            trial = Trial(tmp_path / f"{row.done}")
            first = trial.start()
            assert wait_for_step(trial, first)
            first.send(signal.SIGSTOP)  # so that it is still there however slow the second one is
            second = trial.start().wait()
            first.send(signal.SIGKILL)
            killed = first.wait()
            slowest = max(slowest, second.seconds)
            with row.trial(str(trial.place)):
                assert killed.code == -signal.SIGKILL
                assert second.code == 2
                assert f"process {first.pid} on {socket.gethostname()}" in second.output
                assert str(trial.run) in second.output
                trial.finish()
                assert_same(trial.run, unbroken.run)
        row.worst = f"refused after {slowest:.1f} s"
