"""The real command, run many times in forks of a process that has imported everything."""

from __future__ import annotations

import contextlib
import functools
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import heedful
from heedful.runs.load import read_recipe
from heedful.training.checkpoint.folder import newest
from heedful.training.checkpoint.ownership import MAY_DIFFER
from torture.child import Change, Orders, work
from torture.report import limit

SAVE_EVERY = 4
LAST = 24
TINY = (
    "data.train=60", "data.valid=6", "data.test=8", "tokenizer.vocab=60", "model.width=16", "model.heads=2",
    "model.hidden=32", "model.context=48", "model.encoder_layers=1", "model.decoder_layers=1", "model.dropout=0.1",
    "train.batch_tokens=512", "train.accumulate=2", f"train.budget.steps={LAST}", "train.log_every=1",
    "train.evaluate_every=8", f"train.save_every={SAVE_EVERY}", "train.samples=1", "train.keep=2", "train.average=2",
    "train.use=average",
    "train.schedule.warmup=5", "train.optimizer.lr=2e-2",
)  # fmt: skip
# Fewer steps and fewer lines of metrics, for what is done at each change to the disk.
SHORT = (*TINY, "train.budget.steps=9", "train.save_every=3", "train.evaluate_every=6", "train.log_every=3")

SOURCES = os.pathsep.join([str(Path(heedful.__file__).parents[1]), str(Path(__file__).parents[1])])
QUIET = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "PYTHONPATH": SOURCES}
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["torture.child"])


class Ended(NamedTuple):
    """How a command ended: its exit code (or minus the signal), its output, the changes it reported, the seconds."""

    code: int
    output: str
    reported: list[Change]
    seconds: float


class Command:
    """A command under way."""

    def __init__(self, words: list[str], root: Path, log: Path, orders: Orders = Orders()) -> None:  # noqa: B008
        self.log, self.reported = log, list[Change]()
        self.line, theirs = FORKS.Pipe()
        self.process = FORKS.Process(target=work, args=(words, root, log, orders, theirs))
        get_ready()
        log.touch()  # here, since a process may be killed before it opens its log
        self.began = time.monotonic()
        self.process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        """The number of the process."""
        assert self.process.pid is not None
        return self.process.pid

    def alive(self) -> bool:
        """Whether it has not ended yet."""
        return self.process.is_alive()

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, if it is still there."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def receive(self, seconds: float = limit(60)) -> Change | None:
        """The next change that it reports, or None when it has ended."""
        assert self.line.poll(seconds), f"nothing was reported for {seconds} s"
        try:
            change: Change = self.line.recv()
        except (EOFError, OSError):  # it has ended, perhaps in the middle of a message
            return None
        self.reported.append(change)
        return change

    def until_save(self, number: int) -> bool:
        """Wait until a save begins, counted from one; False if the command ended before."""
        while (change := self.receive()) is not None:
            number -= change.name == "save begins"
            if not number:
                return True
        return False

    def resume(self) -> None:
        """Resume it after a pause."""
        self.line.send("go on")

    def wait(self, seconds: float = limit(120)) -> Ended:
        """Wait for its end, and receive all its reports."""
        until = time.monotonic() + seconds
        waiting: list[Any] = [self.line, self.process.sentinel]
        while self.line in wait(waiting, max(0.0, until - time.monotonic())):
            if self.receive() is None:
                break
        self.process.join(max(0.0, until - time.monotonic()))
        took = time.monotonic() - self.began
        if self.process.exitcode is None:
            self.process.kill()
            raise AssertionError(f"the command has not ended after {seconds} s:\n{self.log.read_text()[-2000:]}")
        self.line.close()
        return Ended(self.process.exitcode, self.log.read_text(errors="replace"), self.reported, took)


@functools.cache
def get_ready() -> None:
    """Start the fork server, once, with the environment of all commands."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in QUIET.items():
            patch.setenv(name, value)
        forkserver.ensure_running()


@dataclass
class Trial:
    """A folder that holds one run folder, and the commands that are run on it."""

    place: Path
    words: tuple[str, ...] = TINY
    elsewhere: Path | None = None  # the run folder, if not on the trial's own disk
    commands: int = 0

    @property
    def disk(self) -> Path:
        """The folder that represents the disk: the parent of the run folder, with nothing else in it."""
        return self.place / "disk"

    @property
    def run(self) -> Path:
        """The run's folder."""
        return self.elsewhere or self.disk / "run"

    def start(self, orders: Orders = Orders()) -> Command:  # noqa: B008
        """Start the command of every trial, the first time and each time after."""
        self.disk.mkdir(parents=True, exist_ok=True)
        self.commands += 1
        words = ["train", "numbers", *self.words, "--run", str(self.run)]
        return Command(words, self.disk, self.place / f"log-{self.commands}", orders)

    def finish(self, orders: Orders = Orders()) -> Ended:  # noqa: B008
        """Run the command to its end."""
        ended = self.start(orders).wait()
        assert ended.code == 0, f"exit code {ended.code}:\n{ended.output[-2000:]}"
        return ended

    def fresh(self) -> Ended:
        """Run the command to its end in a new Python process, as a user does."""
        self.disk.mkdir(parents=True, exist_ok=True)
        words = [sys.executable, "-m", "heedful", "train", "numbers", *self.words, "--run", str(self.run)]
        began = time.monotonic()
        done = subprocess.run(words, capture_output=True, text=True, timeout=limit(120), env={**os.environ, **QUIET})
        return Ended(done.returncode, done.stdout + done.stderr, [], time.monotonic() - began)


def reached(run: Path) -> int:
    """The last step that a run has written down."""
    return max((line["step"] for line in metrics(run)), default=0)


def wait_for_step(trial: Trial, command: Command, step: int = 1) -> bool:
    """Wait until a run has taken a step; False if it ended before that was seen."""
    until = time.monotonic() + limit(60)
    while reached(trial.run) < step:
        if not command.alive():
            return False
        assert time.monotonic() < until, f"step {step} is not reached"
        time.sleep(0.001)
    return True


def metrics(run: Path) -> list[dict[str, Any]]:
    """The complete lines of a run's metrics without times."""
    path = run / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
    return [
        {key: value for key, value in json.loads(line).items() if key != "tokens_per_second"} for line in lines if line
    ]


def committed(run: Path) -> int:
    """The step of the newest checkpoint, none of which may be damaged; 0 if there is none."""
    found, damaged = newest(run, 1)
    assert damaged == [], damaged
    return found[0].step if found else 0


def resumed(ended: Ended) -> int:
    """The step from which a command reported to resume; 0 if it started from scratch."""
    found = re.search(r"^resuming at step ([\d,]+)$", ended.output, re.MULTILINE)
    return int(found[1].replace(",", "")) if found else 0


def assert_same(run: Path, unbroken: Path) -> None:
    """Compare a run with an uninterrupted one: every tensor file, the model's folder, the scores and the metrics."""
    theirs, ours = outcome(unbroken), outcome(run)
    assert ours.keys() == theirs.keys(), f"other files: {sorted(ours.keys() ^ theirs.keys())}"
    different = [name for name in theirs if ours[name] != theirs[name]]
    assert different == [], f"other contents: {different}"
    left = [str(path) for path in run.rglob("*") if ".tmp-" in path.name]
    assert left == [], f"left behind: {left}"


def outcome(run: Path) -> dict[str, Any]:
    """Everything that must not depend on interruptions."""
    every = read_recipe(run).train.save_every
    # A stopped run may still keep the checkpoint of that moment, which an uninterrupted one never had.
    regular = [path for path in run.glob("checkpoints/*") if int(path.name.removeprefix("step-")) % every == 0]
    whole = [tensors for path in regular for tensors in path.glob("*.safetensors")]
    found: dict[str, Any] = {
        str(path.relative_to(run)): path.read_bytes() for path in (*whole, *run.glob("model/*"), run / "results.json")
    }
    if (run / "model").exists():
        found["model/manifest.json"] = portable(run)
    for path in regular:
        state = json.loads((path / "state.json").read_text())
        found[path.name] = {name: value for name, value in state.items() if name != "seconds"}
    return found | {"metrics": metrics(run)}


def portable(run: Path) -> dict[str, Any]:
    """The manifest of a run's model, but for how it was computed: settings with which a run may go on."""
    manifest: dict[str, Any] = json.loads((run / "model" / "manifest.json").read_text())
    del manifest["digest"]  # that of the rest
    del manifest["about"]["run"]  # a name that is drawn for each
    for name in MAY_DIFFER:
        manifest["about"]["recipe"]["train"].pop(name.removeprefix("train."), None)
    return manifest
