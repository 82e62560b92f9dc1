"""Saving checkpoints, before the next step or in the background from a copy of all tensors."""

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

NICENESS = 10  # of the writing thread on Linux: training gets about nine tenths of a busy core


class Saver:
    """Writes the checkpoints of a run, before the next step or in the background."""

    def __init__(self, folder: RunFolder, background: bool = False) -> None:
        self._folder = folder
        self._background = background
        self._copies: dict[tuple[str, str], Tensor] = {}  # reused from save to save
        self._done: list[tuple[int, Path]] = []
        self._under_way: tuple[int, Future[Path]] | None = None

    def __enter__(self) -> Saver:
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()  # the folder stays locked while it is written to

    def save(
        self,
        step: int,
        tensors: Mapping[str, Mapping[str, Tensor]],
        state: Mapping[str, Any],
        about: Mapping[str, Any],
        kept: Collection[int] = (),
    ) -> None:
        """Save like RunFolder.save; first waits for a save in progress, and raises its error."""
        self._settle()
        if not self._background:
            self._done.append((step, self._folder.save(step, tensors, state, about, kept)))
            return
        state, about, copies = _copied(state), _copied(about), self._copy(tensors)
        self._under_way = step, _in_background(lambda: self._folder.save(step, copies, state, about, kept))

    def finished(self) -> list[tuple[int, Path]]:
        """The checkpoints committed since the last call; raises the error of one that failed."""
        if self._under_way is not None and self._under_way[1].done():
            self._settle()
        done, self._done = self._done, []
        return done

    def wait(self) -> None:
        """Wait for the save in progress; finished() has the result."""
        if self._under_way is not None:
            wait([self._under_way[1]])

    def _settle(self) -> None:
        """Wait for the save in progress, if any, and raise its error."""
        self.wait()
        if self._under_way is not None:
            (step, ending), self._under_way = self._under_way, None
            self._done.append((step, ending.result()))

    def _copy(self, tensors: Mapping[str, Mapping[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
        """Copies of all tensors on the CPU."""
        given = {(stem, name): tensor for stem, group in tensors.items() for name, tensor in group.items()}
        self._copies = {key: _room(tensor, self._copies.get(key)) for key, tensor in given.items()}
        for key, tensor in given.items():
            self._copies[key].copy_(tensor.detach(), non_blocking=tensor.is_cuda)
        for device in {tensor.device for tensor in given.values() if tensor.is_cuda}:
            torch.cuda.synchronize(device)
        return {stem: {name: self._copies[stem, name] for name in group} for stem, group in tensors.items()}


def _room(tensor: Tensor, former: Tensor | None) -> Tensor:
    """The buffer for a copy: that of the last copy, if it fits; pinned memory for GPU tensors."""
    if former is not None and (former.shape, former.dtype) == (tensor.shape, tensor.dtype):
        return former
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)


def _copied(values: Mapping[str, Any]) -> dict[str, Any]:
    """A deep copy by way of JSON; values that JSON cannot express fail here."""
    return dict(json.loads(json.dumps(dict(values), allow_nan=False)))


def _in_background(save: Callable[[], Path]) -> Future[Path]:
    """Run a save in another thread, which the interpreter waits for at exit."""
    ending: Future[Path] = Future()

    def run() -> None:
        try:
            if sys.platform == "linux":  # elsewhere niceness applies to the whole process
                with suppress(OSError):
                    os.nice(NICENESS)
            ending.set_result(save())
        except BaseException as error:  # raised later, in the training thread
            ending.set_exception(error)

    Thread(target=run, name="save").start()
    return ending
