"""Write models as folders that `transformers` and `sentence-transformers` load."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from heedful.data.tokenizers.byte_pairs import Gpt2Tokenizer
from heedful.data.tokenizers.sentence_pieces import SentencePieceTokenizer
from heedful.data.tokenizers.words import WordTokenizer
from heedful.errors import UserError
from heedful.files import writing as files
from heedful.files.reading import is_file, is_folder
from heedful.hub import rules as convert
from heedful.hub.dense import dense_weights
from heedful.hub.folder import find_exchange
from heedful.hub.image_models import image_files
from heedful.hub.loading import Pretrained
from heedful.hub.rules import LedgerLine
from heedful.hub.sentence_transformers import sentence_files
from heedful.hub.translation_folders import generation_json
from heedful.models.exchange import Layout
from heedful.training.checkpoint.manifest import Pieces
from heedful.training.checkpoint.tensors import pack, require_finite


def write(folder: Path, model: Pretrained, layout: Layout = "transformers") -> tuple[LedgerLine, ...]:
    """Write a Hugging Face folder atomically, and return the ledger; image models have other layouts too."""
    contents, ledger = _image_files(model, layout) if model.sees else hugging_face_files(model)
    needed = sum(len(piece) for pieces in contents.values() for piece in pieces)
    with files.disk_errors(folder.parent, "write the model", needed):
        write_folder(folder, contents)
    return ledger


def _image_files(model: Pretrained, layout: Layout) -> tuple[dict[str, Pieces], tuple[LedgerLine, ...]]:
    """The files of a folder with an image model, by name, and the ledger."""
    require_finite(model.tensors, "model", "go back to an earlier checkpoint")
    texts, tensors, ledger = image_files(model.config, model.tokenizer, model.tensors, layout)
    header, *pieces = pack(tensors)
    found: dict[str, Pieces] = {name: [text.encode()] for name, text in texts.items()}
    return found | {"model.safetensors": [_with_format(header), *pieces]}, ledger


def hugging_face_files(model: Pretrained) -> tuple[dict[str, Pieces], tuple[LedgerLine, ...]]:
    """The files of a Hugging Face folder, by name, and the ledger."""
    config, head, tokenizer, exchange = model.config, model.head, model.tokenizer, find_exchange(model.config.kind)
    assert exchange is not None, "only published models can be written"
    kind, labels = (None, ()) if head is None else (head.kind, head.labels)
    is_encoder = tokenizer is not None and not model.writes and not model.translates
    pad = tokenizer.pad if is_encoder else 0
    end = tokenizer.end if isinstance(tokenizer, Gpt2Tokenizer) else tokenizer.sep if is_encoder else None
    settings = exchange.config_json(config, kind, labels, pad, end)
    tensors = model.tensors | ({} if head is None else {f"head.{name}": value for name, value in head.tensors.items()})
    require_finite({**tensors, **model.dense_tensors}, "model", "go back to an earlier checkpoint")
    written, ledger = convert.write_tensors(tensors, exchange.table(config, kind))
    if all(name.startswith(exchange.PREFIX) for name in written):
        written = {name.removeprefix(exchange.PREFIX): tensor for name, tensor in written.items()}
        ledger = tuple(replace(line, source=line.source.removeprefix(exchange.PREFIX)) for line in ledger)
    texts: dict[str, str | bytes] = {"config.json": json.dumps(settings, indent=2, ensure_ascii=False) + "\n"}
    if model.translates:
        texts["generation_config.json"] = generation_json(settings, model.decode, config.context)
    if isinstance(tokenizer, SentencePieceTokenizer):
        texts |= tokenizer.files(config.context)
    elif is_encoder:
        texts |= tokenizer.files(model.longest or config.context)
    elif isinstance(tokenizer, WordTokenizer):
        texts |= tokenizer.files()
    elif isinstance(tokenizer, Gpt2Tokenizer):  # Heedful's line-based tokenizers have no Hugging Face equivalent
        texts |= tokenizer.files(config.context, model.starts)
    if model.word_ends is not None:
        texts |= model.word_ends.files(config.context, model.starts)
    if model.pooling is not None:
        texts |= sentence_files(config.width, model.sentences, config.context)
    below, lines = dense_weights(config.width, model.sentences, model.dense_tensors)
    weights: dict[str, Pieces] = {}
    for name, part in {"model.safetensors": written, **below}.items():
        header, *pieces = pack(part)
        weights[name] = [_with_format(header), *pieces]
    ledger += lines
    return {name: [text.encode() if isinstance(text, str) else text] for name, text in texts.items()} | weights, ledger


def _with_format(header: bytes | memoryview) -> bytes:
    """The header of a safetensors file with the format entry that `transformers` expects."""
    entries = json.loads(bytes(header[8:]))
    text = json.dumps({"__metadata__": {"format": "pt"}, **entries}, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def write_folder(folder: Path, contents: Mapping[str, Pieces]) -> None:
    """Write files, at most one folder deep, atomically; a former folder is replaced."""
    with files.atomic_path(folder) as fresh:
        files.make_folder(fresh)
        for below in sorted({name.split("/")[0] for name in contents if "/" in name}):
            files.make_folder(fresh / below)
        for name, pieces in contents.items():
            files.write_new(fresh / name, *pieces)


def require_new(target: Path, force: bool, mark: str = "config.json") -> None:
    """Refuse to overwrite anything but a model, a folder with the file `mark`, and a model only with `force`."""
    if not os.path.lexists(target):
        if not is_folder(target.parent):
            raise UserError(
                "there is no such folder", where=str(target.parent), todo="create it, or choose another path"
            )
        return
    model = is_file(target / mark) if is_folder(target) else target.suffix == ".onnx" and is_file(target)
    if force and model and not target.is_symlink():
        return
    raise UserError(
        "the target already exists", where=str(target), found="a model" if model else "something other than a model",
        expected="a new name", todo="choose another path, or add --force" if model else "choose another path",
    )  # fmt: skip
