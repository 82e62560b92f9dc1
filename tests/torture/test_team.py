"""Distributed runs under torchrun, one process of which is killed, frozen, or stopped."""

from __future__ import annotations

import random
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from torture.child import Orders
from torture.command import LAST, TINY, Trial, assert_same, committed, reached, resumed
from torture.report import FULL, counted, limit
from torture.team import Launch, ended, finish, forked

pytestmark = pytest.mark.slow

PARALLEL = ("ddp", "fsdp")
MOMENTS = ("step", "save", "evaluation")
LONGEST = {"step": 0.005, "save": 0.02, "evaluation": 0.02}  # seconds after the beginning of each at which to kill
rng = random.Random(9)
Unbroken = Callable[[str], Trial]


@pytest.fixture(scope="session")
def unbroken_team(tmp_path_factory: pytest.TempPathFactory) -> Unbroken:
    """Uninterrupted runs of two processes, the reference for all others."""
    made: dict[str, Trial] = {}

    def make(parallel: str) -> Trial:
        if parallel not in made:
            trial = made[parallel] = team_of(tmp_path_factory.mktemp(parallel), parallel)
            if FULL:
                finish(trial)
            else:  # which is faster, and gives the same bits
                ended(forked(trial, Orders(), Orders()), 0, 0)
        return made[parallel]

    return make


def team_of(place: Path, parallel: str) -> Trial:
    return Trial(place, (*TINY, f"train.parallel={parallel}"))


def assert_one_line(output: str, rank: int, how: str, step: int) -> None:
    """Hold a team to its one line about the process that is missing; the others may be one step behind or ahead."""
    lines = [line for line in output.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, f"{len(lines)} lines:\n{output[-3000:]}"
    matched = re.match(rf"error: rank {rank} {how}, at step (\d+); the run has ended on all processes", lines[0])
    assert matched, lines[0]
    assert abs(int(matched[1]) - step) <= 1, f"{lines[0]}, and it was at step {step}"
    assert "Traceback (most recent call last)" not in output.partition("torch/distributed")[0], output[-3000:]


KILLED = r"was killed,? by SIGKILL \(signal 9\)(?: or in a crash)?"


def test_killed_rank_ends_all_and_the_run_resumes_to_the_same_result(unbroken_team: Unbroken, tmp_path: Path) -> None:
    with counted("rank killed") as row:
        hits = {(victim, moment): 0 for moment in MOMENTS for victim in (0, 1)}
        slowest, runs = 0.0, 0
        while row.open and runs < row.wanted:
            parallel = PARALLEL[runs % 2]
            runs += 1
            trial = team_of(tmp_path / f"{runs}", parallel)
            kills = 0
            problems: list[str] = []
            while kills < min(5, row.wanted - row.done):
                victim, moment = min(hits, key=lambda kind: hits[kind])
                launch = Launch(trial)
                if not launch.until(victim, moment, rng.randint(1, 6 if moment == "step" else 1)):
                    break
                time.sleep(rng.uniform(0, LONGEST[moment]))
                launch.send(victim, signal.SIGKILL)
                last = launch.entries(victim, *MOMENTS)[-1]
                try:
                    gone = launch.wait(limit(10))
                    assert gone.code, "torchrun has not noticed"
                    assert_one_line(gone.output, victim, KILLED, last.step)
                    slowest = max(slowest, gone.seconds)
                except AssertionError as error:
                    problems.append(str(error))
                hits[victim, last.what] += 1
                kills += 1
            with row.trial(f"{trial.place}, {parallel}", kills):
                assert problems == []
                at = committed(trial.run)
                assert resumed(finish(trial)) == at
                assert_same(trial.run, unbroken_team(parallel).run)
        summary = ", ".join(f"{hits[0, moment] + hits[1, moment]} in a {moment}" for moment in MOMENTS)
        row.worst = f"all exited after {slowest:.1f} s; {summary}".replace("a evaluation", "an evaluation")


@pytest.mark.skipif(not FULL, reason="takes the 45 seconds of patience")
def test_frozen_rank_ends_all(unbroken_team: Unbroken, tmp_path: Path) -> None:
    with counted("rank frozen") as row:
        frozen = []
        for number in range(row.wanted):
            victim, parallel = number % 2, PARALLEL[number // 2 % 2]
            trial = team_of(tmp_path / f"{number}", parallel)
            launch = Launch(trial)
            assert launch.until(victim, "step", rng.randint(1, LAST // 2))
            launch.send(victim, signal.SIGSTOP)
            frozen.append((trial, parallel, launch, victim, time.monotonic()))
        gone: dict[int, float] = {}
        while len(gone) < len(frozen) and time.monotonic() < frozen[-1][-1] + 90:
            for number, (_, _, launch, _, stopped_at) in enumerate(frozen):
                if number not in gone and not launch.alive() and not launch.left():
                    gone[number] = time.monotonic() - stopped_at
            time.sleep(0.1)
        for number, (trial, parallel, launch, victim, _) in enumerate(frozen):
            with row.trial(f"{trial.place}, {parallel}"):
                output = launch.wait(0).output
                assert gone[number] < 90, f"{gone[number]:.0f} s"
                how = r"is stopped \(SIGSTOP, signal 19\) and has sent no heartbeat for 45 s"
                assert_one_line(output, victim, how, launch.entries(victim, "step")[-1].step)
                at = committed(trial.run)
                assert resumed(finish(trial)) == at
                assert_same(trial.run, unbroken_team(parallel).run)
        row.worst = f"all exited after {max(gone.values()):.0f} s"


def test_all_ranks_of_a_stopped_run_save_the_same_step(unbroken_team: Unbroken, tmp_path: Path) -> None:
    ways: list[Callable[[Launch], None]] = [
        lambda launch: launch.send(1, signal.SIGTERM),
        lambda launch: launch.send_launcher(signal.SIGTERM),
        lambda launch: launch.send_launcher(signal.SIGINT, group=True),
    ]
    with counted("rank interrupted") as row:
        slowest, tries = 0.0, 0
        while row.open:
            tries += 1
            parallel, way = PARALLEL[row.done // 3 % 2], row.done % 3
            trial = team_of(tmp_path / f"{tries}", parallel)
            launch = Launch(trial)
            assert launch.until(0, "step", rng.randint(2, LAST // 2))
            ways[way](launch)
            gone = launch.wait(limit(60))
            if reached(trial.run) == LAST:
                continue  # too late: nothing was left to save
            slowest = max(slowest, gone.seconds)
            with row.trial(f"{trial.place}, {parallel}, way {way}"):
                codes = [launch.entries(rank, "left")[-1].code for rank in (0, 1)]
                assert codes == [130 if way == 2 else 143] * 2, f"exit codes {codes}:\n{gone.output[-3000:]}"
                reported = re.findall(r"exitcode *: (-?\d+)", gone.output)  # none if torchrun itself got the signal
                assert set(reported) <= {"143"}, gone.output[-3000:]
                at = reached(trial.run)
                assert [launch.entries(rank, "step")[-1].step for rank in (0, 1)] == [at, at]
                assert committed(trial.run) == at, f"step {at} was taken, step {committed(trial.run)} saved"
                assert f"everything is saved in {trial.run}" in gone.output
                assert [line for line in gone.output.splitlines() if line.startswith("error: ")] == []
                assert resumed(finish(trial)) == at
                assert_same(trial.run, unbroken_team(parallel).run)
        row.worst = f"saved and exited after {slowest:.1f} s"


@pytest.mark.skipif(not FULL, reason="the small scale has killed ranks already")
def test_torchrun_restarts_a_failed_run(unbroken_team: Unbroken, tmp_path: Path) -> None:
    with counted("rank restarted") as row:
        slowest = 0.0
        for victim, parallel in enumerate(PARALLEL[: row.wanted]):
            trial = team_of(tmp_path / f"{victim}", parallel)
            launch = Launch(trial, "--max-restarts", "2")
            assert launch.until(victim, "step", 7)
            launch.send(victim, signal.SIGKILL)
            with row.trial(f"{trial.place}, {parallel}"):
                gone = launch.wait()
                slowest = max(slowest, gone.seconds)
                assert gone.code == 0, f"exit code {gone.code}:\n{gone.output[-3000:]}"
                assert len(launch.entries(victim, "begun")) == 2
                assert resumed(gone) >= 4
                assert_same(trial.run, unbroken_team(parallel).run)
        row.worst = f"complete {slowest:.0f} s after the kill"


def test_slurm_and_torchrun_give_the_same_ranks(unbroken_team: Unbroken, tmp_path: Path) -> None:
    common = {"SLURM_JOB_ID": str(10_000 + rng.randrange(9_000)), "SLURM_STEP_NUM_TASKS": "2", "SLURM_NODEID": "0",
              "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_STEP_NODELIST": "localhost"}  # fmt: skip
    seats = tuple({**common, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)} for rank in (0, 1))
    with counted("started by SLURM") as row:
        trial = team_of(tmp_path, "ddp")
        with row.trial(str(trial.place)):
            gone = Launch(trial, seats=seats).wait()
            assert gone.code == 0, f"exit code {gone.code}:\n{gone.output[-3000:]}"
            assert "2 processes" in gone.output
            assert_same(trial.run, unbroken_team("ddp").run)
