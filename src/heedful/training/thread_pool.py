"""A small thread pool with low latency."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import TypeVar

import torch

Item = TypeVar("Item")
POLLS = 100  # about a tenth of a millisecond, twice as long as waking a sleeping thread


def next_item(queue: SimpleQueue[Item]) -> Item:
    """The next item of a queue; polls for a while first, since waking a sleeping thread takes longer."""
    for _ in range(POLLS):
        if not queue.empty():
            break
        time.sleep(0)  # yields to other threads
    return queue.get()


class ThreadPool:
    """`size` threads, including the calling one; they end with the program, or when `close` is called."""

    def __init__(self, size: int) -> None:
        self.tasks: list[SimpleQueue[Callable[[], object] | None]] = [SimpleQueue() for _ in range(size - 1)]
        self.done: SimpleQueue[BaseException | None] = SimpleQueue()
        self.pending = 0  # parts that are not finished
        self.threads = [threading.Thread(target=self._work, args=(tasks,), daemon=True) for tasks in self.tasks]
        for thread in self.threads:
            thread.start()
        atexit.register(self.close)  # a thread that runs while Python exits would crash the program

    def start(self, parts: Sequence[Callable[[], object]]) -> None:
        """Start each part in a thread of its own; there are fewer parts than threads."""
        for tasks, part in zip(self.tasks, parts, strict=False):
            tasks.put(part)
            self.pending += 1

    def finish(self) -> None:
        """Wait for all started parts."""
        while self.pending:
            self.pending -= 1
            if (error := next_item(self.done)) is not None:
                raise error

    def close(self) -> None:
        """Stop the threads after they have finished their parts."""
        atexit.unregister(self.close)
        for tasks in self.tasks:
            tasks.put(None)
        for thread in self.threads:
            thread.join()

    def _work(self, tasks: SimpleQueue[Callable[[], object] | None]) -> None:
        torch.set_num_threads(1)  # per operation in this thread
        torch.set_flush_denormal(True)
        while (part := next_item(tasks)) is not None:
            error: BaseException | None = None
            try:
                part()
            except BaseException as raised:
                error = raised
            self.done.put(error)
