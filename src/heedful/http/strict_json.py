"""Strict JSON for untrusted input: limited nesting, finite numbers, unique keys."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from heedful.http.answers import Refused

STRUCTURE = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[\]{}]', re.DOTALL)  # an unterminated string is one match too
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
LARGEST = 2**63


def read_json(body: bytes, deepest: int = 32) -> Any:
    """The value of a JSON body; the nesting is checked before it is parsed."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        raise Refused(400, "the body is not UTF-8") from None
    _refuse_deep(text, deepest)
    try:
        value = json.loads(
            text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite, parse_int=_small
        )
    except ValueError:
        raise Refused(400, "the body is not JSON") from None
    if SURROGATE.search(text):
        _refuse_surrogates(value)
    return value


def _refuse_deep(text: str, deepest: int) -> None:
    depth = 0
    for match in STRUCTURE.finditer(text):
        if match[0] in "[{":
            depth += 1
            if depth > deepest:
                raise Refused(400, f"the body is nested more than {deepest} deep")
        elif match[0] in "]}":
            depth -= 1


def _refuse_surrogates(value: Any) -> None:
    """Refuse unpaired surrogates, which cannot be encoded."""
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise Refused(400, "a text in the body has an unpaired surrogate") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise Refused(400, "an object has a duplicate key")
    return found


def _no_constant(name: str) -> Any:
    raise Refused(400, f"{name} is not a number in JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise Refused(400, "a number in the body is too large")
    return value


def _small(text: str) -> int:
    if len(text) > 20 or not -LARGEST <= int(text) < LARGEST:
        raise Refused(400, "a number in the body is too large")
    return int(text)
