"""Notebooks for students: Markdown files whose Python blocks are cells; `heedful notebook` writes them as `.ipynb`."""

from __future__ import annotations

import difflib
import json
import re
from importlib.resources import files
from typing import Literal, NamedTuple

from heedful.errors import UserError, shown

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Cell(NamedTuple):
    """A part of a notebook."""

    kind: Literal["markdown", "code"]
    text: str


def notebooks() -> dict[str, str]:
    """The names of all notebooks, each with its title."""
    found = {path.name.removesuffix(".md"): path for path in files(__package__).iterdir() if path.name.endswith(".md")}
    return {name: found[name].read_text("utf-8").partition("\n")[0].lstrip("# ") for name in sorted(found)}


def cells(name: str) -> list[Cell]:
    """The cells of a notebook in order."""
    if name not in notebooks():
        near = difflib.get_close_matches(name, notebooks(), n=1)
        raise UserError(
            "there is no such notebook",
            found=shown(name),
            expected="one of " + ", ".join(notebooks()),
            todo=f"did you mean {near[0]}?" if near else "`heedful notebook` lists what each is about",
        )
    parts = BLOCK.split(files(__package__).joinpath(f"{name}.md").read_text("utf-8"))  # text, code, text, ..., text
    kinds: tuple[Literal["markdown", "code"], ...] = ("markdown", "code")
    return [Cell(kinds[index % 2], part.strip("\n")) for index, part in enumerate(parts) if part.strip()]


def notebook(name: str) -> str:
    """A notebook as JSON in Jupyter's format, version 4.5, without outputs."""
    entries = []
    for index, cell in enumerate(cells(name)):
        entry: dict[str, object] = {"cell_type": cell.kind, "id": f"{name}-{index}", "metadata": {}}
        entry["source"] = cell.text.splitlines(keepends=True)
        if cell.kind == "code":
            entry |= {"execution_count": None, "outputs": []}
        entries.append(entry)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    content = {"cells": entries, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"
