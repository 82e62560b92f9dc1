"""Strict JSON for untrusted input: limited nesting and number of lists, finite numbers, unique keys."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import numpy as np

from heedful.http.answers import Refused

STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)  # an unterminated one too
NO_BRACKET = bytes(set(range(256)) - set(b"[]{}"))
MOST_LISTS = 2_000_000  # and objects: a body of 10 MB could have millions, which take ten times as much memory
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
LARGEST = 2**63


def read_json(body: bytes, deepest: int = 32) -> Any:
    """The value of a JSON body; the nesting and the number of lists are checked before it is parsed."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        raise Refused(400, "the body is not UTF-8") from None
    _refuse_deep(body, deepest)
    try:
        value = json.loads(
            text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite, parse_int=_small
        )
    except ValueError:
        raise Refused(400, "the body is not JSON") from None
    if SURROGATE.search(text):
        _refuse_surrogates(value)
    return value


def _refuse_deep(body: bytes, deepest: int) -> None:
    if body.count(b"[") + body.count(b"{") <= deepest:
        return
    brackets = np.frombuffer(STRING.sub(b"", body).translate(None, NO_BRACKET), np.uint8)
    opening = (brackets == ord("[")) | (brackets == ord("{"))
    if int(opening.sum()) > MOST_LISTS:
        raise Refused(400, f"the body has more than {MOST_LISTS:,} lists and objects")
    if int(np.where(opening, 1, -1).cumsum(dtype=np.int32).max(initial=0)) > deepest:
        raise Refused(400, f"the body is nested more than {deepest} deep")


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
