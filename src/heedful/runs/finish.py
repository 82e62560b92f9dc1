"""The end of a run: its final model, the test scores, the figures and the report."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn

from heedful.files.writing import append_jsonl
from heedful.runs.evaluate import Used, made_from, plain, results, scored, write_results
from heedful.runs.events import keep_events, read_events
from heedful.runs.hints import hints
from heedful.runs.load import write_portable
from heedful.runs.prepare import Ready, final_use, has_test, require_all
from heedful.runs.progress import Event, Hint, Noted, Stage
from heedful.tasks.base import AnyTask, Evaluated
from heedful.training.checkpoint.folder import RunFolder
from heedful.training.checkpoint.weights import average, load_strictly
from heedful.training.loop import Counters, Epoch, Step, steps_to_average


def finish(run: Ready, folder: RunFolder, model: nn.Module, predictor: Any) -> Iterator[Event]:
    """Write the final model, score it on the test set, and write the report."""
    task, config, counters, about, recipe = run.task, run.config, run.counters, run.about, run.task.recipe
    used = _used(task, counters)
    checkpoints = require_all(folder.path, recipe, about["run"], used.steps, counters.step)
    load_strictly(model, average([checkpoint.load("model") for checkpoint in checkpoints]), checkpoints[0].path)
    model.eval()
    made = {"run": about["run"], "checkpoint": asdict(used)}
    write_portable(folder.path / "model", task, config, model, predictor.tokenizer, made)
    result = None
    if has_test(recipe):
        of = made_from(folder.path, recipe, about["test"]) | {"checkpoint": asdict(used)}
        result = results(folder.path, of)
        if result is None:
            yield Stage(task.words.testing.format("test"))
            result = scored(predictor, recipe, "test", counters.step)
            write_results(folder.path, result, of)
        _record_test(folder.path, result)
        yield result
    yield from _report(task, folder.path, config, predictor, result, len(run.data.encoded), used.text)


def _report(
    task: AnyTask, run: Path, config: Any, predictor: Any, result: Evaluated | None, examples: int, used: str
) -> Iterator[Event]:
    """Draw the run's figures and write its report; failing to draw is not an error."""
    from heedful.runs.report import write_report

    yield Stage("drawing pictures")
    try:
        curve(run, task.words.loss)
        details = task.details(predictor, result.split if result else "valid")
        found = list(hints(task, run, read_events(run), details, predictor))
        write_report(run, task, config, predictor, result, examples, used, details, found)
        yield from map(Hint, found)
    except Exception as error:
        yield Noted(f"there is no report of this run, which is complete all the same: {error}")


def _used(task: AnyTask, counters: Counters) -> Used:
    """The steps of the checkpoints that the final model is from."""
    use, train = final_use(task), task.recipe.train
    steps = {
        "best": [step for step, _ in counters.best[:1]] or [counters.step],
        "last": [counters.step],
        # Stopping between two saves also leaves a checkpoint, which is not averaged: stops must not change the result.
        "average": steps_to_average(train, counters, counters.step),
    }[use]
    best = dict(counters.best).get(steps[0]) if len(steps) == 1 else None
    score = best if best is None or task.metric != "loss" else -best
    return Used(use, tuple(steps), counters.step, task.metric, score)


def curve(run: Path, unit: str) -> Path | None:
    """Plot the recorded losses to loss.png, in their unit."""
    from heedful.plots.style import save
    from heedful.runs.report import plot_loss

    figure = plot_loss(run, unit)
    if figure is None:
        return None
    save(figure, run / "loss.png")
    return run / "loss.png"


def _record_test(run: Path, result: Evaluated) -> None:
    """Replace the test scores in the metrics by these."""
    if read_events(run).evaluated("test") != [json.loads(json.dumps(plain(result)))]:
        keep_events(run / "metrics.jsonl", lambda event: event.get("split") != "test")
        record(run, result)


def record(run: Path, event: Event, every: int = 1) -> None:
    """Append an event to the run's metrics; of steps, only every `every`-th."""
    if found := as_record(event, every):
        append_jsonl(run / "metrics.jsonl", found)


def as_record(event: Event, every: int = 1) -> dict[str, Any] | None:
    """An event as it is written to the metrics; None if it is not."""
    if isinstance(event, Step):
        if event.step % every and event.step != 1 and event.progress < 1:
            return None
        fields = asdict(event)
        if not event.parts:
            del fields["parts"]
        return {"kind": "step", **fields}
    if isinstance(event, Epoch):
        return {"kind": "epoch", **asdict(event)}
    return plain(event) if isinstance(event, Evaluated) else None
