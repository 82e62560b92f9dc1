"""Maps of many points, coloured by class, side by side.

N points. The ten colours can be told apart by colour-blind readers too (Petroff, 2021); the name of each class stands
in the midst of its points as well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from heedful.errors import printable
from heedful.plots.figures import INK, LARGE, NORMAL, PAPER, QUIET, SHADES, Colour, Page
from heedful.plots.fonts import written

COLOURS: tuple[Colour, ...] = (
    (63, 144, 218), (255, 169, 14), (189, 31, 1), (148, 164, 162), (131, 45, 182),
    (169, 107, 89), (231, 99, 0), (185, 172, 112), (113, 117, 129), (146, 218, 221),
)  # fmt: skip
GAP, MARGIN, ROW = 22.0, 24.0, 24.0  # between maps, around the page, of a row of the legend
NAMED = 40  # classes that are named; more would be no help


def scatter(
    panels: Mapping[str, npt.ArrayLike],
    labels: npt.ArrayLike | None,
    names: Sequence[str],
    path: str | Path,
    title: str,
) -> None:
    """Draw maps of the same points (N, 2), each under its title; labels (N,) are places in the names of the classes."""
    side = 560.0 if len(panels) == 1 else 380.0
    wide = max(len(panels) * (side + GAP) - GAP, _width(title, LARGE))
    classes = _classes(labels, names)
    places, rows = _legend([name for name, _ in classes], wide)
    top = 62.0 + ROW * rows + ROW
    page = Page(wide + 2 * MARGIN, top + side + MARGIN)
    page.text(MARGIN, 32, title, LARGE)
    for number, ((name, _), (across, row)) in enumerate(zip(classes, places, strict=True)):
        x, y = MARGIN + across, 66.0 + ROW * row
        _dot(page, x + 6, y, 5.0, COLOURS[number % len(COLOURS)])
        page.text(x + 17, y, name)
    for number, (name, values) in enumerate(panels.items()):
        left = MARGIN + number * (side + GAP)
        page.text(left + side / 2, top - 16, name, NORMAL, QUIET, anchor="mm")
        _map(page, (left, top, side), np.asarray(values, dtype=np.float64), classes)
    page.save(path)


def _map(
    page: Page,
    place: tuple[float, float, float],
    points: npt.NDArray[np.float64],
    classes: Sequence[tuple[str, npt.NDArray[np.int64]]],
) -> None:
    """One map: the points in an order that favours no class, and the names of the classes in the midst of each."""
    left, top, side = place
    page.box(left, top, side, side, SHADES[0], corner=6.0)
    low, high = points.min(0), points.max(0)
    shares = np.where(high > low, (points - low) / np.where(high > low, high - low, 1.0), 0.5)  # (N, 2)
    at = np.array([left, top + side]) + np.array([side, -side]) * (0.04 + 0.92 * shares)
    colours = np.full(len(points), -1)
    for number, (_, members) in enumerate(classes):
        colours[members] = number
    radius = max(1.0, min(4.0, 0.5 * side / math.sqrt(len(points))))
    for one in np.random.default_rng(0).permutation(len(points)):
        number, (x, y) = int(colours[one]), at[one].tolist()
        _dot(page, x, y, radius, COLOURS[number % len(COLOURS)] if number >= 0 else SHADES[3])
    for name, members in classes:
        x, y = np.median(at[members], axis=0).tolist()
        for dx, dy in ((-1, -1), (-1, 1), (1, -1), (1, 1), (0, 1.4), (0, -1.4), (1.4, 0), (-1.4, 0)):
            page.text(x + dx, y + dy, name, LARGE, PAPER, anchor="mm")
        page.text(x, y, name, LARGE, INK, anchor="mm")


def _classes(labels: npt.ArrayLike | None, names: Sequence[str]) -> list[tuple[str, npt.NDArray[np.int64]]]:
    """Each class that has points: its name, and which points; none where they are unknown or too many."""
    if labels is None:
        return []
    given = np.asarray(labels)
    found = [(_label(name), np.flatnonzero(given == number)) for number, name in enumerate(names)]
    found = [(name, members) for name, members in found if len(members)]
    return found if len(found) <= NAMED else []


def _legend(names: Sequence[str], wide: float) -> tuple[list[tuple[float, int]], int]:
    """Where each name stands, how far to the right and in which row, and how many rows there are."""
    places: list[tuple[float, int]] = []
    across, row = 0.0, 0
    for name in names:
        need = 17 + _width(name, NORMAL) + 20
        if across and across + need > wide:
            across, row = 0.0, row + 1
        places.append((across, row))
        across += need
    return places, row + 1 if names else 0


def _dot(page: Page, x: float, y: float, radius: float, colour: Colour) -> None:
    ends = ((x - radius) * page.unit, (y - radius) * page.unit, (x + radius) * page.unit, (y + radius) * page.unit)
    page.draw.ellipse(ends, fill=colour)


def _label(name: str) -> str:
    name = printable(name)
    return name if len(name) <= 20 else name[:17] + "..."


def _width(text: str, size: float) -> float:
    return written(text, round(size * 4)).width / 4
