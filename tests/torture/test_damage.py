"""Files that are missing, truncated, extended, swapped or have a flipped bit are always detected."""

from __future__ import annotations

import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from heedful.errors import UserError
from heedful.runs.load import load
from heedful.training.checkpoint.folder import newest
from torture.child import Orders
from torture.command import SAVE_EVERY, Trial, assert_same, resumed
from torture.report import counted

NEWEST = 5 * SAVE_EVERY


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed when it had saved five times."""
    trial = Trial(tmp_path_factory.mktemp("killed"))
    command = trial.start(Orders(reports=True))
    assert command.until_save(6)
    command.send(signal.SIGKILL)
    command.wait()
    shutil.rmtree(trial.run / "model", ignore_errors=True)
    assert newest(trial.run, 1)[0][0].step == NEWEST
    return trial.run


def flip(path: Path, rng: random.Random) -> None:
    """Flip one bit of a file."""
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def cut(path: Path, rng: random.Random) -> None:
    """Keep the beginning of a file."""
    data = path.read_bytes()
    path.write_bytes(data[: rng.randrange(len(data))])


def grow(path: Path, rng: random.Random) -> None:
    """Add bytes to the end of a file."""
    path.write_bytes(path.read_bytes() + rng.randbytes(rng.randint(1, 100)))


def swap(path: Path, _: random.Random) -> None:
    """Put the same file of the checkpoint before in its place."""
    former = path.parents[1] / f"step-{NEWEST - SAVE_EVERY:08d}" / path.name
    shutil.copy(former, path)


def remove(path: Path, _: random.Random) -> None:
    """Delete a file."""
    path.unlink()


HARMS: tuple[Callable[[Path, random.Random], None], ...] = (remove, cut, grow, swap, flip, flip)


@pytest.mark.slow
def test_damaged_checkpoint_is_skipped_and_the_result_is_the_same(
    unbroken: Trial, killed: Path, tmp_path: Path
) -> None:
    rng = random.Random(8)
    names = sorted(path.name for path in (killed / "checkpoints" / f"step-{NEWEST:08d}").iterdir())
    cases = [(name, harm) for harm in HARMS for name in names]
    rng.shuffle(cases)  # so that few of them are not all of one kind
    with counted("damaged file") as row:
        stopped = 0
        while row.open:
            name, harm = cases[row.done % len(cases)]
            every = rng.random() < 0.1  # not only the newest checkpoint but all of them
            trial = Trial(tmp_path / f"{row.done}")
            shutil.copytree(killed, trial.run)
            for folder in sorted((trial.run / "checkpoints").iterdir()):
                if folder.name == f"step-{NEWEST:08d}" or (every and harm is not swap):
                    harm(folder / name, rng)
            whole = newest_whole(trial.run)
            with row.trial(f"{harm.__name__} {name}, {'every checkpoint' if every else 'the newest'}"):
                ended = trial.start().wait()
                if not whole:
                    assert ended.code == 2, f"exit code {ended.code}:\n{ended.output}"
                    assert "no checkpoint in this run is complete" in ended.output
                    stopped += 1
                else:
                    assert ended.code == 0, f"exit code {ended.code}:\n{ended.output}"
                    assert "skipped a damaged checkpoint" in ended.output
                    assert resumed(ended) == NEWEST - SAVE_EVERY
                    assert_same(trial.run, unbroken.run)
                # Of a manifest that is another's, what shows is that the files are not the ones it names.
                named = names if (harm, name) == (swap, "manifest.json") else [name]
                assert any(f"step-{NEWEST:08d}/{name}: " in ended.output for name in named) or (
                    harm is remove and f"missing: {name};" in ended.output
                ), ended.output
            shutil.rmtree(trial.place)
        row.worst = f"{row.done - stopped} resumed from the previous one, {stopped} had none and stopped"


def newest_whole(run: Path) -> bool:
    """Whether a run has any whole checkpoint left."""
    try:
        return bool(newest(run, 1)[0])
    except UserError:
        return False


@pytest.mark.slow
def test_every_flipped_bit_is_detected(unbroken: Trial, tmp_path: Path) -> None:
    rng = random.Random(9)
    run = tmp_path / "run"
    shutil.copytree(unbroken.run, run)
    checkpoint = newest(run, 1)[0][0].path
    paths = sorted([*checkpoint.iterdir(), *(run / "model").iterdir()])
    assert len(paths) == 8
    with counted("flipped bit") as row:
        while row.open:
            path = paths[row.done % len(paths)]
            whole = path.read_bytes()
            flip(path, rng)
            with row.trial(f"{path}: {[at for at, byte in enumerate(path.read_bytes()) if byte != whole[at]]}"):
                if path.parent == checkpoint:
                    found, damaged = newest(run, 1)
                    assert found[0].path != checkpoint
                    assert path.name in damaged[0].reason
                else:
                    with pytest.raises(UserError, match=path.name):
                        load(run)
            path.write_bytes(whole)
        row.worst = f"{len(paths)} files"
