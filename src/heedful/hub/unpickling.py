"""Pickled weights, read by a restricted subprocess; only `heedful convert` does this."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from torch import Tensor

from heedful.errors import UserError
from heedful.files.folders import has_file, path_inside
from heedful.files.reading import open_file
from heedful.hub import pickle_reader
from heedful.hub.folder import PICKLES
from heedful.hub.safetensors import INDEX, WHOLE, read_safetensors, read_weights
from heedful.training.checkpoint.tensors import unpack

MIN_SPEED = 5_000_000  # bytes per second; a slower reader is stopped


def read_any_weights(folder: Path) -> tuple[dict[str, Tensor], Path]:
    """The tensors of a folder, from safetensors files if it has them, else from pickles."""
    if has_file(folder, WHOLE) or has_file(folder, INDEX) or not any(has_file(folder, name) for name in PICKLES):
        return read_safetensors(folder)
    return read_weights(folder, *PICKLES, read_pickle)


def read_pickle(folder: Path, name: str) -> dict[str, Tensor]:
    """The tensors in a pickle; anything in it that could run code is refused."""
    path = path_inside(folder, name)
    command = [sys.executable, "-I", "-S", "-B", str(Path(pickle_reader.__file__))]
    try:
        with open_file(path) as file:
            wait = 60 + os.fstat(file.fileno()).st_size / MIN_SPEED
            done = subprocess.run(command, stdin=file, capture_output=True, env={}, timeout=wait, check=False)
    except subprocess.TimeoutExpired:
        raise _refused_error(path, "it takes far longer than its size allows") from None
    except OSError as error:
        raise UserError("this file cannot be read", where=str(path), found=error.strerror) from error
    if done.returncode:
        reason = done.stderr.decode("utf-8", "replace").strip()
        known = done.returncode == pickle_reader.REFUSED
        raise _refused_error(
            path, reason if known else f"what makes its reader end with {done.returncode}: {reason[-200:]}"
        )
    return unpack(done.stdout, path)


def _refused_error(path: Path, reason: str) -> UserError:
    return UserError(
        "these weights cannot be read safely", where=str(path), found=reason,
        expected="tensors by name, as torch.save writes them", todo="download the same weights as safetensors",
    )  # fmt: skip
