"""Pictures: heat maps and curves as PNG files, and heat maps as text for a terminal."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping, Sequence
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from heedful.errors import UserError, printable, short
from heedful.files.writing import write_atomic
from heedful.plots.fonts import written

Grid = npt.NDArray[np.float64]
Colour = tuple[int, int, int]

PAPER: Colour = (255, 255, 255)
INK: Colour = (38, 44, 54)
QUIET: Colour = (108, 116, 128)
LINE: Colour = (228, 231, 236)
SHADES: tuple[Colour, ...] = ((245, 248, 251), (193, 217, 233), (105, 166, 204), (36, 101, 155), (10, 42, 84))
SERIES: tuple[Colour, ...] = ((31, 96, 164), (214, 104, 36), (44, 140, 92), (150, 74, 156), (120, 96, 70))
BLOCKS = ((0.75, "█"), (0.5, "▓"), (0.25, "▒"), (0.05, "░"))  # from this value up

DOTS = 2  # pixels of the file to one unit of layout, so that sharp screens and print look right
FINE = 2  # further pixels while drawing, averaged away at the end: smooth edges
SMALL, NORMAL, LARGE = 11.0, 13.0, 16.0  # sizes of letters


def require_png(path: Path, where: str) -> None:
    """Refuse a name that promises another kind of picture than is drawn."""
    if path.suffix.lower() != ".png":
        raise UserError("a picture is a PNG file", where=where, found=str(path), expected="a name that ends in .png")


class Page:
    """A white page and a few ways to draw on it; lengths are in units."""

    def __init__(self, width: float, height: float) -> None:
        self.unit = DOTS * FINE
        self.image = Image.new("RGB", (math.ceil(width) * self.unit, math.ceil(height) * self.unit), PAPER)
        self.draw = ImageDraw.Draw(self.image)

    def box(self, x: float, y: float, width: float, height: float, fill: Colour, corner: float = 0.0) -> None:
        left, top, right, bottom = (round(n * self.unit) for n in (x, y, x + width, y + height))
        shape = (left, top, max(left, right - 1), max(top, bottom - 1))
        if corner:
            self.draw.rounded_rectangle(shape, radius=corner * self.unit, fill=fill)
        else:
            self.draw.rectangle(shape, fill=fill)

    def line(self, points: Sequence[tuple[float, float]], colour: Colour = LINE, thick: float = 1.0) -> None:
        at = [(x * self.unit, y * self.unit) for x, y in points]
        self.draw.line(at, fill=colour, width=max(1, round(thick * self.unit)), joint="curve")

    def dashes(self, points: Sequence[tuple[float, float]], colour: Colour = LINE, thick: float = 1.0) -> None:
        """A line of dashes that run on around its corners."""
        long, pause = 5.0, 4.0
        at = 0.0  # how far into a dash and its pause
        for (x, y), (to_x, to_y) in pairwise(points):
            length, done = math.hypot(to_x - x, to_y - y), 0.0
            while done < length:
                part = min((long if at < long else long + pause) - at, length - done)
                if at < long:
                    begin, end = done / length, (done + part) / length
                    ends = [(x + share * (to_x - x), y + share * (to_y - y)) for share in (begin, end)]
                    self.line(ends, colour, thick)
                done, at = done + part, at + part
                at = 0.0 if at >= long + pause - 1e-9 else at

    def text(
        self,
        x: float,
        y: float,
        text: str,
        size: float = NORMAL,
        colour: Colour = INK,
        anchor: str = "lm",
        turned: bool = False,
    ) -> None:
        """Text with its left, middle or right and its top, middle or bottom (two letters) at the point."""
        mark = written(text, round(size * self.unit))
        if turned:
            mark = mark.transpose(Image.Transpose.ROTATE_90)
        share = {"l": 0.0, "t": 0.0, "m": 0.5, "r": 1.0, "b": 1.0}
        left, top = x * self.unit - share[anchor[0]] * mark.width, y * self.unit - share[anchor[1]] * mark.height
        self.image.paste(Image.new("RGB", mark.size, colour), (round(left), round(top)), mark)

    def save(self, path: str | Path) -> None:
        file = BytesIO()
        self.image.reduce(FINE).save(file, format="PNG", optimize=True, dpi=(96 * DOTS, 96 * DOTS))
        write_atomic(Path(path), file.getvalue())


# ------------------------------------------------------------------ heat maps
def heatmap(
    values: npt.ArrayLike,
    path: str | Path,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    title: str | None = None,
    low: float = 0.0,
    high: float = 1.0,
) -> None:
    """Draw a grid of values between low and high, the higher the darker; the columns' labels stand on top."""
    _map(values, rows, columns, title, low, high).save(path)


def heatmaps(panels: Mapping[str, tuple[npt.ArrayLike, Sequence[str], Sequence[str]]], path: str | Path) -> None:
    """Draw grids (values in [0, 1], labels of rows, of columns) side by side, each under its title."""
    maps = [_map(values, rows, columns, title, 0.0, 1.0) for title, (values, rows, columns) in panels.items()]
    unit = maps[0].unit
    page = Page(sum(one.image.width for one in maps) / unit, max(one.image.height for one in maps) / unit)
    left = 0
    for one in maps:
        page.image.paste(one.image, (left, 0))
        left += one.image.width
    page.save(path)


def _map(
    values: npt.ArrayLike,
    rows: Sequence[str] | None,
    columns: Sequence[str] | None,
    title: str | None,
    low: float,
    high: float,
) -> Page:
    grid = _grid(values, rows, columns)
    height, width = grid.shape
    side, tall = (max(2.0, min(34.0, 900 / n)) for n in (width, height))
    if rows is not None or columns is not None or width == height:
        side = tall = min(side, tall)
    elif width > 4 * height:
        tall = min(tall, 12.0)  # a long strip
    row_names, column_names = [_label(text) for text in rows or ()], [_label(text) for text in columns or ()]
    size = max(7.0, min(NORMAL, 0.62 * min(side, tall)))
    left = 20 + (12 + max(_width(name, size) for name in row_names) if row_names else 0)
    turned = any(_width(name, size) > side - 4 for name in column_names)
    top = 54.0 if title else 20.0
    if column_names:
        top += 12 + (max(_width(name, size) for name in column_names) if turned else size)
    page = Page(max(left + side * width + 84, 40 + (_width(title, LARGE) if title else 0)), top + tall * height + 24)
    if title:
        page.text(20, 30, title, LARGE)
    for j, name in enumerate(column_names):
        page.text(left + (j + 0.5) * side, top - 8, name, size, anchor="mb", turned=turned)
    for i, name in enumerate(row_names):
        page.text(left - 10, top + (i + 0.5) * tall, name, size, anchor="rm")
    shares = ((grid - low) / (high - low)).clip(0, 1)
    gap = 1.0 if min(side, tall) >= 8 else 0.0
    for i, j in np.ndindex(height, width):
        share = float(shares[i, j])
        shade = _shade(share)
        page.box(left + j * side, top + i * tall, side - gap, tall - gap, shade, corner=2.0 * gap)
        if min(side, tall) >= 28 and share >= 0.005:
            text = f"{grid[i, j]:.2f}".replace("0.", ".", 1)
            colour = PAPER if sum(shade) < 470 else INK if share >= 0.1 else QUIET
            page.text(left + (j + 0.5) * side - gap / 2, top + (i + 0.5) * tall, text, SMALL, colour, anchor="mm")
    _scale(page, left + side * width + 22, top, tall * height - gap, low, high)
    return page


def _scale(page: Page, x: float, y: float, height: float, low: float, high: float) -> None:
    """The bar that says which shade is which value."""
    height = min(height, 160.0)
    steps = max(2, int(height))
    for i in range(steps):
        page.box(x, y + i * height / steps, 10, height / steps + 0.5, _shade(1 - i / (steps - 1)))
    page.text(x + 16, y + 5, f"{high:g}", SMALL, QUIET)
    page.text(x + 16, y + height - 5, f"{low:g}", SMALL, QUIET)


def _shade(share: float) -> Colour:
    """The colour for a share between 0 and 1; what is no number is a warm grey, as if nothing were there."""
    if not math.isfinite(share):
        return (236, 230, 222)
    place = share * (len(SHADES) - 1)
    at = min(int(place), len(SHADES) - 2)
    r, g, b = (round(a + (place - at) * (z - a)) for a, z in zip(SHADES[at], SHADES[at + 1], strict=True))
    return r, g, b


def _grid(values: npt.ArrayLike, rows: Sequence[str] | None, columns: Sequence[str] | None) -> Grid:
    grid = np.asarray(values, dtype=np.float64)
    if grid.ndim != 2 or 0 in grid.shape:
        raise ValueError(f"a heat map needs rows and columns, got an array of shape {grid.shape}")
    for labels, count, what in ((rows, grid.shape[0], "row"), (columns, grid.shape[1], "column")):
        if labels is not None and len(labels) != count:
            raise ValueError(f"{count} {what}s have {len(labels)} labels")
    return grid


def _label(text: str, longest: int = 24) -> str:
    """A token as a picture shows it: no control characters, and not too long."""
    return short(printable(text.replace("\n", "\\n")), longest)


def _width(text: str, size: float) -> float:
    return written(text, round(size * 4)).width / 4


# ------------------------------------------------------------------ curves
class Pen(NamedTuple):
    """How a line is drawn."""

    colour: Colour
    dashed: bool = False


class Scale(NamedTuple):
    """An axis: where its ticks are, in the numbers that are drawn, and what is written at them."""

    ticks: list[float]
    names: list[str]

    def share(self, value: float) -> float:
        """How far along the axis a value is."""
        return (value - self.ticks[0]) / (self.ticks[-1] - self.ticks[0])


def curves(
    lines: Mapping[str, tuple[npt.ArrayLike, npt.ArrayLike]],
    path: str | Path,
    title: str | None = None,
    x_label: str = "",
    y_label: str = "",
    powers: str = "",
    pens: Mapping[str, Pen] | None = None,
    marks: Mapping[str, float] | None = None,
) -> None:
    """Draw named lines (x, y) over common axes; what is not finite leaves a gap.

    Axes named in `powers`, as in "xy", have equal steps for equal factors. Marks are named lines that stand at an x.
    """
    data = {name: (_drawn(x, "x" in powers), _drawn(y, "y" in powers)) for name, (x, y) in lines.items()}
    fine = [np.isfinite(x) & np.isfinite(y) for x, y in data.values()]
    across, up = (
        (_scale_of_powers if name in powers else _scale_of_numbers)(
            [line[axis][ok] for line, ok in zip(data.values(), fine, strict=True)]
        )
        for axis, name in enumerate("xy")
    )
    chosen = {name: (pens or {}).get(name, Pen(SERIES[n % len(SERIES)])) for n, name in enumerate(data)}
    wide, tall = 620.0, 320.0
    left = 26 + (22 if y_label else 0) + max(_width(name, SMALL) for name in up.names) + 8
    legend = _legend(list(data), wide)
    top = 24 + (34 if title else 0) + 22 * (1 + max(row for _, row in legend.values()) if legend else 1)
    page = Page(left + wide + 34, top + tall + 40 + (22 if x_label else 0))

    def place(x: float, y: float) -> tuple[float, float]:
        return left + across.share(x) * wide, top + tall - up.share(y) * tall

    if title:
        page.text(20, 30, title, LARGE)
    for value, name in zip(up.ticks, up.names, strict=True):
        page.line([place(across.ticks[0], value), place(across.ticks[-1], value)])
        page.text(left - 8, place(across.ticks[0], value)[1], name, SMALL, QUIET, anchor="rm")
    for value, name in zip(across.ticks, across.names, strict=True):
        x, y = place(value, up.ticks[0])
        page.line([(x, y), (x, y + 4)], QUIET)
        page.text(x, y + 8, name, SMALL, QUIET, anchor="mt")
    page.line([place(across.ticks[0], up.ticks[0]), place(across.ticks[-1], up.ticks[0])], QUIET)
    for name, value in (marks or {}).items():
        x, _ = place(float(_drawn(value, "x" in powers)), up.ticks[0])
        page.line([(x, top), (x, top + tall)], QUIET, 0.75)
        page.text(x + 6, top + tall / 2, name, SMALL, QUIET)
    page.text(left + wide / 2, top + tall + 32, x_label, NORMAL, anchor="mt")
    page.text(18, top + tall / 2, y_label, NORMAL, anchor="lm", turned=True)
    for (name, (xs, ys)), ok in zip(data.items(), fine, strict=True):
        pen = chosen[name]
        for begin, end in _runs(ok):
            points = [place(*point) for point in zip(xs[begin:end].tolist(), ys[begin:end].tolist(), strict=True)]
            stroke = page.dashes if pen.dashed else page.line
            stroke(points if len(points) > 1 else points * 2, pen.colour, 2.0 if len(points) <= 200 else 1.25)
            if end - begin == 1 or (len(xs) <= 40 and not pen.dashed):
                for px, py in points:
                    page.box(px - 2.5, py - 2.5, 5, 5, pen.colour, corner=2.5)
        at, row = legend[name]
        y = top - 19 - 22 * (max(row for _, row in legend.values()) - row)
        (page.dashes if pen.dashed else page.line)([(left + at, y), (left + at + 16, y)], pen.colour, 3.0)
        page.text(left + at + 22, y, _label(name, 40), NORMAL)
    page.save(path)


def _drawn(values: npt.ArrayLike, powers: bool) -> Grid:
    """Numbers as an axis has them; what has no logarithm is no number."""
    numbers = np.asarray(values, dtype=np.float64)
    return np.log10(np.where(numbers > 0, numbers, np.nan)) if powers else numbers


def _legend(names: Sequence[str], width: float) -> dict[str, tuple[float, int]]:
    """Where the name of each line stands: how far to the right, and in which row; rows have about as many names."""
    needs = [46 + _width(_label(name, 40), NORMAL) for name in names]
    each = math.ceil(len(names) / math.ceil(sum(needs) / (width + 24))) if names else 1
    places: dict[str, tuple[float, int]] = {}
    at, row, held = 0.0, 0, 0
    for name, need in zip(names, needs, strict=True):
        if held and (held == each or at + need > width + 24):
            at, row, held = 0.0, row + 1, 0
        places[name] = (at, row)
        at, held = at + need, held + 1
    return places


def _scale_of_numbers(parts: Sequence[Grid]) -> Scale:
    ticks = _ticks(parts)
    return Scale(ticks, _numbers(ticks))


def _scale_of_powers(parts: Sequence[Grid]) -> Scale:
    """Powers of ten, with 2 and 5 between them where there are few; given logarithms, as the lines are."""
    values = np.concatenate([*parts, []])
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 1.0)
    high = max(high, low + 0.1)
    if high - low > 3:
        step = math.ceil((high - low) / 8)
        ticks = [
            float(n) for n in range(step * math.floor(low / step - 1), step * math.ceil(high / step + 1) + 1, step)
        ]
    else:
        ticks = [n + math.log10(m) for n in range(math.floor(low) - 1, math.ceil(high) + 2) for m in (1, 2, 5)]
    first, last = max(t for t in ticks if t <= low + 1e-9), min(t for t in ticks if t >= high - 1e-9)
    ticks = [tick for tick in ticks if first <= tick <= last]
    return Scale(ticks, [_power(tick) for tick in ticks])


def _power(tick: float) -> str:
    """Ten to the tick, written out where that is short."""
    if not -4 <= tick <= 5:
        return f"{10 ** (tick - math.floor(tick)):.0f}e{math.floor(tick)}"
    return f"{10**tick:,.{max(0, -math.floor(tick + 1e-9))}f}"


def _ticks(parts: Sequence[Grid]) -> list[float]:
    """Round numbers, evenly spaced, that enclose all values."""
    values = np.concatenate([*parts, []])
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 1.0)
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        low, high = low - (abs(low) * 0.1 or 0.5), high + (abs(high) * 0.1 or 0.5)
    rough = (high - low) / 6
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * n for n in (1, 2, 2.5, 5, 10) if power * n >= rough)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [n * step for n in range(first, last + 1)]


def _numbers(ticks: Sequence[float]) -> list[str]:
    """The ticks as text, all with the digits that tell them apart."""
    step, most = ticks[1] - ticks[0], max(map(abs, ticks))
    if most >= 1e6 or step < 1e-5:
        return [f"{tick:.4g}" for tick in ticks]
    digits = next(n for n in range(7) if abs(round(step, n) - step) < 1e-6 * step)
    return [f"{tick + 0.0:,.{digits}f}" for tick in ticks]


def _runs(good: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Where stretches of good values begin and end."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], good, [False]]).astype(int)))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


# ------------------------------------------------------------------ heat maps as text
def text_heatmap(values: npt.ArrayLike, rows: Sequence[str], columns: Sequence[str], width: int = 80) -> str:
    """A grid of values in [0, 1] as shaded blocks, with the largest of each row named at its end.

    Columns whose labels do not fit into the width are numbered, and listed below.
    """
    grid = _grid(values, rows, columns)
    names, heads = ([_label(text, 18) for text in labels] for labels in (rows, columns))
    margin = max(map(_cells, names)) + 2
    notes = [f" {heads[j]} {grid[i, j]:.0%}" for i, j in enumerate(np.nan_to_num(grid).argmax(1))]
    room = width - margin - max(map(_cells, notes)) - 1
    widths = [max(3, _cells(head)) for head in heads]
    numbered = sum(widths) + len(widths) > room
    if numbered:
        widths = [max(2, len(str(len(heads))))] * len(heads)
    shown = [str(j + 1) for j in range(len(heads))] if numbered else heads
    lines: list[str] = []
    for part in _panels(widths, max(room, widths[0] + 1)):
        lines += [""] * bool(lines) + [" " * margin + " ".join(_fit(shown[j], widths[j]) for j in part).rstrip()]
        for i, name in enumerate(names):
            cells = " ".join(_block(grid[i, j]) * widths[j] for j in part)
            lines.append(" " * (margin - 2 - _cells(name)) + name + "  " + cells + notes[i])
    if numbered:
        lines += ["", *_wrapped([f"{j + 1} {head}" for j, head in enumerate(heads)], width)]
    return "\n".join(line.rstrip() for line in lines)


def _panels(widths: Sequence[int], room: int) -> list[list[int]]:
    """Columns split into as many stretches as are needed to fit."""
    panels: list[list[int]] = [[]]
    used = 0
    for j, width in enumerate(widths):
        if panels[-1] and used + width + 1 > room:
            panels.append([])
            used = 0
        panels[-1].append(j)
        used += width + 1
    return panels


def _block(value: float) -> str:
    return next((block for least, block in BLOCKS if value >= least), "·")


def _cells(text: str) -> int:
    """How many places of a terminal a text takes."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(bool(unicodedata.combining(c)) for c in text)


def _fit(text: str, width: int) -> str:
    return text + " " * (width - _cells(text))


def _wrapped(items: Sequence[str], width: int) -> list[str]:
    lines = [""]
    for item in items:
        if lines[-1] and _cells(lines[-1]) + 3 + _cells(item) > width:
            lines.append("")
        lines[-1] += ("   " if lines[-1] else "") + item
    return lines


# ------------------------------------------------------------------ points
def scatters(panels: Mapping[str, npt.ArrayLike], names: Sequence[str], path: str | Path, title: str) -> None:
    """Draw sets of the same points (N, 2) side by side, each under its title, numbered, with their names below."""
    side, gap, left, top, shades = 220.0, 26.0, 24.0, 92.0, (*SERIES, INK)
    labels = [f"{number}: {_label(name, 90)}" for number, name in enumerate(names, 1)]
    wide = max(len(panels) * (side + gap) - gap, *(_width(text, NORMAL) for text in [*labels, title]))
    page = Page(2 * left + wide, top + side + 28 + 20 * len(labels))
    page.text(20, 30, title, LARGE)
    for number, (name, values) in enumerate(panels.items()):
        x, points = left + number * (side + gap), np.asarray(values, dtype=np.float64)
        page.box(x, top, side, side, SHADES[0], corner=6.0)
        page.text(x + side / 2, top - 18, name, NORMAL, QUIET, anchor="mm")
        reach = 2.4 * max(float(np.abs(points - points.mean(0)).max(initial=0.0)), 1e-12)  # one scale for both axes
        for place, (px, py) in enumerate((points - points.mean(0)) / reach, 1):
            at = (x + side * (0.5 + px), top + side * (0.5 - py))
            page.box(at[0] - 3.5, at[1] - 3.5, 7, 7, shades[(place - 1) % len(shades)], corner=3.5)
            page.text(at[0] + 7, at[1] - 7, str(place), SMALL)
    for number, label in enumerate(labels):
        page.text(left, top + side + 28 + 20 * number, label, NORMAL, shades[number % len(shades)])
    page.save(path)


# ------------------------------------------------------------------ two things side by side
def side_by_side(rows: Sequence[tuple[str, str, str]], titles: tuple[str, str], path: str | Path) -> None:
    """Draw what two things have in each part (name, left, right), with the parts in which they differ marked."""
    wide, gap, margin = 300.0, 14.0, 20.0
    names = max(_width(name, NORMAL) for name, _, _ in rows) + 18
    texts = [(_folded(left, wide - 24), _folded(right, wide - 24)) for _, left, right in rows]
    heights = [20 + 19 * max(len(left), len(right)) for left, right in texts]
    page = Page(2 * margin + names + 2 * wide + gap, 68 + sum(heights) + gap * len(rows))
    for side, title in enumerate(titles):
        page.text(margin + names + side * (wide + gap) + wide / 2, 34, title, LARGE, anchor="mm")
    y = 60.0
    for (name, left, right), pair, height in zip(rows, texts, heights, strict=True):
        page.text(margin, y + height / 2, name, NORMAL, QUIET)
        for side, lines in enumerate(pair):
            x = margin + names + side * (wide + gap)
            page.box(x, y, wide, height, SHADES[0] if left == right else (253, 236, 222), corner=6.0)
            for number, line in enumerate(lines):
                page.text(x + 12, y + height / 2 + 19 * (number - (len(lines) - 1) / 2), line, NORMAL)
        y += height + gap
    page.save(path)


def _folded(text: str, width: float) -> list[str]:
    """Words in lines that are not wider than this."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and _width(longer, NORMAL) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines
