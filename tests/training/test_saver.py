"""Background saves: a snapshot of the moment of the call, errors always reported, safe to kill at any moment."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Timer
from typing import Any

import pytest
import torch

from heedful.errors import UserError
from heedful.files import writing as files
from heedful.training.checkpoint import folder as checkpoint
from heedful.training.checkpoint import saver as saving
from heedful.training.checkpoint.folder import RunFolder
from heedful.training.checkpoint.saver import Saver
from patience import LONG

RECIPE = "train:\n  seed: 1\n"
OPERATIONS = ("make_folder", "create", "write", "sync", "rename")
Tensors = dict[str, dict[str, torch.Tensor]]


def tensors_of(step: int) -> Tensors:
    whole = torch.arange(24.0).reshape(4, 6) + step
    return {
        "model": {"weight": whole, "tied": whole, "turned": whole.T, "half": whole.bfloat16(), "none": whole[:0]},
        "optimizer": {"exp_avg.weight": whole[:, ::2], "step.weight": torch.tensor(float(step))},
    }


def save(saver: Saver, step: int) -> None:
    saver.save(step, tensors_of(step), {"step": step}, {"seed": 1})


def name_of(step: int) -> str:
    return f"step-{step:08d}"


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunFolder]:
    with RunFolder.create_or_open(tmp_path / "run", RECIPE) as opened:
        yield opened


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Event]:
    """Blocks every save at its start until it is set."""
    opened, real = Event(), checkpoint.require_finite

    def held(*arguments: Any) -> None:
        assert opened.wait(LONG)
        real(*arguments)

    monkeypatch.setattr(checkpoint, "require_finite", held)
    yield opened
    opened.set()


def test_foreground_save_is_on_disk_when_the_call_returns(run: RunFolder) -> None:
    saver = Saver(run, background=False)
    save(saver, 1)
    assert (run.path / "checkpoints" / name_of(1) / "manifest.json").exists()
    save(saver, 2)
    assert saver.finished() == [(step, run.path / "checkpoints" / name_of(step)) for step in (1, 2)]
    assert saver.finished() == []


def test_background_save_is_reported_once_committed(run: RunFolder, gate: Event) -> None:
    saver = Saver(run, background=True)
    save(saver, 1)
    assert saver.finished() == []
    assert os.listdir(run.path / "checkpoints") == []
    gate.set()
    saver.wait()
    path = run.path / "checkpoints" / name_of(1)
    assert saver.finished() == [(1, path)]
    assert (path / "manifest.json").exists()
    assert saver.finished() == []


def test_both_modes_write_the_same_bytes(tmp_path: Path) -> None:
    written = []
    for background in (False, True):
        with RunFolder.create_or_open(tmp_path / f"run-{background}", RECIPE) as run:
            saver = Saver(run, background)
            save(saver, 1)
            save(saver, 2)
            saver.wait()
            assert [step for step, _ in saver.finished()] == [1, 2]
            written.append([contents(run.path / "checkpoints" / name_of(step)) for step in (1, 2)])
    assert written[0] == written[1]


def test_later_changes_do_not_leak_into_the_save(run: RunFolder, gate: Event) -> None:
    saver, given = Saver(run, background=True), tensors_of(1)
    state: dict[str, Any] = {"step": 1, "best": {"score": 0.5}}
    about: dict[str, Any] = {"seeds": [1, 2]}
    saver.save(1, given, state, about)
    for group in given.values():
        for tensor in group.values():
            tensor.fill_(-1)
        group.clear()
    given.clear()
    state["best"]["score"], state["step"] = 0.25, 2
    about["seeds"].append(3)
    gate.set()
    saver.wait()
    found = run.latest()
    assert found is not None
    assert found.state == {"step": 1, "best": {"score": 0.5}}
    assert found.manifest.about == {"seeds": [1, 2]}
    for stem, group in tensors_of(1).items():
        loaded = found.load(stem)
        assert loaded.keys() == group.keys()
        assert all(torch.equal(loaded[name], tensor) for name, tensor in group.items())
        assert all(loaded[name].dtype == tensor.dtype for name, tensor in group.items())


def test_new_save_waits_for_the_running_one(run: RunFolder, gate: Event) -> None:
    saver = Saver(run, background=True)
    save(saver, 1)
    Timer(0.2, gate.set).start()
    save(saver, 2)
    assert (run.path / "checkpoints" / name_of(1)).exists()
    done = saver.finished()
    saver.wait()
    done += saver.finished()  # the second may already have ended
    assert done == [(step, run.path / "checkpoints" / name_of(step)) for step in (1, 2)]
    assert (run.path / "checkpoints" / name_of(2)).exists()


def test_interrupted_wait_keeps_the_save(run: RunFolder, gate: Event, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    saver = Saver(run, background=True)
    save(saver, 1)
    with monkeypatch.context() as patch:
        patch.setattr(saving, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            save(saver, 2)
    gate.set()
    saver.wait()
    assert [step for step, _ in saver.finished()] == [1]


def test_pruning_is_the_same_in_the_background(run: RunFolder) -> None:
    saver = Saver(run, background=True)
    for step in range(1, 6):
        saver.save(step, tensors_of(step), {}, {}, [2] if step >= 2 else [])
    saver.wait()
    assert sorted(os.listdir(run.path / "checkpoints")) == [name_of(step) for step in (2, 4, 5)]


def full(*_: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("next_call", ["finished", "save"])
def test_background_disk_error_is_reported_at_the_next_call(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, next_call: str
) -> None:
    saver = Saver(run, background=True)
    save(saver, 1)
    saver.wait()
    with monkeypatch.context() as patch:
        patch.setattr(files, "write", full)
        save(saver, 2)
        saver.wait()
    with pytest.raises(UserError, match="free some space") as raised:
        saver.finished() if next_call == "finished" else save(saver, 3)
    assert raised.value.exit_code == 74
    assert [step for step, _ in saver.finished()] == [1], "earlier commits are still reported"
    save(saver, 4)
    saver.wait()
    assert [step for step, _ in saver.finished()] == [4]
    assert sorted(os.listdir(run.path / "checkpoints")) == [name_of(1), name_of(4)]


@pytest.mark.parametrize("background", [False, True])
def test_non_finite_values_exit_with_code_3_uncommitted(run: RunFolder, background: bool) -> None:
    saver, broken = Saver(run, background), tensors_of(1)
    broken["optimizer"]["step.weight"].fill_(float("nan"))

    def save_and_ask() -> None:
        saver.save(1, broken, {}, {})
        saver.wait()
        saver.finished()

    with pytest.raises(UserError, match=r"step\.weight") as raised:
        save_and_ask()
    assert raised.value.exit_code == 3
    assert os.listdir(run.path / "checkpoints") == []


def test_background_errors_are_raised(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise SystemExit(9)

    saver = Saver(run, background=True)
    monkeypatch.setattr(files, "sync_folder", fail)
    save(saver, 1)
    saver.wait()
    with pytest.raises(SystemExit):
        saver.finished()


def test_state_that_json_cannot_hold_fails_at_the_call(run: RunFolder) -> None:
    saver = Saver(run, background=True)
    with pytest.raises(ValueError):
        saver.save(1, tensors_of(1), {"loss": float("nan")}, {})
    with pytest.raises(TypeError):
        saver.save(1, tensors_of(1), {}, {"seed": object()})
    assert saver.finished() == []


def test_copy_buffers_are_reused_and_resized(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensors] = []
    monkeypatch.setattr(run, "save", lambda step, tensors, *_: seen.append(tensors) or run.path)
    saver = Saver(run, background=True)
    first, second = torch.ones(3), torch.zeros(2)
    for group in ({"a": first}, {"a": first + 1, "b": second}, {"a": torch.ones(4), "b": second.double()}, {}):
        saver.save(1, {"model": group}, {}, {})
        saver.wait()
        assert seen[-1]["model"].keys() == group.keys()
        assert all(torch.equal(seen[-1]["model"][name], tensor) for name, tensor in group.items())
        assert all(seen[-1]["model"][name].dtype == tensor.dtype for name, tensor in group.items())
    pointers = [{name: tensor.data_ptr() for name, tensor in tensors["model"].items()} for tensors in seen]
    assert pointers[0]["a"] == pointers[1]["a"]
    assert saver._copies == {}


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a thread has no priority of its own")
def test_writer_thread_has_lower_priority(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    before, seen = os.nice(0), []
    monkeypatch.setattr(run, "save", lambda *_: seen.append(os.nice(0)) or run.path)
    saver = Saver(run, background=True)
    save(saver, 1)
    saver.wait()
    assert os.nice(0) == before
    assert seen == [min(before + 10, 19)]


def save_and_pause(path: Path, at: int, after: bool, signal_ready: int) -> None:
    """Save step 1, then 2 in the background, and stand still before or after the numbered operation of the second."""
    run = RunFolder.create_or_open(path, RECIPE)
    saver = Saver(run, background=True)
    save(saver, 1)
    saver.wait()
    begun = 0

    def wrap(real: Callable[..., Any]) -> Callable[..., Any]:
        def operation(*arguments: Any) -> Any:
            nonlocal begun
            begun += 1
            here = begun == at
            result = real(*arguments) if after or not here else None
            if here:
                os.write(signal_ready, b"!")
                time.sleep(LONG)
            return result

        return operation

    for name in OPERATIONS:
        setattr(files, name, wrap(getattr(files, name)))
    save(saver, 2)
    saver.wait()


def killed_at(path: Path, at: int, after: bool) -> bool:
    """Whether the background save of a forked run reached an operation by number; if so, the run was killed there."""
    ready, signal_ready = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            save_and_pause(path, at, after, signal_ready)
            os._exit(0)
        finally:
            os._exit(1)
    os.close(signal_ready)
    reached = os.read(ready, 1) == b"!"
    os.close(ready)
    if reached:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert status == (signal.SIGKILL if reached else 0)
    return reached


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize(
    "after", [pytest.param(False, id="before", marks=pytest.mark.slow), pytest.param(True, id="after")]
)
def test_kill_at_any_moment_leaves_the_folder_resumable(tmp_path: Path, after: bool) -> None:
    at, found = 1, []
    while killed_at(tmp_path / f"run-{at}", at, after):
        with RunFolder.create_or_open(tmp_path / f"run-{at}", RECIPE) as run:
            latest = run.latest()
            assert latest is not None
            assert run.damaged == []
            assert torch.equal(latest.load("model")["weight"], tensors_of(latest.step)["model"]["weight"])
            assert all(".tmp-" not in path.name for path in run.path.rglob("*"))
            found.append(latest.step)
        at += 1
    assert at > 15
    assert found == sorted(found) and set(found) == {1, 2}


def test_exit_waits_for_the_save(tmp_path: Path) -> None:
    script = f"""
import time, torch
from heedful.training.checkpoint import folder as checkpoint
from heedful.training.checkpoint.saver import Saver
checkpoint.require_finite = lambda *_: time.sleep(0.5)  # the program is at its end when the save really begins
run = checkpoint.RunFolder.create_or_open({str(tmp_path / "run")!r}, "a: 1\\n")
Saver(run, background=True).save(1, {{"model": {{"weight": torch.ones(3)}}}}, {{}}, {{}})
"""
    ended = subprocess.run([sys.executable, "-c", script], timeout=LONG, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
    with RunFolder.create_or_open(tmp_path / "run", "a: 1\n") as run:
        latest = run.latest()
        assert latest is not None
        assert latest.step == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu_tensors_are_copied_before_the_call_returns(run: RunFolder, gate: Event) -> None:
    saver = Saver(run, background=True)
    given = {
        "model": {"large": torch.randn(4096, 4096, device="cuda"), "turned": torch.randn(64, 32, device="cuda").T},
        "optimizer": {"half": torch.randn(5, device="cuda").bfloat16(), "step": torch.tensor(1.0)},
    }
    wanted = {stem: {name: tensor.cpu().clone() for name, tensor in group.items()} for stem, group in given.items()}
    saver.save(1, given, {}, {})
    assert saver._copies["model", "large"].is_pinned()
    for group in given.values():
        for tensor in group.values():
            tensor.zero_()
    gate.set()
    saver.wait()
    found = run.latest()
    assert found is not None
    for stem, group in wanted.items():
        loaded = found.load(stem)
        assert all(torch.equal(loaded[name], tensor) for name, tensor in group.items())
