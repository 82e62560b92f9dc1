"""The command `summary`: the layers of a model, their output shapes and parameters."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from heedful.cli.output import json_line, say
from heedful.errors import UserError
from heedful.files.reading import exists, is_folder
from heedful.models import MODELS, config_class
from heedful.models.roles import ModelConfig
from heedful.models.tracing import summary
from heedful.runs.load import load
from heedful.runs.recipe import load_recipe, shipped


def summary_command(name: str, overrides: Sequence[str], depth: int, as_json: bool) -> None:
    """Print the table of a model's layers."""
    found = summary(find_model(name, overrides), depth)
    if not as_json:
        say(str(found))
        return
    layers = [{"name": row.name, "kind": row.kind, "shape": row.output, "parameters": row.parameters} for row in found]
    say(json_line({"model": name, "layers": layers, "parameters": found.parameters, "frozen": found.frozen}))


def find_model(name: str, overrides: Sequence[str] = ()) -> Any:
    """The model in a folder, the model settings of a recipe, or the smallest settings of a kind of model."""
    if is_folder(name):
        return load(Path(name), "cpu").model
    if name in MODELS and name not in shipped():
        return config_class(name).tiny()
    if name not in shipped() and Path(name).suffix not in (".yaml", ".yml") and not exists(name):
        close = difflib.get_close_matches(name, [*MODELS, *shipped()], n=1)
        raise UserError(
            "there is no such model or recipe", where=name,
            expected="a folder, a recipe (`heedful recipes`), or a kind of model: " + ", ".join(MODELS),
            todo=f"did you mean {close[0]}?" if close else None,
        )  # fmt: skip
    return with_vocab(load_recipe(name, overrides))


def with_vocab(recipe: Any) -> ModelConfig:
    """The settings of a recipe's model with the size of its vocabulary, inferred from the number of parameters."""
    config: Any = recipe.model
    missing = [key for key in ("vocab", "encoder", "labels") if getattr(config, key, 0) is None]
    if not missing:
        found: ModelConfig = config
        return found
    size: int = recipe.size
    each = config.parameters(1) - config.parameters(0) if missing == ["vocab"] else 0
    if not each or size <= config.parameters(0):
        raise UserError(
            f"the sizes of this model depend on settings that are not known yet: {', '.join(missing)}",
            where="model", todo="name a run of this recipe, or set them, as in model.vocab=30000",
        )  # fmt: skip
    return type(config).model_validate(config.model_dump() | {"vocab": (size - config.parameters(0)) // each})
