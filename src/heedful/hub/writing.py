"""Trained models as folders that `transformers` and `sentence-transformers` load."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from heedful.data.tokenizers.byte_pairs import BytePairs
from heedful.errors import UserError
from heedful.files import writing as files
from heedful.files.reading import is_file, is_folder
from heedful.hub import bert, causal_configs, gpt
from heedful.hub import rules as convert
from heedful.hub.causal import Causal
from heedful.hub.configs import ARCHITECTURES, SHARES, SIZES, THEIRS, HeadKind
from heedful.hub.loading import Pretrained
from heedful.hub.rules import Line
from heedful.hub.sentences import sentence_files
from heedful.hub.vocabularies import tokenizer_files
from heedful.models.bert.config import BertConfig
from heedful.training.checkpoint.manifest import Pieces
from heedful.training.checkpoint.tensors import pack, require_finite


def write(folder: Path, found: Pretrained | Causal) -> tuple[Line, ...]:
    """Write a folder of Hugging Face's kind, which appears whole or not at all, and return its ledger."""
    contents, ledger = causal_contents(found) if isinstance(found, Causal) else contents_of(found)
    needed = sum(len(piece) for pieces in contents.values() for piece in pieces)
    with files.disk_errors(folder.parent, "write the model", needed):
        write_folder(folder, contents)
    return ledger


def contents_of(found: Pretrained) -> tuple[dict[str, Pieces], tuple[Line, ...]]:
    """The files of such a folder, by name, and its ledger."""
    head = found.head
    kind = None if head is None else head.kind
    tensors = found.tensors | ({} if head is None else {f"head.{name}": value for name, value in head.tensors.items()})
    require_finite(tensors, "model", "go back to an earlier checkpoint")
    written, ledger = convert.write(tensors, bert.table(found.config, kind))
    if bert.bare(written):
        written = {name.removeprefix("bert."): tensor for name, tensor in written.items()}
        ledger = tuple(replace(line, source=line.source.removeprefix("bert.")) for line in ledger)
    texts = {"config.json": config_text(found.config, kind, () if head is None else head.labels, found.tokenizer)}
    if found.tokenizer is not None:
        texts |= tokenizer_files(found.tokenizer, found.longest or found.config.context)
    if found.pooling is not None:
        texts |= sentence_files(found.config.width, found.sentences, found.config.context)
    return _files(texts, written), ledger


def causal_contents(found: Causal) -> tuple[dict[str, Pieces], tuple[Line, ...]]:
    """The same of a GPT. A tokenizer of ours for lines has no files that say the same to others."""
    pairs = found.tokenizer if isinstance(found.tokenizer, BytePairs) else None
    texts = {"config.json": causal_configs.config_text(found.config, None if pairs is None else pairs.end)}
    require_finite(found.tensors, "model", "go back to an earlier checkpoint")
    written, ledger = convert.write(found.tensors, gpt.table(found.config))
    for tokenizer in (pairs, found.word_ends):
        texts |= {} if tokenizer is None else tokenizer.files(found.config.context, found.starts)
    return _files(texts, written), ledger


def _files(texts: Mapping[str, str], tensors: Mapping[str, Tensor]) -> dict[str, Pieces]:
    header, *pieces = pack(tensors)
    return {
        **{name: [text.encode()] for name, text in texts.items()},
        "model.safetensors": [_marked(header), *pieces],
    }


def _marked(header: bytes | memoryview) -> bytes:
    """The header of a safetensors file with the remark that `transformers` looks for."""
    entries = json.loads(bytes(header[8:]))
    text = json.dumps({"__metadata__": {"format": "pt"}, **entries}, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def config_text(config: BertConfig, head: HeadKind | None, labels: tuple[str, ...], tokenizer: Any) -> str:
    """The text of config.json."""
    settings: dict[str, Any] = {"architectures": [architecture(config, head)], "model_type": "bert"}
    settings |= {theirs: getattr(config, ours) for theirs, (ours, _, _) in SIZES.items()}
    settings |= {theirs: getattr(config, ours) for theirs, ours in SHARES.items()}
    settings |= {
        "hidden_act": THEIRS[config.activation],
        "layer_norm_eps": config.norm_eps,
        "initializer_range": 0.02,
        "pad_token_id": 0 if tokenizer is None else tokenizer.pad,
        "dtype": "float32",
    }
    if head == "regressor":
        labels = ("LABEL_0",)
        settings["problem_type"] = "regression"
    if labels:
        settings["id2label"] = {str(index): label for index, label in enumerate(labels)}
        settings["label2id"] = {label: index for index, label in enumerate(labels)}
    return json.dumps(settings, indent=2, ensure_ascii=False) + "\n"


def architecture(config: BertConfig, head: HeadKind | None) -> str:
    """The name of the model that has these parts: the least of them that leaves none out."""
    if head is not None:
        kind = "classifier" if head == "regressor" else head
        return next(name for name, parts in ARCHITECTURES.items() if parts[3] == kind)
    if config.masked_words and config.next_sentence:
        return "BertForPreTraining"
    if config.masked_words:
        return "BertForMaskedLM"
    return "BertForNextSentencePrediction" if config.next_sentence else "BertModel"


def write_folder(folder: Path, contents: Mapping[str, Pieces]) -> None:
    """Write files under a temporary name, one folder deep, and rename; a former one is replaced."""
    with files.whole(folder) as fresh:
        files.make_folder(fresh)
        for below in sorted({name.split("/")[0] for name in contents if "/" in name}):
            files.make_folder(fresh / below)
        for name, pieces in contents.items():
            files.write_new(fresh / name, *pieces)


def require_new(target: Path, force: bool) -> None:
    """Refuse to write where something is in the way; even if told to, only a model is replaced."""
    if not os.path.lexists(target):
        if not is_folder(target.parent):
            raise UserError("there is no such folder", where=str(target.parent), todo="make it, or name another place")
        return
    model = is_file(target / "config.json") if is_folder(target) else target.suffix == ".onnx" and is_file(target)
    if force and model and not target.is_symlink():
        return
    raise UserError(
        "something is in the way", where=str(target), found="a model" if model else "something that is no model",
        expected="a new name", todo="name another place, or add --force" if model else "name another place",
    )  # fmt: skip
