"""Lines and JSON on stdout, with control characters escaped. Nothing here imports torch."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable

from heedful.errors import drop_output, printable

WRITE_ERRORS: list[OSError] = []  # from `say_safely`


def say(text: str) -> None:
    """Print a line with control characters escaped."""
    sys.stdout.write(printable(text) + "\n")
    sys.stdout.flush()


def say_safely(text: str) -> None:
    """Like `say`, but a write error (a closed pager, a full disk) does not end a long run."""
    try:
        say(text)
    except OSError as error:
        WRITE_ERRORS.append(error)
        drop_output()


def write(text: str) -> None:
    """Print a line unchanged."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def print_table(lines: Iterable[str], records: Iterable[object], as_json: bool) -> None:
    """Print the lines, or with --json a JSON object per record."""
    for line in map(json_line, records) if as_json else lines:
        say(line)


def json_line(record: object) -> str:
    """JSON on one line, not limited to ASCII, with control characters escaped; numbers that are not finite are null."""
    try:
        return escaped(json.dumps(record, ensure_ascii=False, allow_nan=False))
    except ValueError:
        return escaped(json.dumps(_with_nulls(record), ensure_ascii=False, allow_nan=False))


def _with_nulls(value: object) -> object:
    """The same without NaN and infinities, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _with_nulls(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_with_nulls(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def escaped(text: str) -> str:
    """JSON with control characters escaped."""
    return text if text.isprintable() else "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)
