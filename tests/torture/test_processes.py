"""Runs that resume with another number of processes or with sharded weights, and saves that fail in one process."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from heedful.data.embedded import NumberWords
from heedful.errors import EXIT_MEMORY
from torture.child import Orders
from torture.command import LAST, SAVE_EVERY, TINY, Trial, assert_same, committed, metrics
from torture.diary import learned
from torture.mounts import fill, mounted
from torture.report import FULL, Row, counted
from torture.team import diaries, ended, forked

pytestmark = pytest.mark.slow

# Adam turns the rounding of gradients that should be 0 into whole steps, unless eps is larger than that.
CALM = (*TINY, "model.dropout=0", "train.optimizer.lr=1e-2", "train.optimizer.eps=1e-4")
STOPPED = 143


def stages(trial: Trial, worlds: tuple[int, ...], parallel: tuple[str, ...] = ()) -> None:
    """Resume a run with one number of processes after another, each stopped at its step."""
    words = trial.words
    for number, world in enumerate(worlds, 1):
        last = number == len(worlds)
        trial.words = (*words, *(f"train.parallel={how}" for how in parallel[number - 1 : number]))
        orders = Orders(stop_at=0 if last else LAST * number // len(worlds))
        ended(forked(trial, *[orders] * world), *[0 if last else STOPPED] * world)
    trial.words = words


def losses(run: Path) -> list[float]:
    """The loss of each step."""
    return [line["loss"] for line in metrics(run) if line["kind"] == "step"]


def largest_difference(one: Path, other: Path) -> float:
    """The largest relative difference between the losses of two runs, both of which must be complete."""
    ours, theirs = losses(one), losses(other)
    assert len(ours) == len(theirs) == LAST, f"{len(ours)} and {len(theirs)} steps"
    return max(abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True))


# ------------------------------------------------------------------ another number of processes
def pairs(place: Path, count: int) -> tuple[str, ...]:
    """Settings for a number of training pairs, none of which is too long."""
    place.mkdir()
    source = NumberWords(train=60, valid=6, test=8)
    for split, some in (("train", count), ("valid", 6), ("test", 8)):
        found = [pair for pair in source.pairs(split) if max(map(len, pair)) < 30][:some]  # type: ignore[arg-type]
        lines = [json.dumps({"en": pair.source, "de": pair.target}) + "\n" for pair in found]
        (place / f"{split}.jsonl").write_text("".join(lines))
    files = [f"data.{split}={split}.jsonl" for split in ("train", "valid", "test")]
    return ("data.kind=jsonl", f"data.root={place}", *files)


def test_number_of_processes_does_not_change_the_samples(tmp_path: Path) -> None:
    ways = [(1, 2, 1), (2, 1, 2), (1, 3, 2)]
    kinds = list(itertools.product((13, 97, 101), (1, 2)))
    with counted("other processes") as row:
        worst = 0.0
        for count, accumulate in kinds if FULL else kinds[:1]:
            place = tmp_path / f"{count}-{accumulate}"
            data = pairs(tmp_path / f"data-{count}-{accumulate}", count)
            calm = [word for word in CALM if not word.startswith("data.")]
            words = (*calm, "train.batch_tokens=96", f"train.accumulate={accumulate}", *data)
            alone = Trial(place / "alone", words)
            stages(alone, (1,))
            wanted = learned(diaries(alone))
            for way in ways if FULL else ways[1:]:
                mixed = Trial(place / "-".join(map(str, way)), words)
                with row.trial(f"{mixed.place}"):
                    stages(mixed, way)
                    samples = learned(diaries(mixed))
                    assert samples == wanted
                    assert_once_an_epoch(samples, count)
                    worst = max(worst, largest_difference(mixed.run, alone.run))
                    assert largest_difference(mixed.run, alone.run) <= 1e-5
        row.worst = f"losses differ by {worst:.1e} of their size"


def assert_once_an_epoch(steps: dict[int, list[int]], count: int) -> None:
    """Every pair is used once before any is used again."""
    assert list(steps) == list(range(1, LAST + 1))
    order = [sample for step in steps.values() for sample in step]
    epochs = [order[start : start + count] for start in range(0, len(order), count)]
    assert all(sorted(epoch) == list(range(count)) for epoch in epochs[:-1])
    assert len(set(epochs[-1])) == len(epochs[-1])


def test_weights_are_sharded_and_restored(tmp_path: Path) -> None:
    kinds = [
        ("accumulate=1", "batching=padded"),
        ("accumulate=2", "batching=padded"),
        ("accumulate=3", "batching=packed"),
    ]
    with counted("DDP and FSDP2 in turn") as row:
        worst = 0.0
        for kind in kinds[: row.wanted]:
            words = (*CALM, *(f"train.{setting}" for setting in kind))
            same, mixed = (Trial(tmp_path / f"{name}-{kind[0]}", words) for name in ("same", "mixed"))
            with row.trial(str(kind)):
                stages(same, (2,))
                stages(mixed, (2, 2, 2), ("ddp", "fsdp", "ddp"))
                worst = max(worst, largest_difference(mixed.run, same.run))
                assert largest_difference(mixed.run, same.run) <= 1e-5
        row.worst = f"losses differ by {worst:.1e} of their size"


# ------------------------------------------------------------------ a save that fails in one of them
@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trial]:
    """Uninterrupted runs of two processes."""
    made = {how: sharing(tmp_path_factory.mktemp(how), how) for how in ("ddp", "fsdp")[: 2 if FULL else 1]}
    for trial in made.values():
        stages(trial, (2,))
    return made


def sharing(place: Path, how: str) -> Trial:
    return Trial(place, (*TINY, f"train.parallel={how}"))


def test_save_that_fails_in_one_process_fails_in_all(whole: dict[str, Trial], tmp_path: Path) -> None:
    with counted("rank that cannot save") as row:
        for number in range(row.wanted):
            how, save = list(whole)[number // 2 % len(whole)], 1 + number // 2
            trial = sharing(tmp_path / f"{number}", how)
            (no_room if number % 2 else no_memory)(row, trial, save, whole[how])


def no_memory(row: Row, trial: Trial, save: int, whole: Trial) -> None:
    """A process that does not write has no memory for its part of a save."""
    with row.trial(f"{trial.place}, no memory in save {save}"):
        output = ended(forked(trial, Orders(), Orders(fail_in=save)), EXIT_MEMORY, EXIT_MEMORY)
        assert_one_error(output, "error: train.batch_tokens: rank 1: there is not enough memory")
        assert_resumes(trial, save, whole)


def no_room(row: Row, trial: Trial, save: int, whole: Trial) -> None:
    """The process that writes finds its disk full."""
    with mounted(trial.disk, 4_000_000) as disk, row.trial(f"{trial.place}, no room in save {save}"):
        commands = forked(trial, Orders(pause_at=save), Orders())
        assert commands[0].until_save(save)
        filler = fill(disk, 4096)
        commands[0].resume()
        output = ended(commands, 74, 74)
        filler.unlink()
        assert_one_error(output, f"error: {trial.run}: cannot save the checkpoint")
        assert_resumes(trial, save, whole)


def assert_one_error(output: str, message: str) -> None:
    """Hold all processes together to one message."""
    lines = [line for line in output.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1 and lines[0].startswith(message), output[-3000:]
    assert "Traceback" not in output, output[-3000:]


def assert_resumes(trial: Trial, save: int, whole: Trial) -> None:
    """The save before is the newest, or this one, if it was whole without the other; and the run resumes."""
    assert committed(trial.run) in (SAVE_EVERY * (save - 1), SAVE_EVERY * save)
    stages(trial, (2,))
    assert_same(trial.run, whole.run)
