"""A model by its name: a folder, a recipe, or a kind of model."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from heedful.config import parse
from heedful.errors import UserError
from heedful.files.reading import exists, is_folder
from heedful.models import MODELS, config_class
from heedful.models.roles import ModelConfig
from heedful.runs.load import load
from heedful.runs.recipe import load_recipe, shipped


def find_model(name: str, overrides: Sequence[str] = ()) -> Any:
    """The model in a folder, the model settings of a recipe, or the smallest settings of a kind of model."""
    if is_folder(name):
        if overrides:
            raise UserError(
                "a trained model has its sizes already", where=overrides[0], found=name,
                todo=f"name its recipe: {Path(name) / 'recipe.yaml'}",
            )  # fmt: skip
        return load(Path(name), "cpu").model
    if name in MODELS and name not in shipped():
        words = [word.removeprefix("model.") for word in overrides]
        return parse(config_class(name), config_class(name).tiny().model_dump(mode="json"), overrides=words)
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
