"""What a folder holds, ours or of others, by its settings alone; needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from heedful.config import parse
from heedful.errors import UserError, shown
from heedful.files.folders import has, read_settings
from heedful.files.reading import is_folder, require_folder
from heedful.files.yaml import load_yaml
from heedful.hub.sentences import sentences_in
from heedful.models import MODELS, config_class, kinds_of
from heedful.models.exchange import Exchange
from heedful.models.roles import Role
from heedful.training.checkpoint.choice import picked

PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
READ: tuple[Role, ...] = ("encoder", "causal")  # what others publish, and is read here


@cache
def exchange_of(kind: str) -> Exchange | None:
    """What a model says of the files of others, if there are any."""
    name = f"heedful.models.{MODELS[kind].folder or kind}.weights"
    found: Any = import_module(name) if find_spec(name) is not None else None
    return found


def exchanges(*roles: Role) -> dict[str, Exchange]:
    """The same of all models that have one of these roles, or of all that are read, by their kinds."""
    found = {kind: exchange_of(kind) for role in roles or READ for kind in kinds_of(role)}
    return {kind: exchange for kind, exchange in found.items() if exchange is not None}


def titles(*roles: Role) -> str:
    """What they are called, in a sentence."""
    *first, last = (exchange.TITLE for exchange in exchanges(*roles).values())
    return f"{', '.join(first)} or {last}" if first else last


def home(folder: Path) -> Path:
    """Where the files of a model are: in the folder itself, or in `model` below it, as in a run."""
    run, which = picked(folder)
    if which is not None:
        return run  # whose checkpoint is meant, not its final model
    below = folder / "model"
    return below if is_folder(below) and (has(folder, "recipe.yaml") or not has(folder, "config.json")) else folder


def foreign(folder: Path) -> bool:
    """Whether a folder holds a model that others wrote."""
    own = home(folder)
    if has(own, "config.json"):
        return "task" not in read_settings(own, "config.json")
    releases = [exchange.RELEASE[0] for exchange in exchanges().values() if exchange.RELEASE]
    return any(has(own, name) for name in ("modules.json", *releases, *PICKLES))


def unknown(folder: Path) -> UserError:
    """The error of a folder in which no model is found."""
    releases = [" and ".join(exchange.RELEASE) for exchange in exchanges().values() if exchange.RELEASE]
    return UserError(
        "there is no model in this folder", where=str(folder),
        expected=", or ".join(["config.json and model.safetensors", *releases, "a run of ours"]),
        todo="name the folder that holds these files",
    )  # fmt: skip


def own_settings(folder: Path) -> tuple[Mapping[str, Any], Path] | None:
    """The settings of a run or a model of ours, as they are written, and their file; None if the folder is not ours."""
    own = home(folder)
    if has(own, "config.json"):
        settings, where = read_settings(own, "config.json"), own / "config.json"
        return (settings, where) if "task" in settings else None
    if has(own, "recipe.yaml"):
        return load_yaml(own / "recipe.yaml")[0], own / "recipe.yaml"
    return None


def config_in(folder: Path, *roles: Role) -> Any:
    """The settings of the model in a folder, ours or of others, by its config files alone.

    It has one of these roles, where any are named; of a model of ours that stands on an encoder, that encoder may.
    """
    own = home(folder)
    require_folder(own, f"a folder with a trained {titles(*roles)} in it")
    if (ours := own_settings(folder)) is not None:
        settings, where = ours
        group = _ours(settings.get("model"), where, roles or READ)
        return parse(config_class(group["kind"]), group, file=where)
    if (sentences := sentences_in(own)) is not None:
        own = sentences[0]
    if has(own, "config.json"):
        where, settings = own / "config.json", read_settings(own, "config.json")
        return published(settings, where, roles).described(settings, where).config
    if (released := release_in(own, roles)) is not None:
        exchange, name = released
        return exchange.released(read_settings(own, name), own / name).config
    raise unknown(folder)


def kind_in(folder: Path) -> str | None:
    """The kind of the model in a folder of ours, as it is written."""
    ours = own_settings(folder)
    model = ours[0].get("model") if ours is not None else None
    found = model.get("kind") if isinstance(model, dict) else None
    return found if isinstance(found, str) else None


def _ours(model: Any, where: Path, roles: tuple[Role, ...]) -> dict[str, Any]:
    """The part of a model's settings that has one of these roles, as a folder of ours has them."""
    known, kind = kinds_of(*roles), model.get("kind") if isinstance(model, dict) else None
    if kind in known:
        return dict(model)
    group = model.get("encoder", model) if isinstance(model, dict) and "encoder" in roles else None
    if isinstance(group, dict) and (usual := group.get("kind", kinds_of("encoder")[0])) in known:
        return {"kind": usual, **group}
    raise UserError(
        f"this model has no {titles(*roles)} in it", where=str(where), found=shown(kind),
        expected=f"a model of kind {' or '.join(known)}",
    )  # fmt: skip


def published(settings: Mapping[str, Any], where: Path, roles: tuple[Role, ...]) -> Exchange:
    """What is known of the model that a config.json of others names; the usual one, where it names none."""
    known = exchanges(*roles)
    kind = settings.get("model_type")
    if "model_type" not in settings and "encoder" in (roles or READ):
        kind = next(iter(exchanges("encoder").values())).MODEL_TYPES[0]
    found = next((exchange for exchange in known.values() if kind in exchange.MODEL_TYPES), None)
    if found is None:
        types = [repr(name) for exchange in known.values() for name in exchange.MODEL_TYPES]
        raise UserError(
            "models of this kind are not read", where=str(where), found=f"model_type {shown(kind)}",
            expected=f"model_type {' or '.join(types)}", todo="name the folder of one of these",
        )  # fmt: skip
    return found


def release_in(folder: Path, roles: tuple[Role, ...] = ()) -> tuple[Exchange, str] | None:
    """What is known of the model whose first release a folder holds, if it does, and the file of its settings."""
    known = ((exchange, exchange.RELEASE[0]) for exchange in exchanges(*roles).values() if exchange.RELEASE)
    return next(((exchange, name) for exchange, name in known if has(folder, name)), None)
