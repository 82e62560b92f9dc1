"""A run: its losses while it trains, its samples over time, its recipe, and what it ran on."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from heedful.errors import UserError, printable, shown
from heedful.explore.packets import pack
from heedful.explore.views import Named, Request
from heedful.files.json import read_json
from heedful.files.reading import open_file
from heedful.files.yaml import load_yaml, write_yaml
from heedful.runs.events import Events, read_events, read_part
from heedful.training.checkpoint.ownership import is_at_work
from heedful.training.metrics import can_count_runs

if TYPE_CHECKING:
    from heedful.explore.subjects import Explorer, Subject

TITLE = "Run"
ABOUT = "How the model was trained: losses, samples over time, recipe and environment."
AT_ONCE = 4_000_000  # bytes of metrics in one answer
FARTHEST, LARGEST = 2**31 - 1, 3e38  # step and number that a packet can hold
CURVES = ("loss", "rate", "norm", "tokens_per_second", "progress")
LONGEST, MOST = 2000, 20  # characters of a sample, and samples of an evaluation
FOLDERS = ("root", "folder", "path")  # settings that name a place on the disk
PLACE = re.compile(r"[/\\~]|[A-Za-z]:[/\\]|\.\.[/\\]")


class Since(Named):
    """The metrics of a run from a byte on, and by what the bytes before it are known."""

    offset: int = Field(0, ge=0, le=2**50)
    mark: str = Field("", max_length=64)


def fits(subject: Subject) -> bool:
    return subject.is_run


def about(explorer: Explorer, asked: Named) -> bytes:
    """The recipe with every setting in it, what the run ran on, and what things are called in its task."""
    folder = run_of(explorer, asked).folder
    recipe = nameless(load_yaml(folder / "recipe.yaml")[0])
    return pack({
        "recipe": write_yaml(recipe),
        "settings": [[key, value] for key, value in leaves(recipe)],
        "environment": [[key, value] for key, value in leaves(nameless(environment(folder)))],
        **called(folder),
    })  # fmt: skip


def metrics(explorer: Explorer, asked: Since) -> bytes:
    """What was recorded since, and whether more is to come; all of it, where the file is another one by now."""
    folder = run_of(explorer, asked).folder
    running = is_at_work(folder)  # asked before the file is read, so that the last line is not missed
    part = read_part(folder, asked.offset, asked.mark, AT_ONCE)
    steps, evaluations, broken = sorted_out(part.events)
    columns = {name: np.array([number(one.get(name)) for one in steps], np.float32) for name in CURVES}
    words = {
        "anew": part.start == 0, "offset": part.end, "mark": part.mark, "more": part.more, "running": running,
        "evaluations": evaluations, "broken": broken,
    }  # fmt: skip
    return pack(words, step=np.array([one["step"] for one in steps], np.int32), **columns)


def wanted(explorer: Explorer, state: Mapping[str, Any]) -> Sequence[Request]:
    names = [state["model"], *([state["beside"]] if state.get("beside") in explorer.subjects else [])]
    return [one for name in names for one in (Request("run", "about", {"model": name}), *all_metrics(explorer, name))]


def all_metrics(explorer: Explorer, name: str) -> Iterator[Request]:
    """The questions by which a page gets all metrics, part by part."""
    asked: dict[str, Any] = {"model": name, "offset": 0, "mark": ""}
    folder = run_of(explorer, Named(model=name)).folder
    more = True
    while more:
        yield Request("run", "metrics", asked)
        part = read_part(folder, asked["offset"], asked["mark"], AT_ONCE)
        asked, more = {"model": name, "offset": part.end, "mark": part.mark}, part.more


def run_of(explorer: Explorer, asked: Named) -> Subject:
    """The run of a name."""
    subject = explorer.subject(asked.model)
    if not subject.is_run:
        raise UserError("this model was not trained here", where="model", found=shown(subject.name))
    return subject


# ------------------------------------------------------------------ what a run has recorded
def last_evaluations(folder: Path) -> list[dict[str, Any]]:
    """What the end of a run's metrics tells of its evaluations."""
    return sorted_out(read_events(folder, last=AT_ONCE))[1]


def sorted_out(found: Events) -> tuple[list[dict[str, Any]], list[dict[str, Any]], int]:
    """The steps, the evaluations as the page shows them, and how many lines are broken."""
    events = Events([event for event in found.records if 0 <= event["step"] <= FARTHEST], found.broken)
    evaluations = [evaluation(event) for event in events.records if event.get("kind") == "evaluated"]
    return events.steps(), evaluations, found.broken


def evaluation(event: Mapping[str, Any]) -> dict[str, Any]:
    """An evaluation as the page shows it; runs of older versions recorded BLEU where it says nothing."""
    scores, some, loss = event.get("scores"), event.get("samples"), number(event.get("loss"))
    samples = [
        [printable(str(part)[:LONGEST]) for part in sample]
        for sample in (some if isinstance(some, list) else [])[:MOST]
        if isinstance(sample, list) and len(sample) == 3
    ]
    left_out = () if can_count_runs([right for _, right, _ in samples]) else ("bleu",)
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
    """A number that can be drawn; what is none is NaN, which curves leave out."""
    return float(value) if type(value) in (int, float) and abs(value) < LARGEST else math.nan


# ------------------------------------------------------------------ what a run is
def environment(folder: Path) -> dict[str, Any]:
    """What env.json tells, if it can be read."""
    try:
        with open_file(folder / "env.json") as file:
            found = read_json(file.read(AT_ONCE).decode())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def called(folder: Path) -> dict[str, Any]:
    """What the parts of a sample are called, what is counted in training, and what a loss is measured in."""
    from heedful.runs.recipe import recipe_in
    from heedful.tasks import task_of

    try:
        words = task_of(recipe_in(folder / "recipe.yaml")).words
    except UserError:  # of a version to come, or with a start that is no longer there
        return {"sample": ["given", "right", "made"], "counted": "tokens", "unit": ""}
    return {"sample": list(words.sample), "counted": words.counted, "unit": words.loss}


def nameless(value: Any, key: str = "") -> Any:
    """Settings in which a place on the disk is called by its last part alone."""
    if isinstance(value, dict):
        return {name: nameless(part, name) for name, part in value.items()}
    if isinstance(value, list):
        return [nameless(part, key) for part in value]
    if isinstance(value, str) and (key in FOLDERS or PLACE.match(value)):
        return re.split(r"[/\\]", value.rstrip("/\\"))[-1]
    return value


def leaves(data: Mapping[str, Any], above: str = "") -> Iterable[tuple[str, str]]:
    """Settings by their dotted names, as text; what is not set is left out."""
    for name, value in data.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{above}{name}.")
        elif value is not None:
            yield (
                f"{above}{name}",
                printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)),
            )


CALLS = {"about": (Named, about), "metrics": (Since, metrics)}
