"""Identify the model in a folder, Heedful's or external, by its settings alone; imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from heedful.config import parse
from heedful.errors import AGAIN, UserError, shown
from heedful.files.folders import has_file, read_settings
from heedful.files.reading import is_folder, require_folder
from heedful.files.yaml import load_yaml
from heedful.hub.image_folders import find_image_folder
from heedful.hub.sentence_transformers import read_sentence_config
from heedful.models import MODELS, config_class, kinds_of
from heedful.models.exchange import Exchange
from heedful.models.roles import Role
from heedful.training.checkpoint.choice import split_checkpoint

PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
READABLE: tuple[Role, ...] = ("encoder", "causal", "seq2seq")  # roles of published models that can be read


@cache
def find_exchange(kind: str) -> Exchange | None:
    """The `weights.py` module of a model, which describes its published files, if it has one."""
    name = f"heedful.models.{MODELS[kind].folder or kind}.weights"
    found: Any = import_module(name) if find_spec(name) is not None else None
    return found


def exchanges(*roles: Role) -> dict[str, Exchange]:
    """The exchange modules by kind, for all models with one of these roles (default: all readable ones)."""
    modules = {kind: find_exchange(kind) for role in roles or READABLE for kind in kinds_of(role)}
    return {kind: exchange for kind, exchange in modules.items() if exchange is not None}


def model_names(*roles: Role) -> str:
    """The names of the models with these roles, joined by "or"."""
    *first, last = (exchange.TITLE for exchange in exchanges(*roles).values())
    return f"{', '.join(first)} or {last}" if first else last


def locate_model(folder: Path) -> Path:
    """The folder with the files of a model: the folder itself, or its subfolder `model`, as in a run."""
    run, which = split_checkpoint(folder)
    if which is not None:
        return run  # a checkpoint was chosen instead of the final model
    below = folder / "model"
    return (
        below
        if is_folder(below) and (has_file(folder, "recipe.yaml") or not has_file(folder, "config.json"))
        else folder
    )


def is_external(folder: Path) -> bool:
    """Whether a folder has an external model, not one written by Heedful."""
    own = locate_model(folder)
    if has_file(own, "config.json"):
        return "task" not in read_settings(own, "config.json")
    releases = [exchange.RELEASE[0] for exchange in exchanges().values() if exchange.RELEASE]
    return any(has_file(own, name) for name in ("modules.json", *releases, *PICKLES)) or bool(find_image_folder(own))


def no_model_error(folder: Path) -> UserError:
    """The error for a folder without a model."""
    releases = [" and ".join(exchange.RELEASE) for exchange in exchanges().values() if exchange.RELEASE]
    return UserError(
        "there is no model in this folder", where=str(folder),
        expected=", or ".join(["config.json and model.safetensors", *releases, "a run of Heedful"]),
        todo="name the folder with these files",
    )  # fmt: skip


def read_own_settings(folder: Path) -> tuple[Mapping[str, Any], Path] | None:
    """The settings of a run or model folder of Heedful, and their file; None for any other folder."""
    own = locate_model(folder)
    if has_file(own, "config.json"):
        settings, where = read_settings(own, "config.json"), own / "config.json"
        return (settings, where) if "task" in settings else None
    if has_file(own, "recipe.yaml"):
        return load_yaml(own / "recipe.yaml")[0], own / "recipe.yaml"
    return None


def read_config(folder: Path, *roles: Role) -> Any:
    """The config of the model in a folder, Heedful's or external, from its config files alone.

    The model must have one of these roles, if any are given; of Heedful's fine-tuned models, the encoder may have it.
    """
    own = locate_model(folder)
    require_folder(own, f"a folder with a trained {model_names(*roles)} in it")
    if (ours := read_own_settings(folder)) is not None:
        settings, where = ours
        group = _group_with_role(settings.get("model"), where, roles or READABLE)
        return parse(config_class(group["kind"]), group, file=where)
    if "image_encoder" in roles and (images := find_image_folder(own)) is not None:
        return images.read_config().config
    if (sentences := read_sentence_config(own)) is not None:
        own = sentences.encoder
    if has_file(own, "config.json"):
        where, settings = own / "config.json", read_settings(own, "config.json")
        return exchange_for(settings, where, roles).read_config(settings, where).config
    if (released := find_release(own, roles)) is not None:
        exchange, name = released
        return exchange.release_config(read_settings(own, name), own / name).config
    raise no_model_error(folder)


def read_kind(folder: Path) -> str | None:
    """The `kind` of the model in a folder of Heedful."""
    ours = read_own_settings(folder)
    model = ours[0].get("model") if ours is not None else None
    kind = model.get("kind") if isinstance(model, dict) else None
    return kind if isinstance(kind, str) else None


def _group_with_role(model: Any, where: Path, roles: tuple[Role, ...]) -> dict[str, Any]:
    """The settings of the model, or of its encoder, whichever has one of these roles."""
    known, kind = kinds_of(*roles), model.get("kind") if isinstance(model, dict) else None
    if kind in known:
        return dict(model)
    group = model.get("encoder", model) if isinstance(model, dict) and "encoder" in roles else None
    if isinstance(group, dict) and (default := group.get("kind", kinds_of("encoder")[0])) in known:
        return {"kind": default, **group}
    raise UserError(
        f"this is not a {model_names(*roles)}, and has none as its encoder", where=str(where), found=shown(kind),
        expected=f"a model of kind {' or '.join(known)}",
    )  # fmt: skip


def exchange_for(settings: Mapping[str, Any], where: Path, roles: tuple[Role, ...]) -> Exchange:
    """The exchange module for the `model_type` of an external config.json; without one, BERT's."""
    if not settings:
        raise UserError("this file has no settings", where=str(where), found="{}", expected="{...}", todo=AGAIN)
    known = exchanges(*roles)
    kind = settings.get("model_type")
    if "model_type" not in settings and "encoder" in (roles or READABLE):
        kind = next(iter(exchanges("encoder").values())).MODEL_TYPES[0]
    found = next((exchange for exchange in known.values() if kind in exchange.MODEL_TYPES), None)
    if found is None:
        types = [repr(name) for exchange in known.values() for name in exchange.MODEL_TYPES]
        raise UserError(
            "not supported: models of this kind", where=str(where), found=f"model_type {shown(kind)}",
            expected=f"model_type {' or '.join(types)}", todo="name the folder of one of these",
        )  # fmt: skip
    return found


def find_release(folder: Path, roles: tuple[Role, ...] = ()) -> tuple[Exchange, str] | None:
    """The exchange module of a first release (a TensorFlow checkpoint) in a folder, and its settings file, if any."""
    known = ((exchange, exchange.RELEASE[0]) for exchange in exchanges(*roles).values() if exchange.RELEASE)
    return next(((exchange, name) for exchange, name in known if has_file(folder, name)), None)
