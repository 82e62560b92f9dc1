"""Batches in the order in which they are asked for, made on the spot or ahead of time by worker processes.

Which batch comes when is no secret to anybody, so that nobody has to be told: of n workers, the first makes the first
batch, and then every nth. Each sends through a pipe of its own, which holds it back when training is slower than it.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import time
import traceback
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, fields
from functools import partial
from itertools import islice
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from heedful.errors import EXIT_GONE, UserError

ALIGNED = 8  # bytes of the longest number, at whose multiples every tensor begins
PATIENCE = 45.0  # seconds after which a worker that sends nothing is given up
GLANCE = 0.2  # seconds between two looks at whether all are well


class Place(NamedTuple):
    """Which batch, and which of so many parts of it."""

    position: int
    part: int = 0
    parts: int = 1


Places = Callable[[], Iterator[Place]]


class Sequenced(Protocol):
    """Batches by their position: dataclasses of tensors, numbers and tuples of numbers."""

    @property
    def kind(self) -> type:
        """The class of the batches."""

    def at(self, position: int, part: int = 0, parts: int = 1) -> Any:
        """The batch at a position, or one part of it."""

    def epoch_of(self, position: int) -> int:
        """The epoch that it belongs to."""


def feed(batches: Sequenced, places: Places, workers: int = 0) -> Generator[Any]:
    """The batches at some places, one after the other: how many workers prepare them changes nothing else."""
    if not workers:
        yield from (batches.at(*place) for place in places())
        return
    for first in islice(places(), 1):
        batches.epoch_of(first.position)  # what is wrong with the batches is raised here, not in a worker
    crew: list[Worker] = []
    end = partial(_dismiss, crew)
    atexit.register(end)  # a program that leaves this half read would wait for workers that nothing tells to end
    try:
        for number in range(workers):
            crew.append(Worker.hired(number, batches, partial(_turns, places, number, workers), crew))
        for turn, _ in enumerate(places()):
            yield _read(crew[turn % workers], crew, batches.kind)
    finally:
        atexit.unregister(end)
        _dismiss(crew)


def _dismiss(crew: list[Worker]) -> None:
    while crew:
        crew.pop().dismiss()


def _turns(places: Places, first: int, every: int) -> Iterator[Place]:
    return islice(places(), first, None, every)


@dataclass(frozen=True)
class Worker:
    """A process that makes batches, and the end of the pipe at which they come out."""

    number: int
    process: BaseProcess
    pipe: int

    @classmethod
    def hired(cls, number: int, batches: Sequenced, places: Places, others: list[Worker]) -> Worker:
        """A new one, which shares the data with this process."""
        reading, writing = os.pipe()
        strangers = [reading, *(other.pipe for other in others)]
        context = get_context("fork")  # so that the data are not copied
        process = context.Process(target=_work, args=(batches, places, writing, strangers), daemon=True)
        process.start()
        os.close(writing)
        return cls(number, process, reading)

    def dismiss(self) -> None:
        """End it, by the one signal that a stopped process heeds."""
        self.process.kill()
        self.process.join()
        os.close(self.pipe)


def _work(batches: Sequenced, places: Places, pipe: int, strangers: list[int]) -> None:
    """What a worker does until nobody reads any more."""
    for number in (signal.SIGINT, signal.SIGTERM):  # meant for the whole run, which saves first and ends its workers
        signal.signal(number, signal.SIG_IGN)
    for other in strangers:
        os.close(other)
    torch.set_num_threads(1)
    try:
        for place in places():
            _send(pipe, *_plain(batches.at(*place)))
    except BrokenPipeError:
        pass  # the run is over, or gone
    except Exception:
        _send(pipe, traceback.format_exc(), [])


def _plain(batch: Any) -> tuple[list[Any], list[np.ndarray[Any, Any]]]:
    """A batch as a list that JSON can hold, with the shape and type of each tensor, and the tensors' contents."""
    values = [getattr(batch, field.name) for field in fields(batch)]
    values = [value.numpy() if isinstance(value, torch.Tensor) else value for value in values]
    arrays = [value for value in values if isinstance(value, np.ndarray)]
    told = [
        {"shape": value.shape, "type": value.dtype.name} if isinstance(value, np.ndarray) else value for value in values
    ]
    return told, arrays


def _send(pipe: int, about: object, arrays: list[np.ndarray[Any, Any]]) -> None:
    header = json.dumps(about).encode()
    body = b"".join(array.tobytes() + bytes(-array.nbytes % ALIGNED) for array in arrays)
    rest = memoryview(np.array([len(header), len(body)], dtype=np.int64).tobytes() + header + body)
    while rest:
        rest = rest[os.write(pipe, rest) :]


def _read(worker: Worker, crew: list[Worker], kind: Any) -> Any:
    """The next batch of a worker."""
    given_up = time.monotonic() + PATIENCE
    read = partial(_bytes, worker, crew, given_up)
    header, body = np.frombuffer(read(16), dtype=np.int64).tolist()
    about, contents = json.loads(read(header)), read(body)
    if isinstance(about, str):
        raise RuntimeError(f"a worker failed to make a batch\n{about}")
    values: list[Any] = []
    begin = 0
    for told in about:
        if isinstance(told, dict):
            array: np.ndarray[Any, Any] = np.ndarray(told["shape"], told["type"], contents, begin)
            values.append(torch.from_numpy(array))
            begin += array.nbytes + -array.nbytes % ALIGNED
        else:
            values.append(tuple(told) if isinstance(told, list) else told)
    return kind(*values)


def _bytes(worker: Worker, crew: list[Worker], given_up: float, count: int) -> bytearray:
    """So many bytes from a worker, if all are well and it goes on sending."""
    found = bytearray()
    while len(found) < count:
        ready = select.select([worker.pipe], [], [], GLANCE)[0]
        _require_well(crew)
        if ready:
            more = os.read(worker.pipe, min(count - len(found), 1 << 20))
            if not more:
                worker.process.join()
                _require_well(crew)
                raise _missed(worker, crew, "has left")
            found += more
        elif time.monotonic() > given_up:
            raise _missed(worker, crew, f"has sent nothing for {PATIENCE:.0f} s")
    return found


def _require_well(crew: list[Worker]) -> None:
    """Refuse to go on without a worker, whosever turn it is; one that has made all its batches may leave."""
    for worker in crew:
        if code := worker.process.exitcode:
            killed = code < 0
            how = f"was killed by {signal.Signals(-code).name} (signal {-code})" if killed else f"left with code {code}"
            raise _missed(worker, crew, how)


def _missed(worker: Worker, crew: list[Worker], how: str) -> UserError:
    return UserError(
        "a process that prepares batches is missing",
        where="train.workers",
        found=f"worker {worker.number + 1} of {len(crew)} {how}",
        todo="run the same command again, which goes on from the last checkpoint; train.workers=0 needs no workers",
        exit_code=EXIT_GONE,
    )
