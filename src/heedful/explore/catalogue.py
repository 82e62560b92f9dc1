"""The catalogue page: the stack with its parts, the swaps of a shipped recipe, and what one of them changes."""

from __future__ import annotations

import difflib
from functools import cache
from threading import Lock
from typing import Any

from heedful.catalogue.parts import kind_of, parts
from heedful.catalogue.stack import STACK, names_in
from heedful.catalogue.swaps import Swappable, size_of
from heedful.config import override
from heedful.errors import UserError, shown
from heedful.files.yaml import write_yaml
from heedful.models.heads.config import with_vocab
from heedful.models.roles import ModelConfig
from heedful.models.tracing import summary
from heedful.runs.recipe import shipped
from heedful.runs.recipe import summary as about_recipe
from heedful.tasks.recipe_parts import Recipe

LARGEST = 5_000_000  # parameters of a model that is built to show the shapes of its layers
WORDS = 1000  # of a vocabulary that only the data say
LABELS = ("first", "second")
_building = Lock()  # one model at a time, for its memory


@cache
def stack() -> dict[str, Any]:
    """The rows of the stack with their boxes, all parts, and the shipped recipes."""
    number = {part: at for at, part in enumerate(parts())}
    rows = [
        [
            {"name": group, "boxes": [
                {"name": box.name, "here": box.here, "parts": [number[part] for part in box.parts],
                 "names": names_in(box.name)}
                for box in boxes
            ]}
            for group, boxes in row.groups
        ]
        for row in STACK
    ]  # fmt: skip
    records = [part.record() | {"title": kind_of(part.kind).title} for part in parts()]
    return {
        "rows": rows,
        "parts": records,
        "recipes": [{"name": n, "about": about_recipe(p)} for n, p in shipped().items()],
    }


def opened(name: str) -> Swappable:
    """A shipped recipe; no other file is opened, and none that it names."""
    if name not in shipped():
        raise UserError("there is no such shipped recipe", found=shown(name), expected="one of " + ", ".join(shipped()))
    return _swappable(name)


@cache  # of at most the shipped recipes
def _swappable(name: str) -> Swappable:
    return Swappable(str(shipped()[name]), reads_files=False)


@cache
def recipe_swaps(name: str) -> dict[str, Any]:
    """The parts of a shipped recipe, and all their swaps."""
    recipe = opened(name)
    kept = [
        {"key": one.slot.written_at(one.key), "kind": one.slot.kind_of(one.option), "option": one.option}
        for one in recipe.parts
    ]
    swaps = [swap.record() for swap in recipe.swaps()]
    return {
        "recipe": name,
        "parameters": recipe.parameters,
        "text": write_yaml(recipe.settings),
        "parts": kept,
        "swaps": swaps,
    }


def swap_detail(name: str, key: str, new: str) -> dict[str, Any]:
    """What a swap changes: the lines of the recipe, and the shapes and parameters of the model's layers."""
    recipe = opened(name)
    swap = recipe.swap(key, new)
    before, after = write_yaml(recipe.settings), write_yaml(override(recipe.settings, [swap.override]))
    lines = [
        {"mark": line[0], "text": line[2:]}
        for line in difflib.ndiff(before.splitlines(), after.splitlines())
        if line[0] in "-+ "
    ]
    record = swap.record() | {"lines": lines, "before": None, "after": None}
    if swap.fits:
        loaded = recipe.load(swap)
        record |= {"before": layers(recipe.recipe), "after": layers(loaded)}
    return record


def layers(recipe: Recipe) -> list[dict[str, Any]] | None:
    """The layers of a recipe's model with their shapes; None for one that is too large to build for that."""
    config = sized(recipe)
    if config is None or config.parameters(0) > LARGEST:
        return None
    with _building:
        return [
            {"name": row.name, "kind": row.kind, "shape": row.output, "parameters": row.parameters}
            for row in summary(config)
        ]


def sized(recipe: Recipe) -> ModelConfig | None:
    """The settings of a recipe's model, with a vocabulary and two classes where only the data would say them."""
    config: ModelConfig = recipe.model
    known = dict(config)
    if known.get("encoder", config) is None or size_of(recipe) is None:
        return None  # it is that of a folder to start from
    if known.get("labels", LABELS) is None:
        config = config.model_copy(update={"labels": LABELS})
    if "vocab" in known or "encoder" in known:
        tokens = dict(recipe).get("tokenizer")
        vocab = known.get("vocab") or (dict(tokens).get("vocab") if tokens is not None else None) or WORDS
        if known.get("vocab", WORDS) is None or "vocab" not in known:
            config = with_vocab(config, vocab)
    return config
