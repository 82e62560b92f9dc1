"""Figures of plain arrays: heat maps, curves, bars and points. Each function returns a Matplotlib `Figure`.

    from heedful.plots import figures, style
    style.save(figures.heatmap(weights, rows=target, columns=source, title="Attention"), "attention.pdf")

N points.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from heedful.plots.style import CLASSES, Figure, Palette, Style, drawing, label
from heedful.plots.text_heatmap import Grid, as_grid

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

Labels = Sequence[str] | None
CELL, LARGEST = 0.36, 9.0  # inches of a cell, and of a whole heat map, at most
WIDEST = 16.0  # inches of a row of heat maps, at most; the others follow below
TICKS = ((1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0), (1.0, 2.0, 5.0), (1.0, 3.0))  # parts of a decade
WIDEST_LEGEND = 0.84  # of the figure; beside a wider one the axes would become narrow
NAMED = 40  # classes with a name; more names would cover the points


# ------------------------------------------------------------------ heat maps
def heatmap(
    values: npt.ArrayLike,
    rows: Labels = None,
    columns: Labels = None,
    title: str = "",
    low: float = 0.0,
    high: float = 1.0,
    style: Style = "light",
) -> Figure:
    """A grid of values between low and high, with the labels of its columns on top."""
    return _heatmaps({"": (as_grid(values, rows, columns), rows, columns)}, title, low, high, style)


def heatmaps(
    panels: Mapping[str, tuple[npt.ArrayLike, Labels, Labels]], title: str = "", style: Style = "light"
) -> Figure:
    """Grids (values in [0, 1], labels of rows, labels of columns) side by side, each under its title."""
    grids = {name: (as_grid(values, rows, columns), rows, columns) for name, (values, rows, columns) in panels.items()}
    return _heatmaps(grids, title, 0.0, 1.0, style)


def _heatmaps(
    panels: Mapping[str, tuple[Grid, Labels, Labels]], title: str, low: float, high: float, style: Style
) -> Figure:
    cells = [_cell(grid, rows, columns) for grid, rows, columns in panels.values()]
    wide = [
        grid.shape[1] * side + _room(rows) for (grid, rows, _), (side, _) in zip(panels.values(), cells, strict=True)
    ]
    tall = [
        grid.shape[0] * side + (_room(columns) if _turned(columns, across) else 0.3)
        for (grid, _, columns), (across, side) in zip(panels.values(), cells, strict=True)
    ]
    across = len(panels) if sum(wide) <= WIDEST else max(1, int(WIDEST / max(wide)))
    lines = math.ceil(len(panels) / across)
    ratios = wide if lines == 1 else [max(wide)] * across
    with drawing(style, sum(ratios) + 1.1, lines * (max(tall) + 0.3) + (0.3 if title else 0.0), title) as (
        figure,
        palette,
    ):
        places = [*figure.subplots(lines, across, width_ratios=ratios, squeeze=False).flat]
        every = places[: len(panels)]
        for axes in places[len(panels) :]:
            axes.set_axis_off()
        for axes, (name, (grid, rows, columns)), sides in zip(every, panels.items(), cells, strict=True):
            _heatmap(axes, grid, rows, columns, name, (low, high), sides, palette)
        bar = figure.colorbar(
            every[-1].images[0], ax=every, shrink=min(1.0, 1.8 / (lines * max(tall))), aspect=14, pad=0.02
        )
        bar.set_ticks([low, high])
        bar.outline.set_visible(False)
    return figure


def _heatmap(
    axes: Axes, grid: Grid, rows: Labels, columns: Labels, title: str,
    limits: tuple[float, float], sides: tuple[float, float], palette: Palette,
) -> None:  # fmt: skip
    low, high = limits
    side = min(sides)
    shown = np.ma.masked_invalid(grid)
    axes.imshow(shown, cmap=palette.sequential, vmin=low, vmax=high, interpolation="nearest")
    axes.set_aspect("equal" if sides[0] == sides[1] else "auto")
    size = max(3.0, min(9.5, 0.62 * 72 * side))
    for axis, labels in ((axes.xaxis, columns), (axes.yaxis, rows)):
        axis.set_ticks(
            range(len(labels or ())), [label(text) for text in labels or ()], fontsize=size, color=palette.ink
        )
    axes.tick_params(length=0, top=False, bottom=False, labeltop=True, labelbottom=False)
    axes.tick_params(axis="x", rotation=90 if _turned(columns, sides[0]) else 0)
    axes.spines[:].set_visible(False)
    axes.set_title(label(title, 60), pad=8)
    if side >= 0.08:  # gaps between the cells
        axes.set_xticks(np.arange(0.5, grid.shape[1] - 1), minor=True)
        axes.set_yticks(np.arange(0.5, grid.shape[0] - 1), minor=True)
        axes.grid(which="minor", color=palette.paper, linewidth=1.0)
        axes.tick_params(which="minor", length=0)
    if side >= 0.28:
        for (i, j), value in np.ndenumerate(grid):
            share = (value - low) / (high - low)
            if share >= 0.005:
                colour = palette.paper if share > 0.5 else palette.ink if share >= 0.1 else palette.quiet
                text = f"{value:.2f}".replace("0.", ".", 1)
                axes.text(j, i, text, ha="center", va="center", fontsize="x-small", color=colour)


def _cell(grid: Grid, rows: Labels, columns: Labels) -> tuple[float, float]:
    """The width and height of a cell in inches: a square, unless a grid without labels is a long strip."""
    tall, wide = (min(CELL, LARGEST / count) for count in grid.shape)
    if rows is not None or columns is not None or grid.shape[0] == grid.shape[1]:
        return min(wide, tall), min(wide, tall)
    return wide, min(tall, 0.12) if grid.shape[1] > 4 * grid.shape[0] else tall


def _room(labels: Labels) -> float:
    """About how many inches the longest label takes."""
    return 0.15 + 0.075 * max((len(label(text)) for text in labels or ()), default=0)


def _turned(columns: Labels, side: float) -> bool:
    return _room(columns) - 0.1 > side


# ------------------------------------------------------------------ curves
def curves(
    lines: Mapping[str, tuple[npt.ArrayLike, npt.ArrayLike]],
    title: str = "",
    x_label: str = "",
    y_label: str = "",
    log: str = "",
    formats: Mapping[str, str] | None = None,
    marks: Mapping[str, float] | None = None,
    style: Style = "light",
) -> Figure:
    """Named lines (x, y) over common axes; what is not finite leaves a gap.

    Axes named in `log`, as in "xy", are logarithmic. `formats` are Matplotlib's, as in "C0--". `marks` are
    named vertical lines.
    """
    data = {name: (_numbers(x, "x" in log), _numbers(y, "y" in log)) for name, (x, y) in lines.items()}
    with drawing(style, 7.0, 4.2, title) as (figure, palette):
        axes = figure.subplots()
        for name, (x, y) in data.items():
            few = len(x) <= 40 and "-" not in (formats or {}).get(name, "")
            alone = np.isfinite(y) & ~np.isfinite(np.append(y[1:], np.nan)) & ~np.isfinite(np.append(np.nan, y[:-1]))
            axes.plot(
                x, y, *filter(None, [(formats or {}).get(name)]), label=label(name, 60), markersize=4,
                marker="o" if few or alone.any() else "", markevery=None if few else np.flatnonzero(alone).tolist(),
                linewidth=1.2 if len(x) > 200 else 1.8,
            )  # fmt: skip
        for place, name in enumerate("xy"):
            scale_axis(axes, name, name in log, [pair[place] for pair in data.values()])
        axes.grid(axis="y")
        axes.set_xlabel(label(x_label, 100))
        axes.set_ylabel(label(y_label, 60))
        for name, at in (marks or {}).items():
            axes.axvline(at, color=palette.quiet, linewidth=1)
            axes.annotate(
                label(name, 40), (at, 0.5), (6, 0), xycoords=("data", "axes fraction"), textcoords="offset points",
                color=palette.quiet, fontsize="small", va="center",
            )  # fmt: skip
        put_legend(axes)
    return figure


def _numbers(values: npt.ArrayLike, log: bool) -> Grid:
    """Numbers as an axis can show them; what is infinite, or has no logarithm, is not a number."""
    numbers = np.asarray(values, dtype=np.float64)
    return np.where(np.isfinite(numbers) & ((numbers > 0) | (not log)), numbers, np.nan)


def scale_axis(axes: Axes, name: str, log: bool, values: Sequence[Grid], most: int = 9) -> None:
    """Ticks with short plain numbers, about as many as `most`; those of whole numbers are whole."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    axis = axes.xaxis if name == "x" else axes.yaxis
    finite = np.concatenate([*map(np.ravel, values), []])
    finite = finite[np.isfinite(finite)]
    if log and finite.size:
        decades = math.log10(finite.max()) - math.log10(finite.min())
        parts = next((some for some in TICKS if len(some) * decades <= most), (1.0,))
        axes.set(**{f"{name}scale": "log"})
        axis.set_major_locator(LogLocator(subs=parts, numticks=most + 1))
        axis.set_minor_locator(NullLocator())
    else:
        whole = bool((finite == finite.round()).all())
        axis.set_major_locator(MaxNLocator(7, steps=[1, 2, 2.5, 5, 10], integer=whole))
    largest = float(abs(finite).max(initial=0))
    axis.set_major_formatter(FuncFormatter(lambda value, _: brief(value, largest)))


def brief(value: float, largest: float = 0.0) -> str:
    """A number in few characters, written like the largest beside it: 0.5, 20, 12,000, 500 k, 1.2 M, 3e12."""
    size, largest = abs(value), max(abs(value), largest)
    if 0 < size < 1e-4 or (size >= 1e5 and largest >= 1e9):
        return f"{value:.3g}".replace("e+0", "e").replace("e+", "e").replace("e-0", "e-")
    for unit, count in (("M", 1e6), ("k", 1e3)):
        if size >= count and largest >= 1e5:
            return f"{value / count:.4g} {unit}"
    return f"{value:,.6f}".rstrip("0").rstrip(".")


def put_legend(axes: Axes) -> None:
    """The names of the lines above the axes, in as many columns as have room."""
    figure = axes.get_figure()
    assert figure is not None
    count = len(axes.get_legend_handles_labels()[1])
    for rows in range(1, count + 1):
        columns = math.ceil(count / rows)
        legend = axes.legend(loc="lower left", bbox_to_anchor=(0, 1.02), ncols=columns, columnspacing=1.5)
        if legend.get_window_extent().width <= WIDEST_LEGEND * figure.bbox.width:
            break


def legend_below(figure: Figure, handles: Sequence[Artist], columns: int = 1, length: float = 2.0) -> None:
    """The legend of a whole figure, below it; `length` is that of its lines: 1 is enough for points."""
    figure.legend(handles=handles, loc="outside lower left", ncols=columns, handlelength=length, borderaxespad=0.6)


# ------------------------------------------------------------------ bars
def bars(
    charts: Mapping[str, tuple[str, Sequence[tuple[str, float]]]], title: str = "", style: Style = "light"
) -> Figure:
    """Charts of probabilities side by side, each under its name and a line about it; all bars have one scale."""
    largest = max((share for _, rows in charts.values() for _, share in rows), default=1.0) or 1.0
    most = max((len(rows) for _, rows in charts.values()), default=0)
    with drawing(style, 0.5 + 4.3 * len(charts), 1.4 + 0.31 * max(1, most), title) as (figure, palette):
        for number, (axes, (name, (about, rows))) in enumerate(
            zip(figure.subplots(1, len(charts), squeeze=False)[0], charts.items(), strict=True)
        ):
            values = [share for _, share in rows]
            drawn = axes.barh(range(len(rows)), values, height=0.65, color=f"C{number % 7}")
            axes.bar_label(
                drawn, [f"{share:.1%}" for share in values], padding=5, fontsize="small", color=palette.quiet
            )
            axes.set_yticks(range(len(rows)), [label(word) for word, _ in rows], fontsize="medium", color=palette.ink)
            axes.set(xlim=(0, 1.18 * largest), ylim=(max(1, most) - 0.5, -0.5), xticks=[])
            axes.spines[:].set_visible(False)
            axes.axvline(0, color=palette.line)
            lines = [*textwrap.wrap(label(name, 110), 50), *textwrap.wrap(label(about, 110), 62)]
            axes.set_title("\n".join(lines[:4]), fontsize="medium")
    return figure


# ------------------------------------------------------------------ points
def scatter(
    panels: Mapping[str, npt.ArrayLike],
    labels: npt.ArrayLike | None = None,
    names: Sequence[str] = (),
    title: str = "",
    style: Style = "light",
) -> Figure:
    """Maps of the same points (N, 2), each under its title; labels (N,) are indices into the names of the classes.

    Points are drawn in a random order, which favours no class, and the name of each class stands at their median.
    """
    from matplotlib.patheffects import withStroke

    classes = _classes(labels, names)
    side = 5.8 if len(panels) == 1 else 4.0
    with drawing(style, side * len(panels) + 0.3, side + 1.0, title) as (figure, palette):
        every = figure.subplots(1, len(panels), squeeze=False)[0]
        for axes, (name, values) in zip(every, panels.items(), strict=True):
            points = np.asarray(values, dtype=np.float64)
            order = np.random.default_rng(0).permutation(len(points))
            colours = np.full(len(points), palette.series[0], dtype="U7")
            for number, (_, members) in enumerate(classes):
                colours[members] = CLASSES[number % len(CLASSES)]
            size = max(1.0, min(36.0, 8000 * (side / 4) ** 2 / max(1, len(points))))
            axes.scatter(points[order, 0], points[order, 1], s=size, c=colours[order].tolist(), linewidths=0)
            _panel(axes, palette, name)
            for text, members in classes:
                axes.text(
                    *np.median(points[members], axis=0), text, ha="center", va="center", fontsize="large",
                    path_effects=[withStroke(linewidth=3, foreground=palette.paper)],
                )  # fmt: skip
        handles = [
            every[0].plot([], [], "o", color=CLASSES[number % len(CLASSES)], label=name)[0]
            for number, (name, _) in enumerate(classes)
        ]
        if handles:
            columns = max(
                1, min(len(handles), int(13 * side * len(panels)) // (6 + max(len(name) for name, _ in classes)))
            )
            legend_below(figure, handles, columns, length=1.0)
    return figure


def _classes(labels: npt.ArrayLike | None, names: Sequence[str]) -> list[tuple[str, npt.NDArray[np.int64]]]:
    """The name of each class that has points, and which points; none where classes are unknown or too many."""
    if labels is None:
        return []
    given = np.asarray(labels)
    found = [(label(name, 20), np.flatnonzero(given == number)) for number, name in enumerate(names)]
    found = [(name, members) for name, members in found if len(members)]
    return found if len(found) <= NAMED else []


def numbered_points(
    panels: Mapping[str, npt.ArrayLike], names: Sequence[str], title: str = "", style: Style = "light"
) -> Figure:
    """Maps of the same points (N, 2), numbered, with their names below; both axes of a map have one scale."""
    with drawing(style, 2.6 * len(panels) + 0.3, 3.2 + 0.22 * len(names), title) as (figure, palette):
        colours = [palette.series[number % len(palette.series)] for number in range(len(names))]
        every = figure.subplots(1, len(panels), squeeze=False)[0]
        for axes, (name, values) in zip(every, panels.items(), strict=True):
            points = np.asarray(values, dtype=np.float64)
            axes.scatter(points[:, 0], points[:, 1], s=36, c=colours)
            for number, point in enumerate(points, 1):
                axes.annotate(str(number), point, (4, 4), textcoords="offset points", fontsize="small")
            _panel(axes, palette, name)
            axes.set_aspect("equal", adjustable="datalim")
            axes.margins(0.2)
        legend_below(
            figure,
            [
                every[0].plot([], [], "o", color=colour, label=f"{number}: {label(name, 90)}")[0]
                for number, (name, colour) in enumerate(zip(names, colours, strict=True), 1)
            ],
            length=1.0,
        )
    return figure


def word_map(
    names: Sequence[str], points: npt.ArrayLike, title: str = "", about: str = "", style: Style = "light"
) -> Figure:
    """Words at their points (N, 2), both axes in one scale."""
    given = np.asarray(points, dtype=np.float64)
    with drawing(style, 7.2, 7.6, title) as (figure, palette):
        axes = figure.subplots()
        axes.scatter(given[:, 0], given[:, 1], s=14, color=palette.series[0])
        for name, point in zip(names, given, strict=True):
            axes.annotate(label(name, 40), point, (0, 5), textcoords="offset points", ha="center")
        _panel(axes, palette, about)
        axes.set_aspect("equal", adjustable="datalim")
        axes.margins(0.12)
    return figure


def _panel(axes: Axes, palette: Palette, title: str) -> None:
    """Axes without numbers, whose points matter only beside each other."""
    axes.set(xticks=[], yticks=[], facecolor=palette.panel)
    axes.spines[:].set_visible(False)
    axes.set_title(label(title, 80), color=palette.quiet)


# ------------------------------------------------------------------ tables
def side_by_side(rows: Sequence[tuple[str, str, str]], titles: tuple[str, str], style: Style = "light") -> Figure:
    """What two things have in each part (name, left, right); parts in which they differ are marked."""
    from matplotlib.transforms import Bbox

    wrapped = [(name, *("\n".join(textwrap.wrap(text, 42)) for text in pair)) for name, *pair in rows]
    lines = [1 + max(text.count("\n") for text in row) for row in wrapped]
    with drawing(style, 8.4, 0.6 + 0.2 * sum(lines) + 0.22 * len(rows)) as (figure, palette):
        axes = figure.subplots()
        axes.set_axis_off()
        mark = palette.shades[1][1]
        table = axes.table(
            wrapped, colLabels=["", *titles], colWidths=[0.2, 0.4, 0.4], cellLoc="left", bbox=Bbox.unit(),
            cellColours=[[palette.paper, *[palette.panel if left == right else mark] * 2] for _, left, right in rows],
            edges="closed",
        )  # fmt: skip
        table.auto_set_font_size(False)
        for (row, column), cell in table.get_celld().items():
            cell.set(edgecolor=palette.paper, linewidth=3, height=(lines[row - 1] + 1) if row else 1.6)
            cell.get_text().set_color(palette.quiet if not column else palette.ink)
            if not row:
                cell.set_facecolor(palette.paper)
    return figure
