"""The contenders of a benchmark, each in a process of its own: all get ready at once, then are timed one by one.

The command of each ends in `--contender NAME`; it prints READY, waits for a line, and prints RESULT with its numbers.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterable
from typing import Any


def time_contenders(
    command: list[str], names: Iterable[str], line: Callable[[str, dict[str, Any]], str]
) -> dict[str, Any]:
    """The result of each contender, None if it failed; `line` of its name and result is printed."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    children = {name: subprocess.Popen([*command, "--contender", name], **pipes) for name in names}
    found: dict[str, Any] = {}
    for name, child in children.items():
        if not any(text == "READY\n" for text in child.stdout):
            print(f"{name} failed; its errors are above", flush=True)
            found[name] = None
    for name, child in children.items():
        if name in found:
            continue
        out, _ = child.communicate("go\n")
        found[name] = json.loads(next(text for text in out.splitlines() if text.startswith("RESULT "))[7:])
        print(line(name, found[name]), flush=True)
    return found
