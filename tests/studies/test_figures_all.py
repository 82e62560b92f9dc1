"""What holds for every study: progress rises, numbers come with names, a picture is drawn, and it all repeats."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from heedful.config import parse
from heedful.errors import UserError
from heedful.studies import FIGURES, Found, Progress, Study, find

# The smallest settings of each, and how many rows its table then has.
TINY: dict[str, tuple[list[str], int]] = {
    "gradient-distance": (["distance=4", "hidden=3", "singular=[0.5, 2.0]"], 4),
    "cell-gradient": (["distance=4", "hidden=3", "biases=[0.0, 2.0]"], 4),
    "recall": (["distances=[1, 3]", "width=4", "steps=2"], 2),
    "length": (["longest=3", "beyond=4", "width=4", "steps=2"], 4),
    "alignment": (["longest=3", "shown=3", "width=4", "steps=2"], 3),
}
every_figure = pytest.mark.parametrize("name", TINY)


def run(study: Study, overrides: list[str]) -> tuple[list[Progress], Found]:
    """All that a study tells, and what it returns."""
    told: list[Progress] = []
    going: Generator[Progress, None, Any] = study.study(parse(study.Settings, {}, overrides=overrides))
    while True:
        try:
            told.append(next(going))
        except StopIteration as end:
            return told, end.value


def test_every_figure_is_tried_here() -> None:
    assert list(TINY) == list(FIGURES)


@every_figure
def test_progress_rises_from_nothing_to_the_whole(name: str) -> None:
    told, _ = run(find(name), TINY[name][0])
    shares = [now.share for now in told]
    assert shares == sorted(shares)
    assert 0 <= shares[0] < 0.5 <= shares[-1] <= 1 + 1e-9
    assert all(now.doing for now in told)


@every_figure
def test_numbers_have_names_and_the_picture_is_drawn(name: str, tmp_path: Path) -> None:
    study = find(name)
    _, found = run(study, TINY[name][0])
    table = found.table()
    assert len(table.rows) == TINY[name][1]
    assert all(len(row) == len(table.columns) for row in table.rows)
    study.draw(found, tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.format == "PNG"


@every_figure
def test_the_seed_decides_everything(name: str) -> None:
    first, again = (run(find(name), TINY[name][0])[1].table() for _ in range(2))
    assert first == again


@pytest.mark.parametrize(("name", "todo"), [("recal", "did you mean recall"), ("xyz", "heedful figure")])
def test_an_unknown_figure_is_answered_with_the_nearest(name: str, todo: str) -> None:
    with pytest.raises(UserError) as error:
        find(name)
    assert error.value.todo is not None and todo in error.value.todo
