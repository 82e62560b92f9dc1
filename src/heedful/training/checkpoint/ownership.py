"""The owner of a run folder: one process at a time, and one recipe from its first checkpoint on."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

from heedful.config import left_out
from heedful.errors import UserError, shown
from heedful.files import writing as files
from heedful.files.reading import is_folder
from heedful.files.yaml import load_yaml, read_yaml

# Everything that a run writes before its first checkpoint.
FIRST = frozenset({"recipe.yaml", "metrics.jsonl", "lock", "checkpoints", "tokenizer.json", "images.json", "env.json"})
LOGGED = ("tensorboard", "wandb", "mlflow")
FIRST |= {"held_out.json", *LOGGED}

# Settings that do not change what is trained: a run may resume with other values, with rounding differences.
MAY_DIFFER = frozenset(
    f"train.{name}" for name in ("threads", "workers", "device", "parallel", "save_behind", "recompute")
)
# Limits of a run that may be raised or lifted while it is under way, never lowered.
BUDGET = frozenset(f"train.budget.{name}" for name in ("steps", "tokens", "epochs", "minutes"))
LIMITS = BUDGET | {"train.patience"}
# What else may change: where the data are, and how often the run is evaluated and saved.
MAY_GROW = LIMITS | {"data.root", "train.log_every", "train.loggers", "train.evaluate_every", "train.save_every"}


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
    with files.disk_errors(folder, "read the run folder"):
        names = sorted(name for name in os.listdir(folder) if not files.LEFTOVER.fullmatch(name))
    # A run has its lock before anything else; a copy of one may have come without it.
    if names not in ([], ["lock"]) and not ("recipe.yaml" in names and {"lock", "checkpoints"} & set(names)):
        raise UserError(
            "this folder is not a run",
            where=str(folder),
            found=", ".join(names[:5]) + (" ..." if len(names) > 5 else ""),
            expected="no folder, an empty one, or one with the recipe.yaml of a run",
            todo="give another path with --run",
        )


_held: set[int] = set()  # file descriptors of this process's locks


def _forget() -> None:
    """Release the locks in a forked child, such as a data worker, which may outlive its parent."""
    for lock in _held:
        os.close(lock)
    _held.clear()


os.register_at_fork(after_in_child=_forget)


def release_lock(lock: int) -> None:
    """Unlock a folder."""
    if lock in _held:
        _held.discard(lock)
        os.close(lock)


def acquire_lock(folder: Path) -> int:
    """Lock the folder for this process; the operating system releases the lock when the process ends."""
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
                "another process is training in this folder",
                where=str(folder),
                found=holder or "a lock without an owner",
                todo="wait until it ends, or give another path with --run",
            ) from error
        except BaseException:
            os.close(lock)
            raise
    _held.add(lock)
    return lock


def is_training(folder: Path) -> bool:
    """Whether a process is training in the folder; does not write or block."""
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
    """Whether a folder contains a run without any checkpoint, and no other files."""
    names = set(os.listdir(folder))
    if not {"recipe.yaml", "metrics.jsonl"} <= names <= FIRST:
        return False
    held = folder / "checkpoints"
    if "checkpoints" not in names:  # not created yet; but if metrics were recorded, it was deleted
        return not (folder / "metrics.jsonl").stat().st_size
    return is_folder(held) and not held.is_symlink() and not any(held.iterdir())


def clear(folder: Path) -> None:
    """Delete everything but the recipe of a run without checkpoints, so that the recipe may be replaced."""
    for name in ("tokenizer.json", "images.json", "held_out.json", "env.json", *LOGGED):
        if os.path.lexists(folder / name):
            files.delete_tree(folder / name)
    # Emptied, not deleted: the folder shows that a run wrote the recipe.
    files.write_text_atomic(folder / "metrics.jsonl", "")


def require_same(stored: Path, recipe_yaml: str, may_differ: Set[str] = frozenset()) -> bool:
    """Refuse a folder whose recipe differs from this one, naming the first differences.

    Settings in `may_differ` may differ; returns whether any does.
    """
    changed = changes(load_yaml(stored)[0], read_yaml(recipe_yaml, "this recipe")[0])
    if found := forbidden_changes(changed, may_differ, "in the folder"):
        raise UserError(
            "this folder belongs to a run of another recipe",
            where=str(stored),
            found=found,
            expected="the same values as in the folder's recipe.yaml",
            todo=f"resume that run: heedful train {stored} --run {stored.parent}\n{to_branch(stored.parent)}",
        )
    return bool(changed)


def to_branch(run: Path) -> str:
    """How to start a new run from this one with other settings."""
    return f"or start another run from its weights: give start.folder={run} and another --run"


Changes = dict[str, tuple[str, str, bool]]  # a setting's old and new value, as text, and whether a limit only grows


def changes(then: Any, now: Any) -> Changes:
    """The settings with different values in two recipes, by dotted key; a missing group is null.

    A key that is missing in an existing group belongs to another version, and has its default there; or it is one that
    is only written if it differs from its default.
    """
    theirs, ours, optional = leaves(then), leaves(now), left_out()
    keys = [key for key in {**ours, **theirs} if theirs.get(key) != ours.get(key)]

    def is_default(key: str, value: Any) -> bool:
        known = optional.get(key.rpartition(".")[2], ())
        return not known or any(matches(value) for matches in known)

    return {
        key: (_shown(theirs, key), _shown(ours, key), _grows(theirs.get(key), ours.get(key)))
        for key in keys
        if all(
            key in leaves or not _has_group(leaves, key.rpartition(".")[0]) or not is_default(key, others.get(key))
            for leaves, others in ((theirs, ours), (ours, theirs))
        )
    }


def _has_group(leaves: Mapping[str, Any], group: str) -> bool:
    return any(key.startswith(f"{group}.") for key in leaves)


def forbidden_changes(changed: Changes, may_differ: Set[str], where: str) -> str:
    """The changes that are not allowed, one per line: settings that may not differ, and limits that would shrink."""
    keys = [key for key, (*_, grows) in changed.items() if key not in may_differ or (key in LIMITS and not grows)]
    lines = [f"{key}: {changed[key][0]} {where}, {changed[key][1]} now" for key in keys[:5]]
    return "\n".join(lines) + (f"\nand {len(keys) - 5} more" if len(keys) > 5 else "")


def _grows(then: Any, now: Any) -> bool:
    """Whether a limit is larger now, or removed."""
    return now is None or (isinstance(then, int | float) and isinstance(now, int | float) and now > then)


def leaves(data: Any, path: str = "") -> dict[str, Any]:
    """The settings by dotted key."""
    if not isinstance(data, dict):
        return {path: data}
    return {key: leaf for name in data for key, leaf in leaves(data[name], f"{path}.{name}" if path else name).items()}


def _shown(leaves: Mapping[str, Any], key: str) -> str:
    return shown(leaves[key]) if key in leaves else "not set"
