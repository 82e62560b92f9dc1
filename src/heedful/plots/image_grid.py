"""Galleries: pictures in rows and columns, crisp, with titles above and errors beneath; as PNG or SVG.

N images, C channels, Y rows, X columns.
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from heedful.errors import UserError, printable, short
from heedful.files.writing import write_atomic
from heedful.plots.figures import DOTS, INK, LARGE, NORMAL, PAPER, QUIET, SMALL, Colour, Page
from heedful.plots.fonts import written

SIDE, LEAST, MOST = 168, 16, 480  # dots of a picture in the file: about, at least, at most
GAP, MARGIN, LONGEST = 6.0, 20.0, 24  # between columns, around the page; characters of a title
NEAR = 1e-6  # by which numbers may be out of [0, 1], and still be shares


class Column(NamedTuple):
    """Pictures that stand below one title, and the error of each, where that is known."""

    title: str  # its lines
    images: NDArray[Any]  # (N, C, Y, X) floats
    errors: NDArray[np.float64] | None = None  # (N,)


class Window(NamedTuple):
    """Which numbers are drawn black and white; what lies outside is cut for the eye alone."""

    low: float
    high: float

    @classmethod
    def of(cls, images: NDArray[Any]) -> Window:
        """Shares are drawn from 0 to 1, other numbers from the least to the greatest that there are."""
        low, high = float(images.min()), float(images.max())
        shares = low >= -NEAR and high <= 1 + NEAR
        return cls(0.0, 1.0) if shares else cls(low, high if high > low else low + 1)

    @property
    def note(self) -> str:
        """What a reader must be told of it."""
        return "" if self == (0.0, 1.0) else f"black is {self.low:.3g}, white is {self.high:.3g}"

    def error(self, value: float) -> str:
        """An error as it stands beneath a picture."""
        return f"{value:.4f}" if self == (0.0, 1.0) else f"{value:.4g}"


@dataclass
class Sheet:
    """What stands where on a page, before it is drawn in one way or another; lengths are in units."""

    width: float = 0.0
    height: float = 0.0
    texts: list[tuple[float, float, str, float, Colour, str]] = field(default_factory=list)
    pictures: list[tuple[float, float, Image.Image, tuple[int, int]]] = field(default_factory=list)  # sizes in dots

    def text(
        self, x: float, y: float, text: str, size: float = NORMAL, colour: Colour = INK, anchor: str = "mm"
    ) -> None:
        """A line of text at a point, as `Page.text` has it."""
        self.texts.append((x, y, text, size, colour, anchor))

    def save(self, path: Path) -> None:
        """Draw it into a file of the kind that the name promises."""
        write_atomic(path, DRAWN[path.suffix.lower()](self))

    def png(self) -> bytes:
        """All as pixels; a pixel of a picture becomes a square of whole dots."""
        page = Page(self.width, self.height)
        fine = page.unit // DOTS
        for x, y, picture, (wide, tall) in self.pictures:
            large = picture.resize((wide * fine, tall * fine), Image.Resampling.NEAREST)
            page.image.paste(large, (round(x * DOTS) * fine, round(y * DOTS) * fine))
        for x, y, text, size, colour, anchor in self.texts:
            page.text(x, y, text, size, colour, anchor)
        file = BytesIO()
        dpi = (96 * DOTS, 96 * DOTS)
        page.image.reduce(fine).save(file, format="PNG", optimize=True, dpi=dpi)
        return file.getvalue()

    def svg(self) -> bytes:
        """Text as text, and each picture as a PNG of its own pixels."""
        sides = {"l": "start", "m": "middle", "r": "end"}
        heights = {"t": "hanging", "m": "central", "b": "auto"}
        size = f'width="{self.width:g}" height="{self.height:g}" viewBox="0 0 {self.width:g} {self.height:g}"'
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="Helvetica, Arial, sans-serif">',
            f'<rect width="100%" height="100%" fill="{_rgb(PAPER)}"/>',
        ]
        for x, y, picture, (wide, tall) in self.pictures:
            file = BytesIO()
            picture.save(file, format="PNG", optimize=True)
            lines.append(
                f'<image x="{x:g}" y="{y:g}" width="{wide / DOTS:g}" height="{tall / DOTS:g}" '
                'preserveAspectRatio="none" style="image-rendering:pixelated" '
                f'href="data:image/png;base64,{b64encode(file.getvalue()).decode()}"/>'
            )
        for x, y, text, size_, colour, anchor in self.texts:
            lines.append(
                f'<text x="{x:g}" y="{y:g}" font-size="{size_:g}" fill="{_rgb(colour)}" '
                f'text-anchor="{sides[anchor[0]]}" dominant-baseline="{heights[anchor[1]]}">{escape(text)}</text>'
            )
        return ("\n".join([*lines, "</svg>"]) + "\n").encode()


DRAWN: dict[str, Callable[[Sheet], bytes]] = {".png": Sheet.png, ".svg": Sheet.svg}


def require_picture(path: Path, where: str) -> None:
    """Refuse a name that promises another kind of picture than can be drawn."""
    if path.suffix.lower() not in DRAWN:
        raise UserError(
            "the name does not say what to draw", where=where, found=str(path),
            expected="a name that ends in " + " or ".join(DRAWN),
        )  # fmt: skip


def gallery(columns: Sequence[Column], rows: Sequence[str] | None, title: str) -> Sheet:
    """A row for each image, with its label in front, and a column for each way of showing it.

    What is black and what is white is decided by the first column, and said where it is not 0 and 1.
    """
    window = Window.of(columns[0].images)
    pictures = [pictures_of(column.images, window) for column in columns]
    wide, tall = drawn_size(columns[0].images.shape[2:])
    heads = [[cut(line) for line in column.title.split("\n")] for column in columns]
    deep = max(map(len, heads))
    widths = [max(wide / DOTS, *(width_of(line, NORMAL) + 8 for line in head)) for head in heads]
    labels = [cut(label) for label in rows or []]
    beneath = 17.0 if any(column.errors is not None for column in columns) else GAP
    titles = [title, *filter(None, [_channels(columns[0].images), window.note])]
    head = MARGIN + 26 + 17 * (len(titles) - 1) + 12 + 17 * deep + 2
    left = MARGIN + (max(width_of(label, NORMAL) for label in labels) + 12 if labels else 0)
    across = left + sum(widths) + GAP * (len(widths) - 1) + MARGIN
    sheet = Sheet(
        math.ceil(max(across, *(2 * MARGIN + width_of(line, LARGE) for line in titles))),
        math.ceil(head + len(pictures[0]) * (tall / DOTS + beneath) + MARGIN - 6),
    )
    for number, line in enumerate(titles):
        sheet.text(MARGIN, MARGIN + 10 + 20 * number, line, NORMAL if number else LARGE, QUIET if number else INK, "lm")
    for number, label in enumerate(labels):
        sheet.text(MARGIN, head + number * (tall / DOTS + beneath) + tall / DOTS / 2, label, NORMAL, QUIET, "lm")
    for column, lines, some, width in zip(columns, heads, pictures, widths, strict=True):
        for number, line in enumerate(lines):
            y = head - 10 - 17 * (len(lines) - 1 - number)
            sheet.text(left + width / 2, y, line, NORMAL, QUIET if number else INK)
        for number, picture in enumerate(some):
            y = head + number * (tall / DOTS + beneath)
            sheet.pictures.append((math.floor(left + (width - wide / DOTS) / 2), round(y), picture, (wide, tall)))
            if column.errors is not None:
                error = window.error(float(column.errors[number]))
                sheet.text(left + width / 2, round(y) + tall / DOTS + 7, error, SMALL, QUIET)
        left += width + GAP
    return sheet


def strips(rows: Sequence[tuple[str, NDArray[Any]]], title: str, window: Window) -> Sheet:
    """Each row (N, C, Y, X) from left to right, without gaps between its pictures, with a name in front."""
    wide, tall = drawn_size(rows[0][1].shape[2:])
    names = [cut(name) for name, _ in rows]
    left = MARGIN + max(width_of(name, NORMAL) for name in names) + (12 if any(names) else 0)
    titles = [title, *filter(None, [window.note])]
    head = MARGIN + 32 + 20 * (len(titles) - 1)
    count = max(len(images) for _, images in rows)
    across = left + count * wide / DOTS + MARGIN
    sheet = Sheet(
        math.ceil(max(across, 2 * MARGIN + width_of(title, LARGE))),
        math.ceil(head + len(rows) * (tall / DOTS + GAP) + MARGIN),
    )
    for number, line in enumerate(titles):
        sheet.text(MARGIN, MARGIN + 10 + 20 * number, line, NORMAL if number else LARGE, QUIET if number else INK, "lm")
    for row, (name, (_, images)) in enumerate(zip(names, rows, strict=True)):
        y = round(head + row * (tall / DOTS + GAP))
        sheet.text(MARGIN, y + tall / DOTS / 2, name, NORMAL, QUIET, "lm")
        for number, picture in enumerate(pictures_of(images, window)):
            sheet.pictures.append((math.ceil(left) + number * wide / DOTS, y, picture, (wide, tall)))
    return sheet


def pictures_of(images: NDArray[Any], window: Window) -> list[Image.Image]:
    """Images (N, C, Y, X) as Pillow has them: one channel is grey, three are red, green, blue, others their mean."""
    shares = (images.astype(np.float64) - window.low) / (window.high - window.low)
    pixels = (np.nan_to_num(shares).clip(0, 1) * 255 + 0.5).astype(np.uint8)  # (N, C, Y, X)
    if pixels.shape[1] == 3:
        found = [Image.fromarray(np.ascontiguousarray(one)) for one in pixels.transpose(0, 2, 3, 1)]
    else:
        found = [Image.fromarray(one) for one in pixels.mean(1).round().astype(np.uint8)]
    shrunk = math.ceil(max(images.shape[2:]) / MOST)
    return [one.reduce(shrunk) for one in found] if shrunk > 1 else found


def drawn_size(shape: tuple[int, ...]) -> tuple[int, int]:
    """Columns and rows of dots of a drawn picture: whole squares for its pixels, or fewer where it is large."""
    shrunk = math.ceil(max(shape) / MOST)
    rows, columns = (math.ceil(side / shrunk) for side in shape)
    square = max(1, SIDE // max(rows, columns))
    return columns * max(square, -(-LEAST // columns)), rows * max(square, -(-LEAST // rows))


def _channels(images: NDArray[Any]) -> str:
    channels = images.shape[1]
    return "" if channels in (1, 3) else f"the mean of {channels} channels"


def cut(text: str) -> str:
    """A title that fits."""
    return short(printable(text), LONGEST)


def width_of(text: str, size: float) -> float:
    """How wide a text is, in units."""
    return written(text, round(size * 4)).width / 4 if text else 0.0


def _rgb(colour: Colour) -> str:
    return "#" + "".join(f"{value:02x}" for value in colour)
