"""The one error that a user of Heedful is meant to read."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

AGAIN = "copy or download the whole folder again"
EXIT_MEMORY = 71  # there is not enough memory: EX_OSERR of sysexits.h
EXIT_GONE = 75  # a process that a run needs is gone, and the same command goes on: EX_TEMPFAIL of sysexits.h


class UserError(Exception):
    """What went wrong, where, what was found, what was expected and what to do about it."""

    def __init__(
        self,
        message: str,
        *,
        where: str | None = None,
        found: str | None = None,
        expected: str | None = None,
        todo: str | None = None,
        problems: Sequence[UserError] = (),
        exit_code: int = 2,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.where = where  # file[:line[:column]], or the name of a field
        self.found = found
        self.expected = expected
        self.todo = todo
        self.problems = tuple(problems)  # one error may stand for several, so that all are seen at once
        self.exit_code = exit_code

    def __str__(self) -> str:
        """Render as one line for the message and one indented line for each field that is known."""
        lines = [f"{self.where}: {self.message}" if self.where else self.message]
        for label, text in (("found", self.found), ("expected", self.expected), ("to do", self.todo)):
            if text is not None:
                lines.append(f"  {label + ':':<10}" + text.replace("\n", "\n" + " " * 12))
        for problem in self.problems:
            lines.append("\n".join("  " + line for line in str(problem).split("\n")))
        return printable("\n".join(lines))


def drop_output() -> None:
    """Let everything that is written to stdout from now on vanish, since what is behind it takes nothing any more."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def lacks_memory(error: BaseException) -> bool:
    """Whether an error says that there is not enough memory, as Python, the system, torch or a loader put it."""
    return isinstance(error, MemoryError) or (
        isinstance(error, (OSError, RuntimeError, ImportError))
        and any(word in str(error) for word in ("DefaultCPUAllocator", "out of memory", "annot allocate memory"))
    )


def printable(text: str) -> str:
    """Escape what could move the cursor or recolour a terminal, since messages quote files that others wrote."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def short(text: str, longest: int) -> str:
    """A text cut to a width in characters, with three dots where it is longer."""
    return text if len(text) <= longest else text[: longest - 3] + "..."


def shown(value: object, limit: int = 80) -> str:
    """A value as a message quotes it: its repr, cut in the middle when it is long."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 12]} ... {text[-7:]}"


def wrong(where: Path, key: str, found: object, expected: str) -> UserError:
    """The error of a setting in a file of others that cannot be."""
    return UserError(
        f"invalid value for {key}", where=f"{where}: {key}", found=shown(found), expected=expected, todo=AGAIN
    )
