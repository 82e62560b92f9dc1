"""Loading the weights of a checkpoint: the last, the best, that of a step, or the average of the last ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from heedful.errors import UserError
from heedful.training.checkpoint.choice import STEP
from heedful.training.checkpoint.folder import Checkpoint, checkpoint_at, newest, saved_steps
from heedful.training.checkpoint.ties import name_in, parts, require_contents, require_made_with, require_of_run
from heedful.training.checkpoint.weights import average
from heedful.training.configs import TrainConfig
from heedful.training.loop import Counters, steps_to_average


class LoadedWeights(NamedTuple):
    """Weights with their file, the checkpoints they are from, and notes for the user."""

    tensors: dict[str, Tensor]
    file: Path
    checkpoints: tuple[Checkpoint, ...]
    notes: tuple[str, ...]

    def require_artifacts(self, found: Mapping[str, str], places: Mapping[str, str]) -> None:
        """Refuse artifacts whose SHA-256 is not that of the ones these weights were trained with."""
        for checkpoint in self.checkpoints:
            require_contents(checkpoint, found, places, "put the former file back")


def load_weights(run: Path, which: str | None, recipe: Mapping[str, Any], train: TrainConfig) -> LoadedWeights:
    """Load the weights of a run's checkpoint, by default the last; refuses those of another recipe."""
    if which is not None and (step := STEP.fullmatch(which)):
        if int(step[1]) not in (there := saved_steps(run)):
            raise UserError(
                "this run has no checkpoint of that step", where=str(run), found=f"step {int(step[1]):,}",
                expected=f"one of steps {', '.join(map(str, there))}" if there else "a run that has saved one",
                todo="choose one of these, best or last" if there else "train on with the same command, then try again",
            )  # fmt: skip
        found, notes = [checkpoint_at(run, int(step[1]), "it was asked for")], []
    else:
        found, damaged = newest(run, 1)
        notes = [f"skipped a damaged checkpoint: {broken.reason}" for broken in damaged]
    if not found:
        raise UserError(
            "this run has no checkpoint yet", where=str(run), todo="train on with the same command, then try again"
        )
    if which in ("best", "average"):
        steps, why = _steps(which, found[0], train)
        found = [checkpoint_at(run, step, why) for step in sorted(steps, reverse=True)]
    for checkpoint in found:
        about = checkpoint.manifest.about
        require_of_run(checkpoint.path, about, name_in(run), "delete it, or put the run's own back")
        require_made_with(checkpoint.path, about, parts(recipe), run)
    weights = average([checkpoint.load("model") for checkpoint in found])
    return LoadedWeights(weights, found[0].path / "model.safetensors", tuple(found), tuple(notes))


def _steps(which: str, last: Checkpoint, train: TrainConfig) -> tuple[list[int], str]:
    """The steps of the best checkpoint, or of those to average, so far, and why they are needed."""
    counters = Counters.restored(last.state, train)
    if which == "average":
        if train.average == 1:
            raise UserError(
                "this run averages no checkpoints", where="train.average", found="1",
                todo="choose best, last or a step; a recipe with train.average: 5, say, keeps enough of them",
            )  # fmt: skip
        return steps_to_average(train, counters, counters.step), "it is averaged with others"
    if not counters.best:
        raise UserError(
            "no checkpoint of this run has been scored yet", where=str(last.path.parent),
            todo="choose last or a step; at an evaluation and save of the same step one is scored",
        )  # fmt: skip
    return [counters.best[0][0]], "it is the best so far"
