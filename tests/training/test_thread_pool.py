"""Threads that share work: all parts are done, an error comes out where it is waited for, and none is left behind."""

from __future__ import annotations

import threading
import time
from functools import partial

import pytest

from heedful.training.thread_pool import ThreadPool


@pytest.mark.parametrize("size", [1, 2, 4])
def test_every_part_is_done_in_a_thread_of_its_own(size: int) -> None:
    pool, seen = ThreadPool(size), list[tuple[int, str]]()
    for _ in range(50):
        pool.start([partial(lambda n: seen.append((n, threading.current_thread().name)), n) for n in range(size - 1)])
        pool.finish()
    pool.close()
    assert sorted(number for number, _ in seen) == sorted([*range(size - 1)] * 50)
    assert len(set(seen)) == size - 1  # each part by one thread, always the same
    assert threading.current_thread().name not in {name for _, name in seen}


def test_fewer_parts_than_threads_are_waited_for() -> None:
    pool, done = ThreadPool(4), list[int]()
    pool.start([lambda: (time.sleep(0.05), done.append(1))])
    pool.finish()
    assert done == [1]
    pool.finish()  # nothing is begun, so that there is nothing to wait for
    pool.close()


def test_an_error_in_a_thread_comes_out_where_the_work_is_waited_for_and_the_pool_keeps_working() -> None:
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


def test_closed_it_leaves_no_thread_and_what_was_begun_is_done() -> None:
    before, done = threading.active_count(), list[int]()
    pool = ThreadPool(4)
    assert threading.active_count() == before + 3
    pool.start([lambda: (time.sleep(0.05), done.append(1))] * 3)
    pool.close()
    assert done == [1, 1, 1]
    assert threading.active_count() == before
