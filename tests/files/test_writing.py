"""Atomic text, the metrics log and its repair at resume."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heedful.errors import UserError
from heedful.files import writing as files
from heedful.runs.events import trim_jsonl


def test_text_is_replaced_atomically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "note.txt"
    files.write_text_atomic(path, "first ü")

    def full(descriptor: int, data: bytes) -> None:
        os.write(descriptor, data[:2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(files, "write", full)
        with pytest.raises(UserError, match="free some space") as raised:
            files.write_text_atomic(path, "second")
    assert raised.value.exit_code == 74
    assert path.read_text() == "first ü"
    assert os.listdir(tmp_path) == ["note.txt"]
    files.write_text_atomic(path, "second")
    assert path.read_text() == "second"


def test_text_is_synced_before_it_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def record(name: str) -> None:
        real: Callable[..., Any] = getattr(os, name)

        def call(*arguments: Any) -> Any:
            done.append(name)
            return real(*arguments)

        monkeypatch.setattr(os, name, call)

    record("fsync")
    record("rename")
    files.write_text_atomic(tmp_path / "note.txt", "text")
    assert done == ["fsync", "rename", "fsync"]


def test_write_continues_after_a_short_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:3]))
    files.write_new(tmp_path / "file", b"0123456789")
    assert (tmp_path / "file").read_bytes() == b"0123456789"
    files.write_new(tmp_path / "pieces", b"01234", memoryview(b"56789"), b"")
    assert (tmp_path / "pieces").read_bytes() == b"0123456789"


def test_records_are_lines_of_strict_json(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    files.append_jsonl(path, {"step": 1, "text": "größer\u2028\r\n"})
    files.append_jsonl(path, {"step": 2, "text": "\ud800"})
    with pytest.raises(ValueError):
        files.append_jsonl(path, {"step": 3, "loss": float("nan")})
    assert "größer" in path.read_text(encoding="utf-8")
    records = [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]
    assert [record["text"] for record in records] == ["größer\u2028\r\n", "\ud800"]


@pytest.mark.parametrize("cut", range(1, 24))
def test_truncated_last_line_and_later_steps_are_dropped(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "metrics.jsonl"
    for step in (1, 2, 2, 3):
        files.append_jsonl(path, {"step": step, "loss": 0.25})
    kept = b"".join(path.read_bytes().splitlines(keepends=True)[:3])
    path.write_bytes(path.read_bytes()[:-cut])
    assert trim_jsonl(path, 2) == 1
    assert path.read_bytes() == kept
    assert trim_jsonl(path, 2) == 0


def test_complete_last_line_without_newline_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}')
    assert trim_jsonl(path, 1) == 0
    files.append_jsonl(path, {"step": 2})
    assert path.read_bytes() == b'{"step": 1}\n{"step": 2}\n'


@pytest.mark.parametrize("line", [b"\xff\xff", b"null", b"[1]", b'{"loss": 1}', b'{"step": "1"}', b"", b"[" * 100_000])
def test_only_the_broken_line_is_dropped(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n' + line + b'\n{"step": 2}\n')
    assert trim_jsonl(path, 2) == 1
    assert path.read_bytes() == b'{"step": 1}\n{"step": 2}\n'


def test_trimming_a_new_run_does_nothing(tmp_path: Path) -> None:
    assert trim_jsonl(tmp_path / "metrics.jsonl", 0) == 0
    (tmp_path / "metrics.jsonl").touch()
    assert trim_jsonl(tmp_path / "metrics.jsonl", 0) == 0


def test_delete_tree_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis").touch()
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "link").symlink_to(tmp_path / "mine")
    files.delete_tree(tmp_path / "old")
    assert (tmp_path / "mine" / "thesis").exists()
    assert not (tmp_path / "old").exists()


def test_temporary_files_are_recognized_by_their_suffix(tmp_path: Path) -> None:
    (tmp_path / "samples").mkdir()
    ours = [files.temporary_path(tmp_path / "a"), files.temporary_path(tmp_path / "samples" / "b")]
    for path in [*ours, tmp_path / "x.tmp", tmp_path / "x.tmp-1", tmp_path / "x.tmp-0123456789abcdef.txt"]:
        path.touch()
    assert sorted(files.temporary_files(tmp_path)) == sorted(ours)


def test_small_pieces_are_joined_and_large_ones_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes | memoryview] = []
    real = files.write

    def write(descriptor: int, data: bytes | memoryview) -> None:
        written.append(data)
        real(descriptor, data)

    monkeypatch.setattr(files, "write", write)
    large = memoryview(bytes(range(256)) * (files.LARGE // 256 + 1))
    pieces = [b"a" * 100] * 50 + [large] + [b"b" * (files.LARGE // 2)] * 5 + [b""]
    files.write_new(tmp_path / "file", *pieces)
    assert (tmp_path / "file").read_bytes() == b"".join(pieces)
    assert large in [data for data in written if isinstance(data, memoryview)]
    assert len(written) <= 6
    assert max(len(data) for data in written if data is not large) <= files.LARGE
