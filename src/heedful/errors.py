"""The error that is shown to users, and helpers for its text."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

AGAIN = "copy or download the whole folder again"
EXIT_MEMORY = 71  # out of memory: EX_OSERR of sysexits.h
EXIT_GONE = 75  # a process of a run has died, and the same command resumes: EX_TEMPFAIL of sysexits.h


class UserError(Exception):
    """An error for the user: what is wrong, where, what was found and expected, and what to do."""

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
        self.problems = tuple(problems)  # several errors, reported at once
        self.exit_code = exit_code

    def __str__(self) -> str:
        """The message, then an indented line for each field that is set."""
        lines = [f"{self.where}: {self.message}" if self.where else self.message]
        for label, text in (("found", self.found), ("expected", self.expected), ("to do", self.todo)):
            if text is not None:
                lines.append(f"  {label + ':':<10}" + text.replace("\n", "\n" + " " * 12))
        for problem in self.problems:
            lines.append("\n".join("  " + line for line in str(problem).split("\n")))
        return printable("\n".join(lines))


class OwnCodeError(UserError):
    """An error in the user's own code, such as an environment; a run adds whether the same command resumes."""


def drop_output() -> None:
    """Redirect stdout to /dev/null, after a write to it failed."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def lacks_memory(error: BaseException) -> bool:
    """Whether this is an out-of-memory error of Python, the system, torch or the dynamic loader."""
    return isinstance(error, MemoryError) or (
        isinstance(error, (OSError, RuntimeError, ImportError))
        and any(word in str(error) for word in ("DefaultCPUAllocator", "out of memory", "annot allocate memory"))
    )


def printable(text: str) -> str:
    """Escape control characters: messages quote files, which must not control the terminal."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def short(text: str, longest: int) -> str:
    """A text truncated to a number of characters, with three dots at the end."""
    return text if len(text) <= longest else text[: longest - 3] + "..."


def shown(value: object, limit: int = 80) -> str:
    """The repr of a value for a message, shortened in the middle if it is long."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 12]} ... {text[-7:]}"


def wrong(where: Path, key: str, found: object, expected: str) -> UserError:
    """The error for an invalid setting in an external file."""
    return UserError(
        f"invalid value for {key}", where=f"{where}: {key}", found=shown(found), expected=expected, todo=AGAIN
    )
