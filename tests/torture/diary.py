"""A log of a process in a run: its steps, its samples, and how it ends.

Run as a module, this is the command with such a log, for launchers that start their own processes.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import torch

import heedful.runs.train  # noqa: F401  (which also evaluates with weights_of, as it is before any hook)
from heedful.cli.app import main
from heedful.data.pairs.batches import Batch
from heedful.training import loop
from heedful.training.distributed.team import Team
from heedful.training.loop import LocalBatches

PATH = "TORTURE_DIARY"


class Entry(NamedTuple):
    """Something that a process did: it began, took a step, evaluated, saved, learned from samples, or left."""

    what: str
    rank: int
    pid: int
    step: int = 0
    micro: int = 0  # which batch of the step
    part: int = 0  # and which part of it
    samples: tuple[int, ...] = ()
    code: int = 0  # with which it left


class Diary:
    """Hooks in one process, which write to a file that many processes may share."""

    def __init__(self, path: str, stop_at: int = 0, fail_in: int = 0) -> None:
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        self.rank = int(os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or 0)
        self.pid, self.step, self.saves = os.getpid(), 0, 0
        self.stop_at, self.fail_in = stop_at, fail_in
        self.note("begun")

    def note(self, what: str, **more: Any) -> None:
        """Write an entry, whole or not at all."""
        entry = Entry(what, self.rank, self.pid, self.step, **more)
        os.write(self.file, json.dumps(entry).encode() + b"\n")

    def keep(self) -> None:
        """From now on, write down what the loop does."""
        real_step, real_weights, real_due = Team.report_step, loop.gather_weights, loop.Due.__init__
        real_next, real_seed, real_exit = LocalBatches.next, LocalBatches.seed, os._exit
        micro: list[Batch] = []

        def report_step(team: Team, step: int) -> None:
            self.step = step
            self.note("step")
            if step == self.stop_at:
                os.kill(os.getpid(), signal.SIGTERM)
            real_step(team, step)

        def gather_weights(model: torch.nn.Module, team: Team) -> dict[str, torch.Tensor]:
            self.saves += 1
            self.note("save")
            if self.saves == self.fail_in:
                raise MemoryError("no memory for the weights")
            return real_weights(model, team)

        def due(event: loop.Due, step: int, saved: bool) -> None:
            self.note("evaluation")
            real_due(event, step, saved)

        def following(share: LocalBatches) -> list[Batch]:
            micro[:] = real_next(share)
            return list(micro)

        def seed(share: LocalBatches, device: torch.device, step: int, index: int) -> None:
            number, place = share.indices[index]
            samples = tuple(sample for sample in micro[index].indices.tolist() if sample >= 0)
            self.note("samples", micro=number, part=place.part, samples=samples)
            real_seed(share, device, step, index)

        def leave(code: int) -> None:
            if os.getpid() == self.pid:  # and not a worker
                self.note("left", code=code)
            real_exit(code)

        hooks: list[tuple[Any, str, Any]] = [
            (Team, "report_step", report_step), (loop, "gather_weights", gather_weights), (loop.Due, "__init__", due),
            (LocalBatches, "next", following), (LocalBatches, "seed", seed), (os, "_exit", leave),
        ]  # fmt: skip
        for where, name, hook in hooks:
            setattr(where, name, hook)


def entries(path: Path) -> list[Entry]:
    """What a diary holds, up to its last whole line."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [Entry(*json.loads(line)) for line in lines]


def learned(diaries: Sequence[Path]) -> dict[int, list[int]]:
    """The samples of each step in their order, from all processes; what was done again must be the same again."""
    steps: dict[int, list[int]] = {}
    for diary in diaries:
        parts: dict[int, dict[int, dict[int, tuple[int, ...]]]] = {}
        for entry in entries(diary):
            if entry.what == "samples":
                parts.setdefault(entry.step, {}).setdefault(entry.micro, {})[entry.part] = entry.samples
        for step, micro in parts.items():
            samples = [sample for number in sorted(micro) for sample in interleaved(micro[number])]
            cut = min(len(samples), len(steps.get(step, samples)))  # a kill may have cut it short
            assert steps.get(step, samples)[:cut] == samples[:cut], f"step {step} was other samples the first time"
            steps[step] = samples
    return steps


def interleaved(parts: dict[int, tuple[int, ...]]) -> list[int]:
    """A batch from its parts, among which the samples went round."""
    rounds = chain.from_iterable(zip_longest(*(parts[part] for part in sorted(parts))))
    return [sample for sample in rounds if sample is not None]


if __name__ == "__main__":
    diary = Diary(os.environ[PATH])
    diary.keep()
    try:
        main()
    except SystemExit as leaving:
        diary.note("left", code=int(leaving.code or 0))
        raise
