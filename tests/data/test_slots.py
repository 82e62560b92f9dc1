"""Memory shared with workers: large batches arrive unchanged, and a slot is used again only when nobody looks at it."""

from __future__ import annotations

import errno
import gc
import multiprocessing
import os
import select
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice

import numpy as np
import pytest
import torch
from torch import Tensor

from heedful.data import slots, workers
from heedful.data.slots import Slots, aligned
from heedful.data.workers import BatchIndex, load_batches


@dataclass(frozen=True)
class Large:
    """A batch that is shared."""

    odd: Tensor  # 3 bytes, so that the next one needs a gap
    values: Tensor
    more: tuple[Tensor, ...]
    number: int


class Source:
    """Batches filled with their positions."""

    kind = Large

    def at(self, position: int, part: int = 0, parts: int = 1) -> Large:
        values = torch.full((workers.LARGE // 4 + position,), float(position))
        return Large(torch.full((3,), position % 7, dtype=torch.uint8), values, (values[:5] + 1, values[:0]), position)

    def epoch_of(self, position: int) -> int:
        return 0


def endless() -> Iterator[BatchIndex]:
    return (BatchIndex(position) for position in count())


def require_same(found: Large, position: int) -> None:
    exact = Source().at(position)
    assert found.number == position and torch.equal(found.odd, exact.odd) and torch.equal(found.values, exact.values)
    assert all(torch.equal(one, other) for one, other in zip(found.more, exact.more, strict=True))


@pytest.mark.parametrize("number", [1, 3])
def test_large_batches_arrive_unchanged(number: int) -> None:
    for position, batch in enumerate(islice(load_batches(Source(), endless, number), 20)):
        require_same(batch, position)


@pytest.mark.parametrize("number", [1, 2])
def test_batches_that_are_kept_stay_as_they_are(number: int) -> None:
    source = load_batches(Source(), endless, number)
    kept = list(islice(source, 17))
    parts = [batch.values[3:7] for batch in islice(source, 9)]  # a part of a batch keeps all of it
    source.close()
    for position, batch in enumerate(kept):
        require_same(batch, position)
    assert all((part == 17 + place).all() for place, part in enumerate(parts))


def test_slot_is_free_again_at_once_without_the_garbage_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    copied = []
    monkeypatch.setattr(slots, "bytearray", lambda contents: copied.append(contents) or bytes(contents), raising=False)
    gc.disable()
    try:
        for _ in islice(load_batches(Source(), endless, 1), 20):
            pass
    finally:
        gc.enable()
    assert not copied


def test_slots_are_given_back_one_by_one() -> None:
    shared = Slots()
    first, second = np.arange(5, dtype=np.uint8), np.full(8, 9, np.uint8)
    assert [shared.fill([first, second]) for _ in range(slots.COUNT)] == list(range(slots.COUNT))
    length = aligned(5) + 8
    held = [shared.contents(number, length) for number in range(slots.COUNT - 1)]
    copied = shared.contents(slots.COUNT - 1, length)  # the worker always has one
    assert shared.fill([second]) == slots.COUNT - 1
    assert bytes(copied)[:5] == bytes(held[0])[:5] == first.tobytes() and bytes(copied)[8:] == second.tobytes()
    shared.release()
    assert not select.select([shared.free], [], [], 0)[0]
    del held[0]
    shared.release()
    assert shared.fill([second]) == 0
    os.close(shared.freed)
    with pytest.raises(BrokenPipeError):
        shared.fill([first])
    os.close(shared.free)


def test_without_shared_memory_batches_pass_through_the_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(name: str) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(os, "memfd_create", refused)
    for position, batch in enumerate(islice(load_batches(Source(), endless, 2), 10)):
        require_same(batch, position)


def test_batch_that_is_too_large_for_a_slot_passes_through_the_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "ROOM", workers.LARGE + 60)  # the first ones fit
    for position, batch in enumerate(islice(load_batches(Source(), endless, 1), 10)):
        require_same(batch, position)


def test_pipes_and_memory_are_closed_with_the_generator() -> None:
    def opened() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = opened()
    for _ in range(3):
        source = load_batches(Source(), endless, 3)
        kept = next(source)
        source.close()
    require_same(kept, 0)
    del kept
    assert opened() == before and not multiprocessing.active_children()


def test_workers_that_wait_for_a_slot_end_when_their_parent_is_killed() -> None:
    reading, writing = os.pipe()
    parent = os.fork()
    if not parent:
        source = load_batches(Source(), endless, 2)
        next(source)
        time.sleep(1)  # all slots fill
        os.write(writing, b"ready")
        time.sleep(60)
    os.read(reading, 5)
    os.close(writing)
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    assert select.select([reading], [], [], 5)[0]  # end of file, once no process has the other end open
    assert os.read(reading, 1) == b""
    os.close(reading)
