"""JSON within limits: shallow, finite, and whatever is wrong with it is a `json.JSONDecodeError`."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

DEEPEST = 64  # lists and objects within each other
LONG = re.compile(r"[0-9]{309}|[eE]\+?[0-9]{3}")  # where a number may overflow a float
Pairs = list[tuple[str, Any]]


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not a number in JSON")


def read_json(
    text: str,
    *,
    deepest: int = DEEPEST,
    constant: Callable[[str], Any] = _refuse,
    pairs: Callable[[Pairs], Any] | None = None,
    whole: Callable[[str], int] | None = None,
) -> Any:
    """Parse JSON; `constant` handles NaN and infinities, `pairs` an object, `whole` an integer."""
    long = LONG.search(text) is not None  # checking every number is slow, so it is done only when needed
    try:
        found = json.loads(
            text, parse_constant=constant, object_pairs_hook=pairs,
            parse_int=whole or (_whole if long else None), parse_float=_finite if long else None,
        )  # fmt: skip
    except json.JSONDecodeError:
        raise
    except RecursionError:
        raise _too_deep(text, deepest) from None
    except ValueError as error:
        raise json.JSONDecodeError(str(error), text, 0) from None
    level: list[Any] = [found]
    for _ in range(deepest + 1):
        groups = [value for value in level if isinstance(value, (dict, list))]
        if not groups:
            return found
        level = [below for group in groups for below in (group.values() if isinstance(group, dict) else group)]
    raise _too_deep(text, deepest)


def _too_deep(text: str, deepest: int) -> json.JSONDecodeError:
    return json.JSONDecodeError(f"nested more than {deepest} deep", text, 0)


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError("a number is too large")
    return value


def _whole(digits: str) -> int:
    if len(digits) > 309:
        raise ValueError("a number is too large")
    _finite(digits)
    return int(digits)
