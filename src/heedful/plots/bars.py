"""Charts of bars side by side: a name, a bar and a share for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from heedful.errors import printable, short
from heedful.plots.figures import LARGE, LINE, NORMAL, QUIET, SERIES, SMALL, Page
from heedful.plots.fonts import written

MARGIN, GAP, ROW, LONG = 24.0, 48.0, 30.0, 250.0  # around the page, between charts, of a bar, and of the longest bar


def bars(charts: Mapping[str, tuple[str, Sequence[tuple[str, float]]]], path: str | Path, title: str) -> None:
    """Draw charts of shares between 0 and 1, each under its name and a line about it; all bars have one scale."""
    largest = max((share for _, rows in charts.values() for _, share in rows), default=1.0) or 1.0
    names = [12 + max((_width(_cut(name, 24)) for name, _ in rows), default=0.0) for _, rows in charts.values()]
    wide = [
        max(left + LONG + 60, _width(_cut(head)), _width(_cut(about), SMALL))
        for left, (head, (about, _)) in zip(names, charts.items(), strict=True)
    ]
    most = max(len(rows) for _, rows in charts.values())
    across = max(sum(wide) + GAP * (len(wide) - 1), _width(_cut(title), LARGE))
    page = Page(across + 2 * MARGIN, 120 + ROW * most + MARGIN)
    page.text(MARGIN, 32, _cut(title), LARGE)
    left = MARGIN
    for number, (head, (about, rows)) in enumerate(charts.items()):
        colour = SERIES[number % len(SERIES)]
        page.text(left, 72, _cut(head), NORMAL, colour)
        page.text(left, 94, _cut(about), SMALL, QUIET)
        zero = left + names[number]
        page.line([(zero - 2, 112), (zero - 2, 116 + ROW * most)], LINE)
        for place, (name, share) in enumerate(rows):
            y = 116 + ROW * (place + 0.5)
            page.text(zero - 10, y, _cut(name, 24), anchor="rm")
            page.box(zero, y - 9, max(1.0, LONG * share / largest), 18, colour, corner=3.0)
            page.text(zero + LONG * share / largest + 8, y, f"{share:.1%}", SMALL, QUIET)
        left += wide[number] + GAP
    page.save(path)


def _cut(text: str, longest: int = 72) -> str:
    return short(printable(text.replace("\n", " ")), longest)


def _width(text: str, size: float = NORMAL) -> float:
    return written(text, round(size * 4)).width / 4
