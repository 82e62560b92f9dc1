"""The settings of a recipe's data for files that are no tables: folders of images, and running text."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from heedful.files.reading import is_folder

TEXTS = (".txt", ".text", ".md")
SPLITS = {  # names that the folders of splits often have
    "train": ("train", "training"),
    "valid": ("valid", "val", "validation", "dev"),
    "test": ("test", "testing"),
}


def file_settings(kinds: Collection[str], data: Path) -> dict[str, Any] | None:
    """The settings of a task with these kinds of data for a path; None: it is a table, or nothing that fits."""
    if "image_folder" in kinds and (is_folder(data) or data.suffix.lower() == ".zip"):
        return {"kind": "image_folder", **_image_splits(data)}
    suffixes = [suffix.lower() for suffix in data.suffixes if suffix.lower() != ".gz"]
    if not is_folder(data) and suffixes[-1:] not in [[suffix] for suffix in TEXTS]:
        return None
    if "text" in kinds:
        return {"kind": "text", "train": str(data), "held_out": 0.1}
    if "documents" in kinds:
        between = "files" if is_folder(data) else "blank_lines"
        files = {"kind": "text", "files": [str(data)], "between": between}
        return {"kind": "documents", "train": [files], "held_out": 0.05}
    return None


def _image_splits(data: Path) -> dict[str, Any]:
    """The folders of the splits, if there are such; what is missing is held out of the training images."""
    found = {split: next((name for name in names if is_folder(data / name)), None) for split, names in SPLITS.items()}
    if found["train"] is None:
        return {"train": str(data), "valid": 0.1, "test": 0.1}
    return {"root": str(data), **{split: 0.1 if name is None else name for split, name in found.items()}}
