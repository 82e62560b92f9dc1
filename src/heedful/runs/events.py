r"""The events in a run's metrics.jsonl: one JSON object with a step per line.

Only \n ends a line, since texts may contain other line separators. Invalid lines are counted, and reported.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from heedful.files.json import read_json
from heedful.files.reading import exists, open_file, read_file
from heedful.files.writing import disk_errors, write_text_atomic

NAME = "metrics.jsonl"
TAIL = 512  # bytes that identify a position in a file
PART_NAME, MOST_PARTS = re.compile(r"\w{1,40}"), 16  # what a loss in a file may be called, and how many are shown
Event = dict[str, Any]


class Events(NamedTuple):
    """The events of a run, oldest first, and the number of invalid lines."""

    records: list[Event]
    broken: int

    def evaluated(self, split: str) -> list[Event]:
        """The evaluations on a split."""
        return [event for event in self.records if event.get("kind") == "evaluated" and event.get("split") == split]

    def steps(self) -> list[Event]:
        """The recorded training steps."""
        return [event for event in self.records if event.get("kind") == "step"]


def event_in(line: bytes) -> Event | None:
    """The event of a line, or None."""
    try:
        found = read_json(line.decode(), constant=float)
    except ValueError:
        return None
    return found if isinstance(found, dict) and type(found.get("step")) is int else None


def events_in(data: bytes) -> Events:
    """Parse the events of a file; an incomplete last line may still be being written, and is not counted as broken."""
    *lines, rest = data.split(b"\n")
    found = [event_in(line) for line in lines]
    last = event_in(rest)
    records = [event for event in (*found, last) if event is not None]
    return Events(records, sum(event is None for event in found))


def read_events(run: Path, last: int | None = None) -> Events:
    """The events of a run, or those in the last `last` bytes; none if the file cannot be read."""
    try:
        with open_file(run / NAME) as file:
            if last is None:
                return events_in(file.read())
            start = max(0, file.seek(0, 2) - last)
            file.seek(start)
            data = file.read()
    except OSError:
        return Events([], 0)
    return events_in(data.partition(b"\n")[2] if start else data)  # the first line may be incomplete


def part_names(steps: Iterable[Event]) -> list[str]:
    """The names of the losses of which the loss of these steps is a weighted sum, at most `MOST_PARTS`."""
    found = (event["parts"] for event in steps if isinstance(event.get("parts"), dict))
    return list(dict.fromkeys(name for parts in found for name in parts if PART_NAME.fullmatch(name)))[:MOST_PARTS]


def part_curves(steps: Sequence[Event]) -> dict[str, tuple[list[int], list[float]]]:
    """The steps and the values of each loss of which the loss is a weighted sum; none for a single loss."""
    found: dict[str, tuple[list[int], list[float]]] = {name: ([], []) for name in part_names(steps)}
    for event in steps:
        parts = event.get("parts")
        for name, value in parts.items() if isinstance(parts, dict) else ():
            if name in found and isinstance(value, int | float):
                found[name][0].append(event["step"])
                found[name][1].append(value)
    return found


def values(event: Mapping[str, Any]) -> dict[str, float]:
    """The scores of an evaluation by name."""
    scores = event.get("scores")
    named = scores.items() if isinstance(scores, dict) else ()
    found = {name: score.get("value") for name, score in named if isinstance(score, dict)}
    return {name: value for name, value in found.items() if isinstance(value, int | float)}


class Part(NamedTuple):
    """Some events of a run: the end of their bytes in the file, the mark of that position, and whether more follow."""

    events: Events
    start: int
    end: int
    mark: str
    more: bool  # whether more events follow


def read_part(run: Path, offset: int, mark: str, most: int) -> Part:
    """The events in complete lines from an offset on, at most `most` bytes; from the start if the mark does not match.

    A resumed run deletes lines and writes others in their place, which changes the mark.
    """
    path = run / NAME
    if offset and _mark(path, offset) != mark:
        offset = 0
    data = _bytes(path, offset, most)
    whole, more = data.rfind(b"\n") + 1, len(data) == most
    # A line that is being written is left for later; a line that is too long is skipped.
    data = data[:whole] if whole or not more else data
    end = offset + len(data)
    return Part(events_in(data), offset, end, _mark(path, end), more)


def _mark(path: Path, offset: int) -> str:
    """A hash of the bytes before an offset."""
    first = max(0, offset - TAIL)
    return hashlib.sha256(_bytes(path, first, offset - first)).hexdigest()[:32]


def _bytes(path: Path, offset: int, size: int) -> bytes:
    """Part of a file; empty if it cannot be read."""
    try:
        with open_file(path) as file:
            file.seek(offset)
            return file.read(size)
    except OSError:
        return b""


def broken_lines(run: Path, broken: int) -> str:
    """The warning about lines that are not valid events."""
    lines = "1 line is not a valid event and was" if broken == 1 else f"{broken:,} lines are not valid events and were"
    return f"{run / NAME}: {lines} skipped"


def trim_jsonl(path: Path, step: int) -> int:
    """Delete the events of later steps and broken lines, before a run resumes; returns the number of deleted lines."""
    return keep_events(path, lambda event: bool(event["step"] <= step))


def keep_events(path: Path, wanted: Callable[[Event], bool]) -> int:
    """Delete all lines but the events that are wanted; returns the number of deleted lines."""
    if not exists(path):
        return 0
    with disk_errors(path.parent, f"read {path.name}"):
        data = read_file(path)
    lines = data.removesuffix(b"\n").split(b"\n") if data else []
    kept = [line for line in lines if (event := event_in(line)) is not None and wanted(event)]
    text = b"".join(line + b"\n" for line in kept)
    if text != data:
        write_text_atomic(path, text.decode())
    return len(lines) - len(kept)
