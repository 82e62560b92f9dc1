"""One process and one recipe at a time: which run folders can be opened, and which are refused unchanged."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from heedful.errors import UserError
from heedful.files import writing as files
from heedful.training.checkpoint.folder import RunFolder
from heedful.training.checkpoint.ownership import changes

RECIPE = "task:\n  kind: translation\ntrain:\n  seed: 1\n  optimizer:\n    lr: 1e-3\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run"


HOLD = """
import sys, time
from heedful.training.checkpoint.folder import RunFolder
run = RunFolder.create_or_open(sys.argv[1], sys.argv[2])
print("held", flush=True)
time.sleep(600)
"""


def test_second_process_is_rejected_until_the_first_exits(folder: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    command = [sys.executable, "-c", HOLD, str(folder), RECIPE]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        with pytest.raises(UserError, match=f"process {first.pid} on ") as raised:
            RunFolder.create_or_open(folder, RECIPE)
        assert raised.value.exit_code == 2
        first.send_signal(signal.SIGKILL)
        first.wait()
    with RunFolder.create_or_open(folder, RECIPE) as run:
        assert run.latest() is None


def test_folder_opens_once_per_process_until_closed(folder: Path) -> None:
    with RunFolder.create_or_open(folder, RECIPE), pytest.raises(UserError, match="another process"):
        RunFolder.create_or_open(folder, RECIPE)
    RunFolder.create_or_open(folder, RECIPE).close()


def test_different_recipe_is_rejected_and_leaves_the_folder_unlocked(folder: Path) -> None:
    with RunFolder.create_or_open(folder, RECIPE) as run:
        run.save(1, {"model": {"weight": torch.ones(2)}}, {}, {})
    other = RECIPE.replace("seed: 1", "seed: 2") + "decode:\n  beams: 4\n"
    with pytest.raises(UserError) as raised:
        RunFolder.create_or_open(folder, other)
    message = str(raised.value)
    assert "train.seed: 1 in the folder, 2 now" in message
    assert "decode.beams: not set in the folder, 4 now" in message
    assert "--run" in message
    assert "lr" not in message
    with RunFolder.create_or_open(folder, RECIPE) as run:
        assert run.latest() is not None


OTHER = RECIPE.replace("seed: 1", "seed: 2")


def unsaved(folder: Path) -> None:
    """A run that ended before its first checkpoint, with all files that it may leave."""
    RunFolder.create_or_open(folder, RECIPE).close()
    for name in ("tokenizer.json", "images.json", "held_out.json", "env.json"):
        (folder / name).write_text("{}")
    files.append_jsonl(folder / "metrics.jsonl", {"step": 1})


@pytest.mark.parametrize("recipe", [RECIPE, OTHER], ids=["the same recipe", "another"])
def test_run_without_a_checkpoint_starts_over(folder: Path, recipe: str) -> None:
    unsaved(folder)
    with RunFolder.create_or_open(folder, recipe) as run:
        assert run.restarted and run.latest() is None
        assert (folder / "recipe.yaml").read_text() == recipe
        assert sorted(os.listdir(folder)) == ["checkpoints", "lock", "metrics.jsonl", "recipe.yaml"]
        assert (folder / "metrics.jsonl").read_text() == ""
        run.save(1, {"model": {"weight": torch.ones(2)}}, {}, {})
    with RunFolder.create_or_open(folder, recipe) as run:
        assert not run.restarted and run.latest() is not None


def test_run_without_a_checkpoints_folder_starts_over(folder: Path) -> None:
    RunFolder.create_or_open(folder, RECIPE).close()
    (folder / "checkpoints").rmdir()
    with RunFolder.create_or_open(folder, OTHER) as run:
        assert run.restarted and (folder / "checkpoints").is_dir()


def linked(folder: Path) -> None:
    """Checkpoints on another disk, which may be unmounted."""
    (folder.parent / "disk").mkdir()
    (folder / "checkpoints").rmdir()
    (folder / "checkpoints").symlink_to(folder.parent / "disk")


@pytest.mark.parametrize(
    "keep",
    [
        lambda folder: (folder / "checkpoints" / "step-00000001").mkdir(),  # damaged: nothing is in it
        lambda folder: (folder / "checkpoints" / "mine").touch(),
        lambda folder: (folder / "checkpoints").rmdir(),  # moved elsewhere: something was recorded
        linked,
        lambda folder: (folder / "model").mkdir(),
        lambda folder: (folder / "results.json").touch(),
        lambda folder: (folder / "notes.txt").touch(),
        lambda folder: (folder / "metrics.jsonl").unlink(),  # so the recipe may be written by hand
    ],
    ids=["checkpoint", "something beside", "moved", "link", "model", "results", "notes", "no metrics"],
)
def test_folder_with_other_files_is_never_replaced(folder: Path, keep: Callable[[Path], None]) -> None:
    unsaved(folder)
    keep(folder)
    before = {path: path.is_file() and path.read_bytes() for path in folder.rglob("*") if path.name != "lock"}
    for _ in range(2):  # being refused once changes nothing for the next
        with pytest.raises(UserError, match="belongs to a run of another recipe"):
            RunFolder.create_or_open(folder, OTHER)
    assert {path: path.is_file() and path.read_bytes() for path in folder.rglob("*") if path.name != "lock"} == before


def test_running_run_is_not_replaced_before_its_first_checkpoint(folder: Path) -> None:
    with RunFolder.create_or_open(folder, RECIPE), pytest.raises(UserError, match="another process is training"):
        RunFolder.create_or_open(folder, OTHER)
    assert (folder / "recipe.yaml").read_text() == RECIPE


def test_equivalent_yaml_is_the_same_recipe(folder: Path) -> None:
    RunFolder.create_or_open(folder, RECIPE).close()
    RunFolder.create_or_open(folder, "# a comment\n" + RECIPE.replace("1e-3", "0.001")).close()


def test_settings_that_are_written_only_if_they_are_set_are_compared() -> None:
    plain: dict[str, Any] = {
        "task": {"kind": "classification", "metric": "f1"},
        "model": {"kind": "regressor", "dropout": 0.1},
    }
    weighted = {**plain, "task": {**plain["task"], "class_weights": "balanced"}}
    several = {**plain, "model": {**plain["model"], "numbers": ["width", "height"]}}
    assert changes(weighted, plain) == {"task.class_weights": ("'balanced'", "not set", True)}
    assert changes(plain, weighted) == {"task.class_weights": ("not set", "'balanced'", False)}
    assert list(changes(plain, several)) == list(changes(several, plain)) == ["model.numbers"]
    # Those that another version did not have, or wrote with their default, are as they were.
    shuffled = {**plain, "task": {**plain["task"], "sampling": "shuffled", "label_smoothing": 0.0}}
    assert changes(shuffled, plain) == changes(plain, shuffled) == changes(plain, plain) == {}


@pytest.mark.parametrize("names", [["thesis.tex"], ["recipe.yaml"], ["lock", "thesis.tex"]])
def test_folder_that_is_no_run_is_rejected_unchanged(folder: Path, names: list[str]) -> None:
    folder.mkdir()
    for name in names:
        (folder / name).write_text("mine")
    with pytest.raises(UserError, match="this folder is not a run"):
        RunFolder.create_or_open(folder, RECIPE, fresh=True)
    assert {path.name: path.read_text() for path in folder.iterdir()} == dict.fromkeys(names, "mine")


def test_missing_parent_and_existing_file_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="mkdir -p"):
        RunFolder.create_or_open(tmp_path / "absent" / "run", RECIPE)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="not a folder"):
        RunFolder.create_or_open(tmp_path / "file", RECIPE)


def test_read_only_folder_is_rejected_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> int:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    folder.mkdir()
    monkeypatch.setattr(files, "reopen", refuse)
    with pytest.raises(UserError, match="Permission denied") as raised:
        RunFolder.create_or_open(folder, RECIPE)
    assert raised.value.exit_code == 74
    assert raised.value.where == str(folder)


# ------------------------------------------------------------------ links
@pytest.mark.parametrize("name", ["lock", "checkpoints"])
def test_nothing_is_written_through_a_link(folder: Path, tmp_path: Path, name: str) -> None:
    with RunFolder.create_or_open(folder, RECIPE):
        pass
    victim = tmp_path / "victim"
    files.delete_tree(folder / name)
    if name == "checkpoints":
        victim.mkdir()
    else:
        victim.write_text("precious")
    (folder / name).symlink_to(victim)
    with pytest.raises(UserError, match=rf"{name}: this is a link, and Heedful does not write through links"):
        RunFolder.create_or_open(folder, RECIPE)
    assert list(victim.iterdir()) == [] if name == "checkpoints" else victim.read_text() == "precious"


def test_pipe_without_a_reader_does_not_block(folder: Path) -> None:
    folder.mkdir()
    os.mkfifo(folder / "lock")
    with pytest.raises(UserError, match="not a regular file"):
        RunFolder.create_or_open(folder, RECIPE)


def test_new_file_replaces_a_link(folder: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    folder.mkdir()
    (folder / "metrics.jsonl").symlink_to(victim)
    with pytest.raises(UserError, match=r"metrics\.jsonl: this is a link"):
        files.append_jsonl(folder / "metrics.jsonl", {"step": 1})
    for name in ("results.json", "loss.png"):
        (folder / name).symlink_to(victim)
        files.write_text_atomic(folder / name, "new")
        assert not (folder / name).is_symlink()
    assert victim.read_text() == "precious"


def test_run_folder_may_be_a_link(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    folder.symlink_to(tmp_path / "disk")
    with RunFolder.create_or_open(folder, RECIPE):
        files.append_jsonl(folder / "metrics.jsonl", {"step": 1})
    assert (tmp_path / "disk" / "checkpoints").is_dir()
    assert (tmp_path / "disk" / "metrics.jsonl").read_text() == '{"step": 1}\n'
