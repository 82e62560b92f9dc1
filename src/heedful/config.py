"""Typed settings: the frozen base class, dotted overrides, and one error that names every problem by its line."""

from __future__ import annotations

import copy
import difflib
import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Discriminator, TypeAdapter, ValidationError

from heedful.errors import UserError, shown
from heedful.files.yaml import (
    DEEPEST,
    Key,
    Keys,
    Marks,
    has_lone_surrogate,
    load_yaml,
    parse_scalar,
    read_yaml,
    write_yaml,
)

__all__ = ["Config", "FieldError", "by_kind", "config_classes", "kinds_in", "load_yaml", "override", "parse", "render"]

MOST_PROBLEMS = 30  # shown at once
LONGEST_NAME = 120  # characters of a key that a message repeats


class Config(BaseModel):
    """A frozen group of settings that accepts known keys of the right type only."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_default=True, allow_inf_nan=False)


AnyConfig = TypeVar("AnyConfig", bound=Config)


class FieldError(ValueError):
    """What a validator raises about a setting further down than its own, where that setting is given by its keys."""

    def __init__(self, message: str, *keys: Key) -> None:
        super().__init__(message)
        self.keys = keys


def by_kind(usual: str) -> Discriminator:
    """What tells the members of a union apart: their `kind`, which may be left out where the usual one is meant."""

    def choose(value: Any) -> str:
        kind = value.get("kind", usual) if isinstance(value, dict) else getattr(value, "kind", usual)
        return str(kind)

    return Discriminator(choose)


def override(data: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """A copy of the settings with each `key.path=value` put in, the value read as YAML."""
    changed = copy.deepcopy(dict(data))
    for text in overrides:
        _put(changed, text)
    return changed


def _put(data: dict[str, Any], text: str) -> Keys:
    """Set one override in place and return the path it went to."""
    name, equals, value = text.partition("=")
    names = name.strip().split(".")
    if has_lone_surrogate(text):
        raise UserError("this override is not whole Unicode text", found=shown(text), expected="UTF-8")
    if not equals or not all(names):
        raise UserError(
            "this is not an override", found=shown(text), expected="key.path=value", todo="for example train.seed=3"
        )
    if len(names) > DEEPEST:
        raise UserError("this override goes too deep", where=f"override {shown(name)}", expected=f"{DEEPEST} levels")
    try:
        parsed, _ = read_yaml(value, name)
    except UserError as error:
        error.where = f"override {name}"  # a line and column would mislead here
        raise
    path: list[Key] = []
    holder: Any = data
    for index, word in enumerate(names):
        last = index == len(names) - 1
        if isinstance(holder, list) and word in map(str, range(len(holder))):
            key: Key = int(word)
        elif isinstance(holder, dict):
            key = word
            # An absent or null group is begun, so that one setting of it can be given alone.
            if not last and holder.get(word) is None:
                holder[word] = {}
        else:
            raise UserError(
                "this override names no setting",
                where=f"override {name}",
                found=f"{'.'.join(map(str, path))} is {shown(holder)}",
                expected="a group of settings, or the index of an item that exists",
            )
        path.append(key)
        if last:
            holder[key] = parsed
        else:
            holder = holder[key]
    return tuple(path)


def parse(
    cls: type[AnyConfig],
    data: Mapping[str, Any],
    marks: Marks | None = None,
    overrides: Sequence[str] = (),
    file: str | Path | None = None,
) -> AnyConfig:
    """Check settings against their class and return it filled, or raise one error that lists every problem."""
    settings = copy.deepcopy(dict(data))
    problems: list[UserError] = []
    put: list[Keys] = []
    for text in overrides:
        try:
            put.append(_put(settings, text))
        except UserError as problem:
            problems.append(problem)

    def where(path: Keys) -> str | None:
        for begun in put:
            if path[: len(begun)] == begun:
                return "override " + ".".join(map(str, begun))
        if file is None or not marks:
            return None if file is None else str(file)
        known = next(mark for end in range(len(path), -1, -1) if (mark := marks.get(path[:end])) is not None)
        return f"{file}:{known.line}:{known.column}"

    hidden = 0
    try:
        # As JSON, strict checking still takes a list for a tuple, while "3" is no number and true is no 1.
        config = cls.model_validate_json(json.dumps(settings))
        if not problems:
            return config
    except ValidationError as error:
        problems += _explain(cls, error, where, settings, put)
        said = {problem.message for problem in problems}
        problems += [one for one in _of_parts(cls, error, settings, where) if one.message not in said]
        hidden = max(0, error.error_count() - MOST_PROBLEMS)
    if len(problems) == 1:
        raise problems[0]
    raise UserError(
        f"{len(problems) + hidden} problems in {'the settings' if file is None else file}",
        problems=problems,
        todo=f"begin with these; {hidden} more are not shown" if hidden else None,
    )


EXPECTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list, [a, b, ...]",
    "tuple_type": "a list, [a, b, ...]",
    "dict_type": "a group of settings, `key: value` lines indented below it",
    "model_type": "a group of settings, `key: value` lines indented below it",
    "model_attributes_type": "a group of settings, `key: value` lines indented below it",
}


def _explain(
    cls: type[Config],
    error: ValidationError,
    where: Callable[[Keys], str | None],
    settings: Mapping[str, Any],
    put: Sequence[Keys],
) -> list[UserError]:
    """Say each problem that pydantic found in the words of the file, one for each field."""
    details = error.errors(include_url=False)[:MOST_PROBLEMS]
    unknown = [_trace(cls, detail["loc"])[0] for detail in details if detail["type"] == "extra_forbidden"]
    left = _left_behind(cls, unknown, put)
    amiss: dict[Keys, list[Key]] = {changed: [] for changed in left}  # all keys of the file that do not fit there
    problems: dict[Keys, UserError] = {}
    for detail in details:
        path, owners, members = _trace(cls, detail["loc"])
        kind, context, given = detail["type"], detail.get("ctx", {}), detail["input"]
        changed = next((path[:end] for end in range(len(path)) if path[:end] in left), None)
        if changed is not None and not _is_written(path, put):
            amiss[changed].append(path[len(changed)])
            continue
        if kind == "too_short" and len(given) >= context["min_length"]:
            continue  # a list that is short only of the items that are told of by themselves
        if isinstance(context.get("error"), FieldError):
            path = (*path, *context["error"].keys)
        name, group = ".".join(map(str, path))[:LONGEST_NAME] or "the settings", "".join(f"{key}." for key in path[:-1])
        message, todo = f"invalid value for {name}", None
        found: str | None = shown(given)
        expected: str | None = EXPECTED.get(kind, detail["msg"].removeprefix("Input should be "))
        if kind == "missing":
            message, found, expected = f"{name} is missing", None, _description(owners, path[-1])
            todo = f"add `{path[-1]}:`" if isinstance(path[-1], str) else "add it at the end of the list"
        elif kind == "extra_forbidden":
            known = sorted({field for owner in owners for field in owner.model_fields})
            message, found, expected = f"{name} is no known key", None, "one of " + ", ".join(known)
            todo = _near(str(path[-1]), known, group) or _elsewhere(cls, path, settings)
        elif kind in ("union_tag_invalid", "union_tag_not_found"):
            known = sorted(kinds_in(members))
            message = f"{name}.kind is {'unknown' if kind == 'union_tag_invalid' else 'missing'}"
            found = shown(context["tag"]) if "tag" in context else None
            expected, todo = "one of " + ", ".join(known), _near(str(context.get("tag", "")), known)
            path = (*path, "kind")
        elif kind == "literal_error":
            todo = _near(str(given), re.findall(r"'([^']*)'", context["expected"]))
        elif kind == "value_error":  # one of our own validators, whose message says it all
            message, expected = f"{name}: {context['error']}", None
            found = None if isinstance(given, dict) else found
        elif kind in ("too_short", "too_long"):
            least, count = kind == "too_short", context["min_length" if kind == "too_short" else "max_length"]
            expected = f"at {'least' if least else 'most'} {count} item{'s' * (count != 1)}"
        elif kind in ("dict_type", "model_type"):
            meant = _close(
                str(given), sorted(kinds_in(_trace(cls, path)[2]))
            )  # of the whole union, not of its usual one
            todo = f"write {{kind: {meant}}}, or the override {name}.kind={meant}" if meant else None
        elif kind == "int_type" and isinstance(given, float) and given.is_integer():
            todo = f"write {int(given)}"
        elif kind == "string_type" and isinstance(given, (int, float)):
            todo = "put it in quotes"
        if path in problems and expected and problems[path].expected:
            expected = f"{problems[path].expected}, or {expected}"  # a plain union fails once for each member
        problems[path] = UserError(message, where=where(path), found=found, expected=expected, todo=todo)
    others = [_other_kind(cls, group, left[group], amiss[group], settings, where) for group in left]
    return [*others, *problems.values()]


def _of_parts(
    cls: type[Config], error: ValidationError, settings: Mapping[str, Any], where: Callable[[Keys], str | None]
) -> list[UserError]:
    """What does not fit together among the parts that are right: pydantic asks only once all of them are."""
    wrong = {detail["loc"][0] for detail in error.errors(include_url=False) if detail["loc"]}
    whole = cls.model_construct()
    for name, field in cls.model_fields.items():
        whole.__dict__.pop(name, None)
        if name in wrong or (name not in settings and field.is_required()):
            continue  # what asks for it cannot be asked
        value = field.get_default(call_default_factory=True)
        if name in settings:
            kind: Any = Annotated[field.annotation, field]
            value = TypeAdapter(kind).validate_json(json.dumps(settings[name]), strict=True)
        whole.__dict__[name] = value
    problems = []
    for name, validator in cls.__pydantic_decorators__.model_validators.items():
        if validator.info.mode == "after":
            try:
                getattr(whole, name)()
            except AttributeError:
                continue
            except ValueError as found:
                path = found.keys if isinstance(found, FieldError) else ()
                about = ".".join(map(str, path)) or "the settings"
                problems.append(UserError(f"{about}: {found}", where=where(path)))
    return problems


def _is_written(path: Keys, put: Iterable[Keys]) -> bool:
    """Whether an override wrote a setting, by itself or with its group."""
    return any(path[: len(begun)] == begun for begun in put)


def _left_behind(cls: type[Config], unknown: Iterable[Keys], put: Sequence[Keys]) -> dict[Keys, list[str]]:
    """By their group, the keys of a file that belong to another `kind` than the one that an override put there."""
    left: dict[Keys, list[str]] = {}
    for path in unknown:
        group, key = path[:-1], str(path[-1])
        of_others = any(key in member.model_fields for member in _trace(cls, group)[2])
        if (*group, "kind") in put and of_others and not _is_written(path, put):
            left.setdefault(group, []).append(key)
    return left


def _other_kind(
    cls: type[Config],
    group: Keys,
    left: Sequence[str],
    amiss: Sequence[Key],
    settings: Mapping[str, Any],
    where: Callable[[Keys], str | None],
) -> UserError:
    """The problem of a `kind` that an override put among the keys of another one, with the group as it can be."""
    given: Any = settings
    for key in group:
        given = given[key]
    fields = next(member for member in _trace(cls, group)[2] if given["kind"] in kinds_in([member])).model_fields
    whole = {key: value for key, value in given.items() if key not in amiss}
    lacking = [name for name, field in fields.items() if field.is_required() and name not in whole]
    name, known = ".".join(map(str, group)), [key for key in fields if key != "kind"]
    text = ", ".join([*(f"{key}: {_flow(value)}" for key, value in whole.items()), *(f"{key}: ..." for key in lacking)])
    return UserError(
        f"{name}.kind is now {given['kind']}, which has no {', '.join(left)}",
        where=where((*group, "kind")),
        expected=f"the keys of {given['kind']}: {', '.join(known)}",
        todo=f"write the whole group: {shlex.quote(f'{name}={{{text}}}')}",
    )


def _flow(value: Any) -> str:
    """A value as YAML in one line, words bare where they can be."""
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z]\w*", value) and parse_scalar(value) == value:
        return value
    return json.dumps(value, ensure_ascii=False)


def _trace(cls: type[Config], loc: Keys) -> tuple[Keys, list[type[Config]], list[type[Config]]]:
    """The path as the file has it, without union tags; the classes that own its last key; the classes that it holds."""
    path: list[Key] = []
    holders: list[type[Config]] = [cls]  # classes that own the next key
    owners = holders  # classes that own the last one
    for index, key in enumerate(loc):
        tagged = [member for member in holders if len(holders) > 1 and key in kinds_in([member])]
        fields = [member.model_fields[key] for member in holders if isinstance(key, str) and key in member.model_fields]
        if tagged:
            holders = tagged
        elif fields:
            path.append(key)
            owners, holders = holders, [member for field in fields for member in config_classes(field.annotation)]
        elif isinstance(key, int):
            path.append(key)
        elif index == len(loc) - 1 and holders:
            path.append(key)
            owners = holders
    return tuple(path), owners, holders


def config_classes(annotation: Any) -> list[type[Config]]:
    """The config classes that a field's type mentions."""
    if isinstance(annotation, type) and issubclass(annotation, Config):
        return [annotation]
    return [member for argument in get_args(annotation) for member in config_classes(argument)]


def kinds_in(classes: Iterable[type[Config]]) -> set[str]:
    """The values of `kind` that choose one of some classes."""
    return {
        kind for cls in classes if "kind" in cls.model_fields for kind in get_args(cls.model_fields["kind"].annotation)
    }


def _description(owners: Iterable[type[Config]], key: Key) -> str | None:
    fields = (owner.model_fields[key] for owner in owners if isinstance(key, str) and key in owner.model_fields)
    return next((field.description for field in fields if field.description), None)


def _near(word: str, known: Sequence[str], group: str = "") -> str | None:
    """A suggestion when the word is close to a known one."""
    close = _close(word, known)
    return f"did you mean {group}{close}?" if close else None


def _close(word: str, known: Sequence[str]) -> str | None:
    return next(iter(difflib.get_close_matches(word, known, n=1, cutoff=0.6)), None)


def _elsewhere(cls: type[Config], path: Keys, settings: Mapping[str, Any]) -> str | None:
    """A suggestion when the last word of a path is a key of other groups, as in seed for train.seed."""
    places: dict[str, None] = {}
    queue: list[tuple[str, type[Config], Any]] = [("", cls, settings)]
    for prefix, group, given in queue:
        for name, field in group.model_fields.items():
            if name == path[-1]:
                places[prefix + name] = None
            below = given.get(name) if isinstance(given, dict) else None
            chosen = _chosen(config_classes(field.annotation), below, field.default)
            queue += [(f"{prefix}{name}.", member, below) for member in chosen]
    places.pop(".".join(key for key in path if isinstance(key, str)), None)  # the very one, in a list perhaps
    return f"did you mean {' or '.join(places)}?" if 0 < len(places) <= 3 else None


def _chosen(members: Sequence[type[Config]], given: Any, default: Any) -> Sequence[type[Config]]:
    """Of the classes that a field may hold, the one that the settings choose, where they do."""
    kind = given.get("kind") if isinstance(given, dict) else None
    kind = getattr(default, "kind", None) if kind is None else kind
    return [member for member in members if kind in kinds_in([member])] or members


def render(config: Config) -> str:
    """The settings in full, defaults included, as YAML that parses back to an equal config."""
    return write_yaml(config.model_dump(mode="json"))
