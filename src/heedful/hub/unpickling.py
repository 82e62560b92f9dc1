"""Pickles, read by a restricted subprocess: weights, by `heedful convert` alone, and vocabularies of words."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from torch import Tensor

from heedful.errors import UserError
from heedful.files.folders import has_file, path_inside
from heedful.files.reading import is_file, open_file
from heedful.hub import pickle_reader
from heedful.hub.folder import PICKLES
from heedful.hub.safetensors import INDEX, WHOLE, read_safetensors, read_weights
from heedful.training.checkpoint.tensors import unpack

MIN_SPEED = 5_000_000  # bytes per second; a slower reader is stopped


def read_any_weights(folder: Path) -> tuple[dict[str, Tensor], Path]:
    """The tensors of a folder, or of one file, from safetensors files if it has them, else from pickles."""
    if is_file(folder) and folder.suffix != ".safetensors":
        return read_weights(folder.parent, folder.name, PICKLES[1], read_pickle)
    if has_file(folder, WHOLE) or has_file(folder, INDEX) or not any(has_file(folder, name) for name in PICKLES):
        return read_safetensors(folder)
    return read_weights(folder, *PICKLES, read_pickle)


def read_pickle(folder: Path, name: str) -> dict[str, Tensor]:
    """The tensors in a pickle; anything in it that could run code is refused."""
    path = path_inside(folder, name)
    expected, todo = "tensors by name, as torch.save writes them", "download the same weights as safetensors"
    return unpack(_run(path, [], UserError("these weights cannot be read safely", expected=expected, todo=todo)), path)


def read_vocabulary(folder: Path, name: str) -> dict[str, Any]:
    """The `words` and settings of a pickled vocabulary; anything in it that could run code is refused."""
    path = path_inside(folder, name)
    expected = "a dict with the list idx2sym, of words alone"
    todo = "write the words, one a line in the order of their ids, into vocab.txt, and delete this file"
    refused = UserError("this vocabulary cannot be read safely", expected=expected, todo=todo)
    found: dict[str, Any] = json.loads(_run(path, ["vocabulary"], refused))
    return found


def _run(path: Path, arguments: list[str], refused: UserError) -> bytes:
    """The output of the reader for a file; a file that it refuses is the error `refused`, with its reason."""
    command = [sys.executable, "-I", "-S", "-B", str(Path(pickle_reader.__file__)), *arguments]
    refused.where = str(path)
    try:
        with open_file(path) as file:
            wait = 60 + os.fstat(file.fileno()).st_size / MIN_SPEED
            done = subprocess.run(command, stdin=file, capture_output=True, env={}, timeout=wait, check=False)
    except subprocess.TimeoutExpired:
        refused.found = "it takes far longer than its size allows"
        raise refused from None
    except OSError as error:
        raise UserError("this file cannot be read", where=str(path), found=error.strerror) from error
    if done.returncode:
        reason, known = done.stderr.decode("utf-8", "replace").strip(), done.returncode == pickle_reader.REFUSED
        refused.found = reason if known else f"what makes its reader end with {done.returncode}: {reason[-200:]}"
        raise refused
    return done.stdout
