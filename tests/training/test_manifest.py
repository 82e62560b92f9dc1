"""A committed folder replaces the old one completely, and a misleading manifest is refused."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from heedful.files import writing as files
from heedful.training.checkpoint import manifest as sealed
from heedful.training.checkpoint.manifest import DamageError, commit, read_manifest, verify


def test_second_commit_replaces_the_first(tmp_path: Path) -> None:
    commit(tmp_path / "model", {"a": [b"1"], "b": [b"2"]}, None, {})
    commit(tmp_path / "model", {"c": [b"3"]}, None, {"seed": 7})
    assert sorted(os.listdir(tmp_path / "model")) == ["c", "manifest.json"]
    assert verify(tmp_path / "model").about == {"seed": 7}
    assert os.listdir(tmp_path) == ["model"]


def test_old_folder_is_restored_when_the_rename_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(tmp_path / "model", {"a": [b"1"]}, None, {})
    real, calls = files.rename, []

    def fail_second(old: Path, new: Path) -> None:
        calls.append(old)
        if len(calls) == 2:
            raise OSError("no")
        real(old, new)

    monkeypatch.setattr(files, "rename", fail_second)
    with pytest.raises(OSError, match="no"):
        commit(tmp_path / "model", {"a": [b"2"]}, None, {})
    assert (tmp_path / "model" / "a").read_bytes() == b"1"
    assert os.listdir(tmp_path) == ["model"]


def test_file_in_chunks_is_their_concatenation(tmp_path: Path) -> None:
    pieces = [b"01", memoryview(b"23456")[1:], b"", memoryview(bytearray(5_000_000))]
    commit(tmp_path / "model", {"a": pieces, "b": []}, None, {})
    whole = b"013456" + bytes(5_000_000)
    assert (tmp_path / "model" / "a").read_bytes() == whole
    assert verify(tmp_path / "model").files["a"].sha256 == hashlib.sha256(whole).hexdigest()
    assert (tmp_path / "model" / "b").read_bytes() == b""


def test_file_that_cannot_be_hashed_is_not_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*pieces: bytes) -> str:
        raise MemoryError

    monkeypatch.setattr(sealed, "_sha256", fail)
    with pytest.raises(MemoryError):
        commit(tmp_path / "model", {"a": [b"1"]}, None, {})
    assert os.listdir(tmp_path) == []


def test_files_are_hashed_without_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    monkeypatch.setattr(sealed.ThreadPoolExecutor, "submit", refuse)
    commit(tmp_path / "model", {"a": [b"1", b"2"], "b": [b"3"]}, None, {})
    assert verify(tmp_path / "model").files["a"].size == 2


def test_large_integers_are_stored_as_text(tmp_path: Path) -> None:
    commit(tmp_path / "model", {}, 3, {"sizes": {10: "ten", 9: "nine"}, "pair": (1, 2)})
    assert verify(tmp_path / "model").about == {"sizes": {"9": "nine", "10": "ten"}, "pair": [1, 2]}


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"format": 1},
        {"format": "1", "step": 1, "about": {}, "files": {}},
        {"format": 1, "step": 1, "about": {}, "files": {"a": {"size": "1", "sha256": ""}}},
        {"format": 1, "step": 1, "about": {}, "files": {"../a": {"size": 1, "sha256": ""}}},
        {"format": 1, "step": 1, "about": {}, "files": {"a": {"size": -1, "sha256": ""}}},
        {"format": 1, "step": 1, "about": [], "files": {}},
        {"format": 1, "step": 1, "about": {}, "files": {}, "run": "code"},
    ],
)
def test_valid_digest_with_false_contents_is_damage(tmp_path: Path, content: dict[str, object]) -> None:
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "manifest.json").write_bytes(sealed._seal(content))
    with pytest.raises(DamageError):
        verify(tmp_path)


@pytest.mark.parametrize(
    "data", [b"", b"null", b"[]", b"{", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 100_000, b'{"step": NaN}']
)
def test_invalid_manifest_is_damage_naming_the_file(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "manifest.json").write_bytes(data)
    with pytest.raises(DamageError, match=r"manifest\.json"):
        read_manifest(tmp_path)


def test_manifest_is_plain_json(tmp_path: Path) -> None:
    commit(tmp_path / "model", {"a": [b"1"]}, 5, {"seed": 1})
    content = json.loads((tmp_path / "model" / "manifest.json").read_text())
    assert (content["format"], content["step"], content["about"]) == (1, 5, {"seed": 1})
    assert content["files"]["a"]["size"] == 1
