"""The pages about the figures name each with its settings, and a snippet prints what stands below it."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path

import pytest

from heedful.lectures import FIGURES, find

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "recurrent.md"
TEXT = PAGE.read_text(encoding="utf-8")
PAGES = dict.fromkeys(("contexts", "occurrences", "cost"), "encoders") | dict.fromkeys(
    ("maps", "pooling"), "autoencoders"
)
PAGES["nopos"] = "language-models"


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_documented_with_command_image_and_settings(name: str) -> None:
    page = PAGES.get(name, "recurrent")
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    command = (
        f"```sh\nheedful figure {name}{' model=FOLDER' if 'model' in find(name).Settings.model_fields else ''}\n```"
    )
    (section,) = (part for part in text.split("\n## ") if command in part)
    assert f"(images/{page}/{name}.png)" in section
    assert (DOCS / "images" / page / f"{name}.png").is_file()
    rows = dict(re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", section, re.MULTILINE))
    defaults = find(name).Settings().model_dump(mode="json")
    assert {key: json.loads(value) for key, value in rows.items()} == defaults


def test_snippet_prints_the_shown_output() -> None:
    (snippet,), (expected,) = (re.findall(rf"^```{kind}\n(.*?)^```$", TEXT, re.M | re.S) for kind in ("python", "text"))
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(snippet, str(PAGE), "exec"), {"__name__": "__main__"})
    assert out.getvalue() == expected
