"""Weights that others pickled, read by a limited program of its own; only `heedful convert` does this."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from torch import Tensor

from heedful.errors import UserError
from heedful.files.folders import has, inside
from heedful.files.reading import open_file
from heedful.hub import pickled
from heedful.hub.folder import PICKLES
from heedful.hub.safetensors import INDEX, WHOLE, safetensors_in, weights_in
from heedful.training.checkpoint.tensors import unpack

SLOWEST = 5_000_000  # bytes a second, under which something is wrong


def weights_of_any_age(folder: Path) -> tuple[dict[str, Tensor], Path]:
    """The tensors of a folder that has them as safetensors, or else pickled."""
    if has(folder, WHOLE) or has(folder, INDEX) or not any(has(folder, name) for name in PICKLES):
        return safetensors_in(folder)
    return weights_in(folder, *PICKLES, unpickled)


def unpickled(folder: Path, name: str) -> dict[str, Tensor]:
    """The tensors in a pickle; what could run code in it is refused, not run."""
    path = inside(folder, name)
    command = [sys.executable, "-I", "-S", "-B", str(Path(pickled.__file__))]
    try:
        with open_file(path) as file:
            wait = 60 + os.fstat(file.fileno()).st_size / SLOWEST
            done = subprocess.run(command, stdin=file, capture_output=True, env={}, timeout=wait, check=False)
    except subprocess.TimeoutExpired:
        raise _refused(path, "it takes far longer than its size is worth") from None
    except OSError as error:
        raise UserError("this file cannot be read", where=str(path), found=error.strerror) from error
    if done.returncode:
        reason = done.stderr.decode("utf-8", "replace").strip()
        known = done.returncode == pickled.REFUSED
        raise _refused(path, reason if known else f"what makes its reader end with {done.returncode}: {reason[-200:]}")
    return unpack(done.stdout, path)


def _refused(path: Path, reason: str) -> UserError:
    return UserError(
        "these weights cannot be read safely", where=str(path), found=reason,
        expected="tensors by name, as torch.save writes them", todo="get the same weights as safetensors",
    )  # fmt: skip
