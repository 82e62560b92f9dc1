"""Recipes: all settings of a run as one typed, frozen value; without torch.

Each task has its own recipe class; `task.kind` decides which one parses a file.
"""

from __future__ import annotations

import difflib
import json
import os
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union

from pydantic import ConfigDict, Field, create_model
from pydantic.json_schema import models_json_schema

from heedful.config import Config, load_yaml, override, parse
from heedful.data.formats.sources import SPLITS, Split
from heedful.data.tables.checking import check_data
from heedful.data.tables.findings import Checked
from heedful.data.tables.reading import is_table_name
from heedful.errors import UserError
from heedful.files.reading import exists, is_file
from heedful.files.yaml import Marks, read_yaml
from heedful.models import kinds_of
from heedful.tasks import TASKS, recipe_class
from heedful.tasks.recipe_parts import Recipe

RECIPES = Path(__file__).parent.parent / "recipes"

USUAL = "translation"  # the default task


def _tasked() -> type[Config]:
    """A recipe class that validates only the task."""
    kinds: Any = {kind: {"kind": (Literal[kind], kind)} for kind in TASKS}
    tasks: Any = tuple(create_model(kind, __base__=_Any, **fields) for kind, fields in kinds.items())
    fields: Any = {"task": (Annotated[Union[tasks], Field(discriminator="kind")], ...)}  # noqa: UP007
    return create_model("Tasked", __base__=_Any, **fields)


class _Any(Config):
    """A group of settings that is validated only in part."""

    model_config = ConfigDict(extra="ignore")


def shipped() -> dict[str, Path]:
    """The recipes that come with Heedful, by name."""
    return {path.stem: path for path in sorted(RECIPES.glob("*.yaml"))}


def templates() -> dict[str, Path]:
    """The recipes that `init_recipe` starts from, by task."""
    return {path.stem: path for path in sorted((RECIPES / "templates").glob("*.yaml"))}


def find_recipe(name: str) -> Path:
    """The file of a recipe's path or shipped name; an existing file has precedence."""
    name = os.fspath(name)
    if is_table_name(name):
        raise UserError(
            "this is a table, not a recipe", where=name,
            todo=f"write a recipe for it: heedful init classify --data {shlex.quote(name)}",
        )  # fmt: skip
    if is_file(name):
        return Path(name)
    known = shipped()
    if name in known:
        return known[name]
    if is_file(Path(name) / "recipe.yaml"):
        run, recipe = shlex.quote(name), shlex.quote(str(Path(name) / "recipe.yaml"))
        raise UserError(
            "this is a run, not a recipe", where=name, todo=f"resume it with: heedful train {recipe} --run {run}"
        )
    if exists(name):
        return Path(name)  # a directory, for example: reading it raises the right error
    nearby = [str(file) for pattern in ("*.yaml", "*.yml") for file in Path().glob(pattern)]
    close = difflib.get_close_matches(name, [*known, *nearby], n=1, cutoff=0.6)
    raise UserError(
        "there is no such recipe",
        where=name,
        expected="the path of a YAML file, or one of " + ", ".join(known),
        todo=f"did you mean {close[0]}?" if close else "`heedful init translate` writes one to start from",
    )


def load_recipe(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe by path or shipped name, and apply `key.path=value` overrides."""
    return recipe_in(find_recipe(name), overrides)


def recipe_in(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe file with the recipe class of its task."""
    return recipe_with(*load_yaml(path), path, overrides)


def recipe_of(text: str, where: str) -> Recipe:
    """Parse the text of a recipe; errors name `where`."""
    return recipe_with(*read_yaml(text, where), where)


def completed(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of an older version's recipe, completed with defaults."""
    try:
        return recipe_with(settings, {}, "recipe").model_dump(mode="json")
    except UserError:
        return settings


def recipe_with(data: dict[str, Any], marks: Marks, path: Path | str, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe with these settings, as a file has them; `marks` are the lines of the file, for errors."""
    kind, model = _kinds(data, overrides)
    if kind not in TASKS:
        parse(_tasked(), data, marks, overrides, path)  # raises the right error
    recipe: Any = parse(recipe_class(kind, model), data, marks, overrides, path)
    return recipe


def _kinds(data: Mapping[str, Any], overrides: Sequence[str]) -> tuple[str, str | None]:
    """The task of a recipe after overrides, and the kind of its model, if given.

    Invalid overrides are reported later.
    """
    for text in overrides:
        with suppress(UserError):
            data = override(data, [text])
    task, model = data.get("task"), data.get("model")
    kind = str(task.get("kind", USUAL)) if isinstance(task, dict) else USUAL
    return kind, str(model["kind"]) if isinstance(model, dict) and "kind" in model else None


def summary(path: Path) -> str:
    """The description in the first line of a recipe."""
    with path.open(encoding="utf-8") as lines:
        return lines.readline().lstrip("# ").rstrip()


def check_recipe(recipe: Recipe, splits: Sequence[Split] = SPLITS) -> None:
    """Check that the files of some splits exist; raises one error for all problems."""
    problems = [*recipe.data.problems(splits), *recipe.problems()]
    if problems:
        count = "a file is" if len(problems) == 1 else f"{len(problems)} files are"
        raise UserError(f"{count} not as the recipe says", problems=problems)


def check_rows(recipe: Recipe, every: bool = False) -> Checked:
    """What is found in the rows of a recipe's data: the first of each file, or all."""
    return check_data(recipe.data, recipe.text_limit, recipe.predicts_classes, every, recipe.class_column)


def describe_size(recipe: Recipe) -> str:
    """The size of the model as text, as far as it is known without the data."""
    more = ""
    if recipe.model.role in ("tree_classifier", "word_classifier", "story_answerer") and recipe.model.vocab is None:
        more = f", and {recipe.model.parameters(1) - recipe.model.parameters(0):,} for each word"
    about = f"about {recipe.size / 1e6:,.1f} million" if recipe.size >= 100_000 else f"{recipe.size:,}"
    return f"{about} parameters{more}"


def _names(**kinds: list[str]) -> dict[str, Any]:
    """The JSON Schema of a recipe whose groups have one of these kinds."""
    groups = {
        name: {
            "properties": {"kind": {"const": known[0]} if len(known) == 1 else {"enum": known}},
            "required": ["kind"],
        }
        for name, known in kinds.items()
    }
    return {"properties": groups, "required": list(groups)}


@cache
def schema_text() -> str:
    """The JSON Schema of recipes as text, with one recipe class per task."""
    parts, together = models_json_schema([(cls, "validation") for cls in map(recipe_class, TASKS)])
    whole: dict[str, Any] = parts[(recipe_class(USUAL), "validation")]
    for kind in TASKS:
        cls = recipe_class(kind)
        asks = _names(task=[kind])
        whole = whole if kind == USUAL else {"if": asks, "then": parts[(cls, "validation")], "else": whole}
        for role, other in TASKS[kind].also.items():
            asks = _names(task=[kind], model=list(kinds_of(role)))
            whole = {"if": asks, "then": parts[(recipe_class(other), "validation")], "else": whole}
    return json.dumps({**whole, "title": "Recipe", **together}, indent=2, ensure_ascii=False) + "\n"
