"""Typed settings: the base class, dotted overrides, and errors that list every problem with its line."""

from __future__ import annotations

import copy
import difflib
import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Discriminator, TypeAdapter, ValidationError

from heedful.errors import UserError, shown
from heedful.files.yaml import (
    MAX_DEPTH,
    Key,
    Keys,
    Marks,
    has_lone_surrogate,
    load_yaml,
    parse_scalar,
    read_yaml,
    write_yaml,
)

__all__ = [
    "Config",
    "FieldError",
    "by_kind",
    "config_classes",
    "flow",
    "kinds_in",
    "left_out",
    "load_yaml",
    "override",
    "parse",
    "render",
]

MAX_PROBLEMS = 30  # in one error
MAX_NAME = 120  # characters of a key in a message


class Config(BaseModel):
    """A frozen group of settings; unknown keys and values of the wrong type are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_default=True, allow_inf_nan=False)


AnyConfig = TypeVar("AnyConfig", bound=Config)


class FieldError(ValueError):
    """A validator's error about a nested setting, whose path below the validated one is `keys`."""

    def __init__(self, message: str, *keys: Key) -> None:
        super().__init__(message)
        self.keys = keys


def by_kind(default: str) -> Discriminator:
    """A discriminator of a union by `kind`; where that is omitted, `default`."""

    def choose(value: Any) -> str:
        kind = value.get("kind", default) if isinstance(value, dict) else getattr(value, "kind", default)
        return str(kind)

    return Discriminator(choose)


def override(data: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """A copy of the settings with each override `key.path=value` applied; values are YAML."""
    changed = copy.deepcopy(dict(data))
    for text in overrides:
        _apply_override(changed, text)
    return changed


def _apply_override(data: dict[str, Any], text: str) -> Keys:
    """Apply one override in place, and return the path of the setting."""
    name, equals, value = text.partition("=")
    names = name.strip().split(".")
    if has_lone_surrogate(text):
        raise UserError("this override is not valid Unicode", found=shown(text), expected="UTF-8")
    if not equals or not all(names):
        raise UserError("this is not an override", found=shown(text), expected="key.path=value, such as train.seed=3")
    if len(names) > MAX_DEPTH:
        raise UserError(
            "this override is nested too deeply", where=f"override {shown(name)}", expected=f"{MAX_DEPTH} levels"
        )
    try:
        parsed, _ = read_yaml(value, name)
    except UserError as error:
        error.where = f"override {name}"  # instead of a line and column
        raise
    path: list[Key] = []
    group: Any = data
    for index, word in enumerate(names):
        last = index == len(names) - 1
        if isinstance(group, list) and word in map(str, range(len(group))):
            key: Key = int(word)
        elif isinstance(group, dict):
            key = word
            # An absent or null group is created, so that one of its settings can be set alone.
            if not last and group.get(word) is None:
                group[word] = {}
        else:
            raise UserError(
                "this override does not name a setting",
                where=f"override {name}",
                found=f"{'.'.join(map(str, path))} is {shown(group)}",
                expected="a group of settings, or the index of an item that exists",
            )
        path.append(key)
        if last:
            group[key] = parsed
        else:
            group = group[key]
    return tuple(path)


def parse(
    cls: type[AnyConfig],
    data: Mapping[str, Any],
    marks: Marks | None = None,
    overrides: Sequence[str] = (),
    file: str | Path | None = None,
) -> AnyConfig:
    """Validate settings and return them as `cls`, or raise one error that lists every problem."""
    settings = copy.deepcopy(dict(data))
    problems: list[UserError] = []
    overridden: list[Keys] = []
    for text in overrides:
        try:
            overridden.append(_apply_override(settings, text))
        except UserError as problem:
            problems.append(problem)

    def where(path: Keys) -> str | None:
        for prefix in overridden:
            if path[: len(prefix)] == prefix:
                return "override " + ".".join(map(str, prefix))
        if file is None or not marks:
            return None if file is None else str(file)
        known = next(mark for end in range(len(path), -1, -1) if (mark := marks.get(path[:end])) is not None)
        return f"{file}:{known.line}:{known.column}"

    hidden = 0
    try:
        # From JSON, strict validation accepts a list for a tuple, but not "3" or true for a number.
        config = cls.model_validate_json(json.dumps(settings))
        if not problems:
            return config
    except ValidationError as error:
        problems += _explain(cls, error, where, settings, overridden)
        messages = {problem.message for problem in problems}
        problems += [
            one for one in _model_validator_problems(cls, error, settings, where) if one.message not in messages
        ]
        hidden = max(0, error.error_count() - MAX_PROBLEMS)
    if len(problems) == 1:
        raise problems[0]
    raise UserError(
        f"{len(problems) + hidden} problems in {'the settings' if file is None else file}",
        problems=problems,
        todo=f"start with these; {hidden} more are not shown" if hidden else None,
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
    overridden: Sequence[Keys],
) -> list[UserError]:
    """Pydantic's errors in terms of the file, one per field."""
    details = error.errors(include_url=False)[:MAX_PROBLEMS]
    unknown = [_trace(cls, detail["loc"])[0] for detail in details if detail["type"] == "extra_forbidden"]
    leftover = _leftover_keys(cls, unknown, overridden)
    misplaced: dict[Keys, list[Key]] = {
        group: [] for group in leftover
    }  # keys of the file that its new kind does not have
    problems: dict[Keys, UserError] = {}
    for detail in details:
        path, owners, members = _trace(cls, detail["loc"])
        kind, context, value = detail["type"], detail.get("ctx", {}), detail["input"]
        changed = next((path[:end] for end in range(len(path)) if path[:end] in leftover), None)
        if changed is not None and not _is_overridden(path, overridden):
            misplaced[changed].append(path[len(changed)])
            continue
        if kind == "too_short" and len(value) >= context["min_length"]:
            continue  # the list is short only because of invalid items, which have errors of their own
        if isinstance(context.get("error"), FieldError):
            path = (*path, *context["error"].keys)
        name, group = ".".join(map(str, path))[:MAX_NAME] or "the settings", "".join(f"{key}." for key in path[:-1])
        message, todo = f"invalid value for {name}", None
        found: str | None = shown(value)
        expected: str | None = EXPECTED.get(kind, detail["msg"].removeprefix("Input should be "))
        if kind == "missing":
            message, found, expected = f"{name} is missing", None, _description(owners, path[-1])
            todo = f"add `{path[-1]}:`" if isinstance(path[-1], str) else "add it at the end of the list"
        elif kind == "extra_forbidden":
            known = sorted({field for owner in owners for field in owner.model_fields})
            message, found, expected = f"{name} is an unknown key", None, "one of " + ", ".join(known)
            todo = _near(str(path[-1]), known, group) or _elsewhere(cls, path, settings)
        elif kind in ("union_tag_invalid", "union_tag_not_found"):
            known = sorted(kinds_in(members))
            message = f"{name}.kind is {'unknown' if kind == 'union_tag_invalid' else 'missing'}"
            found = shown(context["tag"]) if "tag" in context else None
            expected, todo = "one of " + ", ".join(known), _near(str(context.get("tag", "")), known)
            path = (*path, "kind")
        elif kind == "literal_error":
            todo = _near(str(value), re.findall(r"'([^']*)'", context["expected"]))
        elif kind == "value_error":  # from a validator of Heedful, whose message is complete
            message, expected = f"{name}: {context['error']}", None
            found = None if isinstance(value, dict) else found
        elif kind in ("too_short", "too_long"):
            least, count = kind == "too_short", context["min_length" if kind == "too_short" else "max_length"]
            expected = f"at {'least' if least else 'most'} {count} item{'s' * (count != 1)}"
        elif kind in ("dict_type", "model_type"):
            # Of the whole union, not only of its default.
            meant = _close(str(value), sorted(kinds_in(_trace(cls, path)[2])))
            todo = f"write {{kind: {meant}}}, or the override {name}.kind={meant}" if meant else None
        elif kind == "int_type" and isinstance(value, float) and value.is_integer():
            todo = f"write {int(value)}"
        elif kind == "string_type" and isinstance(value, (int, float)):
            todo = "put it in quotes"
        if path in problems and expected and problems[path].expected:
            expected = f"{problems[path].expected}, or {expected}"  # a plain union fails once for each member
        problems[path] = UserError(message, where=where(path), found=found, expected=expected, todo=todo)
    others = [_other_kind(cls, group, leftover[group], misplaced[group], settings, where) for group in leftover]
    return [*others, *problems.values()]


def _model_validator_problems(
    cls: type[Config], error: ValidationError, settings: Mapping[str, Any], where: Callable[[Keys], str | None]
) -> list[UserError]:
    """Errors of model validators among the valid fields; pydantic runs these only if all fields are valid."""
    wrong = {detail["loc"][0] for detail in error.errors(include_url=False) if detail["loc"]}
    whole = cls.model_construct()
    for name, field in cls.model_fields.items():
        whole.__dict__.pop(name, None)
        if name in wrong or (name not in settings and field.is_required()):
            continue  # a validator that needs it raises AttributeError below
        value = field.get_default(call_default_factory=True, validated_data=whole.__dict__)
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


def _is_overridden(path: Keys, overridden: Iterable[Keys]) -> bool:
    """Whether an override set a setting or its group."""
    return any(path[: len(prefix)] == prefix for prefix in overridden)


def _leftover_keys(cls: type[Config], unknown: Iterable[Keys], overridden: Sequence[Keys]) -> dict[Keys, list[str]]:
    """By group, the file's keys that belong to the former `kind` of a group whose kind was overridden."""
    leftover: dict[Keys, list[str]] = {}
    for path in unknown:
        group, key = path[:-1], str(path[-1])
        known_elsewhere = any(key in member.model_fields for member in _trace(cls, group)[2])
        if (*group, "kind") in overridden and known_elsewhere and not _is_overridden(path, overridden):
            leftover.setdefault(group, []).append(key)
    return leftover


def _other_kind(
    cls: type[Config],
    group: Keys,
    leftover: Sequence[str],
    misplaced: Sequence[Key],
    settings: Mapping[str, Any],
    where: Callable[[Keys], str | None],
) -> UserError:
    """The error for an overridden `kind` whose group has keys of another kind; it suggests the whole group."""
    values: Any = settings
    for key in group:
        values = values[key]
    fields = next(member for member in _trace(cls, group)[2] if values["kind"] in kinds_in([member])).model_fields
    valid = {key: value for key, value in values.items() if key not in misplaced}
    missing = [name for name, field in fields.items() if field.is_required() and name not in valid]
    name, known = ".".join(map(str, group)), [key for key in fields if key != "kind"]
    text = ", ".join([*(f"{key}: {flow(value)}" for key, value in valid.items()), *(f"{key}: ..." for key in missing)])
    return UserError(
        f"{name}.kind is now {values['kind']}, which has no {', '.join(leftover)}",
        where=where((*group, "kind")),
        expected=f"the keys of {values['kind']}: {', '.join(known)}",
        todo=f"write the whole group: {shlex.quote(f'{name}={{{text}}}')}",
    )


def flow(value: Any) -> str:
    """A value as YAML on one line, without quotes where possible."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {flow(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(flow, value)) + "]"
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z]\w*", value) and parse_scalar(value) == value:
        return value
    return json.dumps(value, ensure_ascii=False)


def _trace(cls: type[Config], loc: Keys) -> tuple[Keys, list[type[Config]], list[type[Config]]]:
    """The path in the file, without union tags; the classes that have its last key; the classes of its value."""
    path: list[Key] = []
    groups: list[type[Config]] = [cls]  # classes that have the next key
    owners = groups  # classes that have the last key
    named = False  # whether the next key is a name of the user's, as of a column
    for index, key in enumerate(loc):
        if named:
            path.append(key)
            named = False
            continue
        tagged = [member for member in groups if len(groups) > 1 and key in kinds_in([member])]
        fields = [member.model_fields[key] for member in groups if isinstance(key, str) and key in member.model_fields]
        if tagged:
            groups = tagged
        elif fields:
            path.append(key)
            owners, groups = groups, [member for field in fields for member in config_classes(field.annotation)]
            named = bool(groups) and any(get_origin(field.annotation) is dict for field in fields)
        elif isinstance(key, int):
            path.append(key)
        elif index == len(loc) - 1 and groups:
            path.append(key)
            owners = groups
    return tuple(path), owners, groups


def config_classes(annotation: Any) -> list[type[Config]]:
    """The config classes in a field's type."""
    if isinstance(annotation, type) and issubclass(annotation, Config):
        return [annotation]
    return [member for argument in get_args(annotation) for member in config_classes(argument)]


def left_out() -> dict[str, list[Callable[[Any], bool]]]:
    """By the name of each setting that is not written with some values, functions that tell whether a value is one."""
    classes, found = [Config], dict[str, list[Callable[[Any], bool]]]()
    for cls in classes:
        classes += cls.__subclasses__()
        for name, field in cls.model_fields.items():
            if field.exclude_if is not None:
                found.setdefault(name, []).append(field.exclude_if)
    return found


def kinds_in(classes: Iterable[type[Config]]) -> set[str]:
    """The values of `kind` of these classes."""
    return {
        kind for cls in classes if "kind" in cls.model_fields for kind in get_args(cls.model_fields["kind"].annotation)
    }


def _description(owners: Iterable[type[Config]], key: Key) -> str | None:
    fields = (owner.model_fields[key] for owner in owners if isinstance(key, str) and key in owner.model_fields)
    return next((field.description for field in fields if field.description), None)


def _near(word: str, known: Sequence[str], group: str = "") -> str | None:
    """A suggestion, if the word is close to a known one."""
    close = _close(word, known)
    return f"did you mean {group}{close}?" if close else None


def _close(word: str, known: Sequence[str]) -> str | None:
    return next(iter(difflib.get_close_matches(word, known, n=1, cutoff=0.6)), None)


def _elsewhere(cls: type[Config], path: Keys, settings: Mapping[str, Any]) -> str | None:
    """A suggestion, if the last key of a path is a key of another group, as in seed for train.seed."""
    places: dict[str, None] = {}
    queue: list[tuple[str, type[Config], Any]] = [("", cls, settings)]
    for prefix, group, values in queue:
        for name, field in group.model_fields.items():
            if name == path[-1]:
                places[prefix + name] = None
            below = values.get(name) if isinstance(values, dict) else None
            members = _select_by_kind(config_classes(field.annotation), below, field.default)
            queue += [(f"{prefix}{name}.", member, below) for member in members]
    places.pop(".".join(key for key in path if isinstance(key, str)), None)  # the key itself, without list indices
    return f"did you mean {' or '.join(places)}?" if 0 < len(places) <= 3 else None


def _select_by_kind(members: Sequence[type[Config]], value: Any, default: Any) -> Sequence[type[Config]]:
    """The class that the value's `kind`, or the default's, selects; all classes if there is none."""
    kind = value.get("kind") if isinstance(value, dict) else None
    kind = getattr(default, "kind", None) if kind is None else kind
    return [member for member in members if kind in kinds_in([member])] or members


def render(config: Config) -> str:
    """The settings in full, defaults included, as YAML that parses back to an equal config."""
    return write_yaml(config.model_dump(mode="json"))
