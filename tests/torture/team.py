"""Distributed runs: started by torchrun, by hand as SLURM's srun does, or as forks with a rank."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from torture.child import Orders
from torture.command import QUIET, Command, Ended, Trial
from torture.diary import PATH, Entry, entries
from torture.report import limit

TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2")


class Launch:
    """The processes of a run under way, which a launcher started, or which stand on their own."""

    def __init__(self, trial: Trial, *options: str, seats: tuple[dict[str, str], ...] = ()) -> None:
        trial.disk.mkdir(parents=True, exist_ok=True)
        trial.commands += 1
        self.run, self.log = trial.run, trial.place / f"log-{trial.commands}"
        self.diary = trial.place / f"diary-{trial.commands}"
        command = ["torture.diary", "train", "numbers", *trial.words, "--folder", str(trial.run)]
        words = command if seats else [*TORCHRUN, *options, "-m", *command]
        self.began = time.monotonic()
        with self.log.open("wb") as log:
            self.started = [
                subprocess.Popen(
                    [sys.executable, "-m", *words], stdout=log, stderr=log, start_new_session=True,
                    env={**os.environ, **QUIET, PATH: str(self.diary), **seat},
                )
                for seat in seats or ({},)
            ]  # fmt: skip

    def entries(self, rank: int, *kinds: str) -> list[Entry]:
        """What a process has written down, of some kinds."""
        return [entry for entry in entries(self.diary) if entry.rank == rank and entry.what in kinds]

    def pid(self, rank: int) -> int:
        """The number of a process."""
        return self.entries(rank, "begun")[-1].pid

    def until(self, rank: int, what: str, times: int) -> bool:
        """Wait until a process has done something so often; False if all ended before."""
        end = time.monotonic() + limit(60)
        while len(self.entries(rank, what)) < times:
            if not self.alive():
                return False
            assert time.monotonic() < end, f"rank {rank} has not done {what} {times} times:\n{self.output}"
            time.sleep(0.001)
        return True

    def alive(self) -> bool:
        """Whether what was started here has not ended yet."""
        return any(process.poll() is None for process in self.started)

    def send(self, rank: int, number: signal.Signals) -> None:
        """Send a signal to one process, if it is still there."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid(rank), number)

    def send_launcher(self, number: signal.Signals, group: bool = False) -> None:
        """Send a signal to the launcher, or to all that share its terminal."""
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if group else os.kill)(self.started[0].pid, number)

    def left(self) -> list[int]:
        """All processes that are there on account of this launch."""
        mark = f"{PATH}={self.diary}\0".encode()
        found = []
        for folder in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if folder.name.isdecimal() and mark in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
        return found

    @property
    def output(self) -> str:
        """All that was said."""
        return self.log.read_text(errors="replace")

    def wait(self, seconds: float = limit(120)) -> Ended:
        """Wait until all are gone, the seconds being those since now; none may stay for longer."""
        began = time.monotonic()
        while self.alive() or self.left():
            if time.monotonic() > began + seconds:
                stay = self.left()
                for pid in stay:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                raise AssertionError(f"{stay} are there after {seconds} s:\n{self.output[-2000:]}")
            time.sleep(0.02)
        return Ended(max(process.wait() for process in self.started), self.output, [], time.monotonic() - began)


def finish(trial: Trial, *options: str) -> Ended:
    """Run a trial to its end under torchrun."""
    ended = Launch(trial, *options).wait()
    assert ended.code == 0, f"exit code {ended.code}:\n{ended.output[-3000:]}"
    return ended


def forked(trial: Trial, *orders: Orders) -> list[Command]:
    """Begin the command in as many processes as there are orders, without a launcher and without its seconds."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    world = len(orders)
    diary = str(trial.place / f"diary-{trial.commands + 1}")
    return [
        trial.start(replace(order, seat=(rank, world, port if world > 1 else 0), diary=diary))
        for rank, order in enumerate(orders)
    ]


def ended(commands: list[Command], *codes: int) -> str:
    """What processes say that must all leave with these codes."""
    found = [command.wait() for command in commands]
    output = "".join(one.output for one in found)
    assert [one.code for one in found] == list(codes), f"exit codes {[one.code for one in found]}:\n{output[-3000:]}"
    return output


def diaries(trial: Trial) -> list[Path]:
    """What the processes of a trial wrote down, command by command."""
    return sorted(trial.place.glob("diary-*"), key=lambda path: int(path.name.removeprefix("diary-")))
