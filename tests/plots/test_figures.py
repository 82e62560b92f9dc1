"""Pictures show the values they are given."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from heedful.plots.figures import QUIET, SERIES, SHADES, Pen, _scale_of_powers, curves, heatmap, heatmaps, text_heatmap


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        assert image.format == "PNG"
        return np.asarray(image.convert("RGB"))


def count(picture: np.ndarray, colour: tuple[int, int, int]) -> int:
    return int((picture == np.array(colour)).all(-1).sum())


def test_a_heat_map_is_dark_where_the_value_is_high(tmp_path: Path) -> None:
    heatmap([[0, 0], [1, 0]], tmp_path / "a.png")
    places = np.argwhere((pixels(tmp_path / "a.png") == SHADES[-1]).all(-1))
    body = places[places[:, 1] < 40 + 2 * 34]  # left of the scale: the first column
    assert len(body) > 2000
    assert body[:, 0].min() >= 40 + 2 * 34 - 1  # the second row
    light = np.argwhere((pixels(tmp_path / "a.png") == SHADES[0]).all(-1))
    assert len(light) > 3 * 2000


def test_values_outside_the_range_are_clipped_and_missing_ones_have_their_own_colour(tmp_path: Path) -> None:
    heatmap([[7.0, -3.0, np.nan]], tmp_path / "a.png", ["row"], ["a", "b", "c"])
    picture = pixels(tmp_path / "a.png")
    assert min(count(picture, SHADES[-1]), count(picture, SHADES[0]), count(picture, (236, 230, 222))) > 1000


def test_labels_and_title_make_room_for_themselves(tmp_path: Path) -> None:
    heatmap(np.eye(3), tmp_path / "bare.png")
    heatmap(np.eye(3), tmp_path / "full.png", ["eins", "zwei", "dreißig"], ["one", "two", "thirty"], "A title")
    bare, full = pixels(tmp_path / "bare.png"), pixels(tmp_path / "full.png")
    assert full.shape[0] > bare.shape[0] + 60
    assert full.shape[1] > bare.shape[1] + 60


def test_a_large_heat_map_stays_a_file_of_moderate_size(tmp_path: Path) -> None:
    heatmap(np.random.default_rng(0).random((20, 512)), tmp_path / "a.png")
    assert pixels(tmp_path / "a.png").shape[1] < 2600


@pytest.mark.parametrize(
    ("values", "rows", "columns"),
    [([1.0], None, None), (np.zeros((0, 3)), None, None), (np.eye(2), ["a"], None), (np.eye(2), None, ["a", "b", "c"])],
)
def test_a_grid_that_does_not_fit_is_refused(tmp_path: Path, values: object, rows: object, columns: object) -> None:
    with pytest.raises(ValueError, match=r"heat map needs|labels"):
        heatmap(values, tmp_path / "a.png", rows, columns)  # type: ignore[arg-type]
    assert not (tmp_path / "a.png").exists()


def test_each_curve_has_its_colour_and_runs_where_its_values_are(tmp_path: Path) -> None:
    x = np.arange(500)
    curves({"low": (x, 0 * x), "high": (x, 0 * x + 9.0)}, tmp_path / "a.png", "Loss", "step", "nats")
    picture = pixels(tmp_path / "a.png")
    low, high = (np.argwhere((picture == colour).all(-1)) for colour in SERIES[:2])
    assert len(low) > 1000
    assert len(high) > 1000
    assert np.median(low[:, 0]) > np.median(high[:, 0]) + 500


@pytest.mark.parametrize(
    ("x", "y"), [([], []), ([1], [2]), ([1, 2], [np.nan, np.inf]), ([5, 5], [3, 3]), ([0, 1e7], [1e-7, 2e-7])]
)
def test_odd_curves_are_drawn_without_a_crash(tmp_path: Path, x: list[float], y: list[float]) -> None:
    curves({"only": (x, y)}, tmp_path / "a.png")
    assert pixels(tmp_path / "a.png").size


def test_what_is_not_finite_leaves_a_gap(tmp_path: Path) -> None:
    x = np.arange(100.0)
    curves({"whole": (x, x)}, tmp_path / "whole.png")
    curves({"whole": (x, np.where((x > 20) & (x < 80), np.nan, x))}, tmp_path / "gap.png")
    assert count(pixels(tmp_path / "gap.png"), SERIES[0]) < 0.6 * count(pixels(tmp_path / "whole.png"), SERIES[0])


def test_an_axis_of_powers_makes_equal_factors_equal_steps(tmp_path: Path) -> None:
    x = np.arange(7.0)
    heights = {}
    for powers in ("", "y"):
        curves({"only": (x, 10**x)}, tmp_path / "a.png", powers=powers)
        places = np.argwhere((pixels(tmp_path / "a.png") == np.array(SERIES[0])).all(-1))
        places = places[places[:, 0] > places[:, 0].min() + 60]  # below the legend
        middle = places[np.abs(places[:, 1] - np.median(places[:, 1])) < 8, 0].mean()
        heights[powers] = (middle - places[:, 0].min()) / np.ptp(places[:, 0])
    assert heights["y"] == pytest.approx(0.5, abs=0.05)
    assert heights[""] > 0.9


@pytest.mark.parametrize(
    ("x", "y"), [([], []), ([1], [2]), ([0, 1, 10], [-1, 0, 5]), ([3, 3], [7, 7]), ([1e-9, 1e9], [1e-300, 1e300])]
)
def test_odd_curves_of_powers_are_drawn_without_a_crash(tmp_path: Path, x: list[float], y: list[float]) -> None:
    curves({"only": (x, y)}, tmp_path / "a.png", powers="xy", marks={"here": 3})
    assert pixels(tmp_path / "a.png").size


@pytest.mark.parametrize(
    ("low", "high", "names"),
    [
        (1, 200, ["1", "2", "5", "10", "20", "50", "100", "200"]),
        (0.03, 0.4, ["0.02", "0.05", "0.1", "0.2", "0.5"]),
        (1e-14, 2, ["1e-14", "1e-12", "1e-10", "1e-8", "1e-6", "0.0001", "0.01", "1", "100"]),
        (7, 7, ["5", "10"]),
    ],
)
def test_powers_have_round_names_that_enclose_the_values(low: float, high: float, names: list[str]) -> None:
    assert _scale_of_powers([np.log10(np.array([low, high]))]).names == names


def test_a_pen_chooses_the_colour_and_dashes_leave_gaps(tmp_path: Path) -> None:
    x = np.arange(100.0)
    for name, dashed in (("whole", False), ("dashed", True)):
        curves({"only": (x, x)}, tmp_path / f"{name}.png", pens={"only": Pen(SERIES[2], dashed)})
    whole, dashed = (count(pixels(tmp_path / f"{name}.png"), SERIES[2]) for name in ("whole", "dashed"))
    assert count(pixels(tmp_path / "whole.png"), SERIES[0]) == 0
    assert 0.35 * whole < dashed < 0.75 * whole


def test_a_mark_stands_at_its_place(tmp_path: Path) -> None:
    x = np.arange(11.0)
    for name, marks in (("without", {}), ("with", {"half": 5.0})):
        curves({"only": (x, x)}, tmp_path / f"{name}.png", marks=marks)
    differing = (pixels(tmp_path / "with.png") != pixels(tmp_path / "without.png")).any(-1)
    column = int(differing.sum(0).argmax())
    assert differing[:, column].sum() > 500
    assert column == pytest.approx(differing.shape[1] / 2, rel=0.1)
    assert count(pixels(tmp_path / "with.png"), QUIET) > count(pixels(tmp_path / "without.png"), QUIET)


def test_many_names_take_further_rows(tmp_path: Path) -> None:
    lines = {f"a line with a long name {n}": ([0, 1], [n, n]) for n in range(5)}
    curves(dict([*lines.items()][:1]), tmp_path / "one.png")
    curves(lines, tmp_path / "five.png")
    assert pixels(tmp_path / "five.png").shape[0] >= pixels(tmp_path / "one.png").shape[0] + 44


def test_maps_stand_side_by_side(tmp_path: Path) -> None:
    one = (np.eye(3), "abc", "xyz")
    heatmap(*one[:1], tmp_path / "one.png", "abc", "xyz", "left")
    heatmaps({"left": one, "right": (np.eye(3)[::-1], "abc", "xyz")}, tmp_path / "two.png")
    single, double = pixels(tmp_path / "one.png"), pixels(tmp_path / "two.png")
    assert double.shape[:2] == (single.shape[0], 2 * single.shape[1])
    assert (double[:, : single.shape[1]] == single).all()
    assert not (double[:, single.shape[1] :] == single).all()


def test_a_text_map_has_a_line_a_row_and_names_the_strongest() -> None:
    text = text_heatmap([[0.9, 0.1], [0.3, 0.7]], ["ein", "Hund"], ["a", "dog"], width=60)
    head, first, second = text.split("\n")
    assert head.split() == ["a", "dog"]
    assert first == " ein  ███ ░░░ a 90%"
    assert second == "Hund  ▒▒▒ ▓▓▓ dog 70%"


@pytest.mark.parametrize("width", [24, 40, 80, 200])
def test_a_text_map_keeps_to_the_width_and_loses_no_column(width: int) -> None:
    columns = [f"t{j}" for j in range(40)]
    text = text_heatmap(np.eye(3, 40), ["a", "b", "c"], columns, width)
    assert max(map(len, text.split("\n"))) <= width
    assert all(column in text.split() for column in columns)


def test_wide_letters_keep_the_columns_straight() -> None:
    lines = text_heatmap(np.eye(2), ["中文", "ab"], ["x", "y"]).split("\n")
    assert lines[1].startswith("中文  ███")
    assert lines[2].startswith("  ab  ···")


def test_control_characters_do_not_reach_the_terminal() -> None:
    assert "\x1b" not in text_heatmap([[1.0]], ["\x1b[31m"], ["\x1b]0;"])
