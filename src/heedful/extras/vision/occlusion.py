"""Occlusion: how much a value falls where a part of the image is covered (Zeiler and Fergus, 2014).

C channels, Y rows, X columns, M places.
"""

from __future__ import annotations

import torch
from torch import Tensor

from heedful.extras.vision.gradients import Score

BATCH = 256  # covered images at a time


@torch.no_grad()
def occlusion(score: Score, image: Tensor, size: int, stride: int = 1, value: float = 0.0) -> Tensor:
    """The fall of the score of an image (C, Y, X) where a square around each place is covered: (rows, columns).

    Places are `stride` apart; at the edges, the square is cut. The value is that of the cover: 0 is the mean of
    normalized images.
    """
    rows, columns = (range(0, side, stride) for side in image.shape[1:])
    places = [(y, x) for y in rows for x in columns]
    found = []
    for start in range(0, len(places), BATCH):
        some = places[start : start + BATCH]
        covered = image.repeat(len(some), 1, 1, 1)  # (M, C, Y, X)
        for one, (y, x) in zip(covered, some, strict=True):
            top, left = y - size // 2, x - size // 2
            one[:, max(0, top) : top + size, max(0, left) : left + size] = value
        found.append(score(covered))
    return score(image[None]) - torch.cat(found).view(len(rows), len(columns))
