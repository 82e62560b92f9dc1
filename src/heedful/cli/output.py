"""Lines and JSON on stdout, free of what could move a terminal's cursor. Nothing here imports torch."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable

from heedful.errors import drop_output, printable

LOST: list[OSError] = []  # why the output of a run could not be written any more


def say(text: str) -> None:
    """Write a line to stdout, and flush it."""
    sys.stdout.write(printable(text) + "\n")
    sys.stdout.flush()


def say_on(text: str) -> None:
    """The same for work of hours, which continues where its output cannot be written: a closed pager, a full disk."""
    try:
        say(text)
    except OSError as error:
        LOST.append(error)
        drop_output()


def write(text: str) -> None:
    """Write a line to stdout as it is, and flush it."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def print_table(lines: Iterable[str], records: Iterable[object], as_json: bool) -> None:
    """Print lines for a reader, or with --json a JSON document for each record."""
    for line in map(json_line, records) if as_json else lines:
        say(line)


def json_line(record: object) -> str:
    """JSON in readable characters, with escapes for all that could move the cursor."""
    text = json.dumps(record, ensure_ascii=False, allow_nan=False)
    return text if text.isprintable() else "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)
