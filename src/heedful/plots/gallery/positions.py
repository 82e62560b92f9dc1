"""Sinusoidal positions (Vaswani et al., 2017), from the tables that models add to their embeddings."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from heedful.blocks.positions import sinusoid_halves
from heedful.blocks.positions import sinusoids as interleaved
from heedful.plots.figures import curves
from heedful.plots.style import Figure, Style, drawing

Length = Annotated[int, Field(ge=1, le=10_000, description="positions")]
Width = Annotated[int, Field(ge=2, le=4096, multiple_of=2, description="dimensions of a position")]
LAYOUTS = {"interleaved": interleaved, "concatenated": sinusoid_halves}


def sinusoids(
    *,
    length: Length = 20,
    width: Width = 64,
    layout: Literal["both", "interleaved", "concatenated"] = "both",
    style: Style = "light",
) -> Figure:
    """A row for each position: sines and cosines in turn, or all sines on the left and all cosines on the right."""
    chosen = {name: table for name, table in LAYOUTS.items() if layout in (name, "both")}
    names = {"interleaved": "interleaved: sin, cos, sin, cos ...", "concatenated": "concatenated: sines, then cosines"}
    with drawing(style, 10.0, 0.9 + 2.5 * len(chosen), f"Sinusoidal positions: {length} × {width}") as (
        figure,
        palette,
    ):
        every = figure.subplots(len(chosen), 1, squeeze=False, sharex=True)[:, 0]
        for axes, (name, table) in zip(every, chosen.items(), strict=True):
            image = axes.imshow(
                table(length, width).numpy(), cmap=palette.sequential, vmin=-1, vmax=1, aspect="auto",
                interpolation="nearest", extent=(-0.5, width - 0.5, length - 0.5, -0.5),
            )  # fmt: skip
            axes.set_title(names[name])
            axes.set_ylabel("position")
            axes.spines[:].set_visible(False)
        every[-1].set_xlabel("dimension")
        bar = figure.colorbar(image, ax=list(every), aspect=14 * len(chosen), pad=0.02)
        bar.set_ticks([-1, 0, 1])
        bar.outline.set_visible(False)
    return figure


def waves(
    *,
    length: Length = 100,
    width: Width = 20,
    dimensions: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1, max_length=8)] = (4, 5, 6, 7),
    style: Style = "light",
) -> Figure:
    """Chosen columns of the table: each is a wave of its own frequency, sines and cosines in turn."""
    table = interleaved(length, width).numpy()
    known = [one for one in dimensions if one < width]
    lines = {f"dimension {one}": (np.arange(length), table[:, one]) for one in known}
    return curves(lines, f"Some of {width} dimensions of the sinusoidal positions", "position", "value", style=style)
