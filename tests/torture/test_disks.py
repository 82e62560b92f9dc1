"""Disks that become full while a run saves, and folders that cannot hold a run."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from torture.child import Orders
from torture.command import LAST, SAVE_EVERY, Ended, Trial, assert_same, committed, resumed
from torture.mounts import fill, make_read_only, mounted
from torture.report import FULL, counted, limit

pytestmark = pytest.mark.slow

SECONDS = limit(5)  # to be refused in
PAGE = 4096  # bytes, the least that such a disk gives to a file


def test_full_disk_loses_at_most_one_save(unbroken: Trial, tmp_path: Path) -> None:
    rng = random.Random(5)
    checkpoint = unbroken.run / "checkpoints" / f"step-{LAST:08d}"
    most = sum(-(-path.stat().st_size // PAGE) for path in checkpoint.iterdir()) - 1
    with counted("disk full") as row:
        for number in range(row.wanted):
            leaving = most * number // (row.wanted - 1) * PAGE
            save = rng.randint(1, 5)
            trial = Trial(tmp_path / f"{number}")
            with mounted(trial.disk, 4_000_000) as disk, row.trial(f"{leaving} bytes left before save {save}"):
                command = trial.start(Orders(pause_at=save))
                assert command.until_save(save)
                filler = fill(disk, leaving)
                command.resume()
                ended = command.wait()
                at = committed(trial.run)
                filler.unlink()
                assert_full(ended, trial.run)
                assert at == SAVE_EVERY * (save - 1), f"step {at} is the newest whole checkpoint"
                assert not [path for path in trial.run.rglob("*") if ".tmp-" in path.name]
                assert resumed(trial.finish()) == at
                assert_same(trial.run, unbroken.run)
        row.worst = f"with 0 to {most * PAGE:,} bytes left"


def assert_full(ended: Ended, run: Path) -> None:
    """Hold a run that met a full disk to its own exit code and to one message that says enough."""
    assert ended.code == 74, f"exit code {ended.code}:\n{ended.output[-2000:]}"
    assert f"error: {run}: cannot save the checkpoint" in ended.output, ended.output
    assert re.search(r"found: +No space left on device; [\d,]+ bytes free$", ended.output, re.MULTILINE), ended.output
    assert re.search(r"expected: +[\d,]+ bytes free$", ended.output, re.MULTILINE), ended.output
    assert "Traceback" not in ended.output


def unwritable(place: Path, stack: ExitStack) -> Iterator[tuple[str, Path]]:
    """Folders that cannot hold a run, each with what is wrong about it."""

    def disk(name: str, size: int, prepare: Callable[[Path], object] = lambda disk: None) -> Path:
        found = stack.enter_context(mounted(place / name, size))
        prepare(found)
        return found

    yield "read-only disk", disk("fixed", 1_000_000, make_read_only) / "run"
    yield "read-only disk, deeper", place / "fixed" / "some" / "where" / "run"
    held = disk("held", 1_000_000) / "run"
    held.mkdir()
    make_read_only(held.parent)
    yield "folder on a read-only disk", held
    yield "disk too small for the first checkpoint", disk("small", 16 * PAGE) / "run"
    yield "disk too small for all checkpoints", disk("tight", 80 * PAGE) / "run"
    yield "disk that is full", disk("full", 1_000_000, lambda it: fill(it, 0)) / "run"
    (place / "file").write_text("in the way")
    yield "a file where the folder should be", place / "file"
    yield "a file where its parent should be", place / "file" / "run"
    (place / "other").mkdir()
    (place / "other" / "letter.txt").write_text("dear all")
    yield "a folder of something else", place / "other"
    (place / "lost").symlink_to(place / "nowhere")
    yield "a link that leads nowhere", place / "lost"
    yield "a folder of the system's own", Path("/proc/run")
    yield "a folder that cannot be made", Path("/proc/some/where/run")


def test_unusable_folder_is_reported_before_the_first_step(tmp_path: Path) -> None:
    with ExitStack() as stack, counted("refused") as row:
        slowest = 0.0
        for number, (name, run) in enumerate(unwritable(tmp_path, stack)):
            trial = Trial(tmp_path / f"trial-{number}", elsewhere=run)
            # A new Python is what a person waits for; in the small scale two of them are enough.
            ended = trial.fresh() if FULL or number in (0, 4) else trial.start().wait()
            slowest = max(slowest, ended.seconds)
            with row.trial(f"{name}, {run}"):
                assert ended.code in (2, 74), f"exit code {ended.code}:\n{ended.output}"
                assert str(run) in ended.output or str(run.parent) in ended.output, ended.output
                assert ended.output.count("error: ") == 1 and "Traceback" not in ended.output, ended.output
                assert "loss" not in ended.output, "a step was taken"
                assert ended.seconds < SECONDS, f"{ended.seconds:.1f} s"
        row.worst = f"{slowest:.1f} s"
