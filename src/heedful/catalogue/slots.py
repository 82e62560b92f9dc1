"""The keys of recipes that select a part, found by walking the classes of all tasks; readable without torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

from pydantic import Discriminator
from pydantic.fields import FieldInfo

from heedful.catalogue.kinds import NUMBER_KINDS, ROLE_KINDS, kind_of_key
from heedful.config import Config, config_classes, kinds_in
from heedful.models import MODELS
from heedful.models.roles import ModelConfig
from heedful.runs.recipe import USUAL
from heedful.tasks import TASKS, recipe_class
from heedful.tasks.recipe_parts import Recipe

NONE = "null"  # the option of a group that may be left out
GROUP = "set"  # the option of such a group without kinds, where it is not


class Present(NamedTuple):
    """A slot of one recipe: its key there, where what stands in lists has numbers, and the option that it has."""

    slot: Slot
    key: str
    option: str


@dataclass(frozen=True)
class Slot:
    """A key of recipes that selects a part, and the options that it has there."""

    key: str  # of the group, such as model.encoder, or of the choice, such as model.cell; [] stands for each of a list
    about: str
    groups: Mapping[str, type[Config]]  # the class of each kind; empty for a choice between names
    names: tuple[str, ...] = ()  # what is chosen from, where there are no groups
    optional: bool = False  # whether the group may be null

    @property
    def written(self) -> str:
        """The key as a recipe has it."""
        return self.written_at(self.key)

    def written_at(self, key: str) -> str:
        """The key as a recipe has it at a place, where what stands in lists has numbers."""
        return f"{key}.kind" if self.groups else key

    @property
    def options(self) -> tuple[str, ...]:
        """The names of what can be selected."""
        return (*self.groups, *self.names, *([NONE] if self.optional else []))

    @property
    def is_number(self) -> bool:
        """Whether it is a setting without options, a part by its name alone."""
        return not self.options

    def kind_of(self, option: str) -> str:
        """The kind of part that an option is: a model's role says it, or else the key."""
        cls = self.groups.get(option)
        if cls is not None and issubclass(cls, ModelConfig):
            role = MODELS[option].role
            return ROLE_KINDS.get(role, role)
        return kind_of_key(self.key, is_group=cls is not None)


def choices(annotation: Any) -> tuple[str, ...]:
    """The names in a `Literal` of a field's type; empty where there are not several."""
    found = tuple(dict.fromkeys(_literals(annotation)))
    return found if len(found) > 1 else ()


def _literals(annotation: Any) -> Iterator[str]:
    if get_origin(annotation) is Literal:
        yield from (value for value in get_args(annotation) if isinstance(value, str))
    else:
        for part in get_args(annotation):
            yield from _literals(part)


def _is_list(annotation: Any) -> bool:
    return get_origin(annotation) in (tuple, list) or any(map(_is_list, get_args(annotation)))


@cache
def fields_of(cls: type[Config], prefix: str = "") -> tuple[tuple[str, Slot], ...]:
    """Each field of a class that holds a group or a choice, by name."""
    found = []
    for name, field in cls.model_fields.items():
        members = config_classes(field.annotation)
        listed = "[]" if members and _is_list(field.annotation) else ""
        groups = {kind: member for member in members for kind in _ordered_kinds(member)}
        names = () if members or name == "kind" else choices(field.annotation)
        optional = bool(groups or (members and prefix.startswith("model"))) and not listed
        optional = optional and type(None) in get_args(field.annotation)
        if members or names or name in NUMBER_KINDS:
            slot = Slot(f"{prefix}{name}{listed}", field.description or "", groups, names, optional)
            found.append((name, slot))
    return tuple(found)


def _ordered_kinds(member: type[Config]) -> list[str]:
    """The kinds of a class, its own first."""
    own = member.model_fields["kind"].default if "kind" in member.model_fields else None
    return sorted(kinds_in([member]), key=lambda kind: (kind != own, kind))


def walk(cls: type[Config], prefix: str = "", above: tuple[type[Config], ...] = ()) -> Iterator[Slot]:
    """All slots of a class and of the groups in it, each key of each group once."""
    for name, slot in fields_of(cls, prefix):
        if slot.options or slot.key.rpartition(".")[2] in NUMBER_KINDS:
            yield slot
        for member in dict.fromkeys(config_classes(cls.model_fields[name].annotation)):
            if member not in above:
                yield from walk(member, f"{slot.key}.", (*above, member))


@cache
def task_slots(task: str) -> tuple[Slot, ...]:
    """The slots of all recipes of a task, whatever its model; slots with one key have all its options."""
    merged: dict[str, Slot] = {}
    for cls in recipe_classes(task):
        for slot in walk(cls):
            known = merged.get(slot.key)
            if known is not None:
                groups, names = {**slot.groups, **known.groups}, tuple(dict.fromkeys((*known.names, *slot.names)))
                slot = Slot(slot.key, known.about, groups, names, known.optional or slot.optional)
            merged[slot.key] = slot
    return tuple(merged.values())


def recipe_classes(task: str) -> list[type[Recipe]]:
    """The classes of a task's recipes: one, unless some models of it need another."""
    others = [recipe_class(other) for other in TASKS[task].also.values()]
    return list(dict.fromkeys([recipe_class(task), *others]))


def present(cls: type[Config], settings: Mapping[str, Any], prefix: str = "") -> Iterator[Present]:
    """Each slot of a recipe, or of a group of it, as its settings are written; what they leave out is the default."""
    for name, slot in fields_of(cls, prefix):
        field = cls.model_fields[name]
        default = field.get_default(call_default_factory=True, validated_data=dict(settings))
        value = settings.get(name, default)
        if isinstance(value, Config):
            value = value.model_dump(mode="json")
        many = list(enumerate(value)) if isinstance(value, tuple | list) else [(None, value)]
        members = config_classes(field.annotation)
        for number, one in many:
            key = f"{prefix}{name}" if number is None else f"{prefix}{name}.{number}"
            if isinstance(one, Config):
                one = one.model_dump(mode="json")
            if isinstance(one, Mapping):
                kind = str(one.get("kind", _usual(field, members)))
                if slot.groups or slot.optional:
                    yield Present(slot, key, kind if slot.groups else GROUP)
                chosen = slot.groups.get(kind, members[0]) if members else None
                if chosen is not None:
                    yield from present(chosen, one, f"{key}.")
            elif one is None and slot.optional:
                yield Present(slot, key, NONE)
            elif slot.names and isinstance(one, str):
                yield Present(slot, key, one)


def _usual(field: FieldInfo, members: Sequence[type[Config]]) -> str | None:
    """The kind of a group that does not write its own."""
    marks = [*field.metadata, *(mark for part in get_args(field.annotation) for mark in _marks(part))]
    rule = next((mark.discriminator for mark in marks if isinstance(mark, Discriminator)), None)
    if callable(rule):
        return str(rule({}))
    default = members[0].model_fields.get("kind") if members else None
    return None if default is None else str(default.default)


def _marks(annotation: Any) -> tuple[Any, ...]:
    """What is annotated in a type and in the parts of it."""
    own = get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()
    return (*own, *(mark for part in get_args(annotation) if part not in own for mark in _marks(part)))


def class_of(settings: Mapping[str, Any]) -> type[Recipe]:
    """The class of the recipe that has these settings; a `UserError` of `load_recipe` says what is wrong otherwise."""
    task, model = (settings.get(name) for name in ("task", "model"))
    kind = task.get("kind", USUAL) if isinstance(task, Mapping) else USUAL
    return recipe_class(str(kind), str(model["kind"]) if isinstance(model, Mapping) and "kind" in model else None)
