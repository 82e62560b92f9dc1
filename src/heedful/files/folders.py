"""Files from external sources: read within limits, never outside their folder; nothing in them is executed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from heedful.errors import AGAIN, UserError, shown
from heedful.files import json as jsontext
from heedful.files.reading import exists, read_file

LARGEST_JSON = 10_000_000  # bytes; tokenizer files have a limit of their own
DEEPEST = 40  # groups within groups


def path_inside(folder: Path, name: str) -> Path:
    """The file of that name in a folder; names that lead out of it are refused, and so are links that do.

    A hub's own cache, whose snapshots are links to the blobs beside them, counts as one folder.
    """
    parts = name.split("/")
    if not name or "\0" in name or "\\" in name or ":" in name or any(part in ("", ".", "..") for part in parts):
        raise UserError(
            "this name points outside the folder", where=str(folder), found=shown(name),
            expected="a plain name, such as model-00001-of-00002.safetensors", todo=AGAIN,
        )  # fmt: skip
    path = folder / name
    real, home = os.path.realpath(path), os.path.realpath(folder)
    homes = [home]
    if os.path.basename(os.path.dirname(home)) == "snapshots":
        homes.append(os.path.join(os.path.dirname(os.path.dirname(home)), "blobs"))
    if not any(real.startswith(one + os.sep) for one in homes):
        raise UserError(
            "this link points outside the folder", where=str(path), found=f"a link to {real}",
            todo="copy the file itself",
        )  # fmt: skip
    return path


def has_file(folder: Path, name: str) -> bool:
    """Whether a folder has an entry of that name, of any type."""
    return exists(folder / name, follow=False)


def read_bytes(folder: Path, name: str, most: int | None = None) -> bytes:
    """The bytes of a regular file in a folder, at most `most`."""
    path = path_inside(folder, name)
    try:
        return read_file(path, most)
    except OSError as error:
        raise UserError("this file cannot be read", where=str(path), found=error.strerror, todo=AGAIN) from error


def read_text(folder: Path, name: str, most: int) -> str:
    """Like `read_bytes`, decoded as UTF-8."""
    try:
        return read_bytes(folder, name, most).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(
            "this is not UTF-8 text", where=f"{folder / name}",
            found=f"byte 0x{error.object[error.start]:02x} at offset {error.start}", todo=AGAIN,
        ) from error  # fmt: skip


def read_json(folder: Path, name: str) -> Any:
    """Parse a JSON file: no NaN, no huge numbers, at most `DEEPEST` levels."""
    text = read_text(folder, name, LARGEST_JSON)
    try:
        return jsontext.read_json(text, deepest=DEEPEST)
    except json.JSONDecodeError as error:
        raise UserError(
            "this is not JSON", where=f"{folder / name}:{error.lineno}:{error.colno}", found=error.msg, todo=AGAIN
        ) from error


def read_settings(folder: Path, name: str) -> dict[str, Any]:
    """The group of settings in a JSON file."""
    found = read_json(folder, name)
    if not isinstance(found, dict):
        raise UserError(
            "this file holds no settings", where=str(folder / name), found=shown(found), expected="{...}", todo=AGAIN
        )
    return found
