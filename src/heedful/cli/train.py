"""The verb `train`: a run that can be looked at, stopped and taken up again."""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from heedful.cli.display import display, scoreboard
from heedful.cli.output import LOST, say_on
from heedful.errors import EXIT_MEMORY, UserError, lacks_memory
from heedful.files.reading import is_file
from heedful.files.writing import EXIT_DISK
from heedful.runs.evaluate import used
from heedful.runs.recipe import find_recipe, load_recipe
from heedful.runs.train import Finished, Stage, Started, train
from heedful.tasks import task_of
from heedful.tasks.base import Evaluated
from heedful.tasks.recipe_parts import Recipe
from heedful.training.checkpoint.folder import is_saved
from heedful.training.distributed.team import Team, find_seat
from heedful.training.loop import Step

ECHO = 2.0  # seconds within which a second signal is the first one again, handed on by a launcher


class Stopper:
    """A wish to stop: heeded after the step that is being taken, or at once where there is nothing to save."""

    def __init__(self, together: bool = False) -> None:
        self.signal: int | None = None
        self.patient = False  # whether a step is under way whose work would be lost
        self.together = together  # with processes whose launcher hands on a signal that they may have had already
        self.since = 0.0

    def __call__(self) -> bool:
        return self.signal is not None

    def heed(self, number: int, _: FrameType | None) -> None:
        """What the system calls for Ctrl-C and for `kill`."""
        again = self.signal is not None
        if again and self.together and time.monotonic() - self.since < ECHO:
            return
        if again or not self.patient:
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)
        self.signal, self.since = number, time.monotonic()
        if not self.together:  # there, a signal may also come because another process is gone
            # Written past Python's buffers, which may be in use at the very moment of the signal.
            os.write(2, b"\nstopping: the step is finished and saved first (Ctrl-C again stops at once)\n")


@contextmanager
def heeding(stopper: Stopper) -> Iterator[None]:
    """Let a stopper hear the signals, and put everything back afterwards."""
    former = {number: signal.signal(number, stopper.heed) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def train_command(name: str, overrides: Sequence[str], run: Path | None) -> None:
    """Train a recipe by name, and say at the end how good it is and what to do next."""
    seat = find_seat(os.environ)
    stopper = Stopper(together=seat is not None)
    with heeding(stopper), Team(seat) as team:
        recipe = load_recipe(name, overrides)
        folder = run or Path("runs") / find_recipe(name).stem
        test = run_to_end(recipe, folder, team, stopper)
        if not team.leads:
            return
        task = task_of(recipe)
        lines = ["", *scoreboard(test, task)] if test else []
        lines += ["", f"run folder  {folder}", *([f"model       {made.text}"] if (made := used(folder)) else [])]
        lines += [f"loss curve  {folder / 'loss.png'}"]
        lines += [f"report      {folder / 'report.html'}"] * is_file(folder / "report.html")
        lines += ["", "next:", *(f"  {command}" for command in task.next(folder, test))]
        say_on("\n".join(lines))
        if LOST and LOST[0].errno != errno.EPIPE:  # a closed pipe is no loss
            raise UserError(
                "the output could not be written, though everything is trained and saved",
                where=str(folder),
                found=LOST[0].strerror,
                exit_code=EXIT_DISK,
            )


def run_to_end(
    recipe: Recipe, folder: Path, team: Team | None = None, stopper: Stopper | None = None
) -> Evaluated | None:
    """Train with everything shown; returns the test scores, or leaves the program when it was told to stop."""
    team, stopper = team or Team(), stopper or Stopper()
    test: Evaluated | None = None
    steps = 0
    with display(task_of(recipe).words, recipe.train.log_every, quiet=not team.leads) as screen:
        with heeding(stopper), enough_memory(), farewell(folder, screen.say):
            for event in train(recipe, folder, stopper, team):
                screen.show(event)
                if isinstance(event, Started | Step | Stage):
                    steps += isinstance(event, Step)
                    stopper.patient = not isinstance(event, Stage)
                elif isinstance(event, Evaluated) and event.split == "test":
                    test = event
                elif isinstance(event, Finished) and event.stopped:
                    screen.say(f"everything is saved in {folder}; the same command goes on from here")
                    team.wait()
                    sys.exit(128 + (stopper.signal or signal.SIGTERM))
        if not steps:
            screen.say("this run is complete: nothing was left to train")
    return test


@contextmanager
def farewell(folder: Path, tell: Callable[[str], None]) -> Iterator[None]:
    """Say, when a run is stopped at once, what there is of it to go on from."""
    try:
        yield
    except KeyboardInterrupt:
        there = "resumes from the last checkpoint" if is_saved(folder) else "starts over, since nothing was saved yet"
        tell(f"stopped at once; the same command {there}")
        raise


@contextmanager
def enough_memory() -> Iterator[None]:
    """Turn a lack of memory into a message that says what helps."""
    try:
        yield
    except (MemoryError, RuntimeError, OSError) as error:
        if not lacks_memory(error):
            raise
        raise UserError(
            "there is not enough memory for this model and its batches",
            where="train.batch_tokens",
            found=str(error).split(". ")[0] or "no memory left",
            todo="lower train.batch_tokens and raise train.accumulate, or take a smaller model; a saved run goes on",
            exit_code=EXIT_MEMORY,
        ) from error
