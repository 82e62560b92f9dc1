"""The page about the figures names each with its settings, and its snippet prints what stands below it."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path

import pytest

from heedful.studies import FIGURES, find

PAGE = Path(__file__).parents[2] / "docs" / "recurrent.md"
TEXT = PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_has_its_command_its_picture_and_its_settings(name: str) -> None:
    (section,) = (part for part in TEXT.split("\n## ") if f"```sh\nheedful figure {name}\n```" in part)
    assert f"(images/recurrent/{name}.png)" in section
    rows = dict(re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", section, re.MULTILINE))
    defaults = find(name).Settings().model_dump(mode="json")
    assert {key: json.loads(value) for key, value in rows.items()} == defaults


def test_the_snippet_prints_what_stands_below_it() -> None:
    (snippet,), (expected,) = (re.findall(rf"^```{kind}\n(.*?)^```$", TEXT, re.M | re.S) for kind in ("python", "text"))
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(snippet, str(PAGE), "exec"), {"__name__": "__main__"})
    assert out.getvalue() == expected
