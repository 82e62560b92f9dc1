"""The commit protocol under crashes, damage, full disks and other processes: the last good checkpoint is never lost."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import random
import re
import shutil
import sys
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from heedful.errors import UserError
from heedful.files import writing as files
from heedful.runs.events import trim_jsonl
from heedful.training.checkpoint.folder import SLACK, Checkpoint, RunFolder, newest

RECIPE = "task:\n  kind: translation\ntrain:\n  seed: 1\n  optimizer:\n    lr: 1e-3\n"
OPERATIONS = ("make_folder", "create", "reopen", "write", "sync", "rename", "unlink", "remove_folder")


class Crash(BaseException):
    """Ends a save at once, as a killed process would: no exception handler of ours runs."""


def tensors_of(step: int) -> dict[str, dict[str, torch.Tensor]]:
    return {
        "model": {"weight": torch.full((3, 4), float(step)), "count": torch.tensor(step)},
        "optimizer": {"exp_avg.weight": torch.arange(12.0).reshape(3, 4) + step},
    }


def save(run: RunFolder, step: int, *kept: int) -> Path:
    return run.save(step, tensors_of(step), {"step": step, "loss": 1 / 3}, {"seed": 1, "threads": 1}, kept)


def assert_is(checkpoint: Checkpoint | None, step: int) -> None:
    assert checkpoint is not None
    assert checkpoint.step == step
    assert checkpoint.state == {"step": step, "loss": 1 / 3}
    assert checkpoint.manifest.about == {"seed": 1, "threads": 1}
    for stem, expected in tensors_of(step).items():
        loaded = checkpoint.load(stem)
        assert loaded.keys() == expected.keys()
        assert all(torch.equal(loaded[name], expected[name]) for name in expected)
        assert all(loaded[name].dtype == expected[name].dtype for name in expected)


def steps(folder: Path) -> list[int]:
    return [int(path.name.removeprefix("step-")) for path in sorted((folder / "checkpoints").iterdir())]


def assert_no_leftovers(folder: Path) -> None:
    assert [path for path in folder.rglob("*") if ".tmp-" in path.name] == []


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run"


def test_new_run_has_no_checkpoint(folder: Path) -> None:
    with RunFolder.create_or_open(folder, RECIPE) as run:
        assert run.latest() is None
        assert run.damaged == []
    assert (folder / "recipe.yaml").read_text() == RECIPE


def test_saved_tensors_and_state_are_restored_exactly(folder: Path) -> None:
    with RunFolder.create_or_open(folder, RECIPE) as run:
        path = save(run, 500)
    assert path == folder / "checkpoints" / "step-00000500"
    assert sorted(os.listdir(path)) == ["manifest.json", "model.safetensors", "optimizer.safetensors", "state.json"]
    with RunFolder.create_or_open(folder, RECIPE) as run:
        assert_is(run.latest(), 500)


def test_tied_weights_are_saved_under_each_name(folder: Path) -> None:
    weight = torch.randn(3, 2)
    with RunFolder.create_or_open(folder, RECIPE) as run:
        run.save(1, {"model": {"a": weight, "b": weight, "turned": weight.T}}, {}, {})
        checkpoint = run.latest()
    assert checkpoint is not None
    loaded = checkpoint.load("model")
    assert torch.equal(loaded["a"], weight)
    assert torch.equal(loaded["b"], weight)
    assert torch.equal(loaded["turned"], weight.T)


def test_prune_keeps_newest_two_and_best(folder: Path) -> None:
    with RunFolder.create_or_open(folder, RECIPE, keep=1) as run:
        for step in (10, 20, 30, 40, 50):
            save(run, step, *([20] if step >= 20 else []))
    assert steps(folder) == [20, 40, 50]
    assert_no_leftovers(folder)


def test_prune_counts_complete_checkpoints_only(folder: Path) -> None:
    with RunFolder.create_or_open(folder, RECIPE, keep=5) as run:
        for step in (10, 20, 30):
            save(run, step)
    (folder / "checkpoints/step-00000030/state.json").write_text("{}")
    with RunFolder.create_or_open(folder, RECIPE, keep=2) as run:
        assert_is(run.latest(), 20)
        save(run, 25)
        assert steps(folder) == [20, 25, 30], "the damaged one is newer and stays to be reported"
        save(run, 30)
        assert steps(folder) == [25, 30], "the damaged one has been replaced by its step"
        assert_is(run.latest(), 30)
    assert_no_leftovers(folder)


def test_step_is_committed_once(folder: Path) -> None:
    with RunFolder.create_or_open(folder, RECIPE) as run:
        path = save(run, 10)
        before = (path / "manifest.json").stat().st_mtime_ns
        assert save(run, 10) == path
        assert (path / "manifest.json").stat().st_mtime_ns == before


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_non_finite_tensors_are_never_committed(folder: Path, bad: float) -> None:
    with RunFolder.create_or_open(folder, RECIPE) as run:
        save(run, 10)
        broken = tensors_of(20)
        broken["optimizer"]["exp_avg.weight"][1, 2] = bad
        with pytest.raises(UserError, match=r"exp_avg\.weight") as raised:
            run.save(20, broken, {}, {})
        assert raised.value.exit_code == 3
        assert_is(run.latest(), 10)
    assert steps(folder) == [10]


def interrupt(
    monkeypatch: pytest.MonkeyPatch, at: int, error: Callable[[], BaseException], *, after: bool
) -> list[str]:
    """Fail at the numbered file operation, before or after it is done, and return the list of those started.

    After a crash, operations have no effect, as in a killed process.
    """
    begun: list[str] = []

    def wrap(name: str) -> Callable[..., Any]:
        real = getattr(files, name)

        def operation(*arguments: Any) -> Any:
            begun.append(name)
            if (len(begun) == at and not after) or (at and len(begun) > at and error is Crash):
                raise error()
            result = real(*arguments)
            if len(begun) == at:
                raise error()
            return result

        return operation

    for name in OPERATIONS:
        monkeypatch.setattr(files, name, wrap(name))
    return begun


def whole_life(folder: Path) -> None:
    """Open a run, log and save up to step 4 so that pruning happens, and save once more as at the end of a run."""
    with RunFolder.create_or_open(folder, RECIPE) as run:
        latest = run.latest()
        first = latest.step if latest else 0
        trim_jsonl(folder / "metrics.jsonl", first)
        for step in range(first + 1, 5):
            files.append_jsonl(folder / "metrics.jsonl", {"step": step})
            save(run, step, 1)
        save(run, 4, 1)


def count_operations(tmp_path: Path) -> int:
    with pytest.MonkeyPatch.context() as patch:
        begun = interrupt(patch, 0, Crash, after=False)
        whole_life(tmp_path / "counted")
    assert {"make_folder", "create", "write", "sync", "rename", "unlink", "remove_folder"} <= set(begun)
    return len(begun)


@pytest.mark.parametrize(
    "after", [pytest.param(False, id="before", marks=pytest.mark.slow), pytest.param(True, id="after")]
)
def test_crash_at_any_file_operation_loses_at_most_one_save(tmp_path: Path, after: bool) -> None:
    total = count_operations(tmp_path)
    assert total >= 40
    for at in range(1, total + 1):
        folder = tmp_path / f"run-{at}"
        with pytest.MonkeyPatch.context() as patch:
            interrupt(patch, at, Crash, after=after)
            with pytest.raises(Crash):
                whole_life(folder)
        logged = (folder / "metrics.jsonl").read_text().splitlines() if (folder / "metrics.jsonl").exists() else []
        with RunFolder.create_or_open(folder, RECIPE) as run:
            latest = run.latest()
            assert newest(folder, 99)[1] == [], f"operation {at} left a checkpoint half deleted"
            assert (latest.step if latest else 0) >= len(logged) - 1, f"operation {at} lost more than one save"
            if latest:
                assert_is(latest, latest.step)
            assert_no_leftovers(folder)
        whole_life(folder)
        assert steps(folder) == [1, 3, 4]
        assert [json.loads(line)["step"] for line in (folder / "metrics.jsonl").open()] == [1, 2, 3, 4]
        shutil.rmtree(folder)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_crash_while_starting_over_leaves_one_of_both_runs(tmp_path: Path, after: bool) -> None:
    other, at, begun = RECIPE.replace("seed: 1", "seed: 2"), 0, 99
    while at < begun:
        at += 1
        folder = tmp_path / f"run-{at}"
        RunFolder.create_or_open(folder, RECIPE).close()
        (folder / "tokenizer.json").write_text("of the former run")
        files.append_jsonl(folder / "metrics.jsonl", {"step": 1})
        with pytest.MonkeyPatch.context() as patch:
            done = interrupt(patch, at, Crash, after=after)
            with contextlib.suppress(Crash):
                RunFolder.create_or_open(folder, other).close()
        recipe = (folder / "recipe.yaml").read_text()
        assert recipe in (RECIPE, other)
        if recipe == other:
            assert not (folder / "tokenizer.json").exists() and not (folder / "metrics.jsonl").read_text()
        with RunFolder.create_or_open(folder, other) as run:
            assert run.latest() is None
        assert sorted(os.listdir(folder)) == ["checkpoints", "lock", "metrics.jsonl", "recipe.yaml"]
        assert (folder / "recipe.yaml").read_text() == other
        begun = len(done) if len(done) < at else begun
    assert at > 10


def test_old_files_are_deleted_before_the_recipe_changes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    RunFolder.create_or_open(folder, RECIPE).close()
    (folder / "tokenizer.json").touch()
    done: list[str] = []

    def record(name: str, named: Callable[..., str]) -> None:
        real = getattr(files, name)
        monkeypatch.setattr(files, name, lambda *paths: (done.append(f"{name} {named(*paths)}"), real(*paths))[1])

    record("unlink", lambda path: path.name)
    record("rename", lambda _, new: new.name)
    record("sync_folder", lambda path: path.name)
    RunFolder.create_or_open(folder, RECIPE.replace("seed: 1", "seed: 2")).close()
    assert done == [
        "sync_folder run", "unlink tokenizer.json", "rename metrics.jsonl", "sync_folder run", "rename recipe.yaml",
        "sync_folder run", "sync_folder run",
    ]  # fmt: skip


@pytest.mark.skipif(sys.platform != "linux", reason="names open files through /proc")
def test_writes_are_synced_before_what_depends_on_them(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RunFolder.create_or_open(folder, RECIPE) as run:
        save(run, 1)
        save(run, 2)
        files.append_jsonl(folder / "metrics.jsonl", {"step": 3})
        done: list[tuple[str, str]] = []

        def record(name: str, path_of: Callable[..., str]) -> None:
            real = getattr(os, name)

            def call(*arguments: Any) -> Any:
                path = re.sub(r"\.tmp-[0-9a-f]+", ".tmp", os.path.relpath(path_of(*arguments), folder))
                if done[-1:] != [("write", path)] or name != "write":  # a file is written in chunks
                    done.append((name, path))
                return real(*arguments)

            monkeypatch.setattr(os, name, call)

        record("write", lambda descriptor, data: os.readlink(f"/proc/self/fd/{descriptor}"))
        record("fsync", lambda descriptor: os.readlink(f"/proc/self/fd/{descriptor}"))
        record("rename", lambda old, new: str(new))
        record("unlink", str)
        record("rmdir", str)
        save(run, 3)
        monkeypatch.undo()
    fresh, old = "checkpoints/step-00000003.tmp", "checkpoints/step-00000001.tmp"
    names = ["model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"]
    assert done == [
        ("fsync", "metrics.jsonl"),
        *((name, f"{fresh}/{file}") for file in names for name in ("write", "fsync")),
        ("fsync", fresh),
        ("rename", "checkpoints/step-00000003"),
        ("fsync", "checkpoints"),
        ("rename", old),
        ("fsync", "checkpoints"),
        *(("unlink", f"{old}/{file}") for file in sorted(names)),
        ("rmdir", old),
    ]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EFBIG, errno.EIO, errno.EROFS])
def test_disk_error_in_a_save_keeps_the_last_good_checkpoint(folder: Path, code: int) -> None:
    with pytest.MonkeyPatch.context() as patch, RunFolder.create_or_open(folder, RECIPE) as run:
        save(run, 1)
        begun = interrupt(patch, 0, Crash, after=False)
        path = save(run, 2)
    needed = sum((path / name).stat().st_size for name in os.listdir(path) if name != "manifest.json")
    for at in range(1, len(begun) + 1):
        with RunFolder.create_or_open(folder, RECIPE, fresh=True) as run:
            save(run, 1)
            with pytest.MonkeyPatch.context() as patch:
                interrupt(patch, at, lambda: OSError(code, os.strerror(code)), after=False)
                with pytest.raises(UserError) as raised:
                    save(run, 2)
            error = raised.value
            assert error.exit_code == 74
            assert error.where == str(folder)
            assert os.strerror(code) in str(error)
            assert "bytes free" in str(error)
            assert f"{needed:,} bytes free" in str(error)
            latest = run.latest()
            assert latest is not None
            assert_is(latest, latest.step)
            assert_no_leftovers(folder)
            save(run, 2)
            assert_is(run.latest(), 2)


def test_missing_truncated_or_flipped_file_is_found_and_the_previous_checkpoint_used(folder: Path) -> None:
    with RunFolder.create_or_open(folder, RECIPE) as run:
        save(run, 1)
        save(run, 2)
    target = folder / "checkpoints" / "step-00000002"
    whole = {path.name: path.read_bytes() for path in target.iterdir()}
    draw = random.Random(0)
    cases: list[tuple[str, bytes | None]] = []
    for name, data in whole.items():
        cases += [(name, None), (name, b""), (name, data + b"\0"), (name, data[: len(data) // 2]), (name, data[:-1])]
        for _ in range(120):
            flipped = bytearray(data)
            flipped[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
            cases.append((name, bytes(flipped)))
    for name, content in cases:
        if content is None:
            (target / name).unlink()
        else:
            (target / name).write_bytes(content)
        with RunFolder.create_or_open(folder, RECIPE) as run:
            assert_is(run.latest(), 1)
            assert [path for path, _ in run.damaged] == [target]
            assert name in run.damaged[0].reason
        (target / name).write_bytes(whole[name])
    assert len(cases) >= 400
    (target / "extra").touch()
    with RunFolder.create_or_open(folder, RECIPE) as run:
        assert_is(run.latest(), 1)
        assert "extra" in run.damaged[0].reason


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.slow), 9])  # 9: a bit of each byte, each in turn
def test_every_bit_of_a_manifest_is_protected(folder: Path, step: int) -> None:
    with RunFolder.create_or_open(folder, RECIPE) as run:
        path = save(run, 1) / "manifest.json"
        save(run, 2)
    whole = path.read_bytes()
    for position in range(0, 8 * len(whole), step):
        flipped = bytearray(whole)
        flipped[position // 8] ^= 1 << position % 8
        path.write_bytes(flipped)
        _, damaged = newest(folder, 2)
        assert [broken.path for broken in damaged] == [path.parent], position


def test_file_replaced_by_a_link_is_damage(folder: Path) -> None:
    with RunFolder.create_or_open(folder, RECIPE) as run:
        save(run, 1)
        path = save(run, 2)
    shutil.move(path / "state.json", folder.parent / "elsewhere.json")
    (path / "state.json").symlink_to(folder.parent / "elsewhere.json")
    with RunFolder.create_or_open(folder, RECIPE) as run:
        assert_is(run.latest(), 1)
        assert "regular file" in run.damaged[0].reason


def test_checkpoint_renamed_to_another_step_is_damage(folder: Path) -> None:
    with RunFolder.create_or_open(folder, RECIPE) as run:
        path = save(run, 1)
        shutil.copytree(path, path.with_name("step-00000009"))
        assert_is(run.latest(), 1)
        assert "step 1" in run.damaged[0].reason


def test_run_stops_when_no_checkpoint_is_complete(folder: Path) -> None:
    with RunFolder.create_or_open(folder, RECIPE) as run:
        (save(run, 1) / "optimizer.safetensors").unlink()
        with pytest.raises(UserError, match=r"optimizer\.safetensors"):
            run.latest()


def test_damage_after_the_scan_is_found_when_reading(folder: Path) -> None:
    with RunFolder.create_or_open(folder, RECIPE) as run:
        path = save(run, 1)
        checkpoint = run.latest()
    assert checkpoint is not None
    data = bytearray((path / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (path / "model.safetensors").write_bytes(data)
    with pytest.raises(UserError, match=r"model\.safetensors"):
        checkpoint.load("model")


def test_newer_format_is_rejected(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RunFolder.create_or_open(folder, RECIPE) as run:
        with monkeypatch.context() as patch:
            patch.setattr("heedful.training.checkpoint.manifest.FORMAT", 2)
            save(run, 1)
        with pytest.raises(UserError, match="newer version"):
            run.latest()


def test_fresh_deletes_the_old_run_and_nothing_else(folder: Path) -> None:
    with RunFolder.create_or_open(folder, RECIPE) as run:
        save(run, 1)
        files.append_jsonl(folder / "metrics.jsonl", {"step": 1})
    (folder / "notes.txt").write_text("mine")
    other = RECIPE.replace("seed: 1", "seed: 2")
    with RunFolder.create_or_open(folder, other, fresh=True) as run:
        assert run.latest() is None
    assert sorted(os.listdir(folder)) == ["checkpoints", "lock", "metrics.jsonl", "notes.txt", "recipe.yaml"]
    assert (folder / "recipe.yaml").read_text() == other


def test_preflight_reports_missing_space(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")

    def free(size: int) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9 - size, size))

    with RunFolder.create_or_open(folder, RECIPE, keep=3) as run:
        needed = 5 * (3000 + SLACK) + 2 * (1000 + SLACK)  # those kept, the best, the new one; the old and the new model
        free(needed)
        run.preflight(1000, 3000)
        free(needed - 1)
        with pytest.raises(UserError, match=rf"{needed - 1:,} bytes free[^$]*{needed:,} bytes") as raised:
            run.preflight(1000, 3000)
        assert raised.value.exit_code == 74
        path = save(run, 1)
        there = sum(file.stat().st_size for file in path.iterdir())
        free(needed - there)  # what is there already needs no room
        run.preflight(1000, 3000)
        free(needed - there - 1)
        with pytest.raises(UserError, match="too little space"):
            run.preflight(1000, 3000)
    assert_no_leftovers(folder)


def test_pruning_interrupted_by_a_crash_is_done_later(folder: Path) -> None:
    with RunFolder.create_or_open(folder, RECIPE, keep=9) as run:
        for step in (1, 2, 3, 4):
            save(run, step)
    with RunFolder.create_or_open(folder, RECIPE, keep=2) as run:
        run.latest()
        run.prune([1])
        assert steps(folder) == [1, 3, 4]
        run.prune([])
        assert steps(folder) == [3, 4]


def test_preflight_finds_a_read_only_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> int:
        raise OSError(errno.EROFS, "Read-only file system")

    with RunFolder.create_or_open(folder, RECIPE) as run:
        monkeypatch.setattr(files, "create", refuse)
        with pytest.raises(UserError, match="Read-only"):
            run.preflight(1, 1)


def test_state_that_json_cannot_hold_fails_before_writing(folder: Path) -> None:
    with RunFolder.create_or_open(folder, RECIPE) as run:
        with pytest.raises(ValueError):
            run.save(1, tensors_of(1), {"loss": math.nan}, {})
        with pytest.raises(TypeError):
            run.save(1, tensors_of(1), {}, {"seed": object()})
    assert steps(folder) == []
