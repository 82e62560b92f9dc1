"""Weights in safetensors files, one or several with an index."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from heedful.errors import AGAIN, UserError, shown
from heedful.files.folders import has_file, path_inside, read_bytes, read_settings
from heedful.hub.folder import PICKLES
from heedful.training.checkpoint.tensors import require_finite, require_sound, unpack

WHOLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MOST_SHARDS = 1000
Read = Callable[[Path, str], dict[str, Tensor]]  # of a file in a folder


def read_safetensors(folder: Path) -> tuple[dict[str, Tensor], Path]:
    """The tensors of a folder, all finite, and the file that names them."""
    return read_weights(folder, WHOLE, INDEX, _unpacked)


def _unpacked(folder: Path, name: str) -> dict[str, Tensor]:
    require_sound(path_inside(folder, name))
    return unpack(read_bytes(folder, name), folder / name)


def read_weights(folder: Path, whole: str, index: str, read: Read) -> tuple[dict[str, Tensor], Path]:
    """Read weights from one file, or from shards with an index, each by `read`."""
    if has_file(folder, whole):
        tensors, file = read(folder, whole), folder / whole
    elif has_file(folder, index):
        tensors, file = _sharded(folder, index, read), folder / index
    else:
        raise _absent(folder)
    require_finite(tensors, str(file), AGAIN)
    return tensors, file


def _sharded(folder: Path, name: str, read: Read) -> dict[str, Tensor]:
    """The tensors of several shards, each in the one that the index names."""
    index = read_settings(folder, name).get("weight_map")
    if not isinstance(index, dict) or not index or not all(isinstance(shard, str) for shard in index.values()):
        raise UserError(
            "invalid weight index", where=f"{folder / name}: weight_map", found=shown(index),
            expected="the file of each tensor", todo=AGAIN,
        )  # fmt: skip
    shards, ending = sorted(set(index.values())), name.removesuffix(".index.json").rsplit(".", 1)[-1]
    if len(shards) > MOST_SHARDS:
        raise UserError("this index names too many files", where=str(folder / name), found=f"{len(shards):,}")
    for shard in shards:
        path_inside(folder, shard)
        if not shard.endswith(f".{ending}"):
            raise UserError(
                "this index names a file of a different type", where=str(folder / name), found=shown(shard),
                expected=f"a name that ends with .{ending}", todo=AGAIN,
            )  # fmt: skip
    found: dict[str, Tensor] = {}
    for shard in shards:
        held = read(folder, shard)
        wrong = {tensor for tensor in held if index.get(tensor) != shard}
        wrong |= {tensor for tensor, place in index.items() if place == shard and tensor not in held}
        if wrong:
            raise UserError(
                "this file holds other tensors than the index says", where=str(folder / shard),
                found=f"{len(wrong)} that differ: {', '.join(sorted(wrong)[:10])}", todo=AGAIN,
            )  # fmt: skip
        found |= held
    return found


def _absent(folder: Path) -> UserError:
    old = next((name for name in PICKLES if has_file(folder, name)), None)
    if old is not None:
        return UserError(
            "these weights are a pickle, which could run code", where=str(folder / old), expected="safetensors",
            todo=f"convert them safely: heedful convert {shlex.quote(str(folder))} NEW_FOLDER",
        )  # fmt: skip
    return UserError(
        "there are no weights in this folder", where=str(folder), expected=f"{WHOLE}, or {INDEX} and its files",
        todo=AGAIN,
    )  # fmt: skip
