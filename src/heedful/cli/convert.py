"""The verb `convert`: a trained BERT or GPT from one kind of folder to another, or a BERT to an ONNX file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import typer

from heedful.cli.output import print_table
from heedful.data.tokenizers.tokenizer import TrainedTokenizer
from heedful.errors import UserError, printable, shown
from heedful.files.reading import is_folder, require_folder
from heedful.hub.folder import exchanges, is_external, locate_model, model_names, read_kind
from heedful.hub.loading import HEADS, Pretrained, no_tokenizer_error, pretrained, task_model
from heedful.hub.model_folder import write_model
from heedful.hub.onnx import require_packages, write_onnx
from heedful.hub.rules import LedgerLine, format_ledger
from heedful.hub.sentence_transformers import SentenceConfig
from heedful.hub.unpickling import read_any_weights
from heedful.hub.writing import require_new, write
from heedful.tasks import task_class

Format = Literal["heedful", "hf", "onnx"]
NAMES: dict[Format, str] = {"heedful": "a model of Heedful's", "hf": "a Hugging Face folder", "onnx": "an ONNX file"}


def convert_command(
    source: Path, target: Path, to: Format | None, ledger: bool, force: bool, as_json: bool = False
) -> None:
    """Read one folder, account for every tensor, and write the other kind; nothing is written if anything is amiss."""
    kind = to or guessed(source, target)
    if target.resolve() == source.resolve() or source.resolve().is_relative_to(target.resolve()):
        raise UserError("this would write over what is read", where=str(target), todo="name another place")
    require_new(target, force)
    if kind == "onnx":
        require_packages()
    require_convertible(source)
    typer.echo(f"reading {printable(str(source))} ...", err=True)
    found = pretrained(source, read_any_weights)
    typer.echo(f"read {described(found)}", err=True)
    for note in found.notes:
        typer.echo(f"note: {printable(note)}", err=True)
    if kind == "heedful":
        write_own(target, found, source)
    elif kind == "hf":
        write(target, found)
        if found.writes and isinstance(found.tokenizer, TrainedTokenizer):
            typer.echo("note: its tokenizer is one of Heedful's own, which others cannot read: left out", err=True)
    else:
        typer.echo(f"outputs: {', '.join(write_onnx(target, encoder(found, source)))}", err=True)
    if ledger or as_json:
        print_table(
            (line.replace("\t", "  ") for line in format_ledger(found.ledger)), map(record, found.ledger), as_json
        )
    typer.echo(f"wrote {printable(str(target))}, {NAMES[kind]}", err=True)


def record(line: LedgerLine) -> dict[str, Any]:
    """What --json prints of one tensor."""
    return {
        "source": line.source, "name": line.name, "operation": line.operation, "shape": line.shape,
        "sha256": line.sha256,
    }  # fmt: skip


def require_convertible(source: Path) -> None:
    """Refuse a model of ours that others have no files for."""
    require_folder(source, f"a folder with a {model_names().replace(' or ', ' or a ')} in it")
    kind = read_kind(source)
    if kind is not None and kind not in (*exchanges(), *HEADS):
        raise UserError(
            f"only {model_names().replace(' or ', ' and ')} can be converted", where=str(locate_model(source)),
            found=f"a model of kind {shown(kind)}",
            todo="load it with heedful.load, or look at it with `heedful explore`",
        )  # fmt: skip


def guessed(source: Path, target: Path) -> Format:
    """The kind that is meant: by the target's name, else the one that the source is not."""
    if target.suffix == ".onnx":
        return "onnx"
    return "heedful" if is_folder(source) and is_external(source) else "hf"


def described(found: Pretrained) -> str:
    """What was read, in words."""
    config, unused = found.config, sum(line.name is None for line in found.ledger)
    size = sum(tensor.numel() for tensor in found.tensors.values())
    if not found.writes:
        parts = [name for name in ("pooler", "masked_words", "next_sentence") if getattr(config, name)]
        parts += [found.head.kind] if found.head else []
        size += sum(tensor.numel() for tensor in found.head.tensors.values()) if found.head else 0
        more = f"with {', '.join(parts) or 'no head'}"
    else:
        more = f"a context of {config.context:,}"
    return (
        f"{len(found.ledger)} tensors{f', {unused} of them left out' if unused else ''}: {size:,} numbers, "
        f"{config.layers} blocks of width {config.width}, {more}"
    )


def encoder(found: Pretrained, source: Path) -> Pretrained:
    """What was read, if it is an encoder: only those are written as ONNX."""
    if found.writes:
        raise UserError(
            f"a {model_names('causal')} is not written as ONNX", where=str(source),
            expected=f"a {model_names('encoder')}", todo="write a Hugging Face folder: --to hf",
        )  # fmt: skip
    return found


def write_own(target: Path, found: Pretrained, source: Path) -> None:
    """Write a folder that `heedful.load` reads."""
    if found.tokenizer is None:
        raise no_tokenizer_error(found, source)
    task, config, tensors, unused = task_model(found)
    for name in unused:
        typer.echo(f"note: {name} has no use under this head, and is left out", err=True)
    settings = {"task": task, "model": config.model_dump(mode="json")}
    decoding = task_class(task).decoding
    decode = {"start_token": found.starts} if found.writes else {}
    settings |= {"decode": decoding().model_dump(mode="json") | decode} if decoding else {}
    if task == "pretraining" and found.sentences != SentenceConfig():
        settings["sentences"] = found.sentences.model_dump(mode="json")
    about = {"from": str(source), "ledger": [line.source for line in found.ledger]}
    write_model(target, json.dumps(settings, indent=2) + "\n", tensors, {"tokenizer.json": found.tokenizer.json}, about)
