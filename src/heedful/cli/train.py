"""The command `train`: train with progress shown; signals stop the run after its step, and it can be resumed."""

from __future__ import annotations

import errno
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from heedful.cli.display import display, scoreboard
from heedful.cli.output import WRITE_ERRORS, say_safely
from heedful.config import Config
from heedful.errors import EXIT_MEMORY, UserError, lacks_memory
from heedful.files.reading import is_file
from heedful.files.writing import EXIT_DISK
from heedful.runs.evaluate import used
from heedful.runs.load import read_recipe
from heedful.runs.recipe import find_recipe, load_recipe
from heedful.runs.train import Finished, Stage, Started, train
from heedful.tasks import task_of
from heedful.tasks.base import Evaluated
from heedful.tasks.recipe_parts import Recipe
from heedful.training.checkpoint.folder import is_saved
from heedful.training.distributed.team import Team, find_process
from heedful.training.loop import Step

LONG_ROW = 1024  # tokens from which attention to all of them takes much memory
ECHO = 2.0  # seconds within which a second signal is taken for the first one, forwarded by a launcher


class Stopper:
    """Stops a run on a signal: after the current step, or at once if there is nothing to save."""

    def __init__(self, together: bool = False) -> None:
        self.signal: int | None = None
        self.patient = False  # whether to finish a step, whose work would be lost otherwise
        self.together = together  # among processes whose launcher forwards signals that they may already have received
        self.since = 0.0

    def __call__(self) -> bool:
        return self.signal is not None

    def handle(self, number: int, _: FrameType | None) -> None:
        """The signal handler for SIGINT and SIGTERM."""
        again = self.signal is not None
        if again and self.together and time.monotonic() - self.since < ECHO:
            return
        if again or not self.patient:
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)
        self.signal, self.since = number, time.monotonic()
        if not self.together:  # otherwise the signal may come from a launcher, because another process has died
            # Bypasses Python's buffers, which may be in use when the signal arrives.
            os.write(2, b"\nstopping: the step is finished and saved first (Ctrl-C again stops at once)\n")


@contextmanager
def signal_handler(stopper: Stopper) -> Iterator[None]:
    """Let a stopper handle SIGINT and SIGTERM within the context."""
    former = {number: signal.signal(number, stopper.handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def train_command(name: str, overrides: Sequence[str], run: Path | None) -> None:
    """Train a recipe by name, and print its scores and the next commands."""
    seat = find_process(os.environ)
    stopper = Stopper(together=seat is not None)
    with signal_handler(stopper), Team(seat) as team:
        recipe = load_recipe(name, overrides)
        folder = run or Path("runs") / find_recipe(name).stem
        test = run_to_end(recipe, folder, team, stopper)
        if not team.leads:
            return
        task = task_of(recipe)
        lines = ["", *scoreboard(test, task)] if test else []
        lines += ["", f"run folder  {folder}", *([f"model       {model.text}"] if (model := used(folder)) else [])]
        lines += [f"loss curve  {folder / 'loss.png'}"]
        lines += [f"report      {folder / 'report.html'}"] * is_file(folder / "report.html")
        lines += ["", "next:", *(f"  {command}" for command in task.next(folder, test))]
        lines += [] if recipe.own_model else [f"  heedful serve {shlex.quote(str(folder))}"]
        say_safely("\n".join(lines))
        if WRITE_ERRORS and WRITE_ERRORS[0].errno != errno.EPIPE:  # a closed pipe is no error
            raise UserError(
                "the output could not be written, but the run is complete and saved",
                where=str(folder),
                found=WRITE_ERRORS[0].strerror,
                exit_code=EXIT_DISK,
            )


def run_to_end(
    recipe: Recipe, folder: Path, team: Team | None = None, stopper: Stopper | None = None
) -> Evaluated | None:
    """Train and show the progress; returns the test scores. After a signal, the program exits."""
    team, stopper = team or Team(), stopper or Stopper()
    test: Evaluated | None = None
    steps = 0
    with display(task_of(recipe).words, recipe.train.log_every, quiet=not team.leads) as screen:
        with signal_handler(stopper), memory_errors(recipe, folder), report_interrupt(folder, screen.say):
            for event in train(recipe, folder, stopper, team):
                screen.show(event)
                if isinstance(event, Started | Step | Stage):
                    steps += isinstance(event, Step)
                    stopper.patient = not isinstance(event, Stage)
                elif isinstance(event, Evaluated) and event.split == "test":
                    test = event
                elif isinstance(event, Finished) and event.stopped:
                    screen.say(f"everything is saved in {folder}; the same command resumes")
                    team.wait()
                    sys.exit(128 + (stopper.signal or signal.SIGTERM))
        if not steps:
            screen.say("this run is already complete")
    return test


@contextmanager
def report_interrupt(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """On KeyboardInterrupt, print whether the run can be resumed."""
    try:
        yield
    except KeyboardInterrupt:
        there = "resumes from the last checkpoint" if is_saved(folder) else "starts over, since nothing was saved yet"
        say(f"stopped at once; the same command {there}")
        raise


@contextmanager
def memory_errors(recipe: Recipe, folder: Path) -> Iterator[None]:
    """Turn out-of-memory errors into one that says what helps."""
    try:
        yield
    except (MemoryError, RuntimeError, OSError) as error:
        if not lacks_memory(error):
            raise
        known = read_recipe(folder) if is_file(folder / "recipe.yaml") else recipe  # with the encoder of `start`
        raise memory_error(known, str(error).split(". ")[0] or "no memory left") from error


def memory_error(recipe: Recipe, found: str) -> UserError:
    """The error for a model and batches that are too large, with their sizes."""
    examples, tokens, row = recipe.train.batch_examples, recipe.train.batch_tokens, longest_row(recipe.model)
    setting, size = ("batch_examples", f"{examples} examples") if examples else ("batch_tokens", f"{tokens:,} tokens")
    batches = f"batches of {size}" + ("" if row is None else f", in rows of up to {row:,} tokens")
    advice = [f"lower train.{setting} and raise train.accumulate, or use a smaller model; a saved run resumes"]
    if row is not None and (examples == 1 or (not examples and tokens <= row)):
        advice = ["a batch is one row already: use a smaller model or shorter rows"]
    if row is not None and row >= LONG_ROW:
        advice.append("shorter rows: a smaller model.context, or model.longest of a classifier, say")
        advice.append("less for long rows: attention to some blocks (kind: bigbird), or of a gpt, model.window")
    return UserError(
        "there is not enough memory for this model and its batches", where=f"train.{setting}",
        found=f"{found}\n{batches}", todo="\n".join(advice), exit_code=EXIT_MEMORY,
    )  # fmt: skip


def longest_row(model: Config) -> int | None:
    """The most tokens of a row, if the settings of the model say so."""
    settings = model.model_dump()
    settings |= settings.get("encoder") or {}
    return min((settings[name] for name in ("context", "longest") if isinstance(settings.get(name), int)), default=None)
