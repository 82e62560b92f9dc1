"""Paths of checkpoints: RUN/checkpoints/step-00000080, or best, last or average in its place."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

from heedful.errors import UserError, shown

Use = Literal["best", "last", "average"]
STEP = re.compile(r"step-(\d{8,18})")


def checkpoint_name(step: int) -> str:
    """The folder name of a step's checkpoint."""
    return f"step-{step:08d}"


def checkpoint_path(run: Path, checkpoint: str | int | None) -> Path:
    """The path of a run's checkpoint, which is best, last, average or a step; without one, the run."""
    if checkpoint is None:
        return run
    if checkpoint in get_args(Use):
        return run / "checkpoints" / str(checkpoint)
    if not re.fullmatch(r"\d{1,18}", str(checkpoint)):
        raise UserError(
            "there is no such checkpoint", where="checkpoint", found=shown(checkpoint),
            expected="best, last, average, or the number of a step",
        )  # fmt: skip
    return run / "checkpoints" / checkpoint_name(int(checkpoint))


def split_checkpoint(path: Path) -> tuple[Path, str | None]:
    """The run of a path, and its checkpoint; None for the run itself."""
    if path.parent.name == "checkpoints" and (path.name in get_args(Use) or STEP.fullmatch(path.name)):
        return path.parent.parent, path.name
    return path, None


def by_name(runs: Sequence[Path]) -> dict[str, Path]:
    """Runs by folder name, with parent folders where names alone are ambiguous.

    A checkpoint has its own name added.
    """
    whole = [
        run.resolve() if which is None else _with(run.resolve(), which) for run, which in map(split_checkpoint, runs)
    ]
    for depth in range(1, max(len(path.parts) for path in whole)):
        names = ["/".join(path.parts[-depth:]) for path in whole]
        if len(set(names)) == len(names):
            return dict(zip(names, runs, strict=True))
    raise UserError("the same run is named twice", where="--compare", found=str(runs[-1]), todo="leave it out once")


def _with(run: Path, which: str) -> Path:
    return run.with_name(f"{run.name}-{which}")
