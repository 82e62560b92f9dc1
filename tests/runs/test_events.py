"""Reading a run's metrics.jsonl: events, broken lines, and incomplete last lines."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from heedful.files.writing import append_jsonl
from heedful.runs.events import NAME, broken_lines, events_in, read_events


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\r", "\n"])
def test_line_separators_in_a_text_do_not_split_an_event(tmp_path: Path, separator: str) -> None:
    events = [
        {"kind": "evaluated", "split": "valid", "step": step, "samples": [[f"a{separator}b"] * 3]} for step in (1, 2)
    ]
    for event in events:
        append_jsonl(tmp_path / NAME, event)
    assert read_events(tmp_path) == (events, 0)
    assert read_events(tmp_path).evaluated("valid") == events
    assert read_events(tmp_path).evaluated("test") == []


@pytest.mark.parametrize(
    "line",
    [
        b"", b"null", b"[1]", b"1", b"{", b'{"step": 1', b"[" * 100_000, b'{"step": 1, "x": ' + b"9" * 400 + b"}",
        b'{"step": 1, "x": ' + b"9" * 5000 + b"}", b'{"step": true}', b'{"loss": 1}', b"\xff", b'{"step": 1.5}',
    ],
    ids=lambda line: line[:12].decode(errors="replace"),
)  # fmt: skip
def test_invalid_lines_are_skipped_and_counted(line: bytes) -> None:
    found = events_in(b'{"step": 1}\n' + line + b'\n{"step": 2}\n')
    assert found == ([{"step": 1}, {"step": 2}], 1)
    assert "1 line is not a valid event" in broken_lines(Path("runs/a"), found.broken)


def test_incomplete_last_line_is_not_counted_as_broken() -> None:
    assert events_in(b'{"step": 1}\n{"st') == ([{"step": 1}], 0)
    assert events_in(b'{"step": 1}\n{"step": 2}') == ([{"step": 1}, {"step": 2}], 0)
    assert events_in(b"") == ([], 0)


def test_reading_the_last_bytes_starts_at_a_complete_line(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b'{"step": 1}\n{"step": 2}\n{"step": 3}\n')
    assert read_events(tmp_path, last=20) == ([{"step": 3}], 0)
    assert read_events(tmp_path, last=4096).records == [{"step": 1}, {"step": 2}, {"step": 3}]


def test_missing_and_special_files_have_no_events_and_do_not_block(tmp_path: Path) -> None:
    assert read_events(tmp_path) == ([], 0)
    os.mkfifo(tmp_path / NAME)
    assert read_events(tmp_path) == ([], 0)
