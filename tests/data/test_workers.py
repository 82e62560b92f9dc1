"""Worker processes load the same batches; a dead or silent worker is an error."""

from __future__ import annotations

import multiprocessing
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest
import torch

from heedful.data import workers as feeding
from heedful.data.embedded import NumberWords
from heedful.data.pairs.batches import Batch, PairBatches, encode_pairs
from heedful.data.tokenizers.tokenizer import TrainedTokenizer, WordPiece
from heedful.data.workers import BatchIndex, load_batches
from heedful.errors import UserError
from patience import LONG

PAIRS = NumberWords(train=97, valid=1, test=1).pairs("train")[:97]
TOKENIZER = TrainedTokenizer.train(WordPiece(vocab=90), [text for pair in PAIRS for text in pair])
ENCODED = encode_pairs(PAIRS, TOKENIZER, longest=60)


def indices(start: int = 0) -> Callable[[], Iterator[BatchIndex]]:
    return lambda: (BatchIndex(position) for position in count(start))


def same(one: Batch, other: Batch) -> bool:
    parts = [(getattr(one, field.name), getattr(other, field.name)) for field in fields(one)]
    return type(one) is type(other) and all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in parts)


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
def test_order_does_not_depend_on_workers(packed: bool) -> None:
    expected = [PairBatches(ENCODED, 3, 256, packed).at(position) for position in range(5, 45)]
    for workers in (0, 1, 2):
        found = list(islice(load_batches(PairBatches(ENCODED, 3, 256, packed), indices(5), workers), 40))
        assert all(same(ours, theirs) for ours, theirs in zip(found, expected, strict=True)), workers


def test_workers_load_shards_of_batches() -> None:
    asked = [BatchIndex(position, part, 3) for position in range(4) for part in range(3)]
    one, two = (list(load_batches(PairBatches(ENCODED, 0, 256), lambda: iter(asked), workers)) for workers in (0, 2))
    assert all(same(ours, theirs) for ours, theirs in zip(one, two, strict=True))


def error_after_signal(
    spoil: int, patience: float, monkeypatch: pytest.MonkeyPatch, batch_tokens: int = 256
) -> UserError:
    """The error raised after a worker receives a signal."""
    monkeypatch.setattr(feeding, "TIMEOUT", patience)
    source = load_batches(PairBatches(ENCODED, 0, batch_tokens, packed=True), indices(), 2)
    next(source)
    worker = multiprocessing.active_children()[0]
    assert worker.pid is not None
    os.kill(worker.pid, spoil)
    with pytest.raises(UserError) as error:
        list(source)
    assert not multiprocessing.active_children()
    assert error.value.exit_code == 75
    assert error.value.where == "train.workers"
    assert "train.workers=0" in str(error.value.todo)
    return error.value


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGALRM])
def test_dead_worker_is_an_error_at_once(monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    error = error_after_signal(number, LONG, monkeypatch)  # not a timeout
    assert f"was killed by {number.name} (signal {number.value})" in str(error.found)


def test_dead_worker_is_detected_after_its_last_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    source = load_batches(PairBatches(ENCODED, 0, 256), indices(), 2)
    next(source)  # the next batch is that of the second worker, which is alive
    first = min(multiprocessing.active_children(), key=lambda worker: worker.pid or 0)
    first.kill()
    first.join(LONG)
    with pytest.raises(UserError, match="worker 1 of 2 was killed"):
        next(source)


@pytest.mark.parametrize("batch_tokens", [256, 16384])  # the larger ones fill the pipe, so it stops within a batch
def test_frozen_worker_is_an_error_after_a_timeout(monkeypatch: pytest.MonkeyPatch, batch_tokens: int) -> None:
    error = error_after_signal(signal.SIGSTOP, 0.5, monkeypatch, batch_tokens)
    assert "of 2 has sent nothing for" in str(error.found)


def test_workers_end_with_the_generator() -> None:
    source = load_batches(PairBatches(ENCODED, 0, 256), indices(), 2)
    next(source)
    assert len(multiprocessing.active_children()) == 2
    source.close()
    assert not multiprocessing.active_children()


def test_workers_ignore_signals() -> None:
    source = load_batches(PairBatches(ENCODED, 0, 256), indices(), 2)
    assert next(source).tokens + next(source).tokens > 0  # both are running
    for worker in multiprocessing.active_children():
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(worker.pid or 0, number)
    assert len([next(source) for _ in range(20)]) == 20
    source.close()


def test_program_that_stops_reading_exits() -> None:
    code = (
        "import sys; sys.path[:0] = sys.argv[1:]; import test_workers as t;"
        "from heedful.data.pairs.batches import PairBatches;"
        "source = t.load_batches(PairBatches(t.ENCODED, 0, 256), t.indices(), 2);"
        "next(source); keep = [source]; keep.append(keep)"
    )
    here = Path(__file__).parent
    assert subprocess.run([sys.executable, "-c", code, here, here.parent], timeout=LONG, check=False).returncode == 0


def test_workers_end_when_their_parent_is_killed() -> None:
    reading, writing = os.pipe()
    parent = os.fork()
    if not parent:
        source = load_batches(PairBatches(ENCODED, 0, 256), indices(), 2)
        next(source)
        os.write(writing, b"ready")
        time.sleep(60)
    os.read(reading, 5)
    os.close(writing)
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    assert select.select([reading], [], [], 5)[0]  # end of file, once no process has the other end open
    assert os.read(reading, 1) == b""
    os.close(reading)


def test_finite_positions_end() -> None:
    asked = [BatchIndex(position) for position in range(5)]
    for workers in (0, 1, 2, 7):
        assert len(list(load_batches(PairBatches(ENCODED, 0, 256), lambda: iter(asked), workers))) == 5


def test_worker_timeout_is_below_a_minute() -> None:
    assert feeding.TIMEOUT <= 50


def test_error_for_the_user_comes_from_a_worker_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Any, *place: int) -> Batch:
        raise UserError("it is gone", where="a.png", found="nothing", expected="a file", todo="look", exit_code=9)

    monkeypatch.setattr(PairBatches, "at", broken)
    with pytest.raises(UserError, match="it is gone") as error:
        list(load_batches(PairBatches(ENCODED, 0, 256), lambda: iter([BatchIndex(0)]), 1))
    assert str(error.value).splitlines()[1:] == ["  found:    nothing", "  expected: a file", "  to do:    look"]
    assert error.value.exit_code == 9 and error.value.where == "a.png"


def test_error_in_a_worker_is_raised_with_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Any, *place: int) -> Batch:
        raise KeyError("no such row")

    monkeypatch.setattr(PairBatches, "at", broken)
    with pytest.raises(RuntimeError, match="no such row"):
        next(load_batches(PairBatches(ENCODED, 0, 256), indices(), 1))
