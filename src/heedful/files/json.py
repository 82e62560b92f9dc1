"""JSON with limits on nesting and on numbers; every problem is a `json.JSONDecodeError`."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

MAX_DEPTH = 64  # nested lists and objects
HUGE = re.compile(r"[0-9]{309}|[eE]\+?[0-9]{3}")  # numbers that may overflow a float


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not a number in JSON")


def read_json(text: str, *, max_depth: int = MAX_DEPTH, constant: Callable[[str], Any] = _refuse) -> Any:
    """Parse JSON; `constant` converts NaN and infinities, which are refused by default."""
    huge = HUGE.search(text) is not None  # checking every number is slow, so it is done only if needed
    try:
        value = json.loads(
            text,
            parse_constant=constant,
            parse_int=_finite_int if huge else None,
            parse_float=_finite if huge else None,
        )
    except json.JSONDecodeError:
        raise
    except RecursionError:
        raise _too_deep(text, max_depth) from None
    except ValueError as error:
        raise json.JSONDecodeError(str(error), text, 0) from None
    level: list[Any] = [value]
    for _ in range(max_depth + 1):
        groups = [one for one in level if isinstance(one, (dict, list))]
        if not groups:
            return value
        level = [below for group in groups for below in (group.values() if isinstance(group, dict) else group)]
    raise _too_deep(text, max_depth)


def _too_deep(text: str, max_depth: int) -> json.JSONDecodeError:
    return json.JSONDecodeError(f"nested more than {max_depth} levels deep", text, 0)


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError("a number is too large")
    return value


def _finite_int(digits: str) -> int:
    if len(digits) > 309:
        raise ValueError("a number is too large")
    _finite(digits)
    return int(digits)
