"""Pooling and upsampling: what the largest of each square keeps, and what cannot be brought back.

The layers are those that models are built from. At an edge that the squares do not fit, a square is cut: 7 become 4,
and 4 become 8 again, one more than there were.

Y rows, X columns.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from heedful.config import Config
from heedful.data.embedded import Digits
from heedful.lectures import Progress, Table
from heedful.models.autoencoder.layers import MaxPool, Upsample
from heedful.models.autoencoder.network import Network
from heedful.plots.figures import INK, LARGE, NORMAL, PAPER, QUIET, SMALL, Colour, Page

Numbers = NDArray[np.int64]
KEPT: tuple[Colour, Colour] = ((240, 245, 249), (147, 193, 222))  # behind the least number and the greatest
LOST: tuple[Colour, Colour] = ((253, 240, 229), (247, 178, 122))
SMALLEST = ((1, 3, 2, 1), (4, 6, 5, 7), (2, 0, 9, 8), (1, 2, 3, 4))  # the grid of the first row
RUST: Colour = (150, 62, 10)
CELL, APART = 26.0, 3.0  # units of a number, and between squares


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
        """Which of the numbers that were given are not what comes back in their place."""
        rows, columns = self.given.shape
        found: NDArray[np.bool_] = self.again[:rows, :columns] != self.given
        return found


@dataclass(frozen=True)
class Found:
    """What became of each grid."""

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


def draw(found: Found, path: Path) -> None:
    """A row for each grid: given, pooled, upsampled; what does not come back is marked."""
    left, gap, top = 24.0, 54.0, 84.0
    sizes = (found.size, 1, found.size)
    wide = [
        max(_side(getattr(one, name).shape[1], size) for one in found.grids.values())
        for name, size in zip(("given", "pooled", "again"), sizes, strict=True)
    ]
    places = [left, left + wide[0] + gap, left + wide[0] + wide[1] + 2 * gap]
    tall = [_side(max(one.given.shape[0], one.again.shape[0]), found.size) + 58 for one in found.grids.values()]
    page = Page(max(places[2] + wide[2] + left, 560), top + sum(tall) + 6)
    page.text(20, 30, f"Pooling keeps the largest of {found.size} x {found.size} numbers", LARGE)
    page.text(20, 54, "Upsampling writes it into all of them: orange numbers are not what was there", NORMAL, QUIET)
    y = top
    for one, height in zip(found.grids.values(), tall, strict=True):
        panels = ((one.given, "given"), (one.pooled, "max pooling"), (one.again, "upsampling"))
        for x, size, (numbers, what) in zip(places, sizes, panels, strict=True):
            page.text(x, y + 10, f"{what}: {' x '.join(map(str, numbers.shape))}", NORMAL, QUIET)
            _grid(page, x, y + 24, numbers, one, size, numbers is one.again)
        height_of_arrows = y + 24 + _side(len(one.pooled), 1) / 2
        _arrow(page, places[0] + _side(one.given.shape[1], found.size), places[1], height_of_arrows)
        _arrow(page, places[1] + _side(one.pooled.shape[1], 1), places[2], height_of_arrows)
        y += height
    page.save(path)


def _grid(page: Page, x: float, y: float, numbers: Numbers, one: Pooled, size: int, back: bool) -> None:
    """Numbers in their squares, with those marked that are not what was given, or that lie beyond it."""
    rows, columns = one.given.shape
    for i, j in np.ndindex(*numbers.shape):
        beyond = back and (i >= rows or j >= columns)
        wrong = back and not beyond and bool(one.lost[i, j])
        kept = numbers is one.pooled or (numbers is one.given and not one.lost[i, j])
        left, top = x + j * CELL + j // size * APART, y + i * CELL + i // size * APART
        fill = PAPER if beyond else _blend(LOST if wrong else KEPT, numbers[i, j] / max(1, one.given.max()))
        page.box(left, top, CELL - 1, CELL - 1, fill, corner=2.0)
        if beyond:
            _outline(page, left, top)
        ink = QUIET if beyond else RUST if wrong else INK if back or kept else QUIET
        page.text(left + CELL / 2 - 0.5, top + CELL / 2, str(numbers[i, j]), NORMAL if kept else SMALL, ink, "mm")


def _blend(ends: tuple[Colour, Colour], share: float) -> Colour:
    r, g, b = (round(a + share * (z - a)) for a, z in zip(*ends, strict=True))
    return r, g, b


def _side(count: int, size: int) -> float:
    """How long so many numbers are, in squares of a size."""
    return count * CELL + (count - 1) // size * APART


def _outline(page: Page, x: float, y: float) -> None:
    side = CELL - 2
    page.dashes([(x, y), (x + side, y), (x + side, y + side), (x, y + side), (x, y)], QUIET, 0.5)


def _arrow(page: Page, start: float, end: float, y: float) -> None:
    page.line([(start + 10, y), (end - 12, y)], QUIET, 1.25)
    for turn in (math.pi * 0.85, -math.pi * 0.85):
        tip = (end - 12 + 8 * math.cos(turn), y + 8 * math.sin(turn))
        page.line([(end - 12, y), tip], QUIET, 1.25)
