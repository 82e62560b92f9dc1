"""Runs in parallel: each is `heedful train` in its own process and folder, and resumes if it was stopped.

This process does not import torch.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Generic, Protocol, TypeVar

from heedful.config import render
from heedful.errors import UserError
from heedful.files.reading import exists, is_file, is_folder, open_file
from heedful.files.writing import disk_errors, reopen
from heedful.runs.events import read_events
from heedful.training.checkpoint.ownership import acquire_lock, make_parents, release_lock, require_same

PAUSE = 0.2  # seconds between two checks of the runs
PR_SET_PDEATHSIG = 1  # its number in prctl.h


class Job(Protocol):
    """A run to train: its overrides of a recipe, and its folder."""

    @property
    def overrides(self) -> tuple[str, ...]: ...

    @property
    def recipe(self) -> Any:
        """The recipe with the overrides."""

    @property
    def folder(self) -> Path: ...


J = TypeVar("J", bound=Job)
J_co = TypeVar("J_co", bound=Job, covariant=True)


@dataclass(frozen=True)
class Started(Generic[J_co]):
    """The process of a run was started."""

    cell: J_co


@dataclass(frozen=True)
class Running(Generic[J_co]):
    """The progress of a run."""

    cell: J_co
    share: float
    loss: float


@dataclass(frozen=True)
class Ended(Generic[J_co]):
    """The process of a run ended; `error` is set if it failed, and empty if it was stopped."""

    cell: J_co
    seconds: float
    error: str | None


@contextmanager
def sweep_folder(folder: Path) -> Iterator[int]:
    """Lock a folder for a sweep and its runs, each of which keeps the lock if this process is killed."""
    if exists(folder) and not is_folder(folder):
        raise UserError("this is a file, not a folder", where=str(folder), todo="name another folder with -o")
    if exists(folder / "recipe.yaml"):
        raise UserError("this folder holds a run, not a sweep", where=str(folder), todo="name another folder with -o")
    make_parents(folder / "runs")
    with disk_errors(folder, "create the folder of the sweep"):
        folder.mkdir(exist_ok=True)
    try:
        lock = acquire_lock(folder)
    except UserError as error:
        error.todo = "wait until it ends, or name another folder with -o"
        raise
    shared = os.dup(lock)
    try:
        yield shared
    finally:
        os.close(shared)
        release_lock(lock)


def require_same_recipes(cells: Sequence[Job], may_differ: Set[str]) -> None:
    """Raise an error if the folder has runs of another recipe, before anything is trained."""
    for cell in cells:
        stored = cell.folder / "recipe.yaml"
        if is_file(stored) and any((cell.folder / "checkpoints").glob("step-*")):
            try:
                require_same(stored, render(cell.recipe), may_differ)
            except UserError as error:
                error.todo = "name another folder with -o, or give the same recipe and settings as before"
                raise


class Parallel(Generic[J]):
    """Trains runs in parallel, until there are no more or they were stopped."""

    def __init__(self, jobs: int, threads: int, gpus: int, lock: int | None = None) -> None:
        self.jobs, self.threads, self.gpus, self.lock = jobs, threads, gpus, lock
        self.running: dict[int, _Child[J]] = {}  # by slot
        self.stopping = False

    @abstractmethod
    def take(self) -> J | None:
        """The next run to start; None: there is none now, or none at all if nothing is running."""

    @abstractmethod
    def file(self, job: J) -> str:
        """The recipe's file of a run."""

    def stop(self) -> None:
        """Let every run finish and save its step; a second call stops them at once."""
        self.stopping = True
        for child in list(self.running.values()):
            child.process.terminate()

    def end(self, cell: J) -> None:
        """Let one run finish and save its step, and end."""
        for child in self.running.values():
            if child.cell is cell:
                child.ending = True
                child.process.terminate()

    def events(self) -> Iterator[Started[J] | Running[J] | Ended[J]]:
        """Start runs as slots become free, and yield their events."""
        try:
            while True:
                while len(self.running) < self.jobs and not self.stopping and (cell := self.take()) is not None:
                    slot = next(number for number in range(self.jobs) if number not in self.running)
                    self.running[slot] = _Child(cell, self._command(cell), self._environment(slot), self.lock)
                    yield Started(cell)
                if not self.running:
                    return
                time.sleep(PAUSE)
                for slot, child in list(self.running.items()):
                    if (code := child.process.poll()) is None:
                        yield from child.progress()
                    else:
                        del self.running[slot]
                        stopped = (self.stopping or child.ending) and code == 128 + signal.SIGTERM
                        yield child.ended("" if stopped else None)
        finally:
            for child in self.running.values():
                child.process.terminate()
            for child in self.running.values():
                child.process.wait()

    def _command(self, cell: J) -> list[str]:
        threads = () if cell.recipe.train.threads else (f"train.threads={self.threads}",)
        settings = (*cell.overrides, *threads)
        return [sys.executable, "-m", "heedful", "train", self.file(cell), *settings, "--run", str(cell.folder)]

    def _environment(self, slot: int) -> dict[str, str]:
        """The environment of a process; with several GPUs, each slot uses one of them."""
        if self.gpus < 2:
            return dict(os.environ)
        seen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        names = seen.split(",") if seen else [str(number) for number in range(self.gpus)]
        return {**os.environ, "CUDA_VISIBLE_DEVICES": names[slot % len(names)]}


def log_of(job: Job) -> Path:
    """The file with the output of a run's process."""
    return job.folder.with_name(f"{job.folder.name}.log")


class _Child(Generic[J]):
    """The process of a run: Ctrl-C does not reach it, and it stops when its parent process ends."""

    def __init__(self, cell: J, command: list[str], environment: dict[str, str], lock: int | None) -> None:
        self.cell, self.began, self.log, self.ending = cell, time.monotonic(), log_of(cell), False
        self.seen: tuple[float, float] | None = None
        with disk_errors(cell.folder.parent, f"write {self.log.name}"):
            log = os.fdopen(reopen(self.log), "ab")
        with log:
            self.start = log.tell()
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True,
                pass_fds=() if lock is None else (lock,), preexec_fn=_end_with_parent(),
            )  # fmt: skip

    def progress(self) -> Iterator[Running[J]]:
        """Its progress, if that has changed."""
        steps = read_events(self.cell.folder, last=4096).steps()
        now = (steps[-1]["progress"], steps[-1]["loss"]) if steps else None
        if now and now != self.seen:
            self.seen = now
            yield Running(self.cell, *now)

    def ended(self, error: str | None) -> Ended[J]:
        """The event of its end, with this error or the one in its log."""
        if error is None and self.process.returncode:
            error = self._logged_error()
        return Ended(self.cell, time.monotonic() - self.began, error)

    def _logged_error(self) -> str:
        """The last error in its log, or the last line."""
        with open_file(self.log) as log:
            log.seek(self.start)
            text = log.read().decode(errors="replace").strip()
        *_, last = ["", *re.split(r"^error: ", text, flags=re.MULTILINE)[1:]]
        code = f"its process ended with exit code {self.process.returncode}"
        return last or (f"{text.splitlines()[-1]} ({code})" if text else code)


def _end_with_parent() -> Callable[[], None] | None:
    """A function for a new process that requests SIGTERM when its parent ends, on Linux."""
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None)
    return lambda: library.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class Stoppable(Protocol):
    """Runs that can be stopped."""

    stopping: bool

    def stop(self) -> None: ...


@contextmanager
def forward_signals(runs: Stoppable) -> Iterator[None]:
    """Forward SIGINT and SIGTERM to all runs within the context."""

    def stop(number: int, _: FrameType | None) -> None:
        if not runs.stopping:
            os.write(2, b"\nstopping: every run finishes its step and saves it (Ctrl-C again stops them at once)\n")
        runs.stop()

    former = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
