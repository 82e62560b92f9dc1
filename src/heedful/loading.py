"""Trained models from their folders, each part checked before it is used, and the folder they are written to."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from heedful.config import load_yaml, parse
from heedful.data.tokenizers import Tokenizer
from heedful.errors import UserError, shown
from heedful.models import build
from heedful.models.configs import TransformerConfig
from heedful.recipe import DecodeConfig, Recipe
from heedful.tasks.translation import Translator
from heedful.training.checkpoint import newest
from heedful.training.loop import require_fit
from heedful.training.portable import read_model, write_model

TINY = 1_000_000  # parameters under which a second thread costs more than it brings


def load(path: str | Path, device: str | None = None) -> Translator:
    """A trained model from a run folder (its final model, else its newest checkpoint) or from a model folder."""
    folder = Path(path)
    place = _place(device)
    if not folder.is_dir():
        raise UserError(
            "there is no such folder", where=str(path), expected="a run folder or a model folder",
            todo="`heedful runs` lists the runs below a folder",
        )  # fmt: skip
    portable = folder / "model" if (folder / "model").is_dir() else folder
    notes: tuple[str, ...] = ()
    if portable != folder or (folder / "config.json").is_file():
        config, decode, tokenizer, tensors = _portable(portable)
        weights = portable / "model.safetensors"
    else:
        recipe = read_recipe(folder)
        tokenizer = Tokenizer.load(folder / "tokenizer.json")
        config = recipe.model.model_copy(update={"vocab": recipe.model.vocab or tokenizer.vocab})
        decode = recipe.decode
        checkpoints, damaged = newest(folder, 1)
        notes = tuple(f"passed over a damaged checkpoint: {broken.reason}" for broken in damaged)
        if not checkpoints:
            raise UserError(
                "this run has no checkpoint yet",
                where=str(folder),
                todo="train on with the same command, then try again",
            )
        tensors, weights = checkpoints[0].load("model"), checkpoints[0].path / "model.safetensors"
    with torch.device("meta"):  # a config may ask for a model of any size: no memory is taken until the weights fit
        require_fit(build(config), tensors, weights)
    model = build(config)
    model.load_state_dict(tensors)
    settings = (decode.beams, decode.length_penalty, decode.max_length)
    return Translator(model, tokenizer, config.context, place, *settings, notes=notes)


def _portable(folder: Path) -> tuple[TransformerConfig, DecodeConfig, Tokenizer, dict[str, Tensor]]:
    """What a model folder holds, each part checked."""
    found, where = read_model(folder), folder / "config.json"
    settings = _json(found.config_json, where)
    if settings.get("task") != "translation":
        raise UserError(
            "this model is not one that translates", where=f"{where}: task", found=shown(settings.get("task")),
            expected="translation", todo="give the folder of a translation model",
        )  # fmt: skip
    model, decoding = (_group(settings, name, where) for name in ("model", "decode"))
    config, decode = parse(TransformerConfig, model, file=where), parse(DecodeConfig, decoding, file=where)
    if found.tokenizer_json is None:
        raise UserError("the tokenizer is missing", where=str(folder / "tokenizer.json"), todo="copy the whole folder")
    tokenizer = Tokenizer(found.tokenizer_json, str(folder / "tokenizer.json"))
    if config.vocab is None or config.vocab < tokenizer.vocab:
        raise UserError(
            "the model and its tokenizer do not belong together",
            where=f"{where}: model.vocab",
            found=str(config.vocab),
            expected=f"at least {tokenizer.vocab:,}, the tokens in tokenizer.json",
            todo="copy the whole folder again",
        )
    return config, decode, tokenizer, found.tensors


def _place(device: str | None) -> torch.device:
    """The device of that name, or the best there is."""
    gpu = torch.cuda.is_available()
    try:
        place = torch.device(device or ("cuda" if gpu else "cpu"))
    except RuntimeError:
        place = None
    if place is None or place.type not in ("cpu", "cuda") or (place.type == "cuda" and not gpu):
        raise UserError(
            "there is no such device", where="device", found=shown(device),
            expected="cpu or cuda" if gpu else "cpu: torch finds no GPU here",
        )  # fmt: skip
    return place


def read_recipe(folder: Path) -> Recipe:
    """The recipe that a run folder was made from."""
    file = folder / "recipe.yaml"
    if not file.is_file():
        raise UserError(
            "this folder is not a run", where=str(folder), expected="a folder with recipe.yaml in it",
            todo="`heedful runs` lists the runs below a folder",
        )  # fmt: skip
    data, marks = load_yaml(file)
    return parse(Recipe, data, marks, (), file)


def _json(text: str, where: Path) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(
            "this is not JSON", where=f"{where}", found=str(error), todo="copy the whole folder again"
        ) from error
    if not isinstance(found, dict):
        raise UserError("this is not a model's config", where=f"{where}", todo="copy the whole folder again")
    return found


def _group(settings: dict[str, Any], name: str, where: Path) -> dict[str, Any]:
    found = settings.get(name)
    if not isinstance(found, dict):
        raise UserError(
            f"{name} is not right", where=str(where), found=shown(found), expected="a group of settings, {...}",
            todo="copy the whole folder again",
        )  # fmt: skip
    return found


def few_threads(model: nn.Module, device: torch.device, processes: int = 1) -> int:
    """How many CPU threads a model is worth, where so many processes share the machine."""
    size = sum(weight.numel() for weight in model.parameters())
    if size < TINY and device.type == "cpu":
        return 1
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return max(1, cores // processes)


def write_portable(
    folder: Path, recipe: Recipe, config: TransformerConfig, model: nn.Module, tokenizer: Tokenizer
) -> None:
    """The folder that `load` reads: config.json, model.safetensors, tokenizer.json."""
    text = json.dumps(
        {"task": recipe.task.kind, "model": config.model_dump(), "decode": recipe.decode.model_dump()}, indent=2
    )
    write_model(folder, text + "\n", model.state_dict(), tokenizer.json, {"recipe": recipe.model_dump(mode="json")})
