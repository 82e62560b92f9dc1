"""A study: its trials, each a point of the space, trained with every seed.

study.jsonl records every question to the sampler and every result, in order. A study that was stopped or killed
replays it, so that the sampler is in the same state again, and trains the trials that are not complete.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from heedful.config import render
from heedful.errors import UserError, shown
from heedful.extras.tuning.outcomes import Metric, outcome, validations
from heedful.extras.tuning.samplers import Kind, Sampler, State, sampler_for
from heedful.extras.tuning.space import Point, Space, plain_axes
from heedful.files.json import read_json
from heedful.files.reading import exists, read_file
from heedful.files.writing import append_jsonl, write_text_atomic
from heedful.runs.recipe import check_recipe, find_recipe, load_recipe

NAME = "study.jsonl"
MOST_TRIED = 50  # points with a value, of which one must be valid


@dataclass(frozen=True)
class TrialRun:
    """A run of a trial, with one of the seeds."""

    trial: int
    seed: str | None
    overrides: tuple[str, ...]
    recipe: Any
    file: str
    folder: Path

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.folder.name


@dataclass
class Trial:
    """A point of the space, and what came of it."""

    number: int
    point: Point
    runs: list[TrialRun] = field(default_factory=list)
    state: State | Literal["running"] = "running"
    error: str | None = None
    reported: int = 0  # values of the unfinished run that the sampler knows


class Study:
    """Trials in a folder, in the order in which the sampler chose them."""

    def __init__(
        self, folder: Path, space: Space, metric: Metric, kind: Kind, trials: int | None, seed: int, prune: bool
    ) -> None:
        if prune and len(space.seeds) > 1:
            raise UserError(
                "runs of several seeds are not pruned", where="--prune", found=f"{len(space.seeds)} seeds",
                todo="leave out --prune, or give one seed",
            )  # fmt: skip
        self.folder, self.space, self.metric, self.prune = folder, space, metric, prune
        self.sampler: Sampler
        self.sampler, self.size = sampler_for(kind, space, trials, seed, metric.direction, prune)
        self.trials: list[Trial] = []
        self.waiting: list[TrialRun] = []
        self.files = {name: str(find_recipe(name)) for name in space.recipes}
        texts = [render(load_recipe(name, space.fixed)) for name in space.recipes]
        self.header = {
            "recipes": list(space.recipes), "settings": list(space.fixed), "axes": plain_axes(space),
            "seeds": list(space.seeds), "sampler": kind, "seed": seed, "prune": prune, "metric": metric.name,
            "sha256": hashlib.sha256("\n".join(texts).encode()).hexdigest(),
        }  # fmt: skip

    @cached_property
    def log(self) -> Path:
        """The record of the study."""
        return self.folder / NAME

    # ------------------------------------------------------------------ the record
    def open(self) -> None:
        """Start the record of a new study, or replay that of this one."""
        records = _records(self.log)
        if not records:
            append_jsonl(self.log, {"study": self.header})
            return
        self._require_same(records[0].get("study"))
        pruned = set[int]()
        for record in records[1:]:
            if "ask" in record:
                self._replay_ask(record)
            elif "report" in record:
                number = record["report"]
                self.trials[number].reported += 1
                if self.sampler.report(number, record["step"], record["value"]):
                    pruned.add(number)
            else:
                number = record["tell"]
                self._end(number, record["state"], record["value"], record.get("error"))
        for trial in self.trials:
            if trial.state == "running" and trial.number in pruned:
                self._tell(trial.number, "pruned", None)
            elif trial.state == "running":
                self._prepare(trial)

    def _require_same(self, found: Any) -> None:
        """Refuse the folder of another study."""
        here = json.loads(json.dumps(self.header))
        if found == here:
            return
        there = found if isinstance(found, dict) else {}
        changed = [name for name in here if there.get(name) != here[name]]
        what = "the recipe has changed" if changed == ["sha256"] else ", ".join(
            f"{name}: {shown(json.dumps(there.get(name)))}" for name in changed if name != "sha256"
        )  # fmt: skip
        raise UserError(
            "this folder is that of another study", where=str(self.log), found=what,
            expected="the same words as before; only --trials may grow, and --jobs may change",
            todo="name another folder with -o, or give the same recipes and settings as before",
        )  # fmt: skip

    def _replay_ask(self, record: dict[str, Any]) -> None:
        point = self.sampler.ask()
        if point != record["point"]:
            raise UserError(
                "the sampler does not choose the same points again", where=f"{self.log}: trial {record['ask']}",
                found=shown(str(point)), expected=str(record["point"]),
                todo="resume with the version of Optuna that began the study, and with as many --trials, or more",
            )  # fmt: skip
        self.trials.append(Trial(len(self.trials), record["point"]))

    # ------------------------------------------------------------------ trials
    def take(self) -> TrialRun | None:
        """The next run to train; None: there is none left."""
        while not self.waiting:
            point = self.sampler.ask()
            if point is None:
                return None
            trial = Trial(len(self.trials), point)
            self.trials.append(trial)
            append_jsonl(self.log, {"ask": trial.number, "point": point})
            self._prepare(trial)
        return self.waiting.pop(0)

    def _prepare(self, trial: Trial) -> None:
        """The runs of a trial; those that are not complete wait."""
        try:
            trial.runs = self.runs(trial.number, trial.point)
            check_recipe(trial.runs[0].recipe)
        except UserError as error:
            self._tell(trial.number, "failed", None, str(error))
            return
        left = [run for run in trial.runs if outcome(run.folder, self.metric) is None]
        self.waiting += left
        if not left:
            self._complete(trial)

    def runs(self, number: int, point: Point) -> list[TrialRun]:
        """The runs of a point, one for each seed."""
        name, found = self.space.recipe(point), []
        for seed in self.space.seeds or (None,):
            overrides = self.space.overrides(point, seed)
            folder = self.folder / (f"{number:04d}" if seed is None else f"{number:04d}-seed{seed}")
            recipe = load_recipe(name, overrides)
            found.append(TrialRun(number, seed, overrides, recipe, self.files[name], folder))
        return found

    def progress(self, run: TrialRun) -> bool:
        """Report the new values of a run, and say whether to end it."""
        trial, end = self.trials[run.trial], False
        if not self.prune:
            return False
        for value in validations(run.folder, self.metric)[trial.reported :]:
            trial.reported += 1
            append_jsonl(self.log, {"report": trial.number, "step": trial.reported, "value": value})
            end = self.sampler.report(trial.number, trial.reported, value) or end
        return end

    def ended(self, run: TrialRun, error: str | None, pruned: bool = False) -> None:
        """Take the end of a run; `error` is empty if it was stopped."""
        trial = self.trials[run.trial]
        if trial.state != "running":
            return
        if pruned and error is not None:
            self._tell(trial.number, "pruned", None)
        elif error:
            self._tell(trial.number, "failed", None, error)
            self.waiting = [other for other in self.waiting if other.trial != trial.number]
        elif error is None:
            self._complete(trial)

    def _complete(self, trial: Trial) -> None:
        values = [outcome(run.folder, self.metric) for run in trial.runs]
        known = [one for one in values if one is not None]
        if len(known) == len(values):
            self._tell(trial.number, "complete", sum(one.value for one in known) / len(known))

    def _tell(self, number: int, state: State, value: float | None, error: str | None = None) -> None:
        about = {"error": error} if error else {}
        append_jsonl(self.log, {"tell": number, "state": state, "value": value, **about})
        self._end(number, state, value, error)

    def _end(self, number: int, state: State, value: float | None, error: str | None) -> None:
        trial = self.trials[number]
        trial.state, trial.error = state, error
        if not trial.runs and state != "failed":
            trial.runs = self.runs(number, trial.point)
        self.sampler.tell(number, state, value)


def _records(path: Path) -> list[dict[str, Any]]:
    """The records in a file; a last line that was cut off is deleted."""
    if not exists(path):
        return []
    found, data = [], read_file(path)
    if not data.endswith(b"\n"):
        write_text_atomic(path, data[: data.rfind(b"\n") + 1].decode())
    for number, line in enumerate(data.split(b"\n")[:-1], 1):
        try:
            record = read_json(line.decode())
        except ValueError:
            record = None
        if not isinstance(record, dict):
            raise UserError(
                "this line is not a record of a study", where=f"{path}:{number}",
                found=shown(line[:80].decode(errors="replace")), todo="name another folder with -o",
            )  # fmt: skip
        found.append(record)
    return found


def check_points(space: Space) -> None:
    """Raise an error if a value of a list, or an end of a range, gives no valid recipe with any of the others."""
    points = space.grid()
    for axis in space.axes:
        for value in dict.fromkeys(point[axis.key] for point in points):
            _require_valid(space, [point for point in points if point[axis.key] == value][:MOST_TRIED])
    if not space.axes:
        _require_valid(space, points)


def _require_valid(space: Space, points: Sequence[Point]) -> None:
    """Raise the first error if none of these points gives a valid recipe."""
    first: UserError | None = None
    for point in points:
        try:
            check_recipe(load_recipe(space.recipe(point), space.overrides(point, next(iter(space.seeds), None))))
        except UserError as error:
            first = first or error
        else:
            return
    if first is not None:
        raise first
