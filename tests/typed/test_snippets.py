"""The users' snippets have the stated types, and run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from inspect import getmembers, isfunction
from pathlib import Path

import pytest

from typed import snippets

HERE = Path(__file__).parent
SNIPPETS = {
    name: function for name, function in getmembers(snippets, isfunction) if function.__module__ == snippets.__name__
}


@pytest.mark.parametrize("name", SNIPPETS)
def test_snippets_run(name: str, tmp_path: Path) -> None:
    function: Callable[[Path, Path], None] = SNIPPETS[name]
    function(HERE.parent / "golden" / "runs", tmp_path)


def test_every_predictor_has_a_snippet() -> None:
    text = (HERE / "snippets.py").read_text()
    assert len(SNIPPETS) >= 30
    assert all(f"heedful.{name}.load" in text for name in ("Translator", "TextGenerator", "TextEncoder", "TokenTagger"))


@pytest.mark.slow
def test_revealed_types_are_as_stated() -> None:
    """`make test` checks the same file by mypy, with the types of the library at hand."""
    checked = [sys.executable, "-m", "mypy", "--strict", str(HERE / "snippets.py")]
    found = subprocess.run(checked, capture_output=True, text=True, timeout=600, cwd=HERE.parents[1])
    assert found.returncode == 0, found.stdout
