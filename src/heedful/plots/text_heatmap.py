"""Heat maps as text, for a terminal."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from heedful.plots.style import one_line

Grid = npt.NDArray[np.float64]
BLOCKS = ((0.75, "█"), (0.5, "▓"), (0.25, "▒"), (0.05, "░"))  # from this value up


def as_grid(values: npt.ArrayLike, rows: Sequence[str] | None, columns: Sequence[str] | None) -> Grid:
    """Values as rows and columns, with a label for each where there are labels."""
    grid = np.asarray(values, dtype=np.float64)
    if grid.ndim != 2 or 0 in grid.shape:
        raise ValueError(f"a heat map needs rows and columns, got an array of shape {grid.shape}")
    for labels, count, what in ((rows, grid.shape[0], "row"), (columns, grid.shape[1], "column")):
        if labels is not None and len(labels) != count:
            raise ValueError(f"{count} {what}s have {len(labels)} labels")
    return grid


def text_heatmap(values: npt.ArrayLike, rows: Sequence[str], columns: Sequence[str], width: int = 80) -> str:
    """A grid of values in [0, 1] as shaded blocks, with the largest of each row named at its end.

    Columns whose labels do not fit into the width are numbered, and listed below.
    """
    grid = as_grid(values, rows, columns)
    names, heads = ([one_line(text, 18) for text in labels] for labels in (rows, columns))
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
    """The width of a text in columns of a terminal."""
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
