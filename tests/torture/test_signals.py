"""Runs that get a signal: the first saves everything, the second stops at once."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest

from torture.command import LAST, TINY, Command, Trial, assert_same, committed, reached, resumed, wait_for_step
from torture.report import counted, limit

CODES = {signal.SIGTERM: 143, signal.SIGINT: 130}
LONG = (*TINY, "train.accumulate=200", "train.budget.steps=2")  # steps of a second or so


@pytest.mark.slow
def test_stopped_run_saves_its_step_and_resumes_to_the_same_result(unbroken: Trial, tmp_path: Path) -> None:
    rng = random.Random(6)
    with counted("interrupted") as row:
        slowest, tries = 0.0, 0
        while row.open:
            tries += 1
            trial = Trial(tmp_path / f"{tries}")
            number = list(CODES)[row.done % 2]
            command = trial.start()
            if not wait_for_step(trial, command, rng.randint(1, LAST - 4)):
                continue  # too late: it has ended
            time.sleep(rng.uniform(0, 0.02))
            command.send(number)
            sent = time.monotonic()
            ended = command.wait()
            took = time.monotonic() - sent
            if reached(trial.run) == LAST:
                continue  # too late: nothing was left to save
            slowest = max(slowest, took)
            with row.trial(f"{trial.place}, {number.name}"):
                assert ended.code == CODES[number], f"exit code {ended.code}:\n{ended.output[-2000:]}"
                at = reached(trial.run)
                assert committed(trial.run) == at, f"step {at} was taken, step {committed(trial.run)} saved"
                assert f"everything is saved in {trial.run}" in ended.output
                assert resumed(trial.finish()) == at
                assert_same(trial.run, unbroken.run)
        row.worst = f"saved and exited after {slowest:.2f} s"


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    """A run of long steps that was not stopped."""
    trial = Trial(tmp_path_factory.mktemp("long"), LONG)
    trial.finish()
    return trial


def wait_for_text(command: Command, text: str) -> None:
    """Wait until a command has written something."""
    until = time.monotonic() + limit(60)
    while text not in (command.log.read_text() if command.log.exists() else ""):
        assert command.alive() and time.monotonic() < until, f"it never says {text!r}"
        time.sleep(0.001)


@pytest.mark.slow
def test_second_signal_stops_a_run_at_once(long: Trial, tmp_path: Path) -> None:
    rng = random.Random(7)
    with counted("interrupted twice") as row:
        slowest = 0.0
        while row.open:
            trial = Trial(tmp_path / f"{row.done}", LONG)
            command = trial.start()
            wait_for_text(command, " parameters")
            time.sleep(rng.uniform(0.02, 0.1))
            command.send(signal.SIGINT)
            wait_for_text(command, "stopping: the step is finished and saved first")
            command.send(signal.SIGINT)
            sent = time.monotonic()
            ended = command.wait()
            took = time.monotonic() - sent
            slowest = max(slowest, took)
            with row.trial(str(trial.place)):
                assert ended.code == 130, f"exit code {ended.code}:\n{ended.output[-2000:]}"
                assert took < limit(0.5), f"{took:.2f} s"
                assert "stopped at once; the same command starts over" in ended.output
                assert (reached(trial.run), committed(trial.run)) == (0, 0)
                trial.finish()
                assert_same(trial.run, long.run)
        row.worst = f"exited after {slowest:.2f} s"
