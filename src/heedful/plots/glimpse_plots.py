"""The path of glimpses over an image, and what each of them saw.

N images, T glimpses, C channels, Y rows, X columns, S side of the widest patch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heedful.plots.image_grid import Window, to_pixels
from heedful.plots.style import Figure, Palette, Style, drawing, label

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIDE = 1.5  # inches of an image


class Looked(NamedTuple):
    """An image with its title, the path over it, and what was seen; `patch` is the side of the narrowest patch."""

    image: NDArray[np.float32]  # (C, Y, X) from 0 to 1
    path: Sequence[tuple[float, float]]  # row and column of each glimpse
    views: NDArray[np.float32]  # (T, C, S, S)
    title: str
    patch: int


def plot_glimpses(images: Sequence[Looked], title: str = "", style: Style = "light") -> Figure:
    """A row for each image: the image with the path of the glimpses, numbered, and then what each of them saw."""
    most = max(len(one.path) for one in images)
    with drawing(style, SIDE * (most + 1) + 0.2, (SIDE + 0.25) * len(images) + 0.4, title) as (figure, palette):
        grid = figure.subplots(len(images), most + 1, squeeze=False)
        for axes in grid.flat:
            axes.set_axis_off()
        for number, (row, one) in enumerate(zip(grid, images, strict=True)):
            _plot_path(row[0], one, palette)
            for step, (axes, view) in enumerate(zip(row[1:], one.views, strict=False)):
                axes.imshow(_pixels(view), cmap="gray", vmin=0, vmax=255, interpolation="nearest")
                if number == 0:
                    axes.set_title(f"glimpse {step + 1}", fontsize="medium", color=palette.quiet)
    return figure


def _plot_path(axes: Axes, one: Looked, palette: Palette) -> None:
    """An image, a numbered point for each glimpse, lines between them, and the narrowest patch of the last."""
    _, rows, columns = one.image.shape
    axes.imshow(_pixels(one.image), cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    down, across = np.array(one.path).T - 0.5  # of the centres of pixels
    colour = palette.series[1]
    axes.plot(across, down, color=colour, linewidth=1.4, marker="o", markersize=7)
    for number, (x, y) in enumerate(zip(across, down, strict=True), 1):
        axes.text(x, y, str(number), ha="center", va="center", fontsize=5, color="white")
    left, top = across[-1] - one.patch / 2, down[-1] - one.patch / 2
    corners = np.array([[0, 0], [0, 1], [1, 1], [1, 0], [0, 0]]) * one.patch
    axes.plot(left + corners[:, 0], top + corners[:, 1], color=colour, linewidth=1)
    axes.set(xlim=(-0.5, columns - 0.5), ylim=(rows - 0.5, -0.5))
    axes.set_title(label(one.title), fontsize="medium")


def _pixels(image: NDArray[np.float32]) -> NDArray[np.uint8]:
    return to_pixels(image[None], Window(0.0, 1.0))[0]
