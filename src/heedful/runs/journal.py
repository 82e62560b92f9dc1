"""Finished parts of a long computation beside the file that is to be written, so that it continues where it stopped.

A journal is a text file. Its first line says what is computed, and each further line is a part: the SHA-256 of its
input, and its results. A line begins with its CRC-32, by which a torn or changed one is found.
"""

from __future__ import annotations

import fcntl
import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from heedful.errors import UserError
from heedful.files import writing as files
from heedful.files.reading import exists


class Journal:
    """The parts in their order; it is locked while it is open."""

    def __init__(self, path: Path, about: Mapping[str, object], again: bool = False) -> None:
        self.path, self.about, self.again = path, json.loads(json.dumps(about)), again
        self._reading, self._parts = True, 0

    def __enter__(self) -> Self:
        with files.disk_errors(self.path.parent, f"write {self.path.name}"):
            descriptor = files.reopen(self.path)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                raise UserError(
                    "another process is writing this file", where=str(self.path), todo="wait until it ends"
                ) from None
            self._file = os.fdopen(descriptor, "r+b")
        try:
            self._begin()
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: BaseException | TracebackType | None) -> None:
        if (kind is None or not self._parts) and exists(self.path):
            files.unlink(self.path)
        self._file.close()

    def _begin(self) -> None:
        """Read the first line, which must say the same, or write it."""
        self._file.seek(0)
        found = self._line()
        if found is not None and found != self.about and not self.again:
            theirs = found if isinstance(found, dict) else {}
            changed = [key for key, value in self.about.items() if theirs.get(key) != value]
            raise UserError(
                "the unfinished file was begun with another model or other settings", where=str(self.path),
                found="other: " + ", ".join(changed), expected="the same command as then",
                todo="repeat that command to continue, or begin again with --force",
            )  # fmt: skip
        if found != self.about:
            self._file.seek(0)
            self._stop_reading()
            self._write(self.about)

    def next(self, digest: str) -> Any:
        """The results of the next part, if they were computed from the input with this digest; else None."""
        if not self._reading:
            return None
        start = self._file.tell()
        found = self._line()
        if isinstance(found, list) and len(found) == 2 and found[0] == digest:
            self._parts += 1
            return found[1]
        self._file.seek(start)
        self._stop_reading()
        return None

    def add(self, digest: str, results: object) -> None:
        """Write the results of a part; they are on disk when this returns."""
        self._write([digest, results])
        self._parts += 1

    def _stop_reading(self) -> None:
        """Cut off what follows: an unfinished line, or results of other inputs."""
        self._reading = False
        self._file.truncate()

    def _line(self) -> Any:
        """The value in the next line; None at the end, or if the line is damaged."""
        crc, _, text = self._file.readline().partition(b" ")
        try:
            return json.loads(text) if text.endswith(b"\n") and int(crc, 16) == zlib.crc32(text) else None
        except ValueError:
            return None

    def _write(self, value: object) -> None:
        text = json.dumps(value).encode() + b"\n"
        line = b"%08x " % zlib.crc32(text) + text
        with files.disk_errors(self.path.parent, f"write {self.path.name}", len(line)):
            files.write(self._file.fileno(), line)
            files.sync(self._file.fileno())


def remove_leftovers(path: Path) -> None:
    """Delete temporary files of this name that a crash left."""
    for entry in path.parent.glob(f"{glob_name(path.name)}.tmp-*"):
        if files.LEFTOVER.fullmatch(entry.name):
            files.unlink(entry)


def glob_name(name: str) -> str:
    """A name without the special characters of patterns."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)
