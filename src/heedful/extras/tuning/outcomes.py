"""What came of a run: the score that selects its best checkpoint, and its test scores."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

from heedful.errors import UserError
from heedful.extras.tuning.samplers import Direction
from heedful.files.reading import is_file
from heedful.runs.evaluate import results, used
from heedful.runs.events import Event, read_events


class Metric(NamedTuple):
    """A score on the validation set, or its loss."""

    name: str

    @property
    def direction(self) -> Direction:
        """Whether a larger value is better."""
        return "minimize" if self.name == "loss" else "maximize"

    def of(self, event: Event) -> float | None:
        """The value in an evaluation."""
        scores = event.get("scores")
        score = scores.get(self.name) if isinstance(scores, dict) else None
        value = event.get("loss") if self.name == "loss" else score.get("value") if isinstance(score, dict) else None
        return float(value) if isinstance(value, int | float) and math.isfinite(value) else None

    def best(self, values: list[float]) -> float:
        """The best of some values."""
        return min(values) if self.direction == "minimize" else max(values)


class Outcome(NamedTuple):
    """The results of a complete run."""

    value: float  # of the final model on the validation set
    test: dict[str, float]  # its scores on the test set, if there is one


def outcome(run: Path, metric: Metric) -> Outcome | None:
    """The results of a run; None unless it is complete."""
    if not is_file(run / "model" / "model.safetensors") or not (about := used(run)):
        return None
    every = list(read_events(run).evaluated("valid"))
    known = list(dict.fromkeys(["loss", *(name for event in every for name in event.get("scores") or {})]))
    if metric.name not in known:
        raise UserError(
            "a run has no such score", where=f"--metric {metric.name}", found=f"in {run}: {', '.join(known)}",
            todo="name one of these, and another folder with -o",
        )  # fmt: skip
    evaluated = [event for event in every if metric.of(event) is not None]
    chosen = [event for event in evaluated if event["step"] in about.steps] if about.use == "best" else evaluated[-1:]
    if not chosen:
        return None
    value = metric.of(chosen[-1])
    assert value is not None, "only such events were taken"
    try:
        test = results(run)
    except UserError:
        test = None
    return Outcome(value, {score.name: score.value for score in test.scores} if test else {})


def validations(run: Path, metric: Metric) -> list[float]:
    """The values of a run so far."""
    values = (metric.of(event) for event in read_events(run).evaluated("valid"))
    return [value for value in values if value is not None]
