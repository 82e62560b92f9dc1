"""Runs of a model that is the user's own class: the recipe names the class, and Python gives the module."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import FunctionType
from typing import TypeVar

from torch import nn

from heedful.data.formats.sources import Split
from heedful.data.own import Dataset, OwnData
from heedful.errors import UserError
from heedful.models import build
from heedful.models.own import OwnModel, in_role
from heedful.models.roles import ModelConfig
from heedful.tasks import task_class
from heedful.tasks.recipe_parts import Recipe

AnyRecipe = TypeVar("AnyRecipe", bound=Recipe)


def class_name(model: OwnModel) -> str:
    """What a run calls a user's model: the name of its class, or of the function that makes it."""
    return model.__name__ if isinstance(model, type | FunctionType) else type(model).__name__


def builder(model: OwnModel | None) -> Callable[[ModelConfig], nn.Module]:
    """What makes the model of a run from its settings, the vocabulary included: the library, or the user."""
    if model is None:
        return build
    return lambda config: in_role(model if isinstance(model, nn.Module) else model(config), config)


def with_own_model(recipe: AnyRecipe, model: OwnModel | None) -> AnyRecipe:
    """The recipe with the name of the user's model; settings that the module brings along become the recipe's."""
    require_named(recipe.own_model, model, "own_model", "heedful.train(recipe, run, model=...)", allow_new=True)
    if model is None:
        return recipe
    if dict(recipe).get("embedding_init") is not None:
        raise UserError(
            "word vectors cannot be put into a module of your own", where="embedding_init",
            todo="leave this out, and set the module's embedding before training",
        )  # fmt: skip
    settings = vars(model).get("config") if isinstance(model, nn.Module) else None
    known = {"model": settings} if isinstance(settings, ModelConfig) and settings.role == recipe.model.role else {}
    return recipe.model_copy(update={"own_model": class_name(model), **known})


def with_own_data(recipe: AnyRecipe, data: Dataset | None) -> AnyRecipe:
    """The recipe with the user's examples in place of its data."""
    if data is None:
        return recipe
    collect = task_class(recipe.task.kind, recipe.model.kind).collect
    given: dict[Split, Iterable[object]] = {"train": data.train, "valid": data.valid}
    given |= {} if data.test is None else {"test": data.test}
    return recipe.model_copy(
        update={"data": OwnData.of({split: collect(rows, split) for split, rows in given.items()})}
    )


def require_named(name: str, model: OwnModel | None, where: str, call: str, allow_new: bool = False) -> None:
    """Refuse another model than the one that a recipe or a folder names, and none where it names one."""
    given = "" if model is None else class_name(model)
    if name == given or (allow_new and not name):
        return
    raise UserError(
        f"this is a run of your own model {name}" if name else "this is not a run of a model of your own",
        where=where,
        found=f"model={given}" if given else "no model",
        expected=f"model={name}, a module of that class or a function that makes one" if name else "no model",
        todo=f"give it from Python: {call.replace('...', name)}" if name else "leave model= out",
    )
