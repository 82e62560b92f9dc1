"""The command in a fork, in which every write to the disk is counted and reported, and any of them can be the last.

The functions of `os` are wrapped, not those of Heedful, so that no write is missed; `test_power_loss.py` compares what
was reported with the disk at the end.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import torch

import heedful.cli.train
import heedful.plots.figures
import heedful.plots.style
import heedful.training.metrics  # noqa: F401  (imported here, once, and not in every fork)
from heedful.cli.app import main
from heedful.training.checkpoint.folder import RunFolder
from torture.diary import Diary

CHANGES = ("mkdir", "open", "write", "ftruncate", "fsync", "rename", "unlink", "rmdir")
# Functions that would change a disk without being counted: Heedful uses none of them, and a run that does fails.
UNCOUNTED = ("pwrite", "writev", "pwritev", "fdatasync", "replace", "remove", "truncate", "link", "symlink", "sendfile")


class Change(NamedTuple):
    """A completed change to the disk, or a mark: the start and the end of a save."""

    name: str
    path: str = ""  # below the watched folder
    to: str = ""  # the target of a rename
    at: int = 0  # the offset of a write, or the length of a truncated file
    data: bytes = b""  # the written bytes, if requested


@dataclass(frozen=True)
class Orders:
    """What a fork does besides its work."""

    reports: bool = False  # report each change
    data: bool = False  # with the written bytes
    die_at: int = 0  # the change, counted from one, at which it kills itself
    after: bool = False  # after it rather than before
    pause_at: int = 0  # the save, counted from one, before which it waits
    cores: int = 0  # how many processors it may use; 0: all
    diary: str = ""  # the file for its log of steps and samples
    stop_at: int = 0  # the step at which it stops itself
    fail_in: int = 0  # the save, counted from one, for whose tensors it has no memory
    seat: tuple[int, int, int] = (0, 1, 0)  # rank, number of processes, port

    @property
    def watches(self) -> bool:
        """Whether changes to the disk matter."""
        return self.reports or self.die_at > 0 or self.pause_at > 0


class Watch:
    """Counts the changes below a folder and follows the orders."""

    def __init__(self, root: Path, orders: Orders, line: Connection) -> None:
        self.root, self.orders, self.line = os.path.realpath(root), orders, line
        self.changes = self.saves = 0
        self.lock = threading.Lock()  # a save may run in the background

    def install(self) -> None:
        """Wrap the functions of `os`, and the save whose beginning and end are marked."""
        for name in CHANGES:
            setattr(os, name, functools.partial(self._change, name, getattr(os, name)))
        for name in UNCOUNTED:
            setattr(os, name, functools.partial(self._uncounted, name, getattr(os, name)))
        real_save = RunFolder.save

        def save(folder: RunFolder, *given: Any, **named: Any) -> Path:
            self.saves += 1
            self._send(Change("save begins"))
            if self.saves == self.orders.pause_at:
                self.line.recv()
            path = real_save(folder, *given, **named)
            self._send(Change("save ends"))
            return path

        RunFolder.save = save  # type: ignore[method-assign]

    def _change(self, name: str, real: Callable[..., Any], target: Any, *rest: Any, **named: Any) -> Any:
        path = self._below(target)
        if path is None or (name == "open" and not rest[0] & os.O_CREAT):
            return real(target, *rest, **named)
        if self.changes + 1 == self.orders.die_at and not self.orders.after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(target, *rest, **named)
        with self.lock:
            self.changes += 1  # here, since a call that failed has changed nothing
        if self.changes == self.orders.die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.orders.reports:
            self._send(self._describe(name, path, target, rest, result))
        return result

    def _describe(self, name: str, path: str, target: Any, rest: tuple[Any, ...], result: Any) -> Change:
        if name == "rename":
            return Change(name, path, self._below(rest[0]) or "elsewhere")
        if name == "write":
            data = bytes(memoryview(rest[0]).cast("B")[:result]) if self.orders.data else b""
            return Change(name, path, at=os.lseek(target, 0, os.SEEK_CUR) - result, data=data)
        return Change(name, path, at=rest[0] if name == "ftruncate" else 0)

    def _uncounted(self, name: str, real: Callable[..., Any], target: Any, *rest: Any, **named: Any) -> Any:
        assert self._below(target) is None, f"os.{name} changes the disk, and is not counted"
        return real(target, *rest, **named)

    def _send(self, change: Change) -> None:
        if self.orders.reports or self.orders.pause_at:
            with self.lock:
                self.line.send(change)

    def _below(self, target: Any) -> str | None:
        """The path of a file or an open file below the watched folder, or None."""
        path = os.readlink(f"/proc/self/fd/{target}") if isinstance(target, int) else os.path.abspath(target)
        return os.path.relpath(path, self.root) if (path + "/").startswith(self.root + "/") else None


def work(words: list[str], root: Path, log: Path, orders: Orders, line: Connection) -> None:
    """Run the real command with its output in a file."""
    if orders.cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: orders.cores])
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(out, 1)
    os.dup2(out, 2)
    rank, world, port = orders.seat
    if port:
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    if orders.watches:
        Watch(root, orders, line).install()
    if orders.diary:
        Diary(orders.diary, orders.stop_at, orders.fail_in).keep()
    sys.argv = ["heedful", *words]
    main()


def warm() -> None:
    """Let torch import what its first step needs, once for all forks."""
    torch.set_num_threads(1)
    layer = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(layer.parameters(), fused=True)
    layer(torch.ones(1, 2)).sum().backward()
    optimizer.step()


warm()
