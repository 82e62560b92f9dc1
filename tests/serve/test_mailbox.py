"""When streams get their tokens: the first and the last at once, others after a pause, a few streams at a time."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from heedful.decode.settings import Sampling
from heedful.serve import mailbox as module
from heedful.serve.engine import Completion
from heedful.serve.mailbox import EACH, SHORTEST, Mailbox


def completion() -> Completion:
    return Completion([1], Sampling(), 1000, 0, 1e9)


class Clock:
    """A clock that is set by hand."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


async def run(mailbox: Mailbox, clock: Clock, count: int, steps: int, step: float) -> list[list[float]]:
    """When each stream was woken, of streams that get three tokens a step; the first ends with the last step."""
    streams = [completion() for _ in range(count)]
    events = [asyncio.Event() for _ in streams]
    for stream, event in zip(streams, events, strict=True):
        mailbox.open(stream, event)
    woken: list[list[float]] = [[] for _ in streams]
    for number in range(steps):
        for stream in streams:
            stream.generated += [2, 2, 2]
        if number == steps - 1:
            streams[0].ending = "stop"
        mailbox.deliver(streams)
        await asyncio.sleep(0)
        for times, event in zip(woken, events, strict=True):
            if event.is_set():
                times.append(clock.now)
                event.clear()
        clock.now += step
    return woken


@pytest.mark.parametrize("count", [1, 8, 64])
def test_first_tokens_come_at_once_and_others_at_an_even_pace(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, step, steps = Clock(), 0.002, 400
    monkeypatch.setattr(module, "time", clock)
    start = clock.now
    woken = asyncio.run(run(Mailbox(), clock, count, steps, step))
    longest = max(SHORTEST, EACH * count) + SHORTEST + 2 * step
    for times in woken:
        assert times[0] == start
        pauses = [after - before for before, after in pairwise(times)]
        assert max(pauses) <= longest
        assert len(times) <= 2 + steps * step / max(SHORTEST, EACH * count)
    assert woken[0][-1] == pytest.approx(start + (steps - 1) * step)  # the end comes at once


def test_nothing_is_delivered_to_a_stream_that_is_closed() -> None:
    async def check() -> None:
        mailbox, stream, event = Mailbox(), completion(), asyncio.Event()
        mailbox.open(stream, event)
        mailbox.close(stream)
        mailbox.deliver([stream])
        await asyncio.sleep(0)
        assert not event.is_set() and not mailbox.new and not mailbox.events

    asyncio.run(check())
