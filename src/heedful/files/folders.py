"""Files of external folders: read with size limits, and never outside their folder."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from heedful.errors import AGAIN, UserError, shown
from heedful.files import json as jsontext
from heedful.files.reading import exists, read_file

MAX_JSON = 10_000_000  # bytes; tokenizer files have their own limit
MAX_DEPTH = 40


def path_inside(folder: Path, name: str) -> Path:
    """The path of a file in a folder; names and links that lead outside the folder are refused.

    In a Hugging Face cache, links from a snapshot to the blobs beside it are allowed.
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
    """Parse a JSON file: no NaN, no huge numbers, at most `MAX_DEPTH` levels."""
    text = read_text(folder, name, MAX_JSON)
    try:
        return jsontext.read_json(text, max_depth=MAX_DEPTH)
    except json.JSONDecodeError as error:
        raise UserError(
            "this is not JSON", where=f"{folder / name}:{error.lineno}:{error.colno}", found=error.msg, todo=AGAIN
        ) from error


def read_settings(folder: Path, name: str) -> dict[str, Any]:
    """The object in a JSON file."""
    settings = read_json(folder, name)
    if not isinstance(settings, dict):
        raise UserError(
            "this file has no settings", where=str(folder / name), found=shown(settings), expected="{...}", todo=AGAIN
        )
    return settings
