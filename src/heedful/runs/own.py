"""Runs with a user's own model or data: the recipe records the class name, the caller passes the module."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar

from torch import nn

from heedful.config import config_classes
from heedful.data.fields.rows import DataFrame, PolarsFrame, from_python
from heedful.data.fields.rows import Table as Frame
from heedful.data.formats.sources import SPLITS, Split
from heedful.data.own import Dataset, OwnData
from heedful.data.tables.source import ColumnTable, Table
from heedful.errors import UserError, shown
from heedful.models import build
from heedful.models.own import OwnModel, wrap_module
from heedful.models.roles import ModelConfig
from heedful.tasks import task_class
from heedful.tasks.recipe_parts import Recipe

SPLIT_NAMES = {"validation": "valid", "dev": "valid"}
AnyData = Dataset | Frame | Mapping[str, Frame]  # examples, a table, or a table for each split
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


def with_own_data(recipe: AnyRecipe, data: AnyData | None) -> AnyRecipe:
    """The recipe with the user's examples as its data: in the plain form of its task, or a table."""
    collect = task_class(recipe.task.kind, recipe.model.kind).collect
    if data is None:
        if isinstance(recipe.data, OwnData):
            recipe.data.attach(collect)
        return recipe
    splits = splits_of(data)
    table = table_of(recipe)
    if isinstance(table, ColumnTable) or not isinstance(data, Dataset):
        if table is not None and all(map(is_table, splits.values())):
            rows: Any = {split: from_python(some, f"data.{split}").one_by_one() for split, some in splits.items()}
            return recipe.model_copy(update={"data": table.with_rows(rows)})
        if not isinstance(data, Dataset):
            raise UserError(
                "this is no table", where="data", found=shown(type(data).__name__),
                expected="a DataFrame of pandas or polars, a Dataset of the package datasets, or a list of dicts",
                todo=f"name the file in the recipe: data.train={data}" if isinstance(data, str | Path)
                else "pass other examples as heedful.Dataset(train=..., valid=...)",
            )  # fmt: skip
    return recipe.model_copy(
        update={"data": OwnData.of({split: collect(rows, split) for split, rows in splits.items()})}
    )


def splits_of(data: AnyData) -> dict[Split, Any]:
    """The examples of each split: of a Dataset, of a dict with the key train, or one table for training."""
    if isinstance(data, Dataset):
        named: dict[str, Any] = data._asdict()
    elif isinstance(data, Mapping) and "train" in data:
        named = {SPLIT_NAMES.get(name, name): rows for name, rows in data.items()}
        if unknown := [name for name in named if name not in SPLITS]:
            raise UserError(
                "unknown split", where="data", found=shown(unknown[0]), expected="train, valid or validation, test",
                todo="pass those that are used: data={'train': ..., 'valid': ...}",
            )  # fmt: skip
    else:
        named = {"train": data}
    return {split: named[split] for split in SPLITS if named.get(split) is not None}


def table_of(recipe: Recipe) -> Table | None:
    """The recipe's table, or that of its task with the usual columns; None: its task has none."""
    if isinstance(recipe.data, Table):
        return recipe.data
    known = config_classes(type(recipe).model_fields["data"].annotation)
    return next((cls() for cls in known if issubclass(cls, Table)), None)


def is_table(examples: object) -> bool:
    """Whether examples are rows with named columns."""
    if isinstance(examples, DataFrame | PolarsFrame):
        return True
    if isinstance(examples, Mapping | Iterator) or not isinstance(examples, Iterable):
        return False
    return isinstance(next(iter(examples), None), Mapping)


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
