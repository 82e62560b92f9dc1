"""Worker processes that prepare batches do not change the result: killed, frozen, or orphaned."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import time
from pathlib import Path

import pytest

from torture.child import Orders
from torture.command import TINY, Command, Trial, assert_same, committed, reached, resumed, wait_for_step
from torture.diary import learned
from torture.report import FULL, counted, limit
from torture.team import diaries

pytestmark = pytest.mark.slow

BATCHES = 96
rng = random.Random(8)
FAR = f"train.budget.steps={BATCHES}"  # far enough for a worker's last batches not to be the run's


def workers_of(command: Command) -> list[int]:
    """The processes that a command has started."""
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdecimal() and (folder / "stat").read_text().rpartition(")")[2].split()[1] == str(
                command.pid
            ):
                found.append(int(folder.name))
    return sorted(found)


def lives(pid: int) -> bool:
    """Whether a process is there; one that has ended may wait for its parent to take note."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def gone(pids: list[int], seconds: float) -> float:
    """How long it takes until processes are gone, which it may not for longer."""
    began = time.monotonic()
    while left := [pid for pid in pids if lives(pid)]:
        assert time.monotonic() < began + seconds, f"{left} are there after {seconds} s"
        time.sleep(0.005)
    return time.monotonic() - began


# ------------------------------------------------------------------ the same samples
def words(workers: int, accumulate: int, batching: str) -> tuple[str, ...]:
    """A run of more than one epoch of small batches."""
    steps = (f"train.budget.steps={BATCHES // accumulate}", "train.save_every=3", "train.evaluate_every=32")
    kind = (f"train.workers={workers}", f"train.accumulate={accumulate}", f"train.batching={batching}")
    return (*TINY, *steps, *kind, "train.batch_tokens=128", "data.train=100")


def diaried(trial: Trial) -> Orders:
    """Orders to write a diary."""
    return Orders(diary=str(trial.place / f"diary-{trial.commands + 1}"))


def in_one_epoch(trial: Trial, accumulate: int) -> int:
    """Kill a run five times in its first epoch; the number of kills."""
    for kill in range(1, 6):
        command = trial.start(diaried(trial))
        assert wait_for_step(trial, command, kill * 9 // accumulate)
        time.sleep(rng.uniform(0, 0.01))
        command.send(signal.SIGKILL)
        assert command.wait().code == -signal.SIGKILL
    samples = [sample for step in learned(diaries(trial)).values() for sample in step]
    assert len(samples) == len(set(samples)), "the last kill came in another epoch"
    return 5


def test_five_kills_in_an_epoch_do_not_change_the_result(tmp_path: Path) -> None:
    kinds = list(itertools.product((1, 3), ("padded", "packed"), (0, 1, 2)))
    with counted("killed with workers") as row:
        wholes: dict[tuple[int, str], Trial] = {}
        for accumulate, batching, workers in kinds if FULL else [kinds[4], kinds[8]]:
            if (accumulate, batching) not in wholes:
                whole = Trial(tmp_path / f"{batching}-{accumulate}", words(0, accumulate, batching))
                whole.finish(diaried(whole))
                wholes[accumulate, batching] = whole
            whole = wholes[accumulate, batching]
            trial = Trial(tmp_path / f"{batching}-{accumulate}-{workers}", words(workers, accumulate, batching))
            with row.trial(f"{workers} workers, accumulate {accumulate}, {batching}", in_one_epoch(trial, accumulate)):
                trial.finish(diaried(trial))
                samples = learned(diaries(trial))
                assert samples == learned(diaries(whole))
                order = [sample for step in samples.values() for sample in step]
                assert list(samples) == list(range(1, BATCHES // accumulate + 1))
                assert len(set(order)) == len(set(order[: len(set(order))])) < len(order)  # every pair once an epoch
                assert_same(trial.run, whole.run)
        row.worst = "no sample twice, none left out"


# ------------------------------------------------------------------ one of them is gone
@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    """A longer uninterrupted run without workers."""
    trial = Trial(tmp_path_factory.mktemp("far"), (*TINY, FAR))
    trial.finish()
    return trial


def with_workers(place: Path) -> Trial:
    return Trial(place, (*TINY, FAR, "train.workers=2"))


def test_killed_worker_ends_the_run_within_two_seconds(far: Trial, tmp_path: Path) -> None:
    with counted("worker killed") as row:
        slowest, tries = 0.0, 0
        while row.open:
            tries += 1
            trial = with_workers(tmp_path / f"{tries}")
            command = trial.start()
            assert wait_for_step(trial, command, rng.randint(1, BATCHES // 2))
            pool = workers_of(command)
            victim = row.done % 2
            os.kill(pool[victim], signal.SIGKILL)
            sent = time.monotonic()
            found = command.wait()
            took = time.monotonic() - sent
            if found.code == 0:
                continue  # too late: no batch was wanted any more
            slowest = max(slowest, took)
            with row.trial(str(trial.place)):
                assert len(pool) == 2
                assert_missed(found.code, found.output, f"worker {victim + 1} of 2 was killed by SIGKILL")
                assert took < limit(2), f"{took:.2f} s"
                gone(pool, limit(0.5))
                assert_resumes(trial, far)
        row.worst = f"exited after {slowest:.2f} s"


def assert_missed(code: int, output: str, how: str) -> None:
    """Hold a run to its one message about a worker."""
    assert code == 75, f"exit code {code}:\n{output[-2000:]}"
    assert output.count("error: ") == 1 and "Traceback" not in output, output
    assert "error: train.workers: a process that prepares batches has died" in output
    assert how in output, output[-600:]


def assert_resumes(trial: Trial, whole: Trial) -> None:
    """Run the same command again, and compare its run with the uninterrupted one."""
    at = committed(trial.run)
    assert resumed(trial.finish()) == at
    assert_same(trial.run, whole.run)


@pytest.mark.skipif(not FULL, reason="takes the 45 seconds of patience; tests/data/test_workers.py has less of it")
def test_frozen_worker_ends_the_run_within_a_minute(far: Trial, tmp_path: Path) -> None:
    with counted("worker frozen") as row:
        frozen = []
        for number in range(row.wanted):
            trial = with_workers(tmp_path / f"{number}")
            command = trial.start()
            assert wait_for_step(trial, command, 3 + number)
            pool = workers_of(command)
            os.kill(pool[number % 2], signal.SIGSTOP)
            frozen.append((trial, command, pool, number % 2 + 1, time.monotonic()))
        found = [(command.wait(), time.monotonic() - stopped_at) for _, command, _, _, stopped_at in frozen]
        for (trial, _, pool, worker, _), (ended, took) in zip(frozen, found, strict=True):
            with row.trial(str(trial.place)):
                assert took < 60, f"{took:.0f} s"
                assert_missed(ended.code, ended.output, f"worker {worker} of 2 has sent nothing for 45 s")
                gone(pool, limit(0.5))
                assert_resumes(trial, far)
        row.worst = f"exited after {max(took for _, took in found):.0f} s"


def test_workers_end_with_a_killed_trainer_and_release_its_lock(far: Trial, tmp_path: Path) -> None:
    with counted("workers orphaned") as row:
        slowest = 0.0
        while row.open:
            trial = with_workers(tmp_path / f"{row.done}")
            command = trial.start()
            assert wait_for_step(trial, command, rng.randint(1, BATCHES // 2))
            pool, held = workers_of(command), row.done % 2 == 1
            for worker in pool if held else ():
                os.kill(worker, signal.SIGSTOP)  # so that they are still there when the run resumes
            command.send(signal.SIGKILL)
            assert command.wait().code == -signal.SIGKILL
            at = committed(trial.run)
            again = trial.start()  # at once
            with row.trial(str(trial.place)):
                assert len(pool) == 2
                if not held:
                    slowest = max(slowest, gone(pool, 2))
                found = again.wait()
                assert found.code == 0, f"exit code {found.code}:\n{found.output[-2000:]}"
                assert resumed(found) == at
                assert reached(trial.run) == BATCHES
                assert_same(trial.run, far.run)
                for worker in pool if held else ():
                    os.kill(worker, signal.SIGCONT)
                slowest = max(slowest, gone(pool, 2))
            for worker in filter(lives, pool):
                os.kill(worker, signal.SIGKILL)
        row.worst = f"exited after {slowest:.2f} s"
