"""Which checkpoint of a run is meant: RUN/checkpoints/step-00000080 is one, and so is best, last or average there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

from heedful.errors import UserError, shown

Use = Literal["best", "last", "average"]
STEP = re.compile(r"step-(\d{8,18})")


def named(step: int) -> str:
    """The folder name of a step's checkpoint."""
    return f"step-{step:08d}"


def at(run: Path, checkpoint: str | int | None) -> Path:
    """The path that stands for a checkpoint of a run, given as best, last, average or a step; without one, the run."""
    if checkpoint is None:
        return run
    if checkpoint in get_args(Use):
        return run / "checkpoints" / str(checkpoint)
    if not re.fullmatch(r"\d{1,18}", str(checkpoint)):
        raise UserError(
            "there is no such checkpoint", where="checkpoint", found=shown(checkpoint),
            expected="best, last, average, or the number of a step",
        )  # fmt: skip
    return run / "checkpoints" / named(int(checkpoint))


def picked(path: Path) -> tuple[Path, str | None]:
    """The run that a path is of, and the checkpoint that it names, if it names one."""
    if path.parent.name == "checkpoints" and (path.name in get_args(Use) or STEP.fullmatch(path.name)):
        return path.parent.parent, path.name
    return path, None


def by_name(runs: Sequence[Path]) -> dict[str, Path]:
    """Runs by the names of their folders, with parent folders where the names alone are not unique.

    A checkpoint goes by the name of its run and its own.
    """
    whole = [run.resolve() if which is None else _with(run.resolve(), which) for run, which in map(picked, runs)]
    for depth in range(1, max(len(path.parts) for path in whole)):
        names = ["/".join(path.parts[-depth:]) for path in whole]
        if len(set(names)) == len(names):
            return dict(zip(names, runs, strict=True))
    raise UserError("the same run is named twice", where="--compare", found=str(runs[-1]), todo="leave it out once")


def _with(run: Path, which: str) -> Path:
    return run.with_name(f"{run.name}-{which}")
