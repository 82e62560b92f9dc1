"""The run folder, and the protocol by which a checkpoint is committed to it.

    recipe.yaml  env.json  metrics.jsonl  lock  checkpoints/step-00000500/  model/

A checkpoint is written as `step-00000500.tmp-<random>`: each file synced, `manifest.json` with their sizes and SHA-256
last, then the folder; it is renamed, the parent synced, and only then are old checkpoints deleted. No pointer says
which is the newest: the newest folder whose manifest verifies is. A disk that is full or cannot be written ends with
exit code 74 and leaves the last good checkpoint as it was.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from heedful.errors import UserError
from heedful.files import writing as files
from heedful.files.reading import entries, exists, is_file, is_folder
from heedful.training.checkpoint.choice import STEP, checkpoint_name
from heedful.training.checkpoint.manifest import DamageError, Manifest, Pieces, commit, read_entry, verify
from heedful.training.checkpoint.ownership import (
    acquire_lock,
    clear,
    has_saved_nothing,
    release_lock,
    require_run,
    require_same,
)
from heedful.training.checkpoint.tensors import pack, require_finite, unpack

FEWEST_KEPT = 2
SLACK = 256 * 1024  # bytes
CONTENTS = ("checkpoints", "model", "samples", "metrics.jsonl", "env.json", "recipe.yaml")


class Damaged(NamedTuple):
    """A damaged checkpoint: its folder and what is wrong in it."""

    path: Path
    reason: str


@dataclass(frozen=True)
class Checkpoint:
    """A committed checkpoint; every file is checked against the manifest again when it is read."""

    path: Path
    manifest: Manifest

    @property
    def step(self) -> int:
        """The optimizer step of this checkpoint."""
        return int(self.path.name.removeprefix("step-"))

    @property
    def state(self) -> dict[str, Any]:
        """The JSON state saved with the tensors."""
        data = self._read("state.json")
        try:
            return dict(json.loads(data))
        except (ValueError, TypeError, RecursionError) as error:
            raise UserError("the saved state is not a JSON object", where=str(self.path / "state.json")) from error

    def load(self, stem: str) -> dict[str, Tensor]:
        """The tensors of one file, `model` or `optimizer` for example, on the CPU."""
        name = f"{stem}.safetensors"
        return unpack(self._read(name), self.path / name)

    def _read(self, name: str) -> bytes:
        try:
            return read_entry(self.path, name, self.manifest)
        except DamageError as damage:
            raise UserError(
                "the checkpoint is damaged",
                where=str(damage.path),
                found=damage.reason,
                todo="run the same command again: it resumes from the newest complete checkpoint",
            ) from damage


class RunFolder:
    """A run's folder, locked for one process from `create_or_open` until `close` or the end of the process."""

    def __init__(self, path: Path, lock: int, keep: int, every: int, restarted: bool = False) -> None:
        self.path = path
        self.restarted = restarted  # whether it replaces a run that had saved nothing
        self.damaged: list[Damaged] = []  # checkpoints that the last call of latest() skipped
        self._lock = lock
        self._keep = max(keep, FEWEST_KEPT)
        self._every = every  # steps between two regular checkpoints; others come from stopping a run
        self._verified: set[int] = set()

    @classmethod
    def create_or_open(
        cls,
        path: str | Path,
        recipe_yaml: str,
        *,
        keep: int = FEWEST_KEPT,
        every: int = 1,
        fresh: bool = False,
        may_differ: Set[str] = frozenset(),
    ) -> RunFolder:
        """Lock a new folder, or that of a run with the same recipe to resume it; `fresh` deletes an existing run.

        The settings in `may_differ` may have changed, and are then updated in the folder. A run without any checkpoint
        has nothing to lose: it starts over, whatever its recipe and data were.
        """
        folder = Path(path)
        require_run(folder)
        with files.disk_errors(folder, "make the run folder"):
            if not exists(folder):
                files.make_folder(folder)
                files.sync_folder(folder.parent)
        lock = acquire_lock(folder)
        try:
            with files.disk_errors(folder, "write to the run folder"):
                files.sync_folder(folder)  # the lock marks a folder as a run's, and is written first
                if fresh:
                    for name in CONTENTS:  # the recipe last: until then, the folder is recognized as a run
                        if os.path.lexists(folder / name):
                            files.rename(folder / name, files.temporary_path(folder / name))
                    files.sync_folder(folder)
                for leftover in list(files.temporary_files(folder)):
                    files.delete_tree(leftover)
                if restarted := has_saved_nothing(folder):
                    clear(folder)
            stored = folder / "recipe.yaml"
            if restarted or not exists(stored) or require_same(stored, recipe_yaml, may_differ):
                files.write_text_atomic(stored, recipe_yaml)
            with files.disk_errors(folder, "write to the run folder"):
                os.close(files.reopen(folder / "metrics.jsonl"))
                files.ensure_folder(folder / "checkpoints")
                files.sync_folder(folder)  # their contents are useless if their names are lost
        except BaseException:
            release_lock(lock)
            raise
        return cls(folder, lock, keep, every, restarted)

    def close(self) -> None:
        """Release the lock."""
        release_lock(self._lock)

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def preflight(self, model: int, checkpoint: int, best: int = 1) -> None:
        """Check by a trial write and the free space that checkpoints can be saved.

        There must be room for the checkpoints to keep, the best ones, the one being written, and the model twice, minus
        those that exist; each with some slack for headers, small files and block sizes.
        """
        most = (self._keep + best + 1) * (checkpoint + SLACK) + 2 * (model + SLACK)
        there = sum(path.stat().st_size for path in self.path.glob("checkpoints/step-*/*") if is_file(path))
        needed = max(most - there, checkpoint + SLACK)
        with files.disk_errors(self.path, "write to the run folder", needed):
            probe = files.temporary_path(self.path / "probe")
            files.write_new(probe, b"\0" * 4096)
            files.unlink(probe)
            free = shutil.disk_usage(self.path).free
        if free < needed:
            raise UserError(
                "too little space for the checkpoints of this run",
                where=str(self.path),
                found=f"{free:,} bytes free",
                expected=f"{needed:,} bytes",
                todo="free some space, choose a folder on another disk, or keep fewer checkpoints",
                exit_code=files.EXIT_DISK,
            )

    def save(
        self,
        step: int,
        tensors: Mapping[str, Mapping[str, Tensor]],
        state: Mapping[str, Any],
        about: Mapping[str, Any],
        kept: Collection[int] = (),
    ) -> Path:
        """Commit a checkpoint, then delete old ones except the newest and the steps in `kept`.

        A step is committed once: if a complete checkpoint of it exists, only the deleting is done, which a crash may
        have interrupted.
        """
        final = self.path / "checkpoints" / checkpoint_name(step)
        for stem, group in tensors.items():
            require_finite(group, f"step {step}, {stem}", "lower the learning rate")
        if not self._is_complete(step):
            self._write(final, step, tensors, state, about)
        self.prune(kept)
        return final

    def _write(
        self,
        final: Path,
        step: int,
        tensors: Mapping[str, Mapping[str, Tensor]],
        state: Mapping[str, Any],
        about: Mapping[str, Any],
    ) -> None:
        contents: dict[str, Pieces] = {f"{stem}.safetensors": pack(group) for stem, group in tensors.items()}
        contents["state.json"] = [json.dumps(state, allow_nan=False).encode()]
        needed = sum(len(piece) for pieces in contents.values() for piece in pieces)
        with files.disk_errors(self.path, f"save the checkpoint of step {step}", needed):
            self._sync_metrics()
            commit(final, contents, step, about)
        self._verified.add(step)

    def latest(self) -> Checkpoint | None:
        """The newest complete checkpoint; damaged ones are in `damaged`; an error if all are damaged."""
        found, self.damaged = newest(self.path, 1)
        self._verified.update(checkpoint.step for checkpoint in found)
        return found[0] if found else None

    def _sync_metrics(self) -> None:
        """Sync to disk the metrics of the steps that a resumed run will not repeat."""
        if exists(self.path / "metrics.jsonl"):
            descriptor = files.reopen(self.path / "metrics.jsonl")
            try:
                files.sync(descriptor)
            finally:
                os.close(descriptor)

    def prune(self, kept: Collection[int]) -> None:
        """Delete old checkpoints except the newest complete ones and the steps in `kept`."""
        with files.disk_errors(self.path, "delete old checkpoints"):
            self._prune(kept)

    def _prune(self, needed: Collection[int]) -> None:
        steps = _steps(self.path)
        complete = list(islice(filter(self._is_complete, reversed(steps)), FEWEST_KEPT))
        # A resumed run must keep the same checkpoints as an uninterrupted one: only regular ones are counted.
        regular = (step for step in reversed(steps) if step % self._every == 0 and self._is_complete(step))
        kept = {*complete, *islice(regular, self._keep), *needed}
        for step in steps:
            # Checkpoints newer than every complete one are damaged; they stay, to be reported, until they are repeated.
            if step not in kept and step < complete[0]:
                doomed = files.temporary_path(steps[step])
                files.rename(steps[step], doomed)
                files.sync_folder(doomed.parent)
                self._verified.discard(step)
                files.delete_tree(doomed)

    def _is_complete(self, step: int) -> bool:
        if step not in self._verified:
            try:
                _open(self.path / "checkpoints" / checkpoint_name(step))
            except DamageError:
                return False
            self._verified.add(step)
        return True


def is_saved(run: Path) -> bool:
    """Whether a run has a checkpoint, complete or not; needs no lock."""
    return bool(_steps(run))


def newest(run: Path, count: int) -> tuple[list[Checkpoint], list[Damaged]]:
    """Up to `count` complete checkpoints, newest first, and the damaged ones in between; needs no lock."""
    complete: list[Checkpoint] = []
    damaged: list[Damaged] = []
    for _, path in reversed(_steps(run).items()):
        if len(complete) == count:
            break
        try:
            complete.append(_open(path))
        except DamageError as damage:
            damaged.append(Damaged(path, str(damage)))
    if damaged and not complete:
        raise UserError(
            "no checkpoint in this run is complete",
            where=str(run),
            found="\n".join(reason for _, reason in damaged[:5]),
            expected="at least one whole checkpoint",
            todo="restore the files, or delete the checkpoints folder to begin again",
        )
    return complete, damaged


def saved_steps(run: Path) -> list[int]:
    """The steps of all checkpoints of a run, oldest first, complete or not."""
    return list(_steps(run))


def checkpoint_at(run: Path, step: int, why: str) -> Checkpoint:
    """The complete checkpoint of a step; if it is missing, the error says `why` it is needed."""
    path = run / "checkpoints" / checkpoint_name(step)
    try:
        return _open(path)
    except DamageError as damage:
        earlier = [other for other in _steps(run) if other < step]
        again = (
            f"delete it and every later one, to train them again from {checkpoint_name(earlier[-1])}" if earlier else ""
        )
        raise UserError(
            f"a checkpoint is {'damaged' if is_folder(path) else 'missing'}: {why}",
            where=str(damage.path),
            found=damage.reason,
            expected=f"the complete checkpoint of step {step:,}",
            todo=f"put it back, or {again or 'begin again with another --run'}",
        ) from damage


def _open(path: Path) -> Checkpoint:
    """A checkpoint folder, verified against its manifest."""
    checkpoint = Checkpoint(path, verify(path))
    if checkpoint.manifest.step != checkpoint.step:
        raise DamageError(path / "manifest.json", f"it is of step {checkpoint.manifest.step}")
    return checkpoint


def _steps(run: Path) -> dict[int, Path]:
    """The checkpoint folders, oldest first, complete or not."""
    folder = run / "checkpoints"
    found = [(STEP.fullmatch(path.name), path) for path in entries(folder)] if is_folder(folder) else []
    return dict(sorted((int(match[1]), path) for match, path in found if match))
