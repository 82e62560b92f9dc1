"""An image with numbered boxes, and a paragraph whose sentences have the colours of the boxes that they are about."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from heedful.plots.style import CLASSES, Figure, Style, drawing, label

SIDE, TEXT, LINE = 3.6, 5.6, 0.21  # inches of the image, of the text beside it, and of a line of text
CHARACTERS = 66  # of a line
LONGEST = 1000  # characters of a sentence


def region_colour(region: int, ink: str) -> str:
    """The colour of a region: the text's for the whole image, else one of ten."""
    return CLASSES[(region - 1) % len(CLASSES)] if region else ink


def paragraph_plot(
    image: NDArray[np.uint8],
    boxes: Sequence[Sequence[float]],
    phrases: Sequence[str],
    sentences: Sequence[tuple[str, int]],
    title: str = "",
    style: Style = "light",
) -> Figure:
    """An image (Y, X, 3), boxes (top, left, bottom, right) in pixels with phrases, and sentences with their regions."""
    rows: list[tuple[str, int]] = [(f"{number}  {phrase}", number) for number, phrase in enumerate(phrases, start=1)]
    lines = [
        *((line, region) for text, region in rows for line in _wrapped(text)),
        ("", 0),
        *((line, region) for text, region in sentences for line in _wrapped(text)),
    ]
    high = max(SIDE * image.shape[0] / image.shape[1], LINE * (len(lines) + 1))
    with drawing(style, SIDE + TEXT, high + (0.35 if title else 0), title) as (figure, palette):
        left, right = figure.subplots(1, 2, width_ratios=[SIDE, TEXT])
        left.set_axis_off(), right.set_axis_off()
        left.imshow(image, interpolation="nearest")
        left.set_anchor("N")
        for number, (top, begin, bottom, end) in enumerate(boxes, start=1):
            colour = region_colour(number, palette.ink)
            corners = [begin - 0.5, end - 0.5, end - 0.5, begin - 0.5, begin - 0.5]
            heights = [top - 0.5, top - 0.5, bottom - 0.5, bottom - 0.5, top - 0.5]
            left.plot(corners, heights, color=colour, linestyle="-", linewidth=1.5)
            left.annotate(
                str(number), (begin - 0.5, top - 0.5), (2, -2), textcoords="offset points", va="top", ha="left",
                fontsize="small", color="#ffffff", bbox={"boxstyle": "square,pad=0.15", "fc": colour, "ec": "none"},
            )  # fmt: skip
        for place, (line, region) in enumerate(lines):
            right.text(
                0, 1 - place * LINE / high, label(line, LONGEST), color=region_colour(region, palette.ink),
                transform=right.transAxes, va="top", fontsize="small",
            )  # fmt: skip
    return figure


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, CHARACTERS) or [""]
