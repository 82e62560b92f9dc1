"""The command `convert`: a text or image model from one format to another, or an encoder of texts to ONNX."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import torch
import typer

from heedful.cli.output import print_table
from heedful.data.tokenizers.sentence_pieces import SentencePieceTokenizer
from heedful.data.tokenizers.tokenizer import TrainedTokenizer
from heedful.errors import UserError, printable, shown
from heedful.files.reading import is_file, is_folder, require_folder
from heedful.hub.dense import joined_tensors
from heedful.hub.folder import exchanges, is_external, locate_model, model_names, read_kind
from heedful.hub.image_folders import find_image_folder, image_exchanges
from heedful.hub.lengthen import change_kind, lengthen
from heedful.hub.loading import HEADS, IMAGES, Pretrained, no_tokenizer_error, pretrained, task_model
from heedful.hub.model_folder import write_model
from heedful.hub.onnx import require_packages, write_onnx
from heedful.hub.rules import LedgerLine, format_ledger
from heedful.hub.sentence_transformers import SentenceConfig
from heedful.hub.unpickling import read_any_weights
from heedful.hub.writing import require_new, write
from heedful.models import build
from heedful.tasks import task_class

Format = Literal["heedful", "hf", "timm", "torchvision", "onnx"]
NAMES: dict[Format, str] = {
    "heedful": "a Heedful model",
    "hf": "a Hugging Face folder",
    "timm": "a folder with timm's names of tensors",
    "torchvision": "a folder with torchvision's names of tensors",
    "onnx": "an ONNX file",
}


def convert_command(
    source: Path,
    target: Path,
    to: Format | None,
    ledger: bool,
    force: bool,
    as_json: bool = False,
    context: int | None = None,
    new_kind: str | None = None,
) -> None:
    """Read a model, account for every tensor, and write it in another format; nothing is written if anything fails."""
    kind = to or guess_format(source, target)
    if target.resolve() == source.resolve() or source.resolve().is_relative_to(target.resolve()):
        raise UserError("this would overwrite the source", where=str(target), todo="choose another target")
    require_new(target, force)
    if kind == "onnx":
        require_packages()
    require_convertible(source)
    typer.echo(f"reading {printable(str(source))} ...", err=True)
    model = pretrained(source, read_any_weights)
    typer.echo(f"read {describe(model)}", err=True)
    if context is not None:
        model = lengthen(model, context, source)
    if new_kind is not None:
        model = change_kind(model, new_kind, kind == "hf", source)
    for note in model.notes:
        typer.echo(f"note: {printable(note)}", err=True)
    if kind == "heedful":
        write_own(target, model, source)
    elif kind == "timm" or kind == "torchvision":
        if not model.sees:
            raise UserError(f"{kind} has image models alone", where=str(source), todo="write --to hf")
        write(target, model, kind)
    elif kind == "hf":
        write(target, model)
        own = isinstance(model.tokenizer, TrainedTokenizer) and not isinstance(model.tokenizer, SentencePieceTokenizer)
        if own:
            typer.echo("note: the tokenizer is not exported, since its format is Heedful's own", err=True)
    else:
        typer.echo(f"outputs: {', '.join(write_onnx(target, require_encoder(model, source)))}", err=True)
    if ledger or as_json:
        print_table(
            (line.replace("\t", "  ") for line in format_ledger(model.ledger)), map(record, model.ledger), as_json
        )
    typer.echo(f"wrote {printable(str(target))}, {NAMES[kind]}", err=True)


def record(line: LedgerLine) -> dict[str, Any]:
    """A tensor as --json prints it."""
    return {
        "source": line.source, "name": line.name, "operation": line.operation, "shape": line.shape,
        "sha256": line.sha256,
    }  # fmt: skip


def require_convertible(source: Path) -> None:
    """Refuse a model that has no published format."""
    if find_image_folder(source) is not None:
        return
    require_folder(source, f"a folder with a {model_names().replace(' or ', ' or a ')} in it")
    kind = read_kind(source)
    if kind is not None and kind not in (*exchanges(), *HEADS, *image_exchanges()):
        raise UserError(
            f"only {model_names().replace(' or ', ' and ')} can be converted", where=str(locate_model(source)),
            found=f"a model of kind {shown(kind)}",
            todo="load it with heedful.load; for ONNX, fine-tune a BERT instead: heedful init classify",
        )  # fmt: skip


def guess_format(source: Path, target: Path) -> Format:
    """The format by the target's name; else Heedful's for an external model, and Hugging Face's for one of Heedful."""
    if target.suffix == ".onnx":
        return "onnx"
    return "heedful" if (is_folder(source) or is_file(source)) and is_external(source) else "hf"


def describe(model: Pretrained) -> str:
    """The size and the parts of a model, in words."""
    config, unused = model.config, sum(line.name is None for line in model.ledger)
    size = sum(tensor.numel() for tensor in model.tensors.values())
    lead = f"{len(model.ledger)} tensors{f', {unused} of them unused' if unused else ''}: "
    if model.sees:
        with torch.device("meta"):
            size = sum(weight.numel() for name, weight in build(config).named_parameters() if name in model.tensors)
        images = " x ".join(map(str, config.input))
        return f"{lead}{size:,} parameters, images of {images}, {config.classes or 'no'} classes"
    if model.translates:
        blocks = f"{config.encoder_layers} + {config.decoder_layers} blocks of width {config.width}"
        return f"{lead}{size:,} parameters, {blocks}, a context of {config.context:,}"
    if not model.writes:
        encodes = config.role == "encoder"
        parts = [name for name in ("pooler", "masked_words") if encodes and getattr(config, name)]
        parts += [config.pairs] if encodes and config.pairs else []
        parts += [model.head.kind] if model.head else []
        parts += [f"Dense to {layer.width}" for layer in model.dense]
        size += sum(tensor.numel() for tensor in model.head.tensors.values()) if model.head else 0
        size += sum(tensor.numel() for tensor in model.dense_tensors.values())
        more = f"with {', '.join(parts) or 'no head'}"
    else:
        more = f"a context of {config.context:,}"
    return f"{lead}{size:,} parameters, {config.layers} blocks of width {config.width}, {more}"


def require_encoder(model: Pretrained, source: Path) -> Pretrained:
    """The model, if it is an encoder: only encoders can be written as ONNX."""
    if model.config.role != "encoder":
        raise UserError(
            f"a {model_names(model.config.role)} cannot be written as ONNX", where=str(source),
            expected=f"a {model_names('encoder')}", todo="write a Hugging Face folder: --to hf",
        )  # fmt: skip
    return model


def write_own(target: Path, model: Pretrained, source: Path) -> None:
    """Write a folder that `heedful.load` reads."""
    if model.tokenizer is None:
        raise no_tokenizer_error(model, source)
    task, config, tensors, unused = task_model(model)
    for name in unused:
        typer.echo(f"note: {name} is not used with this head, and is dropped", err=True)
    settings = {"task": task, "model": config.model_dump(mode="json")}
    decoding = task_class(task).decoding
    decode: dict[str, Any] = {"start_token": model.starts} if model.writes else {}
    decode |= model.decode.model_dump(mode="json") if model.translates else {}
    settings |= {"decode": decoding().model_dump(mode="json") | decode} if decoding else {}
    if task == "pretraining" and model.sentences != SentenceConfig():
        settings["sentences"] = model.sentences.model_dump(mode="json")
        tensors = joined_tensors(tensors, model.dense_tensors)
    about = {"from": str(source), "ledger": [line.source for line in model.ledger]}
    artifacts = {IMAGES if model.sees else "tokenizer.json": model.tokenizer.json}
    write_model(target, json.dumps(settings, indent=2) + "\n", tensors, artifacts, about)
