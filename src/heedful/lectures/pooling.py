"""Pooling and upsampling: what the largest of each square keeps, and what cannot be brought back.

The layers are those that models are built from. At an edge that the squares do not fit, a square is cut: 7 become 4,
and 4 become 8 again, one more than there were.

Y rows, X columns.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from heedful.config import Config
from heedful.data.embedded import Digits
from heedful.lectures import Progress, Table
from heedful.models.autoencoder.layers import MaxPool, Upsample
from heedful.models.autoencoder.network import Network
from heedful.plots.style import BLUE, VERMILION, Figure, Palette, Style, drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Numbers = NDArray[np.int64]
SMALLEST = ((1, 3, 2, 1), (4, 6, 5, 7), (2, 0, 9, 8), (1, 2, 3, 4))  # the grid of the first row
CELL, APART = 0.27, 0.12  # inches of a number's cell; of a cell between squares
PITCH = 1 + APART / 2  # about, of the cells of a row


class Settings(Config):
    """What is pooled."""

    size: int = Field(2, ge=2, le=8, description="rows and columns of a square that becomes one number")
    digit: int = Field(3, ge=0, le=9, description="which of the digits is shown")
    odd: int = Field(7, ge=3, le=15, description="rows and columns of the grid that the squares do not fit")


@dataclass(frozen=True)
class Pooled:
    """Numbers (Y, X), the largest of each square, and each of these as a square again."""

    given: Numbers
    pooled: Numbers
    again: Numbers

    @property
    def lost(self) -> NDArray[np.bool_]:
        """Which of the given numbers differ after pooling and upsampling."""
        rows, columns = self.given.shape
        found: NDArray[np.bool_] = self.again[:rows, :columns] != self.given
        return found


@dataclass(frozen=True)
class Found:
    """The result for each grid."""

    size: int
    grids: Mapping[str, Pooled]

    def table(self) -> Table:
        def sides(numbers: Numbers) -> str:
            return " x ".join(map(str, numbers.shape))

        rows = (
            (name, sides(one.given), sides(one.pooled), sides(one.again), int(one.lost.sum()), one.given.size)
            for name, one in self.grids.items()
        )
        return Table(("grid", "given", "pooled", "upsampled", "numbers changed", "of"), tuple(rows))


def pooled(given: Numbers, size: int) -> Pooled:
    """Send numbers through a layer of pooling and one of upsampling."""
    x = torch.from_numpy(given).float()[None, None]  # (1, 1, Y, X)
    down = Network.of((1, *given.shape), [MaxPool(size=size)])(x)
    again = Network.of(tuple(down.shape[1:]), [Upsample(size=size)])(down)
    return Pooled(given, *(y[0, 0].long().numpy() for y in (down, again)))


def study(settings: Settings) -> Generator[Progress, None, Found]:
    """Pool a small grid, a digit, and a grid with an odd number of rows."""
    digits = Digits().read("train")
    assert digits.labels is not None  # digits have them
    shades = digits.pixels[int(np.argmax(digits.labels == settings.digit)), 0] * 16  # (8, 8) from 0 to 16
    odd = np.arange(settings.odd**2).reshape(settings.odd, settings.odd) * 7 % 10
    grids = {
        "numbers": np.array(SMALLEST),
        f"a {settings.digit} of 8 x 8": shades.round().astype(np.int64),
        f"{settings.odd} rows": odd,
    }
    found = dict[str, Pooled]()
    for name, grid in grids.items():
        yield Progress(len(found) / len(grids), f"pooling {name}")
        found[name] = pooled(grid, settings.size)
    return Found(settings.size, found)


def plot(found: Found, style: Style = "light") -> Figure:
    """A row for each grid: given, pooled, upsampled; what does not come back is marked."""
    gap, size = 2.0, found.size
    stages = [("given", size, "given"), ("pooled", 1, "max pooling"), ("again", size, "upsampling")]
    wide = [max(getattr(one, name).shape[1] for one in found.grids.values()) * PITCH for name, *_ in stages]
    lefts = [0.0, wide[0] + gap, wide[0] + wide[1] + 2 * gap]
    tall = [PITCH * max(one.given.shape[0], one.again.shape[0]) + 1.8 for one in found.grids.values()]
    across, down = lefts[2] + wide[2], sum(tall)
    title = f"Pooling keeps the largest of {size} x {size} numbers"
    with drawing(style, CELL * across + 0.3, CELL * down + 1.0, title) as (figure, palette):
        axes = figure.subplots()
        axes.set_axis_off()
        axes.set(xlim=(0, across), ylim=(down, 0), aspect="equal")
        axes.set_title(
            "Upsampling writes it into all of them: orange numbers are not what was there", color=palette.quiet
        )
        arrow = {"arrowstyle": "->", "color": palette.quiet, "shrinkA": 0, "shrinkB": 0}
        top = 1.0
        for one, height in zip(found.grids.values(), tall, strict=True):
            middle = top + len(one.pooled) / 2
            for number, (left, (name, square, what)) in enumerate(zip(lefts, stages, strict=True)):
                values: Numbers = getattr(one, name)
                shape = " x ".join(map(str, values.shape))
                axes.text(left, top - 0.3, f"{what}: {shape}", color=palette.quiet)
                _grid(axes, left, top, name, one, square, palette)
                if number < 2:
                    end = left + values.shape[1] * PITCH + 0.2
                    axes.annotate("", (lefts[number + 1] - 0.3, middle), (end, middle), arrowprops=arrow)
            top += height
    return figure


def _grid(axes: Axes, x: float, y: float, name: str, one: Pooled, size: int, palette: Palette) -> None:
    """Numbers in their cells, a gap after each square; those that are not what was given, or lie beyond it, differ."""
    from matplotlib.colors import to_rgb
    from matplotlib.patches import Rectangle

    values: Numbers = getattr(one, name)
    rows, columns = one.given.shape
    for (i, j), value in np.ndenumerate(values):
        beyond = name == "again" and (i >= rows or j >= columns)
        wrong = name == "again" and not beyond and bool(one.lost[i, j])
        maximum = name == "pooled" or (name == "given" and not one.lost[i, j])
        left, top = x + j + j // size * APART, y + i + i // size * APART
        strength = 0.0 if beyond else 0.04 + 0.46 * float(value) / max(1, one.given.max())
        axes.add_patch(
            Rectangle(
                (left + 0.02, top + 0.02), 0.94, 0.94, linewidth=0.6 if beyond else 0, linestyle="--",
                facecolor=(*to_rgb(VERMILION if wrong else BLUE), strength),
                edgecolor=palette.quiet,
            )
        )  # fmt: skip
        colour = palette.ink if maximum or (name == "again" and not beyond) else palette.quiet
        weight = "bold" if maximum and name == "given" else "normal"
        axes.text(
            left + 0.5, top + 0.5, str(value), ha="center", va="center", fontsize=8.5, color=colour, weight=weight
        )
