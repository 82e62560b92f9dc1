"""Fixtures of the torture tests: the scale, one uninterrupted run, and the counts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

# Forks, signals and the names of open files as Linux has them; the page can be read everywhere.
if sys.platform != "linux":
    collect_ignore = [path.name for path in Path(__file__).parent.glob("test_*.py") if path.name != "test_page.py"]

sys.path.insert(0, str(Path(__file__).parents[1]))
pytest.register_assert_rewrite("torture.command")

from torture import report  # noqa: E402  (found only since the line above)
from torture.command import Trial  # noqa: E402


@pytest.fixture(scope="session")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    """An uninterrupted run of the tiny recipe, the reference for all others."""
    trial = Trial(tmp_path_factory.mktemp("unbroken"))
    trial.finish()
    return trial


def pytest_sessionfinish() -> None:
    """Write down what was counted, if it was counted in full."""
    if report.FULL and report.ROWS:
        report.write()
