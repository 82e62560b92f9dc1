"""Normalization of pixels: the mean and the standard deviation of each channel, learned from images and applied.

N images, C channels, Y rows, X columns.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heedful.data.images.file_images import FileImages

DIGITS = 6  # of a statistic that are kept, so that every machine finds the same
CHUNK = 1000  # images that are summed at a time, at most
VALUES = 2**24  # of images that are summed at a time
FEW = 10_000  # images in files, evenly chosen


def channel_statistics(pixels: NDArray[Any] | FileImages) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel of images (N, C, Y, X), bytes scaled to 0..1; 1 for a constant.

    Of images in files, some are enough.
    """
    scale = 255 if pixels.dtype == np.uint8 else 1
    step = -(-len(pixels) // FEW) if isinstance(pixels, FileImages) else 1
    rows = np.arange(0, len(pixels), step)
    count = len(rows) * pixels.shape[2] * pixels.shape[3]
    sums, squares = np.zeros(pixels.shape[1]), np.zeros(pixels.shape[1])  # (C,)
    chunk = max(1, min(CHUNK, VALUES // math.prod(pixels.shape[1:])))
    for start in range(0, len(rows), chunk):
        part = pixels[start * step : (start + chunk) * step : step].astype(np.float64) / scale
        sums += part.sum((0, 2, 3))
        squares += np.square(part).sum((0, 2, 3))
    mean = sums / count  # (C,)
    std = np.sqrt(np.maximum(squares / count - mean**2, 0))  # (C,)
    rounded = [round(float(value), DIGITS) for value in std]
    return tuple(round(float(value), DIGITS) for value in mean), tuple(value or 1.0 for value in rounded)


def normalize(pixels: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """(x - mean) / std of images (N, C, Y, X), bytes scaled to 0..1 first; without statistics, they are only scaled."""
    return scaled(pixels, *statistics(mean, std, pixels.device))


def scaled(pixels: Tensor, shift: Tensor | None, scale: Tensor | None) -> Tensor:
    """(x - shift) / scale of images (N, C, Y, X), bytes scaled to 0..1 first."""
    x = pixels.float() / 255 if pixels.dtype == torch.uint8 else pixels
    return x if shift is None or scale is None else (x - shift) / scale


def statistics(
    mean: tuple[float, ...], std: tuple[float, ...], device: torch.device
) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """Both as tensors (C, 1, 1) on a device, or none."""
    return _constants(mean, std, device) if mean else (None, None)


@lru_cache(maxsize=64)
def _constants(mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Both as tensors (C, 1, 1); made once, since a CUDA graph cannot copy them from the host."""
    with torch.inference_mode(False):
        first, second = (torch.tensor(values, device=device)[:, None, None] for values in (mean, std))
        return first, second
