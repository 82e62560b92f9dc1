"""Grids of images, with titles above and errors beneath.

N images, C channels, Y rows, X columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from heedful.plots.style import Figure, Style, drawing, label

SIDE, NARROWEST = 0.85, 0.12  # inches of an image's longer side, and of its shorter side at least
MOST = 480  # pixels of a side; larger images are shrunk
NEAR = 1e-6  # by which values may be outside [0, 1] and still count as shares


class Column(NamedTuple):
    """Images below one title, and the error of each, where that is known."""

    title: str  # its lines
    images: NDArray[Any]  # (N, C, Y, X) floats
    errors: NDArray[np.float64] | None = None  # (N,)


class Window(NamedTuple):
    """The values that are drawn black and white; others are clipped in the figure alone."""

    low: float
    high: float

    @classmethod
    def of(cls, images: NDArray[Any]) -> Window:
        """0 to 1 for values within that range, else from the least value to the greatest."""
        low, high = float(images.min()), float(images.max())
        shares = low >= -NEAR and high <= 1 + NEAR
        return cls(0.0, 1.0) if shares else cls(low, high if high > low else low + 1)

    @property
    def note(self) -> str:
        """What the reader must know of it."""
        return "" if self == (0.0, 1.0) else f"black is {self.low:.3g}, white is {self.high:.3g}"

    def error(self, value: float) -> str:
        """An error as it stands beneath an image."""
        return f"{value:.4f}" if self == (0.0, 1.0) else f"{value:.4g}"


def image_grid(columns: Sequence[Column], rows: Sequence[str] | None, title: str, style: Style = "light") -> Figure:
    """A row for each image, after its label, and a column for each way of showing it.

    The first column decides which values are black and white; a note says so unless they are 0 and 1.
    """
    window = Window.of(columns[0].images)
    channels = columns[0].images.shape[1]
    notes = [f"the mean of {channels} channels" if channels not in (1, 3) else "", window.note]
    heads = ["\n".join(label(line) for line in column.title.split("\n")) for column in columns]
    beneath = [
        [] if column.errors is None else [window.error(float(error)) for error in column.errors] for column in columns
    ]
    stacks = [to_pixels(column.images, window) for column in columns]
    cells = [list(row) for row in zip(*stacks, strict=True)]
    return _grid(cells, heads, rows, beneath, notes, title, style, apart=1.12)


def image_strips(
    rows: Sequence[tuple[str, NDArray[Any]]], title: str, window: Window, style: Style = "light", apart: float = 1.0
) -> Figure:
    """Rows of images (N, C, Y, X), each after its name; `apart` is the pitch of the columns, in widths of an image."""
    names = [name for name, _ in rows]
    cells = [list(to_pixels(images, window)) for _, images in rows]
    return _grid(cells, [], names if any(names) else None, [], [window.note], title, style, apart)


def picture_grid(
    rows: Sequence[tuple[str, Iterable[NDArray[Any]]]],
    title: str,
    heads: Sequence[str] = (),
    style: Style = "light",
    apart: float = 1.04,
) -> Figure:
    """Rows of pictures of any sizes, each after its name, below the titles of their columns.

    A picture is bytes (Y, X) or (Y, X, 3), or shares (Y, X) from 0 to 1, which are drawn as a heat map.
    """
    names = [name for name, _ in rows]
    cells = [list(pictures) for _, pictures in rows]
    return _grid(cells, heads, names if any(names) else None, [], [], title, style, apart)


def _grid(
    cells: Sequence[Sequence[NDArray[Any]]],
    heads: Sequence[str],
    names: Sequence[str] | None,
    beneath: Sequence[Sequence[str]],
    notes: Sequence[str],
    title: str,
    style: Style,
    apart: float,
) -> Figure:
    """Images by row and column on one pair of axes, whose units are inches; `apart` is the pitch of the columns."""
    wide, tall = image_size(cells[0][0].shape[:2])
    widest = max((0.09 * len(line) for head in heads for line in head.split("\n")), default=0.0)
    pitch = max(wide * apart, widest), tall + (0.22 if any(beneath) else 0.08)
    height, width = len(cells) * pitch[1], max(map(len, cells)) * pitch[0]
    noted = "\n".join(filter(None, notes))
    above = 0.2 * max((head.count("\n") + 1 for head in heads), default=0)
    room = 0.1 + 0.085 * max((len(label(name)) for name in names or ()), default=0)
    with drawing(style, width + room, height + above + 0.6 + 0.2 * bool(noted), title) as (figure, palette):
        axes = figure.subplots()
        axes.set_axis_off()
        for i, j in ((i, j) for i, row in enumerate(cells) for j in range(len(row))):
            left, top = j * pitch[0] + (pitch[0] - wide) / 2, i * pitch[1]
            heat = cells[i][j].dtype != np.uint8
            axes.imshow(
                cells[i][j], cmap=palette.sequential if heat else "gray", vmin=0, vmax=1 if heat else 255,
                extent=(left, left + wide, top + tall, top), interpolation="nearest",
            )  # fmt: skip
            if j < len(beneath) and beneath[j]:
                at = (left + wide / 2, top + tall + 0.02)
                axes.text(*at, beneath[j][i], ha="center", va="top", fontsize="small", color=palette.quiet)
        for j, head in enumerate(heads):
            axes.text((j + 0.5) * pitch[0], -0.06, head, ha="center", va="bottom", fontsize="medium")
        for i, name in enumerate(names or ()):
            axes.text(-0.08, i * pitch[1] + tall / 2, label(name), ha="right", va="center", color=palette.quiet)
        axes.set(xlim=(0, width), ylim=(height, -above), aspect="equal")
        axes.set_title(noted, fontsize="medium", color=palette.quiet)
    return figure


def signed_pixels(images: NDArray[Any]) -> NDArray[np.uint8]:
    """Images (N, C, Y, X) of values of both signs as pixels: 0 is grey, the largest absolute value black or white."""
    flat = abs(images).reshape(len(images), -1).max(1) if images.size else np.ones(len(images))
    largest = np.maximum(flat, np.finfo(np.float32).tiny).reshape(-1, 1, 1, 1)
    return to_pixels(images / largest, Window(-1.0, 1.0))


def shares(maps: NDArray[Any]) -> NDArray[np.float32]:
    """Maps (N, Y, X), each scaled from its least value to its greatest: 0 to 1."""
    low, high = (edge(maps.reshape(len(maps), -1), 1)[:, None, None] for edge in (np.min, np.max))
    found: NDArray[np.float32] = ((maps - low) / np.where(high > low, high - low, 1)).astype(np.float32)
    return found


def image_size(shape: Sequence[int]) -> tuple[float, float]:
    """The width and height in inches at which an image (Y, X) is drawn."""
    rows, columns = (max(NARROWEST, SIDE * side / max(shape)) for side in shape)
    return columns, rows


def to_pixels(images: NDArray[Any], window: Window) -> NDArray[np.uint8]:
    """Images (N, C, Y, X) as pixels from 0 to 255: (N, Y, X, 3) of three channels, else their mean (N, Y, X)."""
    shares = (images.astype(np.float64) - window.low) / (window.high - window.low)
    pixels = (np.nan_to_num(shares).clip(0, 1) * 255 + 0.5).astype(np.uint8)  # (N, C, Y, X)
    found = pixels.transpose(0, 2, 3, 1) if pixels.shape[1] == 3 else pixels.mean(1).round().astype(np.uint8)
    shrunk = math.ceil(max(images.shape[2:]) / MOST)
    if shrunk > 1:
        return np.stack([np.asarray(Image.fromarray(np.ascontiguousarray(one)).reduce(shrunk)) for one in found])
    return found
