"""Every figure has a section in the docs with its command, its image and its settings."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from heedful.lectures import FIGURES, find

DOCS = Path(__file__).parents[2] / "docs"
SECTIONS = [
    (page, section) for page in DOCS.rglob("*.md") for section in page.read_text(encoding="utf-8").split("\n## ")
]


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_documented_with_command_image_and_settings(name: str) -> None:
    command = (
        f"```sh\nheedful figure {name}{' model=FOLDER' if 'model' in find(name).Settings.model_fields else ''}\n```"
    )
    ((page, section),) = ((p, s) for p, s in SECTIONS if command in s and re.search(r"\| default \|", s))
    (image,) = re.findall(rf"\(([\w./-]*/{name}\.png)\)", section)
    assert (page.parent / image).is_file()
    rows = dict(re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", section, re.MULTILINE))
    defaults = find(name).Settings().model_dump(mode="json")
    assert {key: json.loads(value) for key, value in rows.items()} == defaults
