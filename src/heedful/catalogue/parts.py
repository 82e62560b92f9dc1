"""All parts with what they take and give, the keys that select them, and who uses them; made from the code."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import PurePosixPath
from typing import Any

from heedful.catalogue.kinds import KINDS, Kind
from heedful.catalogue.slots import GROUP, NONE, Present, Slot, class_of, present, task_slots
from heedful.catalogue.source import Definition, definitions
from heedful.config import Config, load_yaml
from heedful.errors import UserError
from heedful.models import MODELS
from heedful.models.roles import ROLES, ModelConfig
from heedful.runs.recipe import shipped
from heedful.tasks import TASKS

Identity = tuple[str, str, str]  # kind, name, and the class, the setting or the file that tells apart what has one name


@dataclass(frozen=True)
class Part:
    """One part of the library."""

    kind: str
    name: str
    about: str
    takes: str
    gives: str
    code: str = ""  # the file and the name in it, below the package
    keys: tuple[str, ...] = ()  # of recipes, each with the value that selects it; none: code alone names it
    tasks: tuple[str, ...] = ()
    recipes: tuple[str, ...] = field(default=(), compare=False)

    def record(self) -> dict[str, Any]:
        """The part as JSON."""
        return {name: list(one) if isinstance(one, tuple) else one for name, one in vars(self).items()}


@cache
def parts() -> tuple[Part, ...]:
    """Every part, by kind, in the order of the tables and of the code."""
    found: dict[Identity, Part] = {}
    for task in TASKS:
        for slot in task_slots(task):
            for option in slot.options or (slot.key.rpartition(".")[2],):
                if option != NONE and (slot.key != "task" or option == task):
                    _add(found, _identity(slot, option), _selected(slot, option, task))
    for name, users in _users().items():
        found[name] = replace(found[name], recipes=users)
    for one in definitions():
        _add(found, *_defined(found, one))
    order = {kind: number for number, kind in enumerate(KINDS)}
    return tuple(sorted(found.values(), key=lambda part: order.get(part.kind, len(order))))


def kinds() -> dict[str, Kind]:
    """The kinds that have parts, in the order of their table; a kind that has no line there is named by its key."""
    return {part.kind: kind_of(part.kind) for part in parts()}


def kind_of(name: str) -> Kind:
    """The line of a kind."""
    plain = name.replace("_", " ")
    return KINDS.get(name) or Kind(plain[:1].upper() + plain[1:], plain, "", "")


def parts_of(kind: str) -> list[Part]:
    """The parts of a kind; `q-network` is the same as `q_network`, and a plural is that of the titles."""
    wanted = kind.lower().replace("-", "_").replace(" ", "_")
    for name, line in kinds().items():
        if wanted in (name, line.title.lower().replace("-", "_").replace(" ", "_")):
            return [part for part in parts() if part.kind == name]
    if wanted in KINDS:
        return []
    raise UserError("there is no such kind of part", found=kind, expected="one of " + ", ".join(kinds()))


# ------------------------------------------------------------------ selected by a key
def _identity(slot: Slot, option: str) -> Identity:
    cls = slot.groups.get(option)
    if slot.key == "task":
        return slot.kind_of(option), option, ""
    last = slot.key.rpartition(".")[2] if cls is None else f"{cls.__module__}.{cls.__qualname__}"
    return slot.kind_of(option), option, last


def _selected(slot: Slot, option: str, task: str) -> Part:
    """The part that an option of a key selects."""
    cls, kind = slot.groups.get(option), slot.kind_of(option)
    line, key = kind_of(kind), f"{slot.written}: {option}" if slot.names or slot.groups else slot.key
    if cls is None:
        return Part(kind, option, slot.about, line.takes, line.gives, "", (key,), (task,))
    takes, gives = _shapes(cls, option) or (line.takes, line.gives)
    if slot.key in ("task", "data"):  # what the recipe says of its data
        data = next(one.about for one in task_slots(task) if one.key == "data")
        takes, gives = (data, line.gives) if slot.key == "task" else (takes, data)
    about = _first_line(cls).removeprefix("The task: ")
    return Part(kind, option, about, takes, gives, _code(cls), (key,), (task,))


def _shapes(cls: type[Config], kind: str) -> tuple[str, str] | None:
    """What a model takes and gives, as the protocol of its role says."""
    if issubclass(cls, ModelConfig):
        said = _first_line(ROLES[MODELS[kind].role])
        takes, arrow, gives = said.partition(" -> ")
        return (takes, gives.rstrip(".")) if arrow else (said, "")
    return None


def _first_line(cls: type) -> str:
    """The first paragraph of a docstring, on one line."""
    return " ".join((inspect.getdoc(cls) or "").partition("\n\n")[0].split())


def _code(cls: type) -> str:
    """The file of a class below the package, and its name."""
    return "/".join(cls.__module__.split(".")[1:]) + f".py: {cls.__name__}"


# ------------------------------------------------------------------ defined by code alone
def _defined(found: dict[Identity, Part], one: Definition) -> tuple[Identity, Part]:
    """The part that a class or a function is; a metric is the one that `task.metric` names, if there is one."""
    line = kind_of(one.kind)
    same = (one.kind, one.name, "metric")
    folder = PurePosixPath(one.file).parts[1]
    tasks = tuple(task for task, entry in TASKS.items() if one.file.startswith(f"tasks/{entry.folder}/"))
    keys = tuple(f"task.kind: {task}" for task in tasks)
    part = Part(
        one.kind, one.name, one.about, one.takes or line.takes, line.gives, f"{one.file}: {one.name}", keys, tasks
    )
    if same in found:
        return same, replace(part, keys=(), gives=line.gives)
    return (one.kind, one.name, folder), part


def _add(found: dict[Identity, Part], name: Identity, part: Part) -> None:
    """Add a part, or the keys and tasks of it."""
    known = found.get(name)
    if known is None:
        found[name] = part
        return
    found[name] = replace(
        known,
        about=part.about if part.code and not known.code else known.about,
        code=known.code or part.code,
        gives=known.gives if part.gives in known.gives or not known.gives else f"{known.gives}; {part.gives}",
        keys=tuple(dict.fromkeys((*known.keys, *part.keys))),
        tasks=tuple(dict.fromkeys((*known.tasks, *part.tasks))),
    )


# ------------------------------------------------------------------ who uses them
def _users() -> dict[Identity, tuple[str, ...]]:
    """The shipped recipes that select each part; a recipe is read as it is written, and no file that it names."""
    found: dict[Identity, dict[str, None]] = {}
    for name, path in shipped().items():
        settings, _ = load_yaml(path)
        for one in present(class_of(settings), settings):
            if one.option not in (NONE, GROUP):
                for identity in _identities(one):
                    found.setdefault(identity, {})[name] = None
    return {identity: tuple(users) for identity, users in found.items()}


def _identities(one: Present) -> Iterator[Identity]:
    yield _identity(one.slot, one.option)


def users(names: Iterable[str], most: int = 3) -> str:
    """A few names, and how many more there are."""
    first, *rest = [", ".join(list(names)[:most]), *list(names)[most:]]
    return f"{first} and {len(rest)} more" if rest else first
