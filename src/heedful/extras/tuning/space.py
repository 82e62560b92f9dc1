"""The space of a study: settings with lists of values, ranges, and seeds, from the words of a command."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from heedful.errors import UserError, shown

SEED = "train.seed"
RECIPE = "recipe"  # the name of the axis of several recipes
LOG_FROM = 10.0  # the ratio of both ends from which a range is logarithmic
MOST_SEEDS, MOST_POINTS = 1000, 10_000
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")

Value = str | int | float
Point = dict[str, Value]


@dataclass(frozen=True)
class Choice:
    """A setting with a list of values, as YAML."""

    key: str
    values: tuple[str, ...]

    @property
    def text(self) -> str:
        """The list, as it is written."""
        return f"{self.key}={','.join(self.values)}"


@dataclass(frozen=True)
class Range:
    """A setting with any value from low to high, both included."""

    key: str
    low: float
    high: float
    log: bool
    whole: bool

    @property
    def text(self) -> str:
        """The range, as it is written, with its scale."""
        return f"{self.key}={number(self.low)}..{number(self.high)}:{'log' if self.log else 'linear'}"


Axis = Choice | Range


@dataclass(frozen=True)
class Space:
    """What a study varies: recipes, lists and ranges; each point is trained with every seed."""

    recipes: tuple[str, ...]
    fixed: tuple[str, ...]
    axes: tuple[Axis, ...]
    seeds: tuple[str, ...]

    @property
    def finite(self) -> bool:
        """Whether all axes are lists, so that there is a grid."""
        return not any(isinstance(axis, Range) for axis in self.axes)

    def grid(self) -> list[Point]:
        """All points of lists; of ranges, both ends."""
        values = [axis.values if isinstance(axis, Choice) else _ends(axis) for axis in self.axes]
        if math.prod(map(len, values)) > MOST_POINTS:
            raise UserError(
                "this grid is too large", where=" ".join(axis.text for axis in self.axes),
                found=f"{math.prod(map(len, values)):,} points", expected=f"at most {MOST_POINTS:,}",
                todo="give --trials 50, to try some of them",
            )  # fmt: skip
        keys = [axis.key for axis in self.axes]
        return [dict(zip(keys, point, strict=True)) for point in product(*values)]

    def recipe(self, point: Point) -> str:
        """The recipe of a point."""
        return str(point.get(RECIPE, self.recipes[0]))

    def overrides(self, point: Point, seed: str | None) -> tuple[str, ...]:
        """The settings of a point that differ from its recipe."""
        changed = (f"{key}={number(value)}" for key, value in point.items() if key != RECIPE)
        return (*self.fixed, *changed, *([] if seed is None else [f"{SEED}={seed}"]))


def _ends(axis: Range) -> tuple[Value, ...]:
    ends = (axis.low, axis.high)
    return tuple(int(end) for end in ends) if axis.whole else ends


def number(value: Value) -> str:
    """A value as an override writes it."""
    if not isinstance(value, float):
        return str(value)
    return str(int(value)) if value.is_integer() and abs(value) < 1e6 else repr(value)


def read_space(words: Sequence[str]) -> Space:
    """The space of the words of a command: recipes, settings KEY=VALUE, lists KEY=A,B,C and ranges KEY=LOW..HIGH."""
    recipes = [word for word in words if "=" not in word]
    if not recipes:
        raise UserError("there is no recipe", expected="one or more, before the settings", todo="heedful recipes")
    axes: list[Axis] = []
    fixed: list[str] = []
    seeds: tuple[str, ...] = ()
    if len(_distinct(recipes, "the recipes")) > 1:
        axes.append(Choice(RECIPE, tuple(recipes)))
    keys: list[str] = []
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            continue
        keys.append(key)
        found = _axis(key, value)
        if found is None:
            fixed.append(word)
        elif key == SEED:
            seeds = found.values if isinstance(found, Choice) else _seeds(found)
        else:
            axes.append(found)
    _distinct(keys, "the settings")
    return Space(tuple(recipes), tuple(fixed), tuple(axes), seeds)


def _seeds(found: Range) -> tuple[str, ...]:
    if not found.whole or found.high - found.low >= MOST_SEEDS:
        raise UserError(
            "invalid range of seeds", where=SEED, found=f"{number(found.low)}..{number(found.high)}",
            expected=f"whole numbers, at most {MOST_SEEDS:,} of them, as in 0..4",
        )  # fmt: skip
    return tuple(str(seed) for seed in range(int(found.low), int(found.high) + 1))


def _axis(key: str, value: str) -> Axis | None:
    """The list or range of a setting; None: a single value."""
    parts = split_list(value)
    if len(parts) > 1:
        if "" in parts:
            raise UserError("a value of this list is empty", where=key, found=shown(value), expected="such as a,b,c")
        return Choice(key, tuple(_distinct(parts, key)))
    low, dots, high = value.partition("..")
    high, colon, scale = high.partition(":")
    low, high = low.strip(), high.strip()
    if not dots or not (NUMBER.fullmatch(low) or NUMBER.fullmatch(high)):
        return None  # such as a path with two dots
    return _range(key, value, low, high, scale if colon else None)


def _range(key: str, value: str, low: str, high: str, scale: str | None) -> Range:
    def refuse(message: str, todo: str | None = None) -> UserError:
        expected = "LOW..HIGH, as in 1e-5..1e-3, 1..8 or 0.1..0.5:log"
        return UserError(message, where=key, found=shown(value), expected=expected, todo=todo)

    if not (NUMBER.fullmatch(low) and NUMBER.fullmatch(high)) or scale not in (None, "log", "linear"):
        raise refuse("invalid range")
    ends = float(low), float(high)
    if not all(map(math.isfinite, ends)):
        raise refuse("invalid range")
    if ends[0] >= ends[1]:
        todo = f"write {key}={high}..{low}" if ends[0] > ends[1] else f"write {key}={low}"
        raise refuse("the low end of this range is not below its high end", todo)
    if scale == "log" and ends[0] <= 0:
        raise refuse("a logarithmic range needs two positive ends", f"write {low}..{high}:linear")
    whole = all(re.fullmatch(r"[+-]?\d+", end) for end in (low, high))
    usual = ends[0] > 0 and ends[1] / ends[0] >= LOG_FROM and not whole
    return Range(key, *ends, usual if scale is None else scale == "log", whole)


def split_list(text: str) -> list[str]:
    """The parts of a list between commas that are not in brackets or quotes."""
    parts, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        else:
            depth += (character in "[{") - (character in "]}")
        if character == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def _distinct(found: list[str], where: str) -> list[str]:
    twice = next((one for index, one in enumerate(found) if one in found[:index]), None)
    if twice is not None:
        raise UserError("this is given twice", where=where, found=shown(twice), todo="remove one of them")
    return found


def plain_axes(space: Space) -> list[dict[str, Any]]:
    """The axes as JSON values."""
    return [
        {"key": axis.key, "values": list(axis.values)}
        if isinstance(axis, Choice)
        else {"key": axis.key, "low": axis.low, "high": axis.high, "log": axis.log, "whole": axis.whole}
        for axis in space.axes
    ]
