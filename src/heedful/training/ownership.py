"""Whose a run folder is: one process at a time, and one recipe from its first checkpoint on."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

from heedful.errors import UserError, shown
from heedful.reading import is_folder
from heedful.training import files
from heedful.yamltext import load_yaml, read_yaml

# All that a run writes before its first checkpoint; the metrics are there from the beginning.
FIRST = frozenset({"recipe.yaml", "metrics.jsonl", "lock", "checkpoints", "tokenizer.json", "images.json", "env.json"})


def make_parents(folder: Path) -> None:
    """Make the folders that a run's folder is to be in."""
    for above in folder.parents:
        if os.path.lexists(above) and not is_folder(above):
            raise UserError(
                f"{above} is a file", where=str(folder), expected="a folder", todo="give another path with --run"
            )
    with files.disk_errors(folder.parent, "make the folder of the run"):
        folder.parent.mkdir(parents=True, exist_ok=True)


def require_run(folder: Path) -> None:
    """Refuse, before anything is touched, a path at which no run can be."""
    if not is_folder(folder.parent):
        raise UserError(
            "the run folder has no parent",
            where=str(folder),
            expected=f"the folder {folder.parent}",
            todo=f"make it first: mkdir -p {folder.parent}",
        )
    if not os.path.lexists(folder):
        return
    if not is_folder(folder):
        raise UserError("the run folder is not a folder", where=str(folder), todo="give another path with --run")
    with files.disk_errors(folder, "look into the run folder"):
        names = sorted(name for name in os.listdir(folder) if not files.LEFTOVER.fullmatch(name))
    # A run has its lock before anything else; a copy of one may have come without it.
    if names not in ([], ["lock"]) and not ("recipe.yaml" in names and {"lock", "checkpoints"} & set(names)):
        raise UserError(
            "this folder holds something else than a run",
            where=str(folder),
            found=", ".join(names[:5]) + (" ..." if len(names) > 5 else ""),
            expected="no folder, an empty one, or one with the recipe.yaml of a run",
            todo="give another path with --run",
        )


_held: set[int] = set()  # the locks of this process


def _forget() -> None:
    """A forked child, such as a loader's worker, may outlive its parent, and must not keep the run locked then."""
    for lock in _held:
        os.close(lock)
    _held.clear()


os.register_at_fork(after_in_child=_forget)


def let_go(lock: int) -> None:
    """Unlock a folder."""
    if lock in _held:
        _held.discard(lock)
        os.close(lock)


def take_lock(folder: Path) -> int:
    """Lock the folder for this process; the system lets go when the process ends, however it ends."""
    with files.disk_errors(folder, "lock the run folder"):
        lock = files.reopen(folder / "lock")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(lock, 0)
            files.write(lock, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        except BlockingIOError as error:
            holder = os.pread(lock, 300, 0).decode(errors="replace").strip()
            os.close(lock)
            raise UserError(
                "another run is at work in this folder",
                where=str(folder),
                found=holder or "a lock that does not say whose it is",
                todo="wait until it ends, or give another path with --run",
            ) from error
        except BaseException:
            os.close(lock)
            raise
    _held.add(lock)
    return lock


def is_at_work(folder: Path) -> bool:
    """Whether a process trains in the folder now; nothing is written, and nobody is kept waiting."""
    try:
        lock = os.open(folder / "lock", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(lock)
    return False


def has_saved_nothing(folder: Path) -> bool:
    """Whether a folder holds a run without a checkpoint, not even a damaged one, and nothing that is not the run's."""
    names = set(os.listdir(folder))
    if not {"recipe.yaml", "metrics.jsonl"} <= names <= FIRST:
        return False
    held = folder / "checkpoints"
    if "checkpoints" not in names:  # not made yet, unless something was recorded: then it was taken away
        return not (folder / "metrics.jsonl").stat().st_size
    return is_folder(held) and not held.is_symlink() and not any(held.iterdir())


def clear(folder: Path) -> None:
    """Remove, all but the recipe, what a run that has saved nothing left; the recipe may be replaced only then."""
    for name in ("tokenizer.json", "images.json", "env.json"):
        if os.path.lexists(folder / name):
            files.discard(folder / name)
    # Emptied, not removed: it shows that the recipe in the folder is one that a run wrote.
    files.write_text_atomic(folder / "metrics.jsonl", "")


def require_same(stored: Path, recipe_yaml: str, may_differ: Set[str] = frozenset()) -> None:
    """Refuse a folder whose recipe has other values than this one, naming the first that differ."""
    theirs = _leaves(load_yaml(stored)[0])
    ours = _leaves(read_yaml(recipe_yaml, "this recipe")[0])
    compared = [key for key in {**ours, **theirs} if key not in may_differ]
    keys = [key for key in compared if (key in theirs, theirs.get(key)) != (key in ours, ours.get(key))]
    if keys:
        told = [f"{key}: {_told(theirs, key)} in the folder, {_told(ours, key)} now" for key in keys[:5]]
        raise UserError(
            "this folder belongs to a run of another recipe",
            where=str(stored),
            found="\n".join(told) + (f"\nand {len(keys) - 5} more" if len(keys) > 5 else ""),
            expected="the same values as in the folder's recipe.yaml",
            todo=f"give another path with --run, or go on with that run: heedful train {stored} --run {stored.parent}",
        )


def _leaves(data: Any, path: str = "") -> dict[str, Any]:
    """The settings by dotted key."""
    if not isinstance(data, dict):
        return {path: data}
    return {key: leaf for name in data for key, leaf in _leaves(data[name], f"{path}.{name}" if path else name).items()}


def _told(leaves: Mapping[str, Any], key: str) -> str:
    return shown(leaves[key]) if key in leaves else "not set"
