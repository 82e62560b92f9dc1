"""The model folder: config.json, model.safetensors, the artifacts, and a manifest with their checksums."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from heedful.errors import UserError
from heedful.files import writing as files
from heedful.files.reading import exists
from heedful.training.checkpoint.manifest import DamageError, Pieces, commit, read_entry, read_manifest, read_plain
from heedful.training.checkpoint.tensors import pack, require_finite, require_sound, unpack


def write_model(
    folder: Path,
    config_json: str,
    tensors: Mapping[str, Tensor],
    artifacts: Mapping[str, str],
    about: Mapping[str, Any],
) -> None:
    """Write a model folder atomically, replacing a former one; `artifacts` are texts by file name."""
    require_finite(tensors, "model", "go back to an earlier checkpoint")
    contents: dict[str, Pieces] = {"config.json": [config_json.encode()], "model.safetensors": pack(tensors)}
    contents |= {name: [text.encode()] for name, text in artifacts.items()}
    needed = sum(len(piece) for pieces in contents.values() for piece in pieces)
    with files.disk_errors(folder.parent, "write the model", needed):
        commit(folder, contents, None, about)


class ModelFiles(NamedTuple):
    """The contents of a model folder."""

    config_json: str
    tensors: dict[str, Tensor]
    artifacts: dict[str, str]  # texts by file name


def read_model(
    folder: Path, artifacts: Callable[[str], Iterable[str]] = lambda config: ["tokenizer.json"]
) -> ModelFiles:
    """Read a model folder; if it has a manifest, checksums are verified.

    `artifacts` maps the text of config.json to the names of the other files.
    """
    try:
        manifest = read_manifest(folder) if exists(folder / "manifest.json") else None

        def read(name: str) -> bytes:
            return read_entry(folder, name, manifest) if manifest else read_plain(folder / name)

        require_sound(folder / "model.safetensors")
        tensors = unpack(read("model.safetensors"), folder / "model.safetensors")
        config = _text(folder / "config.json", read("config.json"))
        there = manifest.files if manifest else {name for name in artifacts(config) if exists(folder / name)}
        texts = {name: _text(folder / name, read(name)) for name in artifacts(config) if name in there}
    except DamageError as damage:
        raise UserError(
            "this model cannot be read", where=str(damage.path), found=damage.reason,
            expected="a model folder: config.json, model.safetensors and, for text, tokenizer.json",
            todo="copy the whole folder again, or train the model again",
        ) from damage  # fmt: skip
    require_finite(tensors, str(folder / "model.safetensors"), "copy or train the model again")
    return ModelFiles(config, tensors, texts)


def _text(path: Path, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise DamageError(path, f"it is not UTF-8 at byte {error.start}") from error
