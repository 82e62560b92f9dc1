"""Folders with a manifest of the sizes and SHA-256 of their files, which are written atomically."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from heedful.config import Config
from heedful.errors import UserError, shown
from heedful.files import writing as files
from heedful.files.reading import read_file

FORMAT = 1
LARGEST_MANIFEST = 10_000_000  # bytes
Pieces = Sequence[bytes | memoryview]  # the contents of a file, not necessarily contiguous in memory


class Entry(Config):
    """The entry of one file in a manifest."""

    size: int
    sha256: str


class Manifest(Config):
    """The files of a folder and their origin; `about` is free for the writer: seed, threads, versions."""

    format: int
    step: int | None
    about: dict[str, Any]
    files: dict[str, Entry]


class DamageError(Exception):
    """Why a folder with a manifest is not complete."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


def commit(final: Path, contents: Mapping[str, Pieces], step: int | None, about: Mapping[str, Any]) -> None:
    """Write a folder under a temporary name, manifest last, and rename it, replacing an existing one.

    Files are written one at a time, in this thread; they are hashed meanwhile in other threads.
    """
    plain = json.loads(
        json.dumps(dict(about), allow_nan=False)
    )  # what JSON cannot express fails before anything is written
    with files.atomic_path(final) as folder:
        files.make_folder(folder)
        with ThreadPoolExecutor() as pool:
            entries = {name: _begin_entry(pool, pieces) for name, pieces in contents.items()}
            for name, pieces in contents.items():
                files.write_new(folder / name, *pieces)
        known = {name: entry.result() for name, entry in entries.items()}
        manifest = Manifest(format=FORMAT, step=step, about=plain, files=known)
        files.write_new(folder / "manifest.json", _seal(manifest.model_dump()))


def _begin_entry(pool: ThreadPoolExecutor, pieces: Pieces) -> Future[Entry]:
    """Hash a file in another thread, or in this one if none can be started, as at interpreter exit."""
    try:
        return pool.submit(_entry, pieces)
    except RuntimeError:
        done: Future[Entry] = Future()
        done.set_result(_entry(pieces))
        return done


def _entry(pieces: Pieces) -> Entry:
    return Entry(size=sum(map(len, pieces)), sha256=_sha256(*pieces))


def verify(folder: Path) -> Manifest:
    """Verify every file of a folder against its manifest, and return the manifest."""
    manifest = read_manifest(folder)
    try:
        found = set(os.listdir(folder))
    except OSError as error:
        raise DamageError(folder, f"it cannot be listed: {error.strerror}") from error
    expected = {*manifest.files, "manifest.json"}
    if found != expected:
        lost, strange = sorted(expected - found), sorted(found - expected)
        raise DamageError(
            folder, f"missing: {', '.join(lost) or 'nothing'}; unexpected: {', '.join(strange) or 'nothing'}"
        )
    for name in manifest.files:
        read_entry(folder, name, manifest)
    return manifest


def read_manifest(folder: Path) -> Manifest:
    """Read a folder's manifest and check its own digest, without reading the files."""
    path = folder / "manifest.json"
    data = read_plain(path, LARGEST_MANIFEST)
    try:
        content = json.loads(data.decode())
        if not isinstance(content, dict):
            raise DamageError(path, f"it holds {shown(content)}, not a manifest")
        content.pop("digest", None)
        if _seal(content) != data:
            raise DamageError(path, "it does not match its own digest")
        if isinstance(written := content.get("format"), int) and written > FORMAT:
            raise UserError(
                "this was written by a newer version of Heedful",
                where=str(path),
                found=f"format {written}",
                expected=f"format {FORMAT} or older",
                todo="upgrade Heedful",
            )
        return Manifest.model_validate_json(json.dumps(content))
    except (ValueError, RecursionError) as error:
        raise DamageError(path, f"it is no manifest: {str(error).splitlines()[0]}") from error


def _seal(content: dict[str, Any]) -> bytes:
    """The manifest with its own digest, so that any change is detected."""
    digest = _sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode())
    return (json.dumps({**content, "digest": digest}, sort_keys=True, indent=1) + "\n").encode()


def read_entry(folder: Path, name: str, manifest: Manifest) -> bytes:
    """Read a file, and verify its contents against the manifest."""
    path = folder / name
    entry = manifest.files.get(name)
    if entry is None:
        raise DamageError(path, "the manifest does not name it")
    data = read_plain(path, entry.size)
    if len(data) != entry.size:
        raise DamageError(path, f"{len(data):,} bytes, where the manifest says {entry.size:,}")
    if _sha256(data) != entry.sha256:
        raise DamageError(path, "its SHA-256 is not the one in the manifest")
    return data


def read_plain(path: Path, limit: int | None = None) -> bytes:
    """Read a regular file, no link or device, of at most `limit` bytes."""
    try:
        return read_file(path, limit, follow=False)
    except OSError as error:
        raise DamageError(path, f"it cannot be read: {error.strerror}") from error


def _sha256(*pieces: bytes | memoryview) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()
