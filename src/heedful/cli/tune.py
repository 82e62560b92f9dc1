"""The command `tune`: many runs of a recipe with other settings, and the table of their results."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from heedful.cli.display import PAUSE
from heedful.cli.output import json_line, say
from heedful.errors import UserError, printable
from heedful.extras.parallel import Ended, Parallel, Running, Started, forward_signals, sweep_folder
from heedful.extras.tuning.comparing import LEVEL
from heedful.extras.tuning.outcomes import Metric
from heedful.extras.tuning.plot import plot
from heedful.extras.tuning.results import Row, comparisons, complete, name_of, plain, rows_of, table
from heedful.extras.tuning.samplers import Kind, has_optuna
from heedful.extras.tuning.space import Space, read_space
from heedful.extras.tuning.study import Study, TrialRun, check_points
from heedful.files.writing import write_text_atomic
from heedful.plots.style import Style, save
from heedful.runs.load import cores
from heedful.runs.recipe import find_recipe, load_recipe
from heedful.tasks import task_of

TRIALS = 20  # of a space with ranges


def tune_command(
    words: Sequence[str],
    sampler: Kind | None,
    trials: int | None,
    metric: str | None,
    prune: bool,
    seed: int,
    out: Path | None,
    jobs: int | None,
    as_json: bool,
    style: Style = "light",
) -> None:
    """Train the trials of a study that are not complete yet, then print and draw the results."""
    space = read_space(words)
    if not space.axes and not space.seeds:
        raise UserError(
            "there is nothing to vary", found=" ".join(words), expected="a list, a range or several recipes",
            todo=f"heedful tune {words[0]} train.optimizer.lr=1e-4..1e-2 --trials 10",
        )  # fmt: skip
    check_points(space)
    kind, size = _sampler(space, sampler, trials, as_json)
    name = "-".join(find_recipe(recipe).stem for recipe in space.recipes)
    folder = out or Path("runs") / f"tune-{name}"
    study = Study(folder, space, Metric(metric or _metric(space)), kind, size, seed, prune)
    with sweep_folder(folder) as lock:
        study.open()
        _train(study, jobs, lock)
        rows = rows_of(study)
        _require_metric(study, rows)
        results = plain(study, rows)
        write_text_atomic(folder / "study.json", json.dumps(results, indent=2, ensure_ascii=False) + "\n")
        figure = plot(study, rows, f"{name}: {study.metric.name}", style)
        if figure is not None:
            save(figure, folder / "study.png")
    if as_json:
        say(json_line(results))
    else:
        for line in _report(study, rows, folder, words):
            say(line)
    failed = [row for row in rows if row.trial.state == "failed"]
    if failed:
        raise UserError(
            f"{len(failed)} of {len(rows)} trials failed; the others are complete",
            problems=[UserError(row.trial.error or "", where=f"trial {row.trial.number}") for row in failed],
            exit_code=1,
        )


def _sampler(space: Space, kind: Kind | None, trials: int | None, quiet: bool) -> tuple[Kind, int | None]:
    """The sampler and the number of points, with their defaults."""
    if kind is None:
        kind = "grid" if space.finite and trials is None else "tpe" if has_optuna() else "random"
        if kind == "random" and not quiet:
            _note("Optuna is not installed, so points are random: pip install 'heedful[tune]' for a search that learns")
    if kind == "grid" and trials is not None:
        raise UserError("a grid has all its points", where="--trials", found=str(trials), todo="leave out --trials")
    return kind, None if kind == "grid" else trials or TRIALS


def _metric(space: Space) -> str:
    """The score that selects the best checkpoint of all recipes."""
    found = {task_of(load_recipe(name, space.fixed)).metric for name in space.recipes}
    if len(found) > 1:
        raise UserError(
            "these recipes are selected by different scores", where="--metric", found=", ".join(sorted(found)),
            todo="name one that both have: --metric loss",
        )  # fmt: skip
    return found.pop()


def _require_metric(study: Study, rows: Sequence[Row]) -> None:
    if any(row.trial.runs and row.trial.state in ("running", "complete") for row in rows) and not complete(rows):
        raise UserError(
            "no run has this score", where="--metric", found=study.metric.name,
            expected="loss, or a score on the validation set",
            todo=f"heedful runs {shlex.quote(str(study.folder))} --json",
        )  # fmt: skip


# ------------------------------------------------------------------ training
class Trials(Parallel[TrialRun]):
    """The runs of a study, in parallel."""

    def __init__(self, study: Study, jobs: int, gpus: int, lock: int) -> None:
        super().__init__(jobs, 1, gpus, lock)
        self.study = study

    def take(self) -> TrialRun | None:
        """The next run of the study."""
        return self.study.take()

    def file(self, job: TrialRun) -> str:
        """Its recipe."""
        return job.file


def _train(study: Study, jobs: int | None, lock: int) -> None:
    """Train until the study has no more runs; a signal stops all, and the same command resumes."""
    gpus = torch.cuda.device_count()
    runs = Trials(study, jobs or gpus or cores(), gpus, lock)
    count = study.size * max(1, len(study.space.seeds))
    screen = _Lines(count, len(study.trials))
    pruned = set[str]()
    with forward_signals(runs):
        for event in runs.events():
            if isinstance(event, Running) and study.progress(event.cell):
                pruned.add(event.cell.name)
                runs.end(event.cell)
            elif isinstance(event, Ended):
                study.progress(event.cell)
                study.ended(event.cell, event.error, event.cell.name in pruned)
            screen.show(event, study)
    if runs.stopping:
        say("stopped; every run is saved, and the same command resumes")
        sys.exit(130)


class _Lines:
    """A line on stderr for each run that ends, and every few seconds one about the others."""

    def __init__(self, count: int, known: int) -> None:
        self.last, self.running = time.monotonic(), dict[str, str]()
        _note(f"{count} runs" + (f"; {known} trials are known already" if known else ""))

    def show(self, event: Started[TrialRun] | Running[TrialRun] | Ended[TrialRun], study: Study) -> None:
        """Show an event of a run."""
        if isinstance(event, Ended):
            self.running.pop(event.cell.name, None)
            state = "failed" if event.error else "stopped" if event.error is not None else "done"
            state = study.trials[event.cell.trial].state if state == "stopped" else state
            about = " ".join(event.cell.overrides[len(study.space.fixed) :])
            _note(f"{event.cell.name}  {about}: {state} in {event.seconds:.0f} s")
        else:
            self.running[event.cell.name] = f"{event.share:.0%}" if isinstance(event, Running) else "starting"
        if time.monotonic() - self.last >= PAUSE and self.running:
            self.last = time.monotonic()
            _note("  ".join(f"{name} {share}" for name, share in self.running.items()))


def _note(text: str) -> None:
    sys.stderr.write(printable(text) + "\n")
    sys.stderr.flush()


# ------------------------------------------------------------------ report
def _report(study: Study, rows: Sequence[Row], folder: Path, words: Sequence[str]) -> Iterator[str]:
    """The table, comparisons, and what to type next."""
    yield from table(study, rows)
    yield ""
    found = comparisons(rows)
    if found:
        better = "lower" if study.metric.direction == "minimize" else "higher"
        yield f"differences of {study.metric.name} on the validation set, seed by seed; {better} is better"
        for a, b, one in found:
            yield f"  {name_of(a)} - ({name_of(b)}): {one.text}"
        if len(found) > 1:
            yield f"  the {LEVEL:.0%} intervals and p are of one comparison each, not corrected for their number"
        yield ""
    best = complete(rows)[:1]
    if best:
        run = best[0].trial.runs[0]
        again = shlex.join(["heedful", "train", study.space.recipe(best[0].trial.point), *run.overrides])
        yield f"best     trial {best[0].trial.number}: {run.folder}"
        yield f"again    {again} --run runs/best"
    yield f"runs     heedful runs {shlex.quote(str(folder))}"
    yield f"results  {folder / 'study.json'}" + (f", {folder / 'study.png'}" if best else "")
    if found == [] and best and not study.space.seeds:
        name, settings = study.space.recipe(best[0].trial.point), best[0].trial.runs[0].overrides
        words = shlex.join([name, *settings, "train.seed=0,1,2", "-o", f"{folder}-seeds"])
        yield f"next     the same with other seeds, for mean and deviation: heedful tune {words}"
