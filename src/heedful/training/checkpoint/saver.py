"""Writes checkpoints: before the next step or, from a copy of all tensors, in the background."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, wait
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

import torch
from torch import Tensor

from heedful.training.checkpoint.folder import RunFolder

NICENESS = 10  # of the writing thread on Linux: where cores are scarce, training has nine parts of ten


class Saver:
    """Writes the checkpoints of a run, before the next step or in the background."""

    def __init__(self, folder: RunFolder, background: bool = False) -> None:
        self._folder = folder
        self._background = background
        self._copies: dict[tuple[str, str], Tensor] = {}  # kept from one save to the next
        self._done: list[tuple[int, Path]] = []
        self._under_way: tuple[int, Future[Path]] | None = None

    def __enter__(self) -> Saver:
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()  # the folder stays locked while something is written to it

    def save(
        self,
        step: int,
        tensors: Mapping[str, Mapping[str, Tensor]],
        state: Mapping[str, Any],
        about: Mapping[str, Any],
        kept: Collection[int] = (),
    ) -> None:
        """Save as RunFolder.save does; a save still under way is waited for, and its error raised, first."""
        self._settle()
        if not self._background:
            self._done.append((step, self._folder.save(step, tensors, state, about, kept)))
            return
        state, about, copies = _copied(state), _copied(about), self._copy(tensors)
        self._under_way = step, _in_background(lambda: self._folder.save(step, copies, state, about, kept))

    def finished(self) -> list[tuple[int, Path]]:
        """The saves committed since the last call; the error of one that failed is raised."""
        if self._under_way is not None and self._under_way[1].done():
            self._settle()
        done, self._done = self._done, []
        return done

    def wait(self) -> None:
        """Wait until nothing is under way; finished() has the result."""
        if self._under_way is not None:
            wait([self._under_way[1]])

    def _settle(self) -> None:
        """Wait for the save under way, if any, and note how it ended; its error is raised."""
        self.wait()
        if self._under_way is not None:
            (step, ending), self._under_way = self._under_way, None
            self._done.append((step, ending.result()))

    def _copy(self, tensors: Mapping[str, Mapping[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
        """All tensors as they are now, in memory of their own on the CPU."""
        given = {(stem, name): tensor for stem, group in tensors.items() for name, tensor in group.items()}
        self._copies = {key: _room(tensor, self._copies.get(key)) for key, tensor in given.items()}
        for key, tensor in given.items():
            self._copies[key].copy_(tensor.detach(), non_blocking=tensor.is_cuda)
        for device in {tensor.device for tensor in given.values() if tensor.is_cuda}:
            torch.cuda.synchronize(device)
        return {stem: {name: self._copies[stem, name] for name in group} for stem, group in tensors.items()}


def _room(tensor: Tensor, former: Tensor | None) -> Tensor:
    """Where to copy a tensor to: the room of its last copy, if it fits; pages that a GPU can write to by itself."""
    if former is not None and (former.shape, former.dtype) == (tensor.shape, tensor.dtype):
        return former
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)


def _copied(values: Mapping[str, Any]) -> dict[str, Any]:
    """A deep copy of what goes into JSON; what JSON cannot hold fails here."""
    return dict(json.loads(json.dumps(dict(values), allow_nan=False)))


def _in_background(save: Callable[[], Path]) -> Future[Path]:
    """Run a save in a thread of its own, which a program that ends waits for."""
    ending: Future[Path] = Future()

    def run() -> None:
        try:
            if sys.platform == "linux":  # elsewhere the whole process would step back
                with suppress(OSError):
                    os.nice(NICENESS)
            ending.set_result(save())
        except BaseException as error:  # whatever it is, it is raised where training can see it
            ending.set_exception(error)

    Thread(target=run, name="save").start()
    return ending
