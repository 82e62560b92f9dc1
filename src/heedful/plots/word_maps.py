"""Maps of words, each name written beside its point.

N words.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from heedful.errors import printable
from heedful.plots.figures import LARGE, QUIET, SHADES, Page

SIDE, MARGIN, TOP, INSET = 720.0, 24.0, 84.0, 70.0


def word_map(names: Sequence[str], points: npt.ArrayLike, path: str | Path, title: str, about: str) -> None:
    """Draw words at their points (N, 2), both directions in one scale."""
    given = np.asarray(points, dtype=np.float64)
    middle = (given.max(0) + given.min(0)) / 2  # (2,)
    reach = max(float(np.abs(given - middle).max()), 1e-12)
    at = MARGIN + SIDE / 2 + (SIDE / 2 - INSET) * (given - middle) / reach * (1, -1)  # (N, 2)
    page = Page(SIDE + 2 * MARGIN, TOP + SIDE + MARGIN)
    page.text(MARGIN, 32, title, LARGE)
    page.text(MARGIN, 60, about, colour=QUIET)
    page.box(MARGIN, TOP, SIDE, SIDE, SHADES[0], corner=6.0)
    for name, (x, y) in zip(names, at.tolist(), strict=True):
        page.box(x - 2, y + TOP - MARGIN - 2, 4, 4, SHADES[-2], corner=2.0)
        page.text(x, y + TOP - MARGIN - 13, printable(name), anchor="mm")
    page.save(path)
