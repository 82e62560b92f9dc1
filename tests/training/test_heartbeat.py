"""The state of a process is reported correctly: alive, stopped, killed by a signal, exited with a code."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from heedful.training.distributed import heartbeat as heartbeat
from heedful.training.distributed.heartbeat import Heartbeat, Sign, fate, is_stopped, system
from patience import LONG, until


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


def test_living_process_has_no_exit_status(child: int) -> None:
    assert fate(child) is None
    assert not is_stopped(child)


def test_stopped_process_is_not_dead(child: int) -> None:
    os.kill(child, signal.SIGSTOP)
    until(lambda: is_stopped(child))
    assert fate(child) is None


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_signal_is_named_until_the_parent_reaps(child: int, number: signal.Signals) -> None:
    os.kill(child, number)
    until(lambda: fate(child))
    assert fate(child) == f"was killed by {number.name} (signal {number.value})"
    os.waitpid(child, 0)
    assert fate(child) == "was killed, by SIGKILL (signal 9) or in a crash"


def test_exit_code_is_named() -> None:
    pid = os.fork()
    if not pid:
        os._exit(3)
    until(lambda: fate(pid))
    assert fate(pid) == "has left with exit code 3"
    os.waitpid(pid, 0)


def test_heartbeat_is_parsed_as_written() -> None:
    sign = Sign(4, 17, 123, system())
    assert Sign.read(str(sign)) == sign
    assert " " in sign.system  # a boot and a container


class FrozenStore:
    """A store that stops answering after a few heartbeats were read, as if its host were unreachable."""

    def __init__(self) -> None:
        self.read = 0
        self.kept = {"sign/0": str(Sign(1, 7, 1, "another machine")).encode()}

    def _wait(self) -> None:
        if self.read > 2:
            time.sleep(LONG)

    def set_timeout(self, timeout: object) -> None:
        pass

    def set(self, key: str, value: str) -> None:
        self._wait()
        self.kept[key] = value.encode()

    def get(self, key: str) -> bytes:
        self._wait()
        self.read += 1
        return self.kept[key]

    def check(self, keys: list[str]) -> bool:
        self._wait()
        return all(key in self.kept for key in keys)

    def compare_set(self, key: str, expected: str, value: str) -> bytes:
        self._wait()
        return self.kept.setdefault(key, value.encode())


@pytest.mark.parametrize("falls", [False, True], ids=["computing", "falling"])
def test_unreachable_store_does_not_block(monkeypatch: pytest.MonkeyPatch, falls: bool) -> None:
    monkeypatch.setattr(heartbeat, "BEAT", 0.05)
    monkeypatch.setattr(heartbeat, "SETTLING", 0.2)
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.dup2(writing, 2)
        store = FrozenStore()
        watch = Heartbeat(store, rank=1, world=2)  # type: ignore[arg-type]
        watch.start()
        if falls:
            until(lambda: store.read > 2)
            watch.fall(RuntimeError("gloo: Connection closed by peer"))
            os._exit(1)  # the exit code of the error itself
        time.sleep(LONG)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == (1 if falls else 75)
    os.close(writing)
    said = os.read(reading, 10_000).decode()
    os.close(reading)
    wanted = "" if falls else "error: rank 0 is frozen or cut off: has sent no heartbeat for"
    assert said.startswith(wanted)
    assert falls or "at step 7" in said


class LiveStore:
    """A store in which the other process has a new heartbeat at every read."""

    def __init__(self) -> None:
        self.asked = 0

    def set_timeout(self, timeout: object) -> None:
        pass

    def set(self, key: str, value: str) -> None:
        pass

    def get(self, key: str) -> bytes:
        self.asked += 1
        return str(Sign(self.asked, 7, 1, "another machine")).encode()

    def check(self, keys: list[str]) -> bool:
        return keys == ["sign/0"]

    def compare_set(self, key: str, expected: str, value: str) -> bytes:
        return value.encode()


def test_heartbeat_continues_after_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "BEAT", 0.05)
    pid = os.fork()
    if not pid:
        store = LiveStore()
        Heartbeat(store, rank=1, world=2).start()  # type: ignore[arg-type]
        for _ in range(3):  # as for workers that prepare batches
            worker = os.fork()
            if not worker:
                os._exit(0)
            os.waitpid(worker, 0)
        asked = store.asked
        until(lambda: store.asked > asked)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0  # and not 75, for a process that is alive
