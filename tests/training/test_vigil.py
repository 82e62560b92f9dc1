"""What became of a process is told truly: alive, stopped, killed by which signal, left with which code."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from heedful.training.vigil import Sign, fate, is_stopped, system


@pytest.fixture
def child() -> Iterator[int]:
    pid = os.fork()
    if not pid:
        time.sleep(60)
        os._exit(0)
    yield pid
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):
        pass


def until(ready: object, seconds: float = 5) -> bool:
    """Whether something comes true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if ready():  # type: ignore[operator]
            return True
        time.sleep(0.01)
    return False


def test_a_living_process_has_no_fate(child: int) -> None:
    assert fate(child) is None
    assert not is_stopped(child)


def test_a_stopped_process_is_not_dead(child: int) -> None:
    os.kill(child, signal.SIGSTOP)
    assert until(lambda: is_stopped(child))
    assert fate(child) is None


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_signal_is_named_until_the_parent_takes_note(child: int, number: signal.Signals) -> None:
    os.kill(child, number)
    assert until(lambda: fate(child))
    assert fate(child) == f"was killed by {number.name} (signal {number.value})"
    os.waitpid(child, 0)
    assert fate(child) == "was killed, by SIGKILL (signal 9) or in a crash"


def test_an_exit_code_is_named() -> None:
    pid = os.fork()
    if not pid:
        os._exit(3)
    assert until(lambda: fate(pid))
    assert fate(pid) == "has left with exit code 3"
    os.waitpid(pid, 0)


def test_a_sign_is_read_as_it_was_written() -> None:
    sign = Sign(4, 17, 123, system())
    assert Sign.read(str(sign)) == sign
    assert " " in sign.system  # a boot and a container
