"""The picture of a sweep: loss over size, data and compute, each axis with equal steps for equal factors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

from heedful.extras.scaling.fits import LEVEL, Estimate, Laws, Line, Run, Variable
from heedful.files.writing import write_atomic
from heedful.plots.figures import DOTS, INK, LARGE, LINE, NORMAL, PAPER, QUIET, SMALL, Colour, Page
from heedful.plots.fonts import written

SIDE, HIGH, GAP, MARGIN = 300.0, 300.0, 34.0, 24.0  # of a panel; between panels; around the page
ROW = 24.0  # of the legend
SMALLEST, LARGEST = (131, 196, 214), (24, 32, 96)  # colours of the smallest and of the largest model
BAND: Colour = (250, 230, 214)
LAW: Colour = (204, 92, 28)
AXES: dict[Variable, str] = {
    "N": "N, parameters without embeddings",
    "D": "D, tokens seen in training",
    "C": "C = 6 N D, floating-point operations",
}


class Predicted(NamedTuple):
    """A run that was not fitted: what the law says of it, and what it came to, where these are known."""

    name: str
    parameters: int
    tokens: int
    said: Estimate | None
    run: Run | None

    def at(self, variable: Variable) -> float:
        """Where it stands on an axis."""
        return Run(self.name, "", self.parameters, self.tokens, 0.0).at(variable)


Point = tuple[float, float]


@dataclass
class Drawing:
    """Shapes in the order in which they lie on each other, before they are drawn in one way or another."""

    width: float
    height: float
    shapes: list[Area | Stroke | Dot | Label] = field(default_factory=list)

    def png(self) -> bytes:
        """All as pixels."""
        page = Page(self.width, self.height)
        for shape in self.shapes:
            shape.on(page)
        file = BytesIO()
        page.image.reduce(page.unit // DOTS).save(file, format="PNG", optimize=True, dpi=(96 * DOTS, 96 * DOTS))
        return file.getvalue()

    def svg(self) -> bytes:
        """All as shapes, and text as text."""
        size = f'width="{self.width:g}" height="{self.height:g}" viewBox="0 0 {self.width:g} {self.height:g}"'
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="Helvetica, Arial, sans-serif">',
            f'<rect width="100%" height="100%" fill="{_rgb(PAPER)}"/>',
            *(shape.tag() for shape in self.shapes),
            "</svg>",
        ]
        return ("\n".join(lines) + "\n").encode()


class Area(NamedTuple):
    """A filled outline."""

    points: Sequence[Point]
    colour: Colour

    def on(self, page: Page) -> None:
        page.draw.polygon([(x * page.unit, y * page.unit) for x, y in self.points], fill=self.colour)

    def tag(self) -> str:
        return f'<polygon points="{_list(self.points)}" fill="{_rgb(self.colour)}"/>'


class Stroke(NamedTuple):
    """A line."""

    points: Sequence[Point]
    colour: Colour
    thick: float = 1.0

    def on(self, page: Page) -> None:
        page.line(self.points, self.colour, self.thick)

    def tag(self) -> str:
        look = f'fill="none" stroke="{_rgb(self.colour)}" stroke-width="{self.thick:g}" stroke-linejoin="round"'
        return f'<polyline points="{_list(self.points)}" {look}/>'


class Dot(NamedTuple):
    """A disc, or a ring where the paper shows through."""

    x: float
    y: float
    radius: float
    colour: Colour
    fill: Colour

    def on(self, page: Page) -> None:
        ends = [(one + sign * self.radius) * page.unit for sign in (-1, 1) for one in (self.x, self.y)]
        page.draw.ellipse(ends, fill=self.fill, outline=self.colour, width=round(1.75 * page.unit))

    def tag(self) -> str:
        place = f'cx="{self.x:.2f}" cy="{self.y:.2f}" r="{self.radius - 0.875:g}"'
        return f'<circle {place} fill="{_rgb(self.fill)}" stroke="{_rgb(self.colour)}" stroke-width="1.75"/>'


class Label(NamedTuple):
    """Text with its left, middle or right and its top, middle or bottom (two letters) at a point."""

    x: float
    y: float
    text: str
    size: float = NORMAL
    colour: Colour = INK
    anchor: str = "lm"
    turned: bool = False

    def on(self, page: Page) -> None:
        page.text(self.x, self.y, self.text, self.size, self.colour, self.anchor, self.turned)

    def tag(self) -> str:
        across = {"l": "start", "m": "middle", "r": "end"}[self.anchor[0]]
        up = {"t": "hanging", "m": "central", "b": "auto"}[self.anchor[1]]
        turn = f' transform="rotate(-90 {self.x:g} {self.y:g})"' if self.turned else ""
        look = f'font-size="{self.size:g}" fill="{_rgb(self.colour)}" text-anchor="{across}" dominant-baseline="{up}"'
        return f'<text x="{self.x:.2f}" y="{self.y:.2f}" {look}{turn}>{escape(self.text)}</text>'


DRAWN: dict[str, Callable[[Drawing], bytes]] = {".png": Drawing.png, ".svg": Drawing.svg}


def save(drawing: Drawing, path: Path) -> None:
    """Write a drawing into a file of the kind that the name promises."""
    write_atomic(path, DRAWN[path.suffix](drawing))


def picture(runs: Sequence[Run], laws: Laws, predicted: Sequence[Predicted], title: str) -> Drawing:
    """Three panels side by side: runs coloured by size, filled where a line was fitted to them, and the lines."""
    shown = [*runs, *(one.run for one in predicted if one.run)]
    sizes = {run.size: run.parameters for run in sorted(shown, key=lambda run: run.parameters)}
    colours = {size: _mixed(place / max(1, len(sizes) - 1)) for place, size in enumerate(sizes)}
    names = {size: f"{size} ({_brief(count)})" for size, count in sizes.items()}
    across = 3 * SIDE + 2 * GAP
    places, rows = _legend([*names.values(), *["held out, not fitted"] * bool(predicted)], across)
    left, top = MARGIN + 58, 62 + ROW * rows + 22
    drawing = Drawing(left + across + MARGIN, top + HIGH + 64)
    put = drawing.shapes.append
    put(Label(MARGIN, 30, title, LARGE))
    for (x, row), name, colour in zip(places, names.values(), colours.values(), strict=False):
        put(Dot(left + x + 6, 64 + ROW * row, 5.0, colour, colour))
        put(Label(left + x + 17, 64 + ROW * row, name))
    if predicted:
        x, row = places[-1]
        put(Dot(left + x + 6, 64 + ROW * row, 6.0, LAW, PAPER))
        put(Label(left + x + 17, 64 + ROW * row, "held out, not fitted"))
    losses = [run.loss for run in shown]
    losses += [value for one in predicted if one.said for value in (one.said.low, one.said.high)]
    losses += [value for line in laws.lines if line.band for value in (*line.band.low, *line.band.high)]
    up = _Axis(_within(losses, [run.loss for run in shown]), top + HIGH, -HIGH)
    for place, line in enumerate(laws.lines):
        _panel(drawing, line, runs, predicted, colours, up, left + place * (SIDE + GAP), top, place == 0)
    put(Label(MARGIN - 6, top + HIGH / 2, "L, loss on the validation set", NORMAL, INK, "mm", turned=True))
    return drawing


def _panel(
    drawing: Drawing,
    line: Line,
    runs: Sequence[Run],
    predicted: Sequence[Predicted],
    colours: Mapping[str, Colour],
    up: _Axis,
    left: float,
    top: float,
    first: bool,
) -> None:
    """One axis: its grid, the band and the line, and all runs on it."""
    put, variable = drawing.shapes.append, line.variable
    xs = [run.at(variable) for run in runs] + [one.at(variable) for one in predicted if one.said or one.run]
    along = _Axis(xs, left, SIDE)
    for value, name in up.ticks():
        put(Stroke([(left, up.place(value)), (left + SIDE, up.place(value))], LINE))
        if first:
            put(Label(left - 8, up.place(value), name, SMALL, QUIET, "rm"))
    for value, name in along.ticks():
        put(Stroke([(along.place(value), top + HIGH), (along.place(value), top + HIGH + 4)], QUIET))
        put(Label(along.place(value), top + HIGH + 8, name, SMALL, QUIET, "mt"))
    put(Stroke([(left, top + HIGH), (left + SIDE, top + HIGH)], QUIET))
    put(Label(left + SIDE / 2, top + HIGH + 32, AXES[variable], NORMAL, INK, "mt"))
    if line.band is not None:
        low, high, middle = (
            [(along.place(x), up.place(y)) for x, y in zip(line.band.x, ys, strict=True)]
            for ys in (line.band.low, line.band.high, line.band.middle)
        )
        put(Area([*low, *reversed(high)], BAND))
        put(Stroke(middle, LAW, 2.0))
    for run in runs:
        colour, fitted = colours[run.size], run.name in line.runs
        x, y = along.place(run.at(variable)), up.place(run.loss)
        put(Dot(x, y, 4.5 if fitted else 3.5, colour, colour if fitted else PAPER))
    for one in predicted:
        x = along.place(one.at(variable))
        if one.said:
            ends = [(x, up.place(one.said.low)), (x, up.place(one.said.high))]
            put(Stroke(ends, LAW, 1.5))
            for at, y in [*ends, (x, up.place(one.said.value))]:
                put(Stroke([(at - 5, y), (at + 5, y)], LAW, 1.5))
        if one.run:
            put(Dot(x, up.place(one.run.loss), 5.0, LAW, colours[one.run.size]))
    put(Label(left + SIDE, top - 12, _said(line), SMALL, LAW if line.law else QUIET, "rm"))


def _said(line: Line) -> str:
    law = line.law
    if law is None:
        return "too few runs for a line"
    floor = f"{law.floor.value:.2f} + " if law.floor else ""
    a = law.exponent
    return f"L = {floor}({line.variable}c/{line.variable})^{a.value:.3f}, {LEVEL:.0%}: {a.low:.3f} to {a.high:.3f}"


class _Axis:
    """An axis of equal steps for equal factors, with a little room at both ends."""

    def __init__(self, values: Sequence[float], start: float, length: float) -> None:
        low, high = (math.log(min(values)), math.log(max(values))) if values else (0.0, 1.0)
        room = 0.06 * (high - low) or 0.1
        self.low, self.high = low - room, high + room
        self.start, self.length = start, length

    def place(self, value: float) -> float:
        """Where a value is, no further out than the axis reaches."""
        share = (math.log(value) - self.low) / (self.high - self.low)
        return self.start + min(1.0, max(0.0, share)) * self.length

    def ticks(self) -> list[tuple[float, str]]:
        """Round numbers along it, as few as can be read."""
        low, high = math.exp(self.low), math.exp(self.high)
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for parts in ((1,), (1, 3), (1, 2, 5), (1, 2, 3, 4, 5, 6, 8)):
            found = [part * 10.0**power for power in decades for part in parts if low <= part * 10.0**power <= high]
            if len(found) >= 3:
                return [(value, _brief(value)) for value in found][:: math.ceil(len(found) / 8)]
        step = 10.0 ** math.floor(math.log10((high - low) / 3))
        step = next(step * n for n in (1, 2, 5, 10) if (high - low) / (step * n) <= 8)
        count = range(math.ceil(low / step), math.floor(high / step) + 1)
        return [(n * step, f"{n * step:.10g}") for n in count]


def _within(values: Sequence[float], measured: Sequence[float]) -> list[float]:
    """Values without those so far from what was measured that they would leave it no room."""
    if not measured:
        return [value for value in values if math.isfinite(value)] or [1.0]
    spread = max(1.15, (max(measured) / min(measured)) ** 0.5)
    low, high = min(measured) / spread, max(measured) * spread
    return [min(high, max(low, value)) for value in values if not math.isnan(value)]


def _brief(value: float) -> str:
    """A number in few letters: 0.5, 20, 98 k, 1.2 M, 3e+12."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if size <= value < 1e9:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g}".replace("e+", "e")


def _mixed(share: float) -> Colour:
    r, g, b = (round(a + share * (z - a)) for a, z in zip(SMALLEST, LARGEST, strict=True))
    return r, g, b


def _legend(names: Sequence[str], wide: float) -> tuple[list[Point], int]:
    """Where each name stands, how far to the right and in which row, and how many rows there are."""
    places: list[Point] = []
    across, row = 0.0, 0
    for name in names:
        need = 17 + written(name, round(NORMAL * 4)).width / 4 + 20
        if across and across + need > wide:
            across, row = 0.0, row + 1
        places.append((across, row))
        across += need
    return places, row + 1


def _list(points: Sequence[Point]) -> str:
    return " ".join(f"{x:.2f},{y:.2f}" for x, y in points)


def _rgb(colour: Colour) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)
