"""Figures show the given values and labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from heedful.plots.figures import (
    bars,
    brief,
    curves,
    heatmap,
    heatmaps,
    numbered_points,
    scatter,
    side_by_side,
    word_map,
)
from heedful.plots.style import CLASSES, PALETTES, encode


def figure_texts(figure: Figure | Axes) -> list[str]:
    """All texts of a drawn figure."""
    from matplotlib.text import Text

    encode(figure if isinstance(figure, Figure) else figure.figure, ".png", 30)  # type: ignore[arg-type]
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]  # type: ignore[attr-defined]


def x_labels(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.get_xticklabels()]


def y_labels(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.get_yticklabels()]


# ------------------------------------------------------------------ heat maps
def test_heatmap_values_labels_and_title() -> None:
    values = np.array([[0.0, 0.123, 1.0], [0.6, np.nan, 0.004]])
    figure = heatmap(values, ["eins", "zwei"], ["one", "two", "three"], "A title")
    axes, bar = figure.axes
    (image,) = axes.images
    np.testing.assert_array_equal(np.ma.filled(image.get_array(), np.nan), values)  # type: ignore[arg-type]
    assert image.get_clim() == (0, 1)
    assert (x_labels(axes), y_labels(axes)) == (["one", "two", "three"], ["eins", "zwei"])
    assert [text.get_text() for text in axes.texts] == [".12", "1.00", ".60"]  # neither zeros nor missing values
    assert [(text.get_position()) for text in axes.texts] == [(1, 0), (2, 0), (0, 1)]
    assert "A title" in figure_texts(figure)
    assert [text.get_text() for text in bar.get_yticklabels()] == ["0", "1"]


def test_heatmap_colours_in_light_and_dark_style() -> None:
    for style, palette in PALETTES.items():
        (image,) = heatmap([[-3.0, 0.5, 7.0, np.nan]], style=style).axes[0].images
        low, middle, high, missing = (to_hex(c) for c in image.to_rgba(image.get_array())[0])
        assert (low, high, missing) == (palette.shades[0][1], palette.shades[-1][1], palette.missing)
        brightness = [int(c[1:3], 16) + int(c[3:5], 16) + int(c[5:], 16) for c in (low, middle, high)]
        assert brightness == sorted(brightness, reverse=style != "dark")


def test_long_column_labels_are_rotated_and_shortened() -> None:
    figure = heatmap(np.eye(2), ["a", "b"], ["x", "a label that is far longer than its column"])
    assert {text.get_rotation() for text in figure.axes[0].get_xticklabels()} == {90}
    assert x_labels(figure.axes[0])[1] == "a label that is far l..."
    figure = heatmap(np.eye(2), ["a", "b"], ["x", "y"])
    assert {text.get_rotation() for text in figure.axes[0].get_xticklabels()} == {0}


def test_large_heatmap_has_limited_size_and_no_values() -> None:
    figure = heatmap(np.random.default_rng(0).random((20, 512)))
    assert max(figure.get_size_inches()) < 12
    assert not figure.axes[0].texts


@pytest.mark.parametrize(
    ("values", "rows", "columns"),
    [([1.0], None, None), (np.zeros((0, 3)), None, None), (np.eye(2), ["a"], None), (np.eye(2), None, ["a", "b", "c"])],
)
def test_heatmap_rejects_mismatched_labels(values: Any, rows: Any, columns: Any) -> None:
    with pytest.raises(ValueError, match=r"heat map needs|labels"):
        heatmap(values, rows, columns)


def test_wide_heatmaps_are_drawn_in_several_rows() -> None:
    figure = heatmaps({str(n): (np.eye(20), ["word"] * 20, ["word"] * 20) for n in range(3)})
    rows = {round(axes.get_subplotspec().rowspan.start) for axes in figure.axes[:3]}  # type: ignore[union-attr]
    assert len(rows) > 1 and figure.get_figwidth() < 20


def test_heatmaps_share_one_scale_and_have_own_titles() -> None:
    figure = heatmaps({"left": (np.eye(3), "abc", "xyz"), "right": (np.eye(3)[::-1], "def", "uvw")})
    left, right, _ = figure.axes
    assert (left.get_title("left"), right.get_title("left")) == ("left", "right")
    assert (y_labels(left), x_labels(right)) == (list("abc"), list("uvw"))
    assert left.images[0].get_clim() == right.images[0].get_clim() == (0, 1)
    np.testing.assert_array_equal(right.images[0].get_array(), np.eye(3)[::-1])  # type: ignore[arg-type]


# ------------------------------------------------------------------ curves
def test_curves_have_values_name_and_colour() -> None:
    x = np.arange(50)
    figure = curves({"low": (x, 0 * x), "high": (x, 0 * x + 9.0)}, "Loss", "step", "nats")
    (axes,) = figure.axes
    low, high = axes.lines
    np.testing.assert_array_equal(high.get_xydata(), np.stack([x, 0 * x + 9.0], 1))  # type: ignore[arg-type]
    assert (low.get_color(), high.get_color()) == PALETTES["light"].series[:2]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("step", "nats")
    legend = axes.get_legend()
    assert legend is not None and [text.get_text() for text in legend.get_texts()] == ["low", "high"]


@pytest.mark.parametrize("log", ["", "xy"])
@pytest.mark.parametrize(
    ("x", "y"),
    [
        ([], []), ([1], [2]), ([1, 2], [np.nan, np.inf]), ([5, 5], [3, 3]), ([0, 1e7], [1e-7, 2e-7]),
        ([0, 1, 10], [-1, 0, 5]), ([1e-9, 1e9], [1e-150, 1e150]),
    ],
)  # fmt: skip
def test_degenerate_curves_give_no_warning(x: list[float], y: list[float], log: str) -> None:
    figure = curves({"only": (x, y)}, log=log, marks={"here": 3})
    with np.errstate(all="raise", under="ignore"):
        assert encode(figure, ".png", 30)


def test_non_finite_values_leave_gaps_and_single_values_are_points() -> None:
    y = np.arange(100.0)
    y[20:80], y[50] = np.inf, 7.0
    (line,) = curves({"only": (np.arange(100), y)}).axes[0].lines
    data: npt.NDArray[Any] = np.asarray(line.get_ydata())
    assert np.isnan(data[21:50]).all() and data[50] == 7
    assert line.get_markevery() == [50] and line.get_marker() == "o"


def test_log_axes_have_short_plain_numbers() -> None:
    x = np.arange(1.0, 8.0)
    (axes,) = curves({"only": (x * 30, 10**x)}, log="xy").axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    axes.figure.draw_without_rendering()  # type: ignore[union-attr]
    assert {"50", "100", "200"} <= set(x_labels(axes))
    assert {"1 k", "100 k", "10 M"} <= set(y_labels(axes))
    assert curves({"only": (x, -x)}, log="y").axes[0].get_yscale() == "linear"  # no value has a logarithm


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.5, "0.5"),
        (-20, "-20"),
        (12000, "12,000"),
        (5e5, "500 k"),
        (1.2e6, "1.2 M"),
        (3e12, "3e12"),
        (1e9, "1e9"),
        (1e-14, "1e-14"),
        (2e-5, "2e-5"),
    ],
)
def test_number_format(value: float, text: str) -> None:
    assert brief(value) == text


def test_numbers_of_an_axis_are_written_alike() -> None:
    flops, tokens = [3e8, 1e9, 1e10], [500, 20_000, 50_000, 100_000]
    assert [brief(value, max(flops)) for value in flops] == ["3e8", "1e9", "1e10"]
    assert [brief(value, max(tokens)) for value in tokens] == ["500", "20 k", "50 k", "100 k"]
    (axes,) = curves({"a": (tokens, [1, 2, 3, 4])}).axes
    assert axes.xaxis.get_major_formatter()(20_000, None) == "20 k"


def test_matplotlib_formats_and_vertical_marks() -> None:
    x = np.arange(11.0)
    (axes,) = curves({"a": (x, x), "b": (x, -x)}, formats={"b": "C7--"}, marks={"half": 5.0}).axes
    _, dashed, mark = axes.lines
    assert (dashed.get_linestyle(), to_hex(dashed.get_color())) == ("--", PALETTES["light"].series[7])
    assert list(mark.get_xdata()) == [5, 5]  # type: ignore[arg-type]
    assert [text.get_text() for text in axes.texts] == ["half"]


def test_long_legends_use_several_rows() -> None:
    lines = {f"a line with a long name {n}": ([0, 1], [n, n]) for n in range(5)}
    legend = curves(lines).axes[0].get_legend()
    assert legend is not None and legend._ncols < 5  # type: ignore[attr-defined]


@pytest.mark.parametrize("longest", [8, 11, 14, 40])
def test_axes_are_as_wide_below_a_long_legend(longest: int) -> None:
    figure = curves({str(n) * longest: ([0, 1], [n, n]) for n in range(4)})
    figure.canvas.draw()
    assert figure.axes[0].bbox.x1 > 0.95 * figure.bbox.width


# ------------------------------------------------------------------ bars
def test_bars_have_words_probabilities_and_one_scale() -> None:
    figure = bars(
        {"causal": ("sees the left", [("mat", 0.4), ("dog", 0.1)]), "masked": ("sees both", [("sofa", 0.8)])}, "T"
    )
    left, right = figure.axes
    assert [patch.get_width() for patch in left.patches] == [0.4, 0.1]  # type: ignore[attr-defined]
    assert [text.get_text() for text in left.texts] == ["40.0%", "10.0%"]
    assert (y_labels(left), y_labels(right)) == (["mat", "dog"], ["sofa"])
    assert left.get_xlim() == right.get_xlim() and left.get_ylim() == right.get_ylim()
    assert left.get_title("left") == "causal\nsees the left"
    assert encode(bars({"none": ("", [])}), ".png", 30)


# ------------------------------------------------------------------ points
def test_scatter_classes_have_colour_label_and_legend() -> None:
    points = np.array([[0.0, 0], [2, 0], [4, 6], [10, 10]])
    figure = scatter({"a": points, "b": -points}, [0, 0, 0, 2], ["zero", "none", "two"], "ten")
    first, second = figure.axes
    found = {
        to_hex(c): tuple(at)
        for c, at in zip(first.collections[0].get_facecolor(), first.collections[0].get_offsets(), strict=True)
    }  # type: ignore[arg-type]
    assert found[CLASSES[1]] == (10, 10)  # the second class that has points
    assert set(found) == set(CLASSES[:2])
    assert {text.get_text(): text.get_position() for text in first.texts} == {"zero": (2, 0), "two": (10, 10)}
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["zero", "two"]
    assert (first.get_title("left"), second.get_title("left")) == ("a", "b")


def test_scatter_without_classes_or_with_too_many_has_one_colour() -> None:
    names = [f"class {number} with a long name\n" for number in range(100)]
    for labels in (None, np.arange(100)):
        figure = scatter({"many": np.eye(100)[:, :2]}, labels, names, "many")
        assert {to_hex(c) for c in figure.axes[0].collections[0].get_facecolor()} == {PALETTES["light"].series[0]}  # type: ignore[union-attr]
        assert not figure.legends
    assert encode(scatter({"one place": np.zeros((5, 2))}, [0] * 5, ["ü"]), ".png", 30)
    assert encode(scatter({"none": np.zeros((0, 2))}), ".png", 30)


def test_numbered_points_and_names() -> None:
    points = np.array([[0.0, 1.0], [2.0, 3.0]])
    figure = numbered_points({"layer 1": points, "layer 2": points * 2}, ["first", "second"], "Words")
    axes = figure.axes[1]
    assert [(text.get_text(), tuple(text.xy)) for text in axes.texts] == [("1", (0, 2)), ("2", (4, 6))]  # type: ignore[attr-defined]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["1: first", "2: second"]
    assert axes.get_aspect() == 1


def test_words_are_placed_at_their_points() -> None:
    names = {"left": (-2.0, 0.0), "right": (2.0, 0.0), "above": (0.0, 1.0), "below": (0.0, -1.0)}
    figure = word_map(list(names), list(names.values()), "A map", "of four words")
    (axes,) = figure.axes
    assert {text.get_text(): tuple(text.xy) for text in axes.texts} == names  # type: ignore[attr-defined]
    assert not axes.yaxis_inverted() and not axes.xaxis_inverted()
    assert axes.get_aspect() == 1


def test_differing_parts_are_highlighted() -> None:
    figure = side_by_side(
        [("output", "logits", "logits"), ("memory", "one vector", "all of " * 20)], ("RNN", "Transformer")
    )
    (table,) = figure.axes[0].tables
    cells = table.get_celld()
    same, other = cells[1, 1].get_facecolor(), cells[2, 1].get_facecolor()
    assert same == cells[1, 2].get_facecolor() != other == cells[2, 2].get_facecolor()
    assert cells[0, 2].get_text().get_text() == "Transformer"
    assert "\n" in cells[2, 2].get_text().get_text()


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (1, 200, ["1", "2", "5", "10", "20", "50", "100", "200"]),
        (5.1, 6.9, ["6"]),
        (1e-14, 2, ["1e-14", "1e-8", "0.01"]),
    ],
)
def test_log_ticks_are_round_and_few(low: float, high: float, ticks: list[str]) -> None:
    (axes,) = curves({"only": ([low, high], [1, 2])}, log="x").axes
    axes.figure.draw_without_rendering()  # type: ignore[union-attr]
    shown = [
        text for text, at in zip(x_labels(axes), axes.get_xticks(), strict=True) if low * 0.99 <= at <= high * 1.01
    ]
    assert set(ticks) <= set(shown) and len(shown) <= 10


def test_integer_axes_have_integer_ticks() -> None:
    (axes,) = curves({"only": ([0, 1, 2, 3], [0.1, 0.2, 0.3, 0.4])}).axes
    assert all(float(at).is_integer() for at in axes.get_xticks())
    assert not all(float(at).is_integer() for at in axes.get_yticks())
