"""Heartbeats of the processes of a run: if one is killed or frozen, all of them end, with one line that names it.

Each process writes a heartbeat to the shared store every second. The leader reads those of all processes, the others
read the leader's. A process that finds another missing claims the report in the store; only the first one prints it.
"""

from __future__ import annotations

import atexit
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from heedful.errors import EXIT_GONE, UserError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

BEAT = 1.0  # seconds between two heartbeats
PATIENCE = 45  # missing ones in a row after which a process counts as frozen; a suspended machine misses none
SETTLING = 5.0  # seconds within which the cause of a broken connection shows
FALLEN = "fallen"  # who ended the run, and with which exit code

Answer = TypeVar("Answer")


class Sign(NamedTuple):
    """One heartbeat: a counter, the step, the process id, and the system that this id belongs to."""

    number: int
    step: int
    pid: int
    system: str

    @classmethod
    def read(cls, text: str) -> Sign:
        number, step, pid, system = text.split(" ", 3)
        return cls(int(number), int(step), int(pid), system)

    def __str__(self) -> str:
        return " ".join(map(str, self))


class Heartbeat:
    """Sends heartbeats and checks those of other processes until `leave` is called.

    One thread talks to the store, and may freeze with it; another one checks and never waits for the store. A process
    forked from this one has neither thread and sends no heartbeats.
    """

    def __init__(self, store: Store, rank: int, world: int) -> None:
        self.store, self.rank, self.world = store, rank, world
        self.step = 0
        self.others = range(1, world) if rank == 0 else range(1)
        self.signs: dict[int, Sign] = {}  # the last of each other process
        self.rounds = 0  # of talk with the store
        self.ended: int | None = None  # the exit code with which another process ended the run
        self.broken = False  # whether the store is gone
        self.deaths: dict[int, int] = {}  # of processes of this system, as descriptors that can be waited for
        self.leaving, self.ending = Event(), Lock()
        self.bell = os.pipe()
        self.sign = Sign(0, 0, os.getpid(), system())
        store.set_timeout(timedelta(seconds=SETTLING))
        self._talk()
        self.talker = Thread(target=self._talk_on, name="talk", daemon=True)
        self.watcher = Thread(target=self._watch, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Start both threads."""
        self.talker.start()
        self.watcher.start()

    def _watch(self) -> None:
        """Check the others, and end this process, whatever it is doing, when one is missing."""
        stale = dict.fromkeys((*self.others, self.rank), (0, -1))  # how often the same number was seen, and which
        while not self.leaving.is_set():
            select.select([self.bell[0], *list(self.deaths.values())], [], [], BEAT)
            for rank, (times, number) in stale.items():
                sign = self.signs.get(rank)
                now = self.rounds if rank == self.rank else sign.number if sign else -1
                stale[rank] = (times + 1, now) if now == number else (0, now)
            frozen = [rank for rank in self.others if rank in self.signs and stale[rank][0] >= PATIENCE]
            # If the store has not answered for as long, its host is frozen: the leader, as far as is known.
            frozen += [0] if stale[self.rank][0] >= PATIENCE and self.rank else []
            missing = self._dead() or next((self._frozen(rank) for rank in frozen), None)
            if self.leaving.is_set():
                return
            if self.ended is not None:
                self._vanish(self.ended)
            if missing:
                self._tell(*missing)

    def leave(self) -> None:
        """Stop: the run is over, and all processes know it. The leader, which may host the store, leaves last."""
        self._stop()
        self.watcher.join()
        self.talker.join(SETTLING)
        with suppress(RuntimeError):
            self.store.set(f"left/{self.rank}", "")
            if self.rank == 0:
                self.store.wait([f"left/{rank}" for rank in range(self.world)], timedelta(seconds=SETTLING))

    def fall(self, error: BaseException) -> None:
        """End with an error: the first process to fail reports it, all others exit silently with its exit code."""
        for number in (signal.SIGINT, signal.SIGTERM):  # a launcher sends them now, and the end is near anyway
            with suppress(ValueError):
                signal.signal(number, signal.SIG_IGN)
        self._stop()
        code = _exit_code(error)
        # A broken connection is the fault of the other end, unless no process turns out to be missing.
        until = time.monotonic() + (SETTLING if _of_a_connection(error) else 0)
        while True:
            self._asked(self._talk)
            if self.ended is not None:
                self._vanish(self.ended)
            if missing := self._dead():
                self._tell(*missing)
            if time.monotonic() >= until:
                break
            time.sleep(0.05)
        if (other := self._claim(code)) is not None:
            self._vanish(other)
        self._wait_until_heard()
        if self.rank and isinstance(error, UserError):
            error.message = f"rank {self.rank}: {error.message}"
        atexit.register(_end, code)  # torch's threads, cut off from the others, would abort the usual ending

    def _stop(self) -> None:
        self.leaving.set()
        os.write(self.bell[1], b".")

    def _talk_on(self) -> None:
        """Talk to the store once a beat, until it is gone."""
        while not self.leaving.wait(BEAT):
            try:
                self._talk()
            except RuntimeError:
                self.broken = True
                os.write(self.bell[1], b".")
                return

    def _talk(self) -> None:
        """Send a heartbeat, and read those of others and whether one of them has ended the run."""
        self.sign = self.sign._replace(number=self.sign.number + 1, step=self.step)
        self.store.set(f"sign/{self.rank}", str(self.sign))
        if self.store.check([FALLEN]):
            self.ended = _code(self.store.get(FALLEN))
            os.write(self.bell[1], b".")
        for rank in self.others:
            if self.store.check([f"left/{rank}"]):
                self.signs.pop(rank, None)
                self.deaths.pop(rank, None)
            elif self.store.check([f"sign/{rank}"]):
                self.signs[rank] = sign = Sign.read(self.store.get(f"sign/{rank}").decode())
                if self._is_here(sign) and rank not in self.deaths:
                    with suppress(OSError, AttributeError):  # Linux has it, if Python was built to use it
                        self.deaths[rank] = os.pidfd_open(sign.pid)
        self.rounds += 1

    def _dead(self) -> tuple[int, str] | None:
        """A process that is dead, and how it died."""
        for rank, sign in list(self.signs.items()):
            if self._is_here(sign) and (how := fate(sign.pid)):
                return rank, how
        return (0, "is gone, with the store that it kept") if self.broken else None

    def _frozen(self, rank: int) -> tuple[int, str]:
        """A process without heartbeats, and the message about it; one that is stopped on this system is killed."""
        sign = self.signs.get(rank)
        stopped = sign is not None and self._is_here(sign) and is_stopped(sign.pid)
        if sign is not None and stopped:
            with suppress(OSError):
                os.kill(sign.pid, signal.SIGKILL)  # a stopped process handles no other signal
        why = "is stopped (SIGSTOP, signal 19) and" if stopped else "is frozen or cut off:"
        return rank, f"{why} has sent no heartbeat for {PATIENCE * BEAT:.0f} s"

    def _is_here(self, sign: Sign) -> bool:
        return sign.system == self.sign.system

    def _tell(self, rank: int, what: str) -> None:
        """End the run and report it, unless another process already has, or the missing one has just left."""
        if self._asked(lambda: self.store.check([f"left/{rank}"])):
            self.signs.pop(rank, None)
            self.deaths.pop(rank, None)
            return
        other = self._claim(EXIT_GONE)
        if other is None:
            sign = self.signs.get(rank)
            step = max(self.step, sign.step if sign else 0)
            os.write(2, (f"error: rank {rank} {what}, at step {step}; the run has ended on all processes, "
                         "and the same command resumes from the last checkpoint\n").encode())  # fmt: skip
        self._vanish(EXIT_GONE if other is None else other)

    def _claim(self, code: int) -> int | None:
        """End the run with an exit code; if another process has done so already, return its code."""
        self.ending.acquire()  # never released: of two threads that find something, one ends the process
        mine = f"{self.rank} {code}"
        fallen = self._asked(lambda: self.store.compare_set(FALLEN, "", mine))
        if fallen is None:  # without a store, the lowest rank left reports
            return None if self.rank <= 1 else code
        return _code(fallen, mine)

    def _asked(self, question: Callable[[], Answer]) -> Answer | None:
        """What the store answers, unless it is gone, or frozen and never answers."""
        answers: list[Answer] = []

        def ask() -> None:
            with suppress(RuntimeError):
                answers.append(question())

        asking = Thread(target=ask, daemon=True)
        asking.start()
        asking.join(SETTLING)
        return answers[0] if answers else None

    def _vanish(self, code: int) -> None:
        """Exit at once, since another process has ended the run."""
        self._asked(lambda: self.store.set(f"heard/{self.rank}", ""))
        self._wait_until_heard()
        os._exit(code)

    def _wait_until_heard(self) -> None:
        """The leader, which may host the store, waits until the living processes know that the run is over."""
        if self.rank == 0:
            signs = list(self.signs.items())
            living = [f"heard/{rank}" for rank, sign in signs if not (self._is_here(sign) and fate(sign.pid))]
            self._asked(lambda: self.store.wait(living, timedelta(seconds=SETTLING)))


def _end(code: int) -> None:
    """Exit with a code, after all output is written."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _code(fallen: bytes, mine: str = "") -> int | None:
    """The exit code of the process that ended the run, unless that is this one."""
    return None if fallen.decode() == mine else int(fallen.split()[1])


def _exit_code(error: BaseException) -> int:
    if isinstance(error, UserError):
        return error.exit_code
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 1
    return 130 if isinstance(error, KeyboardInterrupt) else 1


def _of_a_connection(error: BaseException) -> bool:
    """Whether a connection failed, rather than a computation."""
    words = ("gloo", "NCCL", "onnection", "Broken pipe", "store")
    return isinstance(error, RuntimeError) and any(word in str(error) for word in words)


def system() -> str:
    """A name for the system in which a process's number has a meaning: a boot, and a container in it."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def fate(pid: int) -> str | None:
    """How a process of this system ended, in words; None while it runs."""
    if sys.platform != "linux":
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return "is gone (most likely killed by SIGKILL, signal 9)"
        except PermissionError:
            pass
        return None
    fields = _stat(pid)
    if fields is None:  # its parent has reaped it already; most often this signal was the cause
        return "was killed, by SIGKILL (signal 9) or in a crash"
    if fields[0] not in ("Z", "X"):
        return None
    number = int(fields[-1]) & 127  # the status that its parent will read, the last field since Linux 3.5
    if number:
        return f"was killed by {_name(number)} (signal {number})"
    return f"has left with exit code {int(fields[-1]) >> 8}"


def is_stopped(pid: int) -> bool:
    """Whether a process of this system is stopped by a signal."""
    return (_stat(pid) or [""])[0] in ("T", "t")


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the state on (Linux)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "a signal"
