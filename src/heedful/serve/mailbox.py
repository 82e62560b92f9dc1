"""From the worker to the event loop: results, and the tokens of streams, many at a time.

With many streams, each gets its tokens every few hundredths of a second, a few streams at a time: a message for each
token would take the interpreter away from the worker, and all streams at once would keep new requests waiting.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from heedful.serve.engine import Completion
from heedful.serve.worker import Job

SHORTEST = 0.01  # seconds between two deliveries
EACH = 0.0012  # seconds for each stream that a token waits more


class Mailbox:
    """Wakes the coroutines that wait for requests."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.events: dict[Completion, asyncio.Event] = {}
        self.new: set[Completion] = set()  # those without a token
        self.held: dict[Completion, float] = {}  # since when, in this order
        self.last = 0.0

    def open(self, request: Completion, event: asyncio.Event) -> None:
        """Set an event whenever a request has new tokens, or has ended."""
        self.loop = asyncio.get_running_loop()
        self.events[request] = event
        self.new.add(request)

    def close(self, request: Completion) -> None:
        """No longer wait for a request."""
        self.events.pop(request, None)
        self.new.discard(request)

    def deliver(self, some: Sequence[Completion]) -> None:
        """Called by the worker: at once for first tokens and for what has ended, else after a pause."""
        now = time.monotonic()
        for one in some:
            self.held.setdefault(one, now)
        ready = [one for one in some if one.ending is not None or one in self.new]
        if now - self.last >= SHORTEST:
            due, self.last = now - EACH * len(self.held), now
            ready += takewhile(lambda one: self.held[one] <= due, self.held)
        for one in ready:
            self.held.pop(one, None)
            self.new.discard(one)
        if ready and self.loop is not None and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._wake, ready)

    def _wake(self, some: Sequence[Completion]) -> None:
        for one in some:
            if one in self.events:
                self.events[one].set()


def waiting_job(inputs: Sequence[Any], deadline: float) -> tuple[Job, asyncio.Future[Sequence[Any]]]:
    """A job, and the future of its results in this event loop."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Sequence[Any]] = loop.create_future()

    def settle(found: Sequence[Any] | Exception) -> None:
        if future.done():
            return
        if isinstance(found, Exception):
            future.set_exception(found)
        else:
            future.set_result(found)

    def done(found: Sequence[Any] | Exception) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, found)

    return Job(inputs, deadline, done), future
