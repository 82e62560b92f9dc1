"""Heat maps as text."""

import numpy as np
import pytest

from heedful.plots.text_heatmap import text_heatmap


def test_text_heatmap_has_one_line_per_row_and_names_the_maximum() -> None:
    text = text_heatmap([[0.9, 0.1], [0.3, 0.7]], ["ein", "Hund"], ["a", "dog"], width=60)
    head, first, second = text.split("\n")
    assert head.split() == ["a", "dog"]
    assert first == " ein  ███ ░░░ a 90%"
    assert second == "Hund  ▒▒▒ ▓▓▓ dog 70%"


@pytest.mark.parametrize("width", [24, 40, 80, 200])
def test_text_heatmap_fits_the_width_with_all_columns(width: int) -> None:
    columns = [f"t{j}" for j in range(40)]
    text = text_heatmap(np.eye(3, 40), ["a", "b", "c"], columns, width)
    assert max(map(len, text.split("\n"))) <= width
    assert all(column in text.split() for column in columns)


def test_wide_characters_keep_columns_aligned() -> None:
    lines = text_heatmap(np.eye(2), ["中文", "ab"], ["x", "y"]).split("\n")
    assert lines[1].startswith("中文  ███")
    assert lines[2].startswith("  ab  ···")


def test_control_characters_are_escaped() -> None:
    assert "\x1b" not in text_heatmap([[1.0]], ["\x1b[31m"], ["\x1b]0;"])
