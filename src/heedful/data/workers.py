"""Batches in order, prepared on demand or ahead of time by worker processes.

Batch positions are known in advance, so nothing needs to be coordinated: of n workers, worker i makes every nth
batch, starting from i. Each sends through its own pipe, which blocks it when training is slower.
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

ALIGNED = 8  # bytes of the largest dtype, at whose multiples every tensor starts
PATIENCE = 45.0  # seconds after which a worker that sends nothing is given up
GLANCE = 0.2  # seconds between two checks that all workers are alive


class BatchIndex(NamedTuple):
    """A batch position, and which of `parts` shards of the batch."""

    position: int
    part: int = 0
    parts: int = 1


BatchIndices = Callable[[], Iterator[BatchIndex]]


class BatchSource(Protocol):
    """Batches by position: dataclasses of tensors, numbers and tuples of numbers."""

    @property
    def kind(self) -> type:
        """The class of the batches."""

    def at(self, position: int, part: int = 0, parts: int = 1) -> Any:
        """The batch at a position, or one part of it."""

    def epoch_of(self, position: int) -> int:
        """The epoch that it belongs to."""


def load_batches(batches: BatchSource, places: BatchIndices, workers: int = 0) -> Generator[Any]:
    """The batches at some positions, in order; the number of workers changes nothing else."""
    if not workers:
        yield from (batches.at(*place) for place in places())
        return
    for first in islice(places(), 1):
        batches.epoch_of(first.position)  # what is wrong with the batches is raised here, not in a worker
    pool: list[Worker] = []
    end = partial(_dismiss, pool)
    atexit.register(end)  # else a program that leaves this generator half read would wait for its workers forever
    try:
        for number in range(workers):
            pool.append(Worker.hired(number, batches, partial(_turns, places, number, workers), pool))
        for turn, _ in enumerate(places()):
            yield _read(pool[turn % workers], pool, batches.kind)
    finally:
        atexit.unregister(end)
        _dismiss(pool)


def _dismiss(pool: list[Worker]) -> None:
    while pool:
        pool.pop().dismiss()


def _turns(places: BatchIndices, first: int, every: int) -> Iterator[BatchIndex]:
    return islice(places(), first, None, every)


@dataclass(frozen=True)
class Worker:
    """A process that prepares batches, and the read end of its pipe."""

    number: int
    process: BaseProcess
    pipe: int

    @classmethod
    def hired(cls, number: int, batches: BatchSource, places: BatchIndices, others: list[Worker]) -> Worker:
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


def _work(batches: BatchSource, places: BatchIndices, pipe: int, strangers: list[int]) -> None:
    """The main loop of a worker, until the pipe is closed."""
    for number in (signal.SIGINT, signal.SIGTERM):  # meant for the whole run, which saves first and ends its workers
        signal.signal(number, signal.SIG_IGN)
    for other in strangers:
        os.close(other)
    torch.set_num_threads(1)
    try:
        for place in places():
            _send(pipe, *_plain(batches.at(*place)))
    except BrokenPipeError:
        pass  # the run is over
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


def _read(worker: Worker, pool: list[Worker], kind: Any) -> Any:
    """The next batch of a worker."""
    given_up = time.monotonic() + PATIENCE
    read = partial(_bytes, worker, pool, given_up)
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


def _bytes(worker: Worker, pool: list[Worker], given_up: float, count: int) -> bytearray:
    """Read `count` bytes from a worker, if all workers are alive and it keeps sending."""
    found = bytearray()
    while len(found) < count:
        ready = select.select([worker.pipe], [], [], GLANCE)[0]
        _require_well(pool)
        if ready:
            more = os.read(worker.pipe, min(count - len(found), 1 << 20))
            if not more:
                worker.process.join()
                _require_well(pool)
                raise _missed(worker, pool, "has left")
            found += more
        elif time.monotonic() > given_up:
            raise _missed(worker, pool, f"has sent nothing for {PATIENCE:.0f} s")
    return found


def _require_well(pool: list[Worker]) -> None:
    """Raise an error if any worker has died; one that has made all its batches may exit."""
    for worker in pool:
        if code := worker.process.exitcode:
            killed = code < 0
            how = f"was killed by {signal.Signals(-code).name} (signal {-code})" if killed else f"left with code {code}"
            raise _missed(worker, pool, how)


def _missed(worker: Worker, pool: list[Worker], how: str) -> UserError:
    return UserError(
        "a process that prepares batches has died", where="train.workers",
        found=f"worker {worker.number + 1} of {len(pool)} {how}",
        todo="run the same command again to resume from the last checkpoint; train.workers=0 needs no workers",
        exit_code=EXIT_GONE,
    )  # fmt: skip
