"""Shell completion of recipes, their settings, runs, figures, lectures and templates. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import typer

from heedful.errors import UserError


def recipe_names(incomplete: str) -> list[str]:
    """Shipped recipes, and YAML files of the current folder."""
    from heedful.runs.recipe import shipped

    return [name for name in (*shipped(), *map(str, sorted(Path().glob("*.yaml")))) if name.startswith(incomplete)]


def run_folders(incomplete: str) -> list[str]:
    """Runs below ./runs; if none matches, the shell completes file names."""
    from heedful.cli.runs import newest

    return [name for name in map(str, newest(Path("runs"))) if name.startswith(incomplete)]


def checkpoints(incomplete: str) -> list[str]:
    """Names of checkpoints that every run has."""
    from heedful.training.checkpoint.choice import Use

    return [name for name in get_args(Use) if name.startswith(incomplete)]


def templates(incomplete: str) -> list[str]:
    """Tasks that `heedful init` writes a recipe for."""
    from heedful.runs.init import names

    return [name for name in names() if name.startswith(incomplete)]


def part_kinds(incomplete: str) -> list[tuple[str, str]]:
    """Kinds of parts, with what they are."""
    from heedful.catalogue.kinds import KINDS

    return [(name, line.about) for name, line in KINDS.items() if name.startswith(incomplete)]


def figures(incomplete: str) -> list[tuple[str, str]]:
    """Figures, with what each shows."""
    from heedful.plots.gallery import EVERY

    return [(name, entry.about) for name, entry in EVERY.items() if name.startswith(incomplete)]


def lecture_names(incomplete: str) -> list[tuple[str, str]]:
    """Decks and topics of the lectures, with their titles."""
    from heedful.lectures.decks import decks, topics

    titles = {deck.name: deck.title for deck in decks()} | {name: topic.title for name, topic in topics().items()}
    return [(name, title) for name, title in titles.items() if name.startswith(incomplete)]


def lesson_names(incomplete: str) -> list[tuple[str, str]]:
    """Lessons of the explorer, with their titles."""
    from heedful.explore.lessons.reading import shipped

    return [(name, lesson.title) for name, lesson in shipped().items() if name.startswith(incomplete)]


def notebook_names(incomplete: str) -> list[tuple[str, str]]:
    """Notebooks, with their titles."""
    from heedful.lectures.notebooks import notebooks

    return [(name, title) for name, title in notebooks().items() if name.startswith(incomplete)]


def settings(ctx: typer.Context, incomplete: str) -> list[str]:
    """Settings of the recipe on the command line: `train.` for a group, `train.seed=0` for a setting."""
    from heedful.runs.recipe import load_recipe

    overrides: list[str] = ctx.params.get("overrides") or []
    name = ""
    if overrides[-1:] == ["="]:  # bash splits KEY=VALUE into three words
        *overrides, name, _ = overrides
    try:
        recipe = load_recipe(ctx.params.get("recipe") or "", [word for word in overrides if "=" in word])
    except UserError:
        return []
    start = f"{name}=" if name else ""
    return [
        word.removeprefix(start) for word in matching_settings(recipe, start + incomplete) if word.startswith(start)
    ]


def matching_settings(config: Any, incomplete: str, prefix: str = "") -> Iterator[str]:
    """The settings of a group that complete a word."""
    from heedful.config import Config, config_classes, kinds_in

    for name, field in type(config).model_fields.items():
        key, value = f"{prefix}{name}", getattr(config, name)
        if isinstance(value, Config) and incomplete.startswith(f"{key}."):
            rest = sorted(kinds_in(config_classes(field.annotation)))
            yield from (f"{key}.kind={kind}" for kind in rest if f"{key}.kind".startswith(incomplete.partition("=")[0]))
            yield from (
                word for word in matching_settings(value, incomplete, f"{key}.") if not word.startswith(f"{key}.kind=")
            )
        elif isinstance(value, Config):
            yield from (
                (f"{key}.", f"{key}.{next(iter(type(value).model_fields))}") if key.startswith(incomplete) else ()
            )
        elif key.startswith(incomplete.partition("=")[0]):
            yield from (f"{key}={choice}" for choice in choices(field.annotation, value))


def choices(annotation: Any, value: Any) -> list[str]:
    """The values to offer for a setting: all of a Literal or bool, else the current one."""
    if get_origin(annotation) is Literal:
        return [str(choice) for choice in get_args(annotation)]
    if annotation is bool:
        return ["true", "false"]
    return ["", "null" if value is None else str(value)] if isinstance(value, str | int | float | None) else [""]
