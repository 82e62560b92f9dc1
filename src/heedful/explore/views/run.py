"""A run: its losses while it trains, its samples over time, its recipe and its environment."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from heedful.errors import UserError, printable
from heedful.explore.packets import pack
from heedful.explore.views import Call, ModelRequest
from heedful.files.json import read_json
from heedful.files.reading import open_file
from heedful.files.yaml import load_yaml, write_yaml
from heedful.runs.events import Events, part_names, read_events, read_part
from heedful.training.checkpoint.ownership import is_training
from heedful.training.metrics import bleu_applies

if TYPE_CHECKING:
    from heedful.explore.subjects import Subject

TITLE = "Run"
ABOUT = "How the model was trained: losses, samples over time, recipe and environment."
AT_ONCE = 4_000_000  # bytes of metrics in one answer
MAX_STEP, MAX_VALUE = 2**31 - 1, 3e38  # that a packet can hold
CURVES = ("loss", "rate", "norm", "tokens_per_second", "progress")
LONGEST, MOST = 2000, 20  # characters of a sample, and samples of an evaluation
FOLDERS = ("root", "folder", "path")  # settings that hold paths
PATH = re.compile(r"[/\\~]|[A-Za-z]:[/\\]|\.\.[/\\]")


class MetricsRequest(ModelRequest):
    """The metrics of a run from a byte offset, and the mark that identifies the bytes before it."""

    offset: int = Field(0, ge=0, le=2**50)
    mark: str = Field("", max_length=64)


def fits(subject: Subject) -> bool:
    return subject.is_run


def about(subject: Subject, request: ModelRequest) -> bytes:
    """The resolved recipe, the environment, and the terms of the run's task."""
    folder = subject.folder
    recipe = without_folders(load_yaml(folder / "recipe.yaml")[0])
    return pack({
        "recipe": write_yaml(recipe),
        "settings": [[key, value] for key, value in leaves(recipe)],
        "environment": [[key, value] for key, value in leaves(without_folders(environment(folder)))],
        **terms(folder),
    })  # fmt: skip


def metrics(subject: Subject, request: MetricsRequest) -> bytes:
    """The records after an offset, and whether there are more; all of them if the file was replaced."""
    running = is_training(subject.folder)  # checked before the file is read, so that the last line is not missed
    part = read_part(subject.folder, request.offset, request.mark, AT_ONCE)
    steps, evaluations, broken = split_events(part.events)
    columns = {name: np.array([number(one.get(name)) for one in steps], np.float32) for name in CURVES}
    for name in part_names(steps):
        values = (one["parts"].get(name) if isinstance(one.get("parts"), dict) else None for one in steps)
        columns[f"part {name}"] = np.array([number(value) for value in values], np.float32)
    header = {
        "anew": part.start == 0, "offset": part.end, "mark": part.mark, "more": part.more, "running": running,
        "evaluations": evaluations, "broken": broken,
    }  # fmt: skip
    return pack(header, step=np.array([one["step"] for one in steps], np.int32), **columns)


def calls(subject: Subject, state: Mapping[str, Any]) -> Sequence[Call]:
    other = subject.every.get(str(state.get("beside")))
    runs = [subject, *([other] if other is not None and other.is_run else [])]
    return [one for run in runs for one in (Call("run", "about", {"model": run.name}), *all_metrics(run))]


def all_metrics(subject: Subject) -> Iterator[Call]:
    """The calls by which a page gets all metrics, part by part."""
    settings: dict[str, Any] = {"model": subject.name, "offset": 0, "mark": ""}
    more = True
    while more:
        yield Call("run", "metrics", settings)
        part = read_part(subject.folder, settings["offset"], settings["mark"], AT_ONCE)
        settings, more = {"model": subject.name, "offset": part.end, "mark": part.mark}, part.more


# ------------------------------------------------------------------ metrics
def last_evaluations(folder: Path) -> list[dict[str, Any]]:
    """The evaluations at the end of a run's metrics."""
    return split_events(read_events(folder, last=AT_ONCE))[1]


def split_events(found: Events) -> tuple[list[dict[str, Any]], list[dict[str, Any]], int]:
    """The steps, the evaluations for the page, and the number of invalid lines."""
    events = Events([event for event in found.records if 0 <= event["step"] <= MAX_STEP], found.broken)
    evaluations = [evaluation(event) for event in events.records if event.get("kind") == "evaluated"]
    return events.steps(), evaluations, found.broken


def evaluation(event: Mapping[str, Any]) -> dict[str, Any]:
    """An evaluation for the page, without BLEU where runs of older versions recorded it without meaning."""
    scores, some, loss = event.get("scores"), event.get("samples"), number(event.get("loss"))
    samples = [
        [printable(str(part)[:LONGEST]) for part in sample]
        for sample in (some if isinstance(some, list) else [])[:MOST]
        if isinstance(sample, list) and len(sample) == 3
    ]
    left_out = () if bleu_applies([right for _, right, _ in samples]) else ("bleu",)
    return {
        "step": event["step"],
        "split": str(event.get("split"))[:LONGEST],
        "loss": loss if math.isfinite(loss) else None,
        "scores": [
            [str(name), number(score.get("value")), str(score.get("signature"))[:LONGEST]]
            for name, score in (scores.items() if isinstance(scores, dict) else ())
            if isinstance(score, dict) and math.isfinite(number(score.get("value"))) and name not in left_out
        ],
        "samples": samples,
    }  # fmt: skip


def number(value: Any) -> float:
    """A number that can be plotted; NaN for anything else, which curves skip."""
    return float(value) if type(value) in (int, float) and abs(value) < MAX_VALUE else math.nan


# ------------------------------------------------------------------ recipe and environment
def environment(folder: Path) -> dict[str, Any]:
    """The contents of env.json, if it can be read."""
    try:
        with open_file(folder / "env.json") as file:
            found = read_json(file.read(AT_ONCE).decode())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def terms(folder: Path) -> dict[str, Any]:
    """The task's names for the parts of a sample and the units of speed and loss."""
    from heedful.runs.recipe import recipe_in
    from heedful.tasks import task_of

    try:
        words = task_of(recipe_in(folder / "recipe.yaml")).words
    except UserError:  # of a later version, or whose start folder is gone
        return {"sample": ["given", "right", "made"], "counted": "tokens", "unit": ""}
    return {"sample": list(words.sample), "counted": words.counted, "unit": words.loss}


def without_folders(value: Any, key: str = "") -> Any:
    """Settings with paths shortened to their last part."""
    if isinstance(value, dict):
        return {name: without_folders(part, name) for name, part in value.items()}
    if isinstance(value, list):
        return [without_folders(part, key) for part in value]
    if isinstance(value, str) and (key in FOLDERS or PATH.match(value)):
        return re.split(r"[/\\]", value.rstrip("/\\"))[-1]
    return value


def leaves(data: Mapping[str, Any], above: str = "") -> Iterable[tuple[str, str]]:
    """Settings by their dotted names, as text; unset ones are skipped."""
    for name, value in data.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{above}{name}.")
        elif value is not None:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            yield f"{above}{name}", printable(text)


CALLS = {"about": (ModelRequest, about), "metrics": (MetricsRequest, metrics)}
