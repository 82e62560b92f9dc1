"""Swaps: a recipe with another part at one key, checked by the recipe's own classes before anything is trained."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from heedful.catalogue.slots import GROUP, NONE, Present, Slot, class_of, present, task_slots
from heedful.config import flow, load_yaml, override
from heedful.errors import UserError
from heedful.runs.recipe import check_recipe, find_recipe, recipe_with
from heedful.tasks.recipe_parts import Recipe

# Keys of the machine, of files and of what a run is for: they select no part that another one could stand for.
NO_PARTS = ("start", "train.device", "train.parallel", "train.precision", "train.use")
# What a model reads, and for how many tokens or classes: the data's, so another model has to take it as it is.
READ = ("input", "size", "channels", "vocab", "context", "labels", "classes")


@dataclass(frozen=True)
class Swap:
    """One part of a recipe replaced by another, by one override; `problem` says why it does not fit, if it does not."""

    key: str
    kind: str  # of part
    old: str
    new: str
    override: str
    left: tuple[str, ...] = ()  # settings of the old part that the new one does not have
    problem: UserError | None = None
    parameters: int | None = None  # of the model, as far as they are known before the data are read

    @property
    def fits(self) -> bool:
        """Whether the recipe's classes accept it."""
        return self.problem is None

    def record(self) -> dict[str, Any]:
        """The swap as JSON."""
        said = None if self.problem is None else reason(self.problem)
        return {**vars(self), "left": list(self.left), "problem": said, "fits": self.fits}


class Swappable:
    """A recipe with its parts, each of which can be swapped."""

    def __init__(self, name: str, overrides: Sequence[str] = (), reads_files: bool = True) -> None:
        """`reads_files`: whether to look for the files that other data would need."""
        self.name, self.path, self._reads_files = name, find_recipe(name), reads_files
        settings, marks = load_yaml(self.path)
        self.recipe: Recipe = recipe_with(settings, marks, self.path, overrides)
        self.settings: dict[str, Any] = override(settings, overrides)

    @property
    def parts(self) -> Iterator[Present]:
        """Its parts that others could stand for."""
        for found in present(class_of(self.settings), self.settings):
            one = found._replace(slot=self._models) if found.key == "model" else found
            left_out = one.key == "task" or any(one.key == no or one.key.startswith(f"{no}.") for no in NO_PARTS)
            if not left_out and (len(one.slot.options) > 1 or one.option == GROUP):
                yield one

    @property
    def _models(self) -> Slot:
        """The models of the recipe's task, also those whose recipes are of another class."""
        return next(slot for slot in task_slots(self.recipe.task.kind) if slot.key == "model")

    @property
    def parameters(self) -> int | None:
        """How many parameters the model has, as far as that is known before the data are read."""
        return size_of(self.recipe)

    def part(self, key: str) -> Present:
        """The part at a key, with or without `.kind` at its end."""
        plain = key.removesuffix(".kind")
        known = {one.key: one for one in self.parts}
        if plain not in known:
            raise UserError(
                "this key selects no part of the recipe", where=str(self.path), found=key,
                expected="one of " + ", ".join(one.slot.written_at(one.key) for one in known.values()),
            )  # fmt: skip
        return known[plain]

    def swap(self, key: str, new: str) -> Swap:
        """The swap of the part at a key for another; a `UserError` only where there is no such key or part."""
        part = self.part(key)
        if new not in part.slot.options:
            raise UserError(
                f"no part of this name fits {part.slot.written_at(part.key)}", where=str(self.path), found=new,
                expected="one of " + ", ".join(part.slot.options),
            )  # fmt: skip
        return self._swap(part, new)

    def swaps(self, key: str | None = None) -> Iterator[Swap]:
        """All swaps of its parts, or of the one at a key."""
        for part in self.parts if key is None else [self.part(key)]:
            yield from (self._swap(part, new) for new in part.slot.options if new != part.option)

    def load(self, swap: Swap) -> Recipe:
        """The recipe after a swap; raises the problem of one that does not fit."""
        return recipe_with(self.settings, {}, self.path, [swap.override])

    def _swap(self, part: Present, new: str) -> Swap:
        """The first way to write a swap that fits: the kind alone, or the group without what the new part refuses."""
        refused: frozenset[str] = frozenset()
        while (found := self._checked(part, new, refused)).problem is not None:
            more = self._refused(part, new, found.problem) - refused
            if not more:
                break
            refused |= more
        if found.problem is None or not self._is_about(part, found.problem):
            return found
        kept = [name for name in self._kept(part, new, refused) if name not in READ]
        others = (self._checked(part, new, refused | {name}) for name in kept)
        return next((other for other in others if other.fits), found)

    def _checked(self, part: Present, new: str, refused: frozenset[str]) -> Swap:
        """A swap without some settings of the old part, and what the classes of the recipe say of it."""
        text, left = self._written(part, new, refused)
        kind = part.slot.kind_of(part.option if new == NONE else new)
        found = Swap(part.slot.written_at(part.key), kind, part.option, new, text, left)
        try:
            recipe = self.load(found)
            if part.key == "data" and self._reads_files:
                check_recipe(recipe)
            return replace(found, parameters=size_of(recipe))
        except UserError as error:
            return replace(found, problem=error)

    def _written(self, part: Present, new: str, refused: frozenset[str]) -> tuple[str, tuple[str, ...]]:
        """The override of a swap, and the settings that leave with the old part."""
        if new not in part.slot.groups:
            return f"{part.key}={new}", ()
        kept = self._kept(part, new, refused)
        left = tuple(name for name in self._given(part) if name not in kept)
        if not left and len(kept) == len(self._given(part)):
            return f"{part.key}.kind={new}", ()
        return f"{part.key}={flow({'kind': new, **kept})}", left

    def _given(self, part: Present) -> dict[str, Any]:
        """The settings of a part as the recipe writes them, without its kind."""
        group: Any = self.settings
        for name in part.key.split("."):
            group = (group[int(name)] if isinstance(group, list) else group.get(name)) or {}
        return {name: value for name, value in group.items() if name != "kind"}

    def _kept(self, part: Present, new: str, refused: frozenset[str]) -> dict[str, Any]:
        """The settings that the new part has too, and does not refuse; and what the old one reads by its defaults."""
        given, fields = self._given(part), part.slot.groups[new].model_fields
        kept = {name: value for name, value in given.items() if name in fields and name not in refused}
        old = part.slot.groups[part.option].model_fields if part.option in part.slot.groups else {}
        if part.key.startswith("model"):
            read = [name for name in READ if name in old and name in fields and name not in given]
            defaults = {name: old[name].default for name in read if not old[name].is_required()}
            kept |= {name: value for name, value in defaults.items() if value != fields[name].default}
        return kept

    def _is_about(self, part: Present, error: UserError) -> bool:
        """Whether all that is wrong is in the group of a part that has kinds."""
        each = error.problems or [error]
        return bool(part.slot.groups) and all(f"{part.key}." in f"{one.message} " for one in each)

    def _refused(self, part: Present, new: str, error: UserError) -> frozenset[str]:
        """The settings of the group that an error is about, which were the old part's: the new one has its defaults."""
        cls = part.slot.groups.get(new)
        if cls is None:
            return frozenset()
        found = set()
        for problem in error.problems or [error]:
            about = re.match(rf"(invalid value for )?{re.escape(part.key)}\.(\w+)", problem.message)
            if about and about[2] in cls.model_fields and (about[1] or not cls.model_fields[about[2]].is_required()):
                found.add(about[2])
        return frozenset(found - {"kind", *(READ if part.key.startswith("model") else ())})


def size_of(recipe: Recipe) -> int | None:
    """The number of parameters of a recipe's model; None where a folder that is not there would say it."""
    try:
        return recipe.size
    except (UserError, AssertionError):
        return None


def reason(problem: UserError) -> str:
    """Why a swap does not fit, without the name of the file."""
    each = problem.problems or [problem]
    return "; ".join(f"{one.message} ({one.todo})" if one.todo else one.message for one in each)


def changed_keys(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """The keys whose values differ between two groups of settings, the deepest of each."""
    for name in dict.fromkeys((*before, *after)):
        old, new = before.get(name), after.get(name)
        groups = [one for one in (old, new) if isinstance(one, Mapping)]
        if len(groups) == 2 or (groups and (name not in before or name not in after)):
            yield from changed_keys(old or {}, new or {}, f"{prefix}{name}.")
        elif old != new:
            yield f"{prefix}{name}"


def swaps(recipe: str | Path, overrides: Sequence[str] = ()) -> list[Swap]:
    """All swaps of the parts of a recipe, by its name or path: what fits, and what does not, and why."""
    return list(Swappable(str(recipe), overrides).swaps())
