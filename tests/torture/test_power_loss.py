"""The state of a disk after a power loss, rebuilt from the writes of a real run, and what the run recovers."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from heedful.errors import UserError
from heedful.training.checkpoint.folder import RunFolder
from torture.child import CHANGES, Change, Orders
from torture.command import SHORT, Trial, assert_same, committed, resumed
from torture.disk import Disk, Loss
from torture.report import counted

# How likely a name and a write that are not synced are to be on the disk: none, all, one kind only, some of each.
LIKELY = [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (1.0, 0.5), (0.5, 0.5), (0.8, 0.2)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Change]]:
    """An uninterrupted run, with its changes and the written bytes."""
    trial = Trial(tmp_path_factory.mktemp("whole"), SHORT)
    return trial.run, trial.finish(Orders(reports=True, data=True)).reported


def contents(folder: Path) -> dict[str, bytes | None]:
    """All that is below a folder."""
    return {str(path.relative_to(folder)): None if path.is_dir() else path.read_bytes() for path in folder.rglob("*")}


@pytest.mark.slow
def test_every_write_to_disk_is_recorded(whole: tuple[Path, list[Change]], tmp_path: Path) -> None:
    run, reported = whole
    disk = Disk()
    for change in reported:
        disk.do(change)
    disk.after(Loss(1.0, 1.0, random.Random()), tmp_path / "disk")
    assert contents(tmp_path / "disk" / "run") == contents(run)


def losses(reported: list[Change], rng: random.Random, place: Path) -> Iterator[tuple[Path, int]]:
    """Disks after a power loss at each change in turn, and the step that was committed by then, without end."""
    while True:
        disk, done = Disk(), 0
        for change in reported:
            disk.do(change)
            done += 3 * (change.name == "save ends")
            if change.name in CHANGES and rng.random() < 0.5:
                disk.after(Loss(*rng.choice(LIKELY), rng), place)
                yield place, done
                shutil.rmtree(place)


def surviving(run: Path, recipe: str) -> int:
    """The step of the newest checkpoint, whose tensors are read, in a run that is opened as training opens it."""
    with RunFolder.create_or_open(run, recipe) as folder:
        checkpoint = folder.latest()
        if checkpoint is None:
            return 0
        assert checkpoint.load("model") and checkpoint.load("optimizer") and checkpoint.state["step"] == checkpoint.step
        return checkpoint.step


@pytest.mark.slow
def test_no_committed_checkpoint_is_lost_in_a_power_loss(whole: tuple[Path, list[Change]], tmp_path: Path) -> None:
    run, reported = whole
    recipe = (run / "recipe.yaml").read_text()
    states = losses(reported, random.Random(2), tmp_path / "disk")
    worst = 0
    with counted("power loss") as row:
        while row.open:
            disk, done = next(states)
            with row.trial(f"after step {done}: {sorted(contents(disk))}"):
                found = surviving(disk / "run", recipe)
                worst = max(worst, done - found)
                assert found >= done, f"step {done} was committed, and step {found} is left"
        row.worst = f"{worst} committed steps lost"


@pytest.mark.slow
def test_run_resumes_after_a_power_loss(whole: tuple[Path, list[Change]], tmp_path: Path) -> None:
    run, reported = whole
    rng = random.Random(3)
    worst = 0
    with counted("power loss, resumed") as row:
        for disk, done in losses(reported, rng, tmp_path / "built"):
            if rng.random() < 0.9:
                continue
            trial = Trial(tmp_path / f"{row.done}", SHORT)
            trial.place.mkdir()
            shutil.copytree(disk, trial.disk)
            with row.trial(f"after step {done}: {sorted(contents(disk))}"):
                at = resumed(trial.finish())
                worst = max(worst, done - at)
                assert at >= done, f"step {done} was committed, and it resumed at {at}"
                assert committed(trial.run) == 9
                assert_same(trial.run, run)
            if not row.open:
                break
        row.worst = f"{worst} committed steps lost"


@pytest.mark.parametrize(
    "forgotten", ["model.safetensors", "manifest.json", "checkpoints", "tmp"], ids=lambda name: f"sync of {name}"
)
def test_missing_sync_is_detected(whole: tuple[Path, list[Change]], tmp_path: Path, forgotten: str) -> None:
    """The model of a disk is able to fail: without any one kind of sync, a power loss destroys a checkpoint."""
    run, reported = whole
    recipe = (run / "recipe.yaml").read_text()

    def left_out(change: Change) -> bool:
        name = Path(change.path).name
        return change.name == "fsync" and (name == forgotten or (forgotten == "tmp" and name.startswith("step-")))

    states = losses([change for change in reported if not left_out(change)], random.Random(4), tmp_path / "disk")
    for _ in range(300):
        disk, done = next(states)
        try:
            if surviving(disk / "run", recipe) < done:
                return
        except (UserError, AssertionError):
            return
    pytest.fail("no state shows it")
