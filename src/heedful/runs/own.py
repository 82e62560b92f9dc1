"""Runs with a user's own model or data: the recipe records the class name, the caller passes the module."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import FunctionType
from typing import TypeVar

from torch import nn

from heedful.data.formats.sources import Split
from heedful.data.own import Dataset, OwnData
from heedful.errors import UserError
from heedful.models import build
from heedful.models.own import OwnModel, wrap_module
from heedful.models.roles import ModelConfig
from heedful.tasks import task_class
from heedful.tasks.recipe_parts import Recipe

AnyRecipe = TypeVar("AnyRecipe", bound=Recipe)


def class_name(model: OwnModel) -> str:
    """The name of a user's model in the recipe: its class, or the function that builds it."""
    return model.__name__ if isinstance(model, type | FunctionType) else type(model).__name__


def builder(model: OwnModel | None) -> Callable[[ModelConfig], nn.Module]:
    """The function that builds a run's model from its settings: the library's, or the user's."""
    if model is None:
        return build
    return lambda config: wrap_module(model if isinstance(model, nn.Module) else model(config), config)


def with_own_model(recipe: AnyRecipe, model: OwnModel | None) -> AnyRecipe:
    """The recipe with the name of the user's model, and with the module's `config` if it has one."""
    require_named(recipe.own_model, model, "own_model", "heedful.train(recipe, run, model=...)", allow_new=True)
    if model is None:
        return recipe
    if dict(recipe).get("embedding_init") is not None:
        raise UserError(
            "embedding_init does not work with your own module", where="embedding_init",
            todo="remove it, and set the module's embedding before training",
        )  # fmt: skip
    settings = vars(model).get("config") if isinstance(model, nn.Module) else None
    known = {"model": settings} if isinstance(settings, ModelConfig) and settings.role == recipe.model.role else {}
    return recipe.model_copy(update={"own_model": class_name(model), **known})


def with_own_data(recipe: AnyRecipe, data: Dataset | None) -> AnyRecipe:
    """The recipe with the user's examples as its data."""
    if data is None:
        return recipe
    collect = task_class(recipe.task.kind, recipe.model.kind).collect
    splits: dict[Split, Iterable[object]] = {"train": data.train, "valid": data.valid}
    splits |= {} if data.test is None else {"test": data.test}
    return recipe.model_copy(
        update={"data": OwnData.of({split: collect(rows, split) for split, rows in splits.items()})}
    )


def require_named(name: str, model: OwnModel | None, where: str, call: str, allow_new: bool = False) -> None:
    """Refuse a model that is not the one a recipe or folder names; `allow_new` accepts one where none is named."""
    passed = "" if model is None else class_name(model)
    if name == passed or (allow_new and not name):
        return
    raise UserError(
        f"this run needs your own model {name}" if name else "this run does not use a model of your own",
        where=where,
        found=f"model={passed}" if passed else "no model",
        expected=f"model={name}, a module of that class or a function that builds one" if name else "no model",
        todo=f"pass it from Python: {call.replace('...', name)}" if name else "remove model=",
    )
