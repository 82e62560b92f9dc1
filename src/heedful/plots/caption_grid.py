"""An image and its caption, word by word: where each word attended to.

W words, Y rows and X columns of a map or an image.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heedful.plots.style import Figure, Style, drawing, label

SIDE, HEAD = 1.3, 0.28  # inches of an image, and of the word above it
COLUMNS = 11  # images in a row, at most
DARK = 0.7  # how much darker the places are that no word attends to
EMPTY = np.zeros((0, 0, 3), np.uint8)


def upsample(weights: NDArray[Any], rows: int, columns: int) -> NDArray[np.float64]:
    """Attention weights (Y, X) on an image of these rows and columns, from 0 to 1: bilinear between places' centres."""
    smooth = _resize(_resize(weights.astype(np.float64), rows).T, columns).T
    highest = float(smooth.max(initial=0.0))
    return smooth / highest if highest > 0 else smooth


def _resize(values: NDArray[np.float64], length: int) -> NDArray[np.float64]:
    """The rows of an array, interpolated to another number of them; beyond the outer centres they stay the same."""
    count = len(values)
    at = np.clip((np.arange(length) + 0.5) * count / length - 0.5, 0, count - 1)
    low = np.floor(at).astype(np.int64)
    share = (at - low)[:, None]
    return values[low] * (1 - share) + values[np.minimum(low + 1, count - 1)] * share


def overlay(image: NDArray[np.uint8], weights: NDArray[Any]) -> NDArray[np.uint8]:
    """An image (Y, X, 3), dark where the weights of a map are low."""
    light = 1 - DARK + DARK * upsample(weights, *image.shape[:2])[..., None]
    return (image * light + 0.5).astype(np.uint8)


def caption_grid(
    image: NDArray[np.uint8], words: Sequence[str], maps: NDArray[Any], title: str = "", style: Style = "light"
) -> Figure:
    """The image (Y, X, 3), then the same for each word, dark where its map (W, Y, X) is low."""
    return caption_rows([("", image, words, maps)], title, style)


def caption_rows(
    rows: Sequence[tuple[str, NDArray[np.uint8], Sequence[str], NDArray[Any]]], title: str = "", style: Style = "light"
) -> Figure:
    """Several captions below each other: a name, an image (Y, X, 3), its words and their maps (W, Y, X)."""
    across = min(COLUMNS, max(len(words) for _, _, words, _ in rows) + 1)
    cells = list[tuple[str, NDArray[np.uint8]]]()
    for name, image, words, maps in rows:
        if len(words) != len(maps):
            raise ValueError(f"{len(words)} words need as many maps, not {len(maps)}")
        cells += [(name, image), *((word, overlay(image, one)) for word, one in zip(words, maps, strict=True))]
        cells += [("", EMPTY)] * (-len(cells) % across)
    down, (high, wide) = len(cells) // across, rows[0][1].shape[:2]
    with drawing(style, SIDE * across, (SIDE * high / wide + HEAD) * down + (0.35 if title else 0.0), title) as (
        figure,
        palette,
    ):
        axes = figure.subplots(down, across, squeeze=False).ravel()
        for axis, (word, picture) in zip(axes, cells, strict=True):
            axis.set_axis_off()
            if picture.size:
                axis.imshow(picture, interpolation="nearest")
                axis.set_title(label(word), loc="center", fontsize="medium", pad=3, color=palette.ink)
    return figure
