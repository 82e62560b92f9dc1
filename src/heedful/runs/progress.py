"""The events of a run that `train` yields besides those of training."""

from __future__ import annotations

from dataclasses import dataclass

from heedful.tasks.base import Evaluated
from heedful.training.loop import Epoch, Saved, Step


@dataclass(frozen=True)
class Stage:
    """A stage of the run other than training."""

    name: str


@dataclass(frozen=True)
class Noted:
    """A warning that does not stop the run."""

    text: str


@dataclass(frozen=True)
class Hint:
    """What may have gone wrong in a finished run, and what to type."""

    text: str


@dataclass(frozen=True)
class Started:
    """Everything is ready, and training starts or resumes at a step."""

    step: int
    parameters: int
    examples: int
    dropped: int
    skipped: int
    vocab: int
    device: str
    threads: int
    processes: int
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Finished:
    """The run is complete, or was stopped at a step."""

    step: int
    stopped: bool
    folder: str


Event = Stage | Noted | Hint | Started | Step | Epoch | Evaluated | Saved | Finished
