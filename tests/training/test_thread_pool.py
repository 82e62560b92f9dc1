"""The thread pool: all parts run, errors are raised where the work is awaited, no thread is left."""

from __future__ import annotations

import threading
import time
from functools import partial

import pytest

from heedful.training.thread_pool import ThreadPool


@pytest.mark.parametrize("size", [1, 2, 4])
def test_each_part_runs_in_its_own_thread(size: int) -> None:
    pool, seen = ThreadPool(size), list[tuple[int, str]]()
    for _ in range(50):
        pool.start([partial(lambda n: seen.append((n, threading.current_thread().name)), n) for n in range(size - 1)])
        pool.finish()
    pool.close()
    assert sorted(number for number, _ in seen) == sorted([*range(size - 1)] * 50)
    assert len(set(seen)) == size - 1  # each part by one thread, always the same
    assert threading.current_thread().name not in {name for _, name in seen}


def test_fewer_parts_than_threads() -> None:
    pool, done = ThreadPool(4), list[int]()
    pool.start([lambda: (time.sleep(0.05), done.append(1))])
    pool.finish()
    assert done == [1]
    pool.finish()  # nothing was started
    pool.close()


def test_error_in_a_thread_is_raised_and_the_pool_keeps_working() -> None:
    pool, done = ThreadPool(3), list[int]()

    def fails() -> None:
        raise ZeroDivisionError("in a thread")

    pool.start([fails, partial(done.append, 1)])
    with pytest.raises(ZeroDivisionError, match="in a thread"):
        pool.finish()
    pool.finish()
    pool.start([partial(done.append, 2), partial(done.append, 3)])
    pool.finish()
    pool.close()
    assert sorted(done) == [1, 2, 3]


def test_closed_pool_finishes_its_work_and_leaves_no_thread() -> None:
    before, done = threading.active_count(), list[int]()
    pool = ThreadPool(4)
    assert threading.active_count() == before + 3
    pool.start([lambda: (time.sleep(0.05), done.append(1))] * 3)
    pool.close()
    assert done == [1, 1, 1]
    assert threading.active_count() == before
