"""Batches in order, prepared on demand or ahead of time by worker processes.

Batch positions are known in advance, so workers need no coordination: of n workers, worker i prepares every nth
batch, starting from i. Each sends through its own pipe, which blocks it when training is slower. Large batches lie in
memory that both processes share, and only their description is sent.
"""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import select
import signal
import time
import traceback
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import partial
from itertools import islice
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from heedful.data.memory import keep_all_memory
from heedful.data.slots import ALIGNED, ROOM, Slots, aligned
from heedful.errors import EXIT_GONE, UserError

TIMEOUT = 45.0  # seconds without data after which a worker counts as dead
POLL_INTERVAL = 0.2  # seconds between two checks that all workers are alive
ERROR_PARTS = ("message", "where", "found", "expected", "todo", "exit_code")  # that a worker sends of an error
PIPE_SIZE = 1 << 20  # bytes that a worker may send ahead
LARGE = 1 << 18  # bytes of a batch that is shared instead
IN_PIPE = -1  # in place of the number of a slot


class BatchIndex(NamedTuple):
    """A batch position, and which of `parts` shards of the batch."""

    position: int
    part: int = 0
    parts: int = 1


BatchIndices = Callable[[], Iterator[BatchIndex]]


class BatchSource(Protocol):
    """Batches by position: dataclasses of tensors, numbers, and tuples of tensors or of numbers."""

    @property
    def kind(self) -> type:
        """The class of the batches."""

    def at(self, position: int, part: int = 0, parts: int = 1) -> Any:
        """The batch at a position, or one shard of it."""

    def epoch_of(self, position: int) -> int:
        """The epoch of a position."""


def load_batches(batches: BatchSource, indices: BatchIndices, workers: int = 0) -> Generator[Any]:
    """The batches at these indices, in order; they do not depend on the number of workers."""
    if not workers:
        yield from (batches.at(*index) for index in indices())
        return
    for first in islice(indices(), 1):
        batches.epoch_of(first.position)  # raises errors of the batches here, not in a worker
    pool: list[Worker] = []
    end = partial(_stop_all, pool)
    atexit.register(end)  # else a program that does not exhaust this generator would wait for its workers forever
    try:
        for number in range(workers):
            pool.append(Worker.start(number, batches, partial(_every, indices, number, workers), pool))
        for turn, _ in enumerate(indices()):
            yield _read(pool[turn % workers], pool, batches.kind)
    finally:
        atexit.unregister(end)
        _stop_all(pool)


def _stop_all(pool: list[Worker]) -> None:
    while pool:
        pool.pop().stop()


def _every(indices: BatchIndices, first: int, step: int) -> Iterator[BatchIndex]:
    return islice(indices(), first, None, step)


@dataclass(frozen=True)
class Worker:
    """A process that prepares batches, the read end of its pipe, and memory that it shares, if there can be any."""

    number: int
    process: BaseProcess
    pipe: int
    slots: Slots | None

    @classmethod
    def start(cls, number: int, batches: BatchSource, indices: BatchIndices, others: list[Worker]) -> Worker:
        """Start a worker, which shares memory with this process."""
        reading, writing = os.pipe()
        _widen(writing)
        slots = _share()
        unused = [reading, *(end for other in others for end in other.ends)]
        context = get_context("fork")  # shares the data without copying them
        process = context.Process(target=_work, args=(batches, indices, writing, slots, unused), daemon=True)
        process.start()
        os.close(writing)
        return cls(number, process, reading, slots)

    @property
    def ends(self) -> list[int]:
        """The ends of pipes that are open here."""
        return [self.pipe, *((self.slots.free, self.slots.freed) if self.slots else ())]

    def stop(self) -> None:
        """Kill the process; SIGKILL also ends one that is suspended."""
        self.process.kill()
        self.process.join()
        for end in self.ends:
            os.close(end)


def _widen(pipe: int) -> None:
    """Give a pipe more room, where the system has it."""
    with suppress(AttributeError, OSError):  # other systems; too many pipes of a user
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_SIZE)


def _share() -> Slots | None:
    """Memory for a worker, where the system has it."""
    try:
        return Slots()
    except (AttributeError, OSError):  # other systems; limits of a user
        return None


def _work(batches: BatchSource, indices: BatchIndices, pipe: int, slots: Slots | None, unused: list[int]) -> None:
    """The main loop of a worker, until the pipe is closed."""
    for number in (signal.SIGINT, signal.SIGTERM):  # for the main process, which saves first and then stops its workers
        signal.signal(number, signal.SIG_IGN)
    for other in [*unused, *([slots.freed] if slots else [])]:
        os.close(other)
    torch.set_num_threads(1)
    keep_all_memory()
    try:
        for index in indices():
            _send(pipe, *_serialize(batches.at(*index)), slots)
    except BrokenPipeError:
        pass  # the run is over
    except UserError as error:
        _send(pipe, {name: getattr(error, name) for name in ERROR_PARTS}, [])
    except Exception:
        _send(pipe, traceback.format_exc(), [])


def _serialize(batch: Any) -> tuple[list[Any], list[np.ndarray[Any, Any]]]:
    """A batch as a JSON-compatible list, with each tensor's shape, dtype and first byte, and the arrays themselves."""
    arrays: list[np.ndarray[Any, Any]] = []
    end = 0

    def header(value: Any) -> Any:
        nonlocal end
        if isinstance(value, tuple):
            return list(map(header, value))
        if not isinstance(value, torch.Tensor | np.ndarray):
            return value
        arrays.append(value.numpy() if isinstance(value, torch.Tensor) else value)
        begin, end = end, end + aligned(arrays[-1].nbytes)
        return {"shape": arrays[-1].shape, "type": arrays[-1].dtype.name, "begin": begin}

    return [header(getattr(batch, field.name)) for field in fields(batch)], arrays


def _send(pipe: int, about: object, arrays: list[np.ndarray[Any, Any]], slots: Slots | None = None) -> None:
    header = json.dumps(about).encode()
    contents = [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays]
    length = sum(aligned(content.nbytes) for content in contents)
    slot = slots.fill(contents) if slots and LARGE <= length <= ROOM else IN_PIPE
    parts: list[Any] = [np.array([len(header), length, slot], dtype=np.int64).tobytes(), header]
    if slot == IN_PIPE:
        parts += [part for content in contents for part in (content, bytes(-content.nbytes % ALIGNED))]
    for part in parts:
        rest = memoryview(part)
        while rest:
            rest = rest[os.write(pipe, rest) :]


def _read(worker: Worker, pool: list[Worker], kind: Any) -> Any:
    """The next batch of a worker."""
    deadline = time.monotonic() + TIMEOUT
    read = partial(_read_bytes, worker, pool, deadline)
    _require_alive(pool)
    if worker.slots:
        worker.slots.release()
    header, body, slot = np.frombuffer(read(24), dtype=np.int64).tolist()
    about = json.loads(read(header))
    contents = worker.slots.contents(slot, body) if worker.slots and slot != IN_PIPE else read(body)
    if isinstance(about, str):
        raise RuntimeError(f"a worker failed to make a batch\n{about}")
    if isinstance(about, dict):  # an error for the user
        raise UserError(about.pop("message"), **about)
    return kind(*(_value(part, contents) for part in about))


def _value(header: Any, contents: Any) -> Any:
    """A field of a batch, from its part of the description."""
    if isinstance(header, list):
        return tuple(_value(part, contents) for part in header)
    if not isinstance(header, dict):
        return header
    array: np.ndarray[Any, Any] = np.ndarray(header["shape"], header["type"], contents, header["begin"])
    return torch.from_numpy(array)


def _read_bytes(worker: Worker, pool: list[Worker], deadline: float, count: int) -> bytearray:
    """Read `count` bytes from a worker; an error if any worker has died or this one sends nothing."""
    data = bytearray(count)
    rest = memoryview(data)
    while rest:
        if select.select([worker.pipe], [], [], POLL_INTERVAL)[0]:
            if not (more := os.readv(worker.pipe, [rest])):
                worker.process.join()
                _require_alive(pool)
                raise _dead_worker_error(worker, pool, "has exited")
            rest = rest[more:]
            continue
        _require_alive(pool)
        if time.monotonic() > deadline:
            raise _dead_worker_error(worker, pool, f"has sent nothing for {TIMEOUT:.0f} s")
    return data


def _require_alive(pool: list[Worker]) -> None:
    """Raise an error if any worker has died; one that has sent all its batches may exit."""
    for worker in pool:
        if code := worker.process.exitcode:
            killed = code < 0
            how = (
                f"was killed by {signal.Signals(-code).name} (signal {-code})" if killed else f"exited with code {code}"
            )
            raise _dead_worker_error(worker, pool, how)


def _dead_worker_error(worker: Worker, pool: list[Worker], how: str) -> UserError:
    return UserError(
        "a process that prepares batches has died", where="train.workers",
        found=f"worker {worker.number + 1} of {len(pool)} {how}",
        todo="run the same command again to resume from the last checkpoint; train.workers=0 needs no workers",
        exit_code=EXIT_GONE,
    )  # fmt: skip
