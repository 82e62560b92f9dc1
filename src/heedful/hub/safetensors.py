"""Weights in safetensors files, one or several with an index."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from heedful.errors import AGAIN, UserError, shown
from heedful.files.folders import has_file, path_inside, read_bytes, read_settings
from heedful.files.reading import is_file
from heedful.hub.folder import PICKLES
from heedful.training.checkpoint.tensors import require_finite, require_sound, unpack

WHOLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_SHARDS = 1000
Read = Callable[[Path, str], dict[str, Tensor]]  # reads a file in a folder


def read_safetensors(folder: Path) -> tuple[dict[str, Tensor], Path]:
    """The tensors of a folder, or of one file, which must be finite, and the file that lists them."""
    if is_file(folder) and folder.suffix == ".safetensors":
        return read_weights(folder.parent, folder.name, INDEX, _read_file)
    return read_weights(folder, WHOLE, INDEX, _read_file)


def _read_file(folder: Path, name: str) -> dict[str, Tensor]:
    require_sound(path_inside(folder, name))
    return unpack(read_bytes(folder, name), folder / name)


def read_weights(folder: Path, whole: str, index: str, read: Read) -> tuple[dict[str, Tensor], Path]:
    """Read weights from one file, or from shards with an index, each by `read`."""
    if has_file(folder, whole):
        tensors, file = read(folder, whole), folder / whole
    elif has_file(folder, index):
        tensors, file = _read_shards(folder, index, read), folder / index
    else:
        raise _no_weights_error(folder)
    require_finite(tensors, str(file), AGAIN)
    return tensors, file


def _read_shards(folder: Path, name: str, read: Read) -> dict[str, Tensor]:
    """The tensors of several shards; each must be in the shard that the index names."""
    index = read_settings(folder, name).get("weight_map")
    if not isinstance(index, dict) or not index or not all(isinstance(shard, str) for shard in index.values()):
        raise UserError(
            "invalid weight index", where=f"{folder / name}: weight_map", found=shown(index),
            expected="the file of each tensor", todo=AGAIN,
        )  # fmt: skip
    shards, ending = sorted(set(index.values())), name.removesuffix(".index.json").rsplit(".", 1)[-1]
    if len(shards) > MAX_SHARDS:
        raise UserError("this index names too many files", where=str(folder / name), found=f"{len(shards):,}")
    for shard in shards:
        path_inside(folder, shard)
        if not shard.endswith(f".{ending}"):
            raise UserError(
                "this index names a file of a different type", where=str(folder / name), found=shown(shard),
                expected=f"a name that ends with .{ending}", todo=AGAIN,
            )  # fmt: skip
    tensors: dict[str, Tensor] = {}
    for shard in shards:
        part = read(folder, shard)
        wrong = {tensor for tensor in part if index.get(tensor) != shard}
        wrong |= {tensor for tensor, file in index.items() if file == shard and tensor not in part}
        if wrong:
            raise UserError(
                "the tensors of this file differ from the index", where=str(folder / shard),
                found=f"{len(wrong)} that differ: {', '.join(sorted(wrong)[:10])}", todo=AGAIN,
            )  # fmt: skip
        tensors |= part
    return tensors


def _no_weights_error(folder: Path) -> UserError:
    old = next((folder / name for name in PICKLES if has_file(folder, name)), folder if is_file(folder) else None)
    whole = folder.parent if has_file(folder.parent, "modules.json") else folder  # of a module, the folder of all
    if old is not None:
        return UserError(
            "these weights are a pickle, which could run code", where=str(old), expected="safetensors",
            todo=f"convert them safely: heedful convert {shlex.quote(str(whole))} NEW_FOLDER",
        )  # fmt: skip
    return UserError(
        "there are no weights in this folder", where=str(folder), expected=f"{WHOLE}, or {INDEX} and its files",
        todo=AGAIN,
    )  # fmt: skip
