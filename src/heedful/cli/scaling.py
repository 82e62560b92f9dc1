"""The command `scaling`: train a sweep, fit power laws to it, and predict a larger run."""

from __future__ import annotations

import json
import math
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from heedful.cli.display import PAUSE, duration
from heedful.cli.output import json_line, say
from heedful.errors import UserError, printable
from heedful.extras.parallel import Ended, Running, Started, forward_signals, require_same_recipes, sweep_folder
from heedful.extras.scaling.fits import LEVEL, Estimate, Law, Laws, Line, Run, Surface, fit
from heedful.extras.scaling.plot import Predicted, plot
from heedful.extras.scaling.sweep import (
    MIN_STEPS,
    Cell,
    Sweep,
    completed_runs,
    parallel_runs,
    plan,
    read_runs,
    read_sizes,
    read_tokens,
    short,
)
from heedful.files.writing import write_text_atomic
from heedful.plots.style import SUFFIXES, Style, save
from heedful.runs.load import cores
from heedful.runs.recipe import check_recipe, find_recipe
from heedful.training.checkpoint.ownership import MAY_DIFFER
from heedful.training.environment import memory

Event = Started[Cell] | Running[Cell] | Ended[Cell]

REPEATED = 4  # epochs; beyond them, repeated text is worth markedly less than new text (Muennighoff et al., 2023)
MEANING = {
    "N": "parameters without embeddings, as Kaplan et al. (2020) count them",
    "D": "tokens seen in training",
    "C": "6 N D, floating-point operations",
    "L": "validation loss at the end of a run, in nats per token",
}


def scaling_command(
    recipe: str,
    overrides: Sequence[str],
    sizes: str,
    tokens: str,
    predict: str | None,
    train: bool,
    out: Path | None,
    jobs: int | None,
    as_json: bool,
    style: Style = "light",
) -> None:
    """Train the missing runs of a sweep, then print and draw the fitted laws."""
    folder = out or Path("runs") / f"scaling-{find_recipe(recipe).stem}"
    held_out = read_runs(predict) if predict else []
    cells = plan(recipe, overrides, read_sizes(sizes), read_tokens(tokens), held_out, folder)
    check_recipe(cells[0].recipe)
    with sweep_folder(folder) as lock:
        require_same_recipes(cells, MAY_DIFFER)
        requested = [cell for cell in cells if train or not cell.held_out]
        failed = _train(recipe, cells, requested, jobs, lock, as_json)
        runs, left_out = completed_runs(cells)
        for name, why in failed.items():
            left_out[name] = why.splitlines()[0]
        results = _results(recipe, cells, runs, {name: left_out[name] for name in left_out if name not in runs}, train)
        write_text_atomic(folder / "scaling.json", json.dumps(_plain(results), indent=2, allow_nan=False) + "\n")
        fitted, predicted = _fitted(cells, runs), results["_predicted"]
        figure = plot(fitted, results["_laws"], predicted, f"Scaling of {find_recipe(recipe).stem}", style)
        for suffix in SUFFIXES:
            save(figure, folder / f"scaling{suffix}")
    if as_json:
        say(json_line(_plain(results)))
    else:
        for line in _report(cells, runs, results, folder):
            say(line)
    if failed:
        raise UserError(
            f"{len(failed)} of {len(requested)} runs failed; the others are kept",
            problems=[UserError(why, where=name) for name, why in failed.items()],
            todo="the same command retries only these",
            exit_code=1,
        )


# ------------------------------------------------------------------ training
def _train(
    recipe: str, cells: Sequence[Cell], requested: Sequence[Cell], jobs: int | None, lock: int, quiet: bool
) -> dict[str, str]:
    """Train the runs that are not complete yet; returns the errors by run."""
    left = [cell for cell in requested if cell.outcome() is None]
    if not left:
        return {}
    gpus = torch.cuda.device_count() if cells[0].recipe.train.device != "cpu" else 0
    parallel = jobs or gpus or parallel_runs(cells, cores(), memory(torch.device("cpu")))
    sweep = Sweep(recipe, left, parallel, max(1, cores() // parallel), gpus, lock)
    failed: dict[str, str] = {}
    with _screen(len(requested), len(requested) - len(left), parallel, quiet) as screen, forward_signals(sweep):
        for event in sweep.events():
            screen.show(event)
            if isinstance(event, Ended) and event.error:
                failed[event.cell.name] = event.error
    if sweep.stopping:
        say("stopped; every run is saved, and the same command resumes")
        sys.exit(130)
    return failed


@contextmanager
def _screen(total: int, complete: int, jobs: int, quiet: bool) -> Iterator[_Lines | _Bars]:
    """A bar per run in a terminal, else lines on stderr."""
    if sys.stdout.isatty() and not quiet:
        columns = (TextColumn("{task.description}"), BarColumn(24), TextColumn("{task.fields[facts]}"))
        with Progress(*columns, console=Console(markup=False, highlight=False), transient=True) as bars:
            screen: _Lines | _Bars = _Bars(bars, total, complete)
            screen.say(_start_line(total, complete, jobs))
            yield screen
    else:
        screen = _Lines(total, complete)
        screen.say(_start_line(total, complete, jobs))
        yield screen


def _start_line(total: int, complete: int, jobs: int) -> str:
    there = f", {complete} complete already" if complete else ""
    return f"{total} runs{there}; {jobs} in parallel" if jobs > 1 else f"{total} runs{there}"


class _Lines:
    """A line on stderr for each run that ends, and every few seconds one about the others."""

    def __init__(self, total: int, complete: int) -> None:
        self.total, self.done, self.last = total, complete, time.monotonic()
        self.running: dict[str, Running[Cell] | None] = {}

    def say(self, text: str) -> None:
        sys.stderr.write(printable(text) + "\n")
        sys.stderr.flush()

    def show(self, event: Event) -> None:
        if isinstance(event, Ended):
            self.running.pop(event.cell.name, None)
            self.done += 1
            self.say(f"{self.done} of {self.total}  {_end(event)}")
        else:
            self.running[event.cell.name] = event if isinstance(event, Running) else None
        if time.monotonic() - self.last >= PAUSE:
            self.last = time.monotonic()
            self.say("  ".join(f"{name} {_share(event)}" for name, event in self.running.items()))


class _Bars:
    """A bar for each running run, and a line for each that ends."""

    def __init__(self, bars: Progress, total: int, complete: int) -> None:
        self.bars, self.total, self.done = bars, total, complete
        self.tasks: dict[str, Any] = {}

    def say(self, text: str) -> None:
        self.bars.console.print(printable(text), soft_wrap=True)

    def show(self, event: Event) -> None:
        name = event.cell.name
        if isinstance(event, Started):
            self.tasks[name] = self.bars.add_task(name, total=1.0, facts="starting")
        elif isinstance(event, Running):
            facts = f"{event.share:4.0%}  loss {event.loss:.4f}"
            self.bars.update(self.tasks[name], completed=event.share, facts=facts)
        else:
            self.bars.remove_task(self.tasks.pop(name))
            self.done += 1
            self.say(f"{self.done} of {self.total}  {_end(event)}")


def _share(event: Running[Cell] | None) -> str:
    return f"{event.share:.0%}" if event else "starting"


def _end(event: Ended[Cell]) -> str:
    outcome = event.cell.outcome()
    if event.error is not None or outcome is None:
        return f"{event.cell.name}: {'failed' if event.error else 'stopped'}"
    return f"{event.cell.name}: loss {outcome.loss:.4f} in {duration(event.seconds)}"


# ------------------------------------------------------------------ results
def _fitted(cells: Sequence[Cell], runs: Mapping[str, Run]) -> list[Run]:
    return [runs[cell.name] for cell in cells if cell.name in runs and not cell.held_out]


def _results(
    recipe: str, cells: Sequence[Cell], runs: Mapping[str, Run], left_out: Mapping[str, str], train: bool
) -> dict[str, Any]:
    """The results of a sweep as in scaling.json, and with _ before their names, the objects they come from."""
    fitted, held_out = _fitted(cells, runs), [cell for cell in cells if cell.held_out]
    places = [(cell.parameters, _tokens(cell, runs)) for cell in held_out]
    laws = fit(fitted, places)
    predicted = [
        Predicted(cell.name, *place, estimate, runs.get(cell.name))
        for cell, place, estimate in zip(held_out, places, laws.predicted, strict=True)
    ]
    return {
        "recipe": recipe,
        "meaning": MEANING,
        "level": LEVEL,
        "runs": [_row(cell, runs[cell.name]) for cell in cells if cell.name in runs],
        "left_out": {name: why for name, why in left_out.items() if train or name not in _names(held_out)},
        "lines": {line.variable: asdict(line) for line in laws.lines},
        "surface": asdict(laws.surface),
        "predictions": [
            {"name": one.name, "N": one.parameters, "D": one.tokens,
             "predicted": one.prediction and asdict(one.prediction),
             "measured": one.run and one.run.loss, "inside": _inside(one)}
            for one in predicted
        ],
        "_laws": laws,
        "_predicted": predicted,
    }  # fmt: skip


def _names(cells: Sequence[Cell]) -> set[str]:
    return {cell.name for cell in cells}


def _tokens(cell: Cell, runs: Mapping[str, Run]) -> int:
    """The training tokens of a run, or its budget if it has not been trained; the last batch may exceed it."""
    return runs[cell.name].tokens if cell.name in runs else cell.budget


def _row(cell: Cell, run: Run) -> dict[str, Any]:
    outcome = cell.outcome()
    return {
        "name": run.name, "layers": cell.size.layers, "width": cell.size.width, "N": run.parameters, "D": run.tokens,
        "C": run.compute, "L": run.loss, "epochs": outcome.epochs if outcome else None, "held_out": cell.held_out,
    }  # fmt: skip


def _inside(one: Predicted) -> bool | None:
    return one.prediction.low <= one.run.loss <= one.prediction.high if one.prediction and one.run else None


def _plain(results: Mapping[str, Any]) -> Any:
    """The results as JSON values: numbers that are not finite become null."""

    def convert(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: convert(one) for name, one in value.items() if not name.startswith("_")}
        if isinstance(value, list | tuple):
            return [convert(one) for one in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return convert(dict(results))


# ------------------------------------------------------------------ report
def _report(cells: Sequence[Cell], runs: Mapping[str, Run], results: Mapping[str, Any], folder: Path) -> Iterator[str]:
    """The runs as a Markdown table, the fitted laws, the predictions and notes."""
    rows = sorted(results["runs"], key=lambda row: (row["N"], row["D"]))
    yield "| run | N | D | C | epochs | L |"
    yield "|---|---:|---:|---:|---:|---:|"
    for row in rows:
        mark = " (held out)" if row["held_out"] else ""
        size, data = f"{row['N']:,}", f"{row['D']:,}"
        yield f"| {row['name']}{mark} | {size} | {data} | {row['C']:.3g} | {row['epochs']} | {row['L']:.4f} |"
    yield ""
    yield from (f"{letter}: {meaning}" for letter, meaning in MEANING.items())
    yield f"{LEVEL:.0%} confidence intervals, if the law itself is right"
    yield ""
    laws: Laws = results["_laws"]
    for line in laws.lines:
        yield from _describe_line(line, runs)
    yield from _describe_surface(laws.surface)
    for one in results["_predicted"]:
        yield _describe_prediction(one)
    notes = list(_notes(cells, results))
    yield from ["", *(f"note: {note}" for note in notes)] if notes else []
    yield ""
    yield f"figure   {folder / 'scaling.svg'}, .png and .pdf"
    yield f"numbers  {folder / 'scaling.json'}"
    yield f"runs     heedful runs {shlex.quote(str(folder))}"


def _describe_line(line: Line, runs: Mapping[str, Run]) -> Iterator[str]:
    where = {
        "N": f"at D = {runs[line.runs[0]].tokens:,}" if line.runs else "",
        "D": f"at N = {runs[line.runs[0]].parameters:,}" if line.runs else "",
        "C": f"over the {len(line.runs)} runs on the compute-efficient frontier",
    }[line.variable]
    yield f"L({line.variable}) {where}".rstrip()
    if line.plain is None:
        yield f"    {line.missing}"
        return
    yield f"    {'  ' if line.has_floor else '* '}{_describe_law(line.variable, line.plain)}"
    if line.above_floor is None:
        yield f"      a floor needs more than {len(line.runs)} runs"
    else:
        yield f"    {'* ' if line.has_floor else '  '}{_describe_law(line.variable, line.above_floor)}"
    gain = "is significant" if line.has_floor else "is not significant"
    if line.above_floor is not None:
        yield f"    * selected and drawn: the improvement by a floor {gain}"
    if line.law and line.law.exponent.low <= 0:
        yield "    these runs do not show that the loss decreases along this axis"


def _describe_law(variable: str, law: Law) -> str:
    floor = f"{law.floor.value:.4g} + " if law.floor else ""
    form = f"L = {floor}({variable}_c / {variable})^a"
    scale = f", {variable}_c = {law.scale:.3g}" if law.scale else ""
    bounds = f", floor {_interval(law.floor)}" if law.floor else ""
    return f"{form}: a = {_interval(law.exponent)}{bounds}{scale}; scatter {law.scatter:.2%}"


def _describe_surface(surface: Surface) -> Iterator[str]:
    if surface.floor is None or surface.size_exponent is None or surface.data_exponent is None:
        yield str(surface.missing)
        return
    yield "L(N, D) over all fitted runs"
    yield (
        f"      L = E + A / N^a + B / D^b: E = {_interval(surface.floor)}, a = {_interval(surface.size_exponent)}, "
        f"b = {_interval(surface.data_exponent)}; scatter {surface.scatter:.2%}"
    )


def _interval(estimate: Estimate) -> str:
    return f"{estimate.value:.4g} ({estimate.low:.4g} to {estimate.high:.4g})"


def _describe_prediction(one: Predicted) -> str:
    prediction = f"predicted {_interval(one.prediction)}" if one.prediction else "not predicted"
    if one.run is None:
        return f"{one.name}: {prediction}, not measured"
    where = {None: "", True: ": inside the interval", False: ": outside the interval"}[_inside(one)]
    off = f", {one.run.loss / one.prediction.value - 1:+.2%}" if one.prediction else ""
    return f"{one.name}: {prediction}, measured {one.run.loss:.4f}{off}{where}"


def _notes(cells: Sequence[Cell], results: Mapping[str, Any]) -> Iterator[str]:
    """Warnings about runs that make the fits less reliable."""
    yield from (f"{name} is left out: {why}" for name, why in results["left_out"].items())
    repeated = [row for row in results["runs"] if row["epochs"] > REPEATED]
    if repeated:
        most = max(row["epochs"] for row in repeated)
        names = sorted({short(cell.budget) for cell in cells if cell.name in {row["name"] for row in repeated}})
        yield (
            f"the runs of {', '.join(names)} tokens read the same text up to {most} times: beyond {REPEATED} epochs, "
            "repeated text is worth less than new text, and the laws do not distinguish them"
        )
    short_runs = [cell.name for cell in cells if cell.steps < MIN_STEPS]
    if short_runs:
        yield f"fewer than {MIN_STEPS} steps, too few to be reliable: {', '.join(short_runs)}"
