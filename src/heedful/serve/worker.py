"""The one thread that computes: steps of the engines, and predictions of waiting requests together, in turns.

A single thread for all models: they share the cores or the GPU, and neither a model nor a CUDA graph that is being
captured may be used by two threads.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from heedful.errors import UserError, printable
from heedful.serve.engine import Full

IDLE = 0.2  # seconds after which an idle worker looks for requests again; it is woken earlier
TOGETHER = 64  # inputs that are predicted together
BROKEN = 3  # failures in a row, after which the server is no longer healthy


class Part(Protocol):
    """What a worker does in turns."""

    def warm(self) -> None:
        """Prepare what the first requests would wait for."""

    def step(self) -> bool:
        """Do some work; false if there is none."""


class Late(Exception):  # noqa: N818  (it is not an error of ours)
    """The deadline of a request has passed."""


@dataclass(eq=False)
class Job:
    """The inputs of one request, and what receives their results, or an exception."""

    inputs: Sequence[Any]
    deadline: float
    done: Callable[[Sequence[Any] | Exception], None]
    cancelled: bool = False

    def cancel(self) -> None:
        """Leave it out, if it has not begun."""
        self.cancelled = True


class Batcher:
    """Predicts the inputs of waiting requests together; one that is refused does not hurt the others."""

    def __init__(self, predict: Callable[[Sequence[Any]], Sequence[Any]], waiting: int) -> None:
        self.predict, self.most = predict, waiting
        self.waiting: deque[Job] = deque()
        self.batches = self.inputs = 0

    def warm(self) -> None:
        """There is nothing to prepare."""

    def submit(self, job: Job) -> None:
        """Queue a request."""
        if len(self.waiting) >= self.most:
            raise Full
        self.waiting.append(job)

    def step(self) -> bool:
        """Predict for the first requests."""
        some, count, now = list[Job](), 0, time.monotonic()
        while self.waiting and (not some or count + len(self.waiting[0].inputs) <= TOGETHER):
            job = self.waiting.popleft()
            if not job.cancelled and now <= job.deadline:
                some.append(job)
                count += len(job.inputs)
            elif not job.cancelled:
                job.done(Late())
        if not some:
            return False
        self.batches, self.inputs = self.batches + 1, self.inputs + count
        try:
            results = self.predict([one for job in some for one in job.inputs])
        except Exception as error:
            self._one_by_one(some, error)
            return True
        start = 0
        for job in some:
            job.done(results[start : start + len(job.inputs)])
            start += len(job.inputs)
        return True

    def _one_by_one(self, some: Sequence[Job], error: Exception) -> None:
        """Find the requests that fail."""
        for job in some:
            if len(some) == 1:
                found: Sequence[Any] | Exception = error
            else:
                try:
                    found = self.predict(job.inputs)
                except Exception as own:
                    found = own
            if isinstance(found, Exception) and not isinstance(found, UserError | ValueError | TypeError):
                sys.stderr.write(printable("".join(traceback.format_exception(found))))
            job.done(found)


class Worker(threading.Thread):
    """Runs the parts in turns until it is stopped."""

    def __init__(self, parts: Sequence[Part]) -> None:
        super().__init__(name="heedful worker", daemon=True)
        self.parts = parts
        self.wanted = threading.Event()
        self.stopping = False
        self.failures = 0  # in a row

    @property
    def healthy(self) -> bool:
        """Whether it is running, and steps do not keep failing."""
        return self.is_alive() and self.failures < BROKEN

    def wake(self) -> None:
        """There is something to do."""
        self.wanted.set()

    def run(self) -> None:
        """One step of each part at a time."""
        while not self.stopping:
            self.wanted.clear()
            busy = [self._step(part) for part in self.parts]
            if not any(busy):
                self.wanted.wait(IDLE)

    def _step(self, part: Part) -> bool:
        try:
            busy = part.step()
        except Exception:  # the requests concerned have ended with an error
            sys.stderr.write(printable(traceback.format_exc()))
            self.failures += 1
            return True
        self.failures = 0 if busy else self.failures
        return busy

    def stop(self) -> None:
        """End after the current step."""
        self.stopping = True
        self.wake()
        self.join()
