"""YAML for settings: plain values with their line numbers; no aliases, tags or surprising types."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from heedful.errors import UserError, shown
from heedful.files.reading import exists, is_file, is_folder, open_file

MAX_FILE = 1_000_000  # bytes
MAX_DEPTH = 40

Key = str | int
Keys = tuple[Key, ...]
Marks = dict[Keys, "Mark"]


class Mark(NamedTuple):
    """The position of a value in a file: line and column, counted from 1."""

    line: int
    column: int


WORDS: dict[str, bool | None] = {"": None, "~": None, "null": None, "true": True, "false": False}
DIGITS = r"[0-9]+(?:_[0-9]+)*"
WHOLE = re.compile(r"[-+]?(?:0|[1-9][0-9]*(?:_[0-9]+)*)")
REAL = re.compile(
    rf"[-+]?(?:{DIGITS}(?:\.(?:{DIGITS})?)?(?:[eE][-+]?[0-9]+)?|\.{DIGITS}(?:[eE][-+]?[0-9]+)?|\.inf)|\.nan"
)
MAX_NUMBER = 64  # characters; longer digit strings are text


def parse_scalar(text: str) -> str | float | bool | None:
    """Parse an unquoted scalar: numbers (1e-3 too), true, false, null; `no` and dates stay text."""
    if text in WORDS:
        return WORDS[text]
    if len(text) > MAX_NUMBER:
        return text
    if WHOLE.fullmatch(text):
        return int(text)
    # 007 stays text: it is more likely a name than a number.
    if REAL.fullmatch(text) and not text.lstrip("+-").replace("_", "").isdigit():
        return float(text.replace(".inf", "inf").replace(".nan", "nan"))
    return text


def has_lone_surrogate(text: str) -> bool:
    """Whether a text contains half of a surrogate pair, which cannot be encoded."""
    return any("\ud800" <= character <= "\udfff" for character in text)


def load_yaml(path: str | Path) -> tuple[dict[str, Any], Marks]:
    """Read a YAML file of settings, with the line and column of each value."""
    if not is_file(path):
        raise UserError(
            "this is not a file" if exists(path) else "there is no such file", where=str(path),
            found="a directory" if is_folder(path) else None, expected="a YAML file",
            todo="give the path of a recipe file",
        )  # fmt: skip
    try:
        with open_file(path) as stream:
            raw = stream.read(MAX_FILE + 1)
    except OSError as error:
        raise UserError(
            "cannot read the file", where=str(path), found=error.strerror, todo="check its permissions"
        ) from error
    if len(raw) > MAX_FILE:
        raise UserError("the file is too large for settings", where=str(path), expected=f"at most {MAX_FILE:,} bytes")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UserError(
            "the file is not UTF-8 text", where=f"{path}:{line}",
            found=f"byte 0x{raw[error.start]:02x} at offset {error.start}", expected="UTF-8",
            todo="save the file as UTF-8",
        ) from error  # fmt: skip
    data, marks = read_yaml(text, str(path))
    if not isinstance(data, dict):
        raise UserError(
            "the file is empty" if data is None else "the file has no settings", where=str(path),
            found=None if data is None else shown(data), expected="lines of the form `key: value`",
        )  # fmt: skip
    return data, marks


def read_yaml(text: str, where: str) -> tuple[Any, Marks]:
    """Parse one YAML document of plain values: no aliases, no tags, no duplicate keys, at most MAX_DEPTH levels."""
    marks: Marks = {}
    loader = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
    try:
        # Events instead of nodes: a YAML bomb is refused at its first alias or its 41st level, before it is expanded.
        events = iter(yaml.parse(text, Loader=loader))
        first = next(
            event for event in events if not isinstance(event, (yaml.StreamStartEvent, yaml.DocumentStartEvent))
        )
        if isinstance(first, yaml.StreamEndEvent):
            return None, marks
        data = _build(first, events, (), marks, where)
        for event in events:
            if not isinstance(event, (yaml.DocumentEndEvent, yaml.StreamEndEvent)):
                raise _refuse(event, where, "a second YAML document", "one document per file")
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        at = f"{where}:{mark.line + 1}:{mark.column + 1}" if mark else where
        raise UserError(
            "this is not valid YAML", where=at, found=error.problem,
            expected=error.context and f"well-formed text ({error.context})",
            todo="check indentation, and quote text that holds any of : # [ ] { } , & * ! | > ' \" % @",
        ) from error  # fmt: skip
    except yaml.YAMLError as error:
        raise UserError("this is not valid YAML", where=where, found=str(error).split("\n")[0]) from error
    return data, marks


def _build(event: Any, events: Iterator[Any], path: Keys, marks: Marks, where: str) -> Any:
    """Turn the events of one node into dicts, lists and scalars, and record the position of each."""
    marks.setdefault(path, _mark(event))  # a value in a mapping has the position of its key already
    _check_plain(event, where)
    if isinstance(event, yaml.ScalarEvent):
        return parse_scalar(event.value) if event.implicit[0] else event.value  # quoted words are text
    if len(path) >= MAX_DEPTH:
        raise _refuse(event, where, f"more than {MAX_DEPTH} levels of nesting", "a flatter file")
    if isinstance(event, yaml.SequenceStartEvent):
        items: list[Any] = []
        while not isinstance(event := next(events), yaml.SequenceEndEvent):
            items.append(_build(event, events, (*path, len(items)), marks, where))
        return items
    mapping: dict[str, Any] = {}
    while not isinstance(event := next(events), yaml.MappingEndEvent):
        if not isinstance(event, yaml.ScalarEvent):
            raise _refuse(event, where, "a key that is a list, a mapping or an alias", "a word as the key")
        _check_plain(event, where)
        key = event.value
        if key in mapping:
            before = marks[(*path, key)].line
            raise _refuse(event, where, f"the key {shown(key)} again", f"each key once; it is also on line {before}")
        marks[(*path, key)] = _mark(event)
        mapping[key] = _build(next(events), events, (*path, key), marks, where)
    return mapping


def _check_plain(event: Any, where: str) -> None:
    """Refuse aliases, which can expand without bound, and tags, which select types."""
    if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
        raise _refuse(event, where, "an anchor or alias (& or *)", "plain values; quote text that begins with & or *")
    if event.tag is not None:
        raise _refuse(event, where, f"the tag {shown(event.tag)}", "plain values; quote text that begins with !")
    if isinstance(event, yaml.ScalarEvent) and has_lone_surrogate(event.value):
        raise _refuse(event, where, "half of a surrogate pair", "whole Unicode characters")


def _mark(event: Any) -> Mark:
    return Mark(event.start_mark.line + 1, event.start_mark.column + 1)


def _refuse(event: Any, where: str, found: str, expected: str) -> UserError:
    mark = _mark(event)
    at = f"{where}:{mark.line}:{mark.column}"
    return UserError("this YAML is not supported", where=at, found=found, expected=expected)


def write_yaml(data: Any) -> str:
    """Write plain, finite values as YAML that `read_yaml` reads back equal; flat lists take one line."""
    document = (yaml.DocumentStartEvent(explicit=False), *_events(data), yaml.DocumentEndEvent(explicit=False))
    text: str = yaml.emit((yaml.StreamStartEvent(), *document, yaml.StreamEndEvent()), width=100, allow_unicode=True)
    return text


def _events(value: Any) -> Iterator[Any]:
    """The events of one node, the inverse of `_build`."""
    if isinstance(value, dict):
        yield yaml.MappingStartEvent(None, None, implicit=True, flow_style=not value)
        for key, item in value.items():
            yield _word(key, quoted=False)
            yield from _events(item)
        yield yaml.MappingEndEvent()
    elif isinstance(value, (list, tuple)):
        flat = not any(isinstance(item, (dict, list, tuple)) for item in value)
        yield yaml.SequenceStartEvent(None, None, implicit=True, flow_style=flat)
        for item in value:
            yield from _events(item)
        yield yaml.SequenceEndEvent()
    elif isinstance(value, str):
        # Quoted where this reader or a YAML 1.1 reader would parse the word as another type.
        yield _word(value, quoted=parse_scalar(value) != value or value.lower() in ("yes", "no", "on", "off", "y", "n"))
    elif isinstance(value, float):
        digits, e, exponent = repr(value).partition("e")
        dotted = digits if "." in digits or not e else digits + ".0"  # older readers need the point to parse a number
        yield _word(dotted + e + exponent, quoted=False)
    else:
        yield _word(json.dumps(value), quoted=False)  # null, true, false and integers are the same in both


def _word(text: str, *, quoted: bool) -> Any:
    # Only double quotes preserve every character: in other styles, line breaks are folded.
    style = '"' if quoted or not text.isprintable() else None
    return yaml.ScalarEvent(None, None, (True, True), text, style=style)
