"""A model by its name: a folder, a recipe, or a kind of model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from heedful.config import parse
from heedful.errors import UserError
from heedful.files.reading import is_folder
from heedful.models import MODELS, config_class
from heedful.models.roles import ModelConfig
from heedful.runs.load import load
from heedful.runs.recipe import load_recipe, shipped


def find_model(name: str, overrides: Sequence[str] = ()) -> Any:
    """The model in a folder, or the settings of a recipe's, or those of a kind in the size of tests."""
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
    recipe: Any = load_recipe(name, overrides)
    return with_vocab(recipe.model, recipe.size)


def with_vocab(config: Any, size: int) -> ModelConfig:
    """The settings of a model with its vocabulary, where only the number of parameters tells how large that is."""
    missing = [key for key in ("vocab", "encoder", "labels") if getattr(config, key, 0) is None]
    if not missing:
        found: ModelConfig = config
        return found
    each = config.parameters(1) - config.parameters(0) if missing == ["vocab"] else 0
    if not each or size <= config.parameters(0):
        raise UserError(
            f"the sizes of this model depend on what is not known yet: {', '.join(missing)}",
            where="model", todo="name a run of this recipe, or set them, as in model.vocab=30000",
        )  # fmt: skip
    return type(config).model_validate(config.model_dump() | {"vocab": (size - config.parameters(0)) // each})
