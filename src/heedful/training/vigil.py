"""A watch over the processes of a run: one that is killed or frozen ends all of them, with one line that says which.

Every process counts aloud, once a second, in the store through which they met. The leader listens to all, the others
to the leader. Whoever finds a process missing tells it to the store, where only the first to do so may speak.
"""

from __future__ import annotations

import atexit
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, NamedTuple

from heedful.errors import EXIT_GONE, UserError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

BEAT = 1.0  # seconds between two signs of life
PATIENCE = 45  # missing ones in a row after which a process counts as frozen; a suspended machine misses none
SETTLING = 5.0  # seconds within which the cause of a broken connection shows
FALLEN = "fallen"  # the exit code of whoever ended the run


class Sign(NamedTuple):
    """What a process says of itself: a number that rises, its step, its number, and the system that number is of."""

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


class Watched(NamedTuple):
    """Another process: the last sign of it, and how often the same one was found since."""

    sign: Sign
    stale: int


class Vigil(Thread):
    """Gives signs of life and looks for those of others until it is told to leave."""

    def __init__(self, store: Store, rank: int, world: int) -> None:
        super().__init__(name="vigil", daemon=True)
        self.store, self.rank = store, rank
        self.step = 0
        self.sign = Sign(0, 0, os.getpid(), system())
        self.world = world
        self.others = range(1, world) if rank == 0 else range(1)
        self.seen: dict[int, Watched] = {}
        self.deaths: dict[int, int] = {}  # of processes of this system, as descriptors that can be waited for
        self.leaving = Event()
        self.bell = os.pipe()
        store.set_timeout(timedelta(seconds=SETTLING))
        self._beat()

    def run(self) -> None:
        """What the thread does; it ends the whole process, wherever that is, when another is missing."""
        while not self.leaving.is_set():
            select.select([self.bell[0], *self.deaths.values()], [], [], BEAT)
            ended, missing = self._look()
            if self.leaving.is_set():
                return
            if ended is not None:
                os._exit(ended)
            if missing:
                self._tell(*missing)

    def leave(self) -> None:
        """Watch no more: the run is over, and all know it. The leader, who may keep the store, goes last."""
        self._stop()
        self.join()
        with suppress(RuntimeError):
            self.store.set(f"left/{self.rank}", "")
            if self.rank == 0:
                self.store.wait([f"left/{rank}" for rank in range(self.world)], timedelta(seconds=SETTLING))

    def fall(self, error: BaseException) -> None:
        """End with an error: the first to fall may say why, all others follow in silence, with its exit code."""
        self._stop()
        code = _exit_code(error)
        # What breaks in a conversation breaks because of the other end, unless nobody is found to be missing.
        until = time.monotonic() + (SETTLING if _of_a_connection(error) else 0)
        while True:
            ended, missing = self._look()
            if ended is not None:
                os._exit(ended)
            if missing:
                self._tell(*missing)
            if time.monotonic() >= until:
                break
            time.sleep(0.05)
        if not self._first(code):
            os._exit(code)
        if self.rank and isinstance(error, UserError):
            error.message = f"rank {self.rank}: {error.message}"
        atexit.register(_vanish, code)  # torch's threads, cut off from the others, would abort the usual ending

    def _stop(self) -> None:
        self.leaving.set()
        os.write(self.bell[1], b".")

    def _look(self) -> tuple[int | None, tuple[int, str] | None]:
        """The exit code with which somebody has ended the run; or else who is missing, and what became of it."""
        try:
            self._beat()
            if self.store.check([FALLEN]):
                return int(self.store.get(FALLEN)), None
            for rank in self.others:
                self._hear(rank)
        except RuntimeError:
            # The store is gone, and with it whoever kept it: the leader, unless there is a launcher to do so.
            return None, next(self._missing(), (0, "is gone, with the store that it kept"))
        return None, next(self._missing(), None)

    def _beat(self) -> None:
        self.sign = self.sign._replace(number=self.sign.number + 1, step=self.step)
        self.store.set(f"sign/{self.rank}", str(self.sign))

    def _hear(self, rank: int) -> None:
        """Note the last sign of another process; one that has left gives none, and is not missed."""
        if self.store.check([f"left/{rank}"]):
            self.seen.pop(rank, None)
        elif self.store.check([f"sign/{rank}"]):
            sign, former = Sign.read(self.store.get(f"sign/{rank}").decode()), self.seen.get(rank)
            same = former is not None and former.sign.number == sign.number
            self.seen[rank] = Watched(sign, former.stale + 1 if former and same else 0)
            if sys.platform == "linux" and self._is_here(sign) and rank not in self.deaths:
                with suppress(OSError):
                    self.deaths[rank] = os.pidfd_open(sign.pid)

    def _missing(self) -> Iterator[tuple[int, str]]:
        """The processes that are dead or frozen, and the words for what became of them."""
        for rank, (sign, stale) in self.seen.items():
            if self._is_here(sign) and (how := fate(sign.pid)):
                yield rank, how
            elif stale >= PATIENCE:
                stopped = self._is_here(sign) and is_stopped(sign.pid)
                if stopped:
                    os.kill(sign.pid, signal.SIGKILL)  # it hears nothing softer
                why = "is stopped (SIGSTOP, signal 19) and" if stopped else "is frozen or cut off:"
                yield rank, f"{why} has given no sign of life for {PATIENCE * BEAT:.0f} s"

    def _is_here(self, sign: Sign) -> bool:
        return sign.system == self.sign.system

    def _tell(self, rank: int, what: str) -> None:
        """End the run with the one line about it, if nobody has said it yet."""
        if self._first(EXIT_GONE):
            step = max(self.step, self.seen[rank].sign.step if rank in self.seen else 0)
            os.write(2, (f"error: rank {rank} {what}, at step {step}; the run has ended on all processes, "
                         "and the same command goes on from the last checkpoint\n").encode())  # fmt: skip
        os._exit(EXIT_GONE)

    def _first(self, code: int) -> bool:
        """Whether nobody has ended the run yet; from now on it is ended."""
        try:
            # Two may have the same code: each adds one, and the first is who finds one.
            first = self.store.add(f"{FALLEN}/count", 1) == 1
            if first:
                self.store.set(FALLEN, str(code))
            return first
        except RuntimeError:
            return self.rank <= 1  # without a store the lowest who is left speaks


def _vanish(code: int) -> None:
    """Leave with an exit code, all that was said being written."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _exit_code(error: BaseException) -> int:
    if isinstance(error, UserError):
        return error.exit_code
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 1
    return 130 if isinstance(error, KeyboardInterrupt) else 1


def _of_a_connection(error: BaseException) -> bool:
    """Whether torch broke off a conversation, rather than a computation."""
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
    """How a process of this system ended, in words; none while it lives."""
    if sys.platform != "linux":
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return "is gone (most likely killed by SIGKILL, signal 9)"
        except PermissionError:
            pass
        return None
    fields = _stat(pid)
    if fields is None:  # its parent knew first; without a last word, most often this signal takes a process
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
    """What Linux tells of a process, from its state on."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "a signal"
