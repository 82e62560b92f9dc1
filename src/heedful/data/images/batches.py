"""Batches of images; the order depends on the seed alone.

B images of a batch, N of all, C channels, Y rows, X columns.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heedful.data.batch import EpochCache, FixedEpochs, TensorBatch
from heedful.data.images.sources import Images
from heedful.data.order import permutation

CHUNK = 2**24  # bytes hashed at a time


@dataclass(frozen=True, slots=True)
class ImageBatch(TensorBatch):
    """A batch of images, with the epoch and the index of each, which seed its noise."""

    pixels: Tensor  # (B, C, Y, X) uint8 or float, as they are stored
    epoch: Tensor  # () long, -1 outside training
    indices: Tensor  # (B,) long

    @property
    def tokens(self) -> int:
        """The number of images."""
        return len(self.indices)


@dataclass(frozen=True, slots=True, eq=False)
class EncodedImages:
    """All images of a split in one tensor."""

    pixels: Tensor  # (N, C, Y, X) uint8 or float
    labels: NDArray[np.int64] | None = None  # (N,)
    dropped: int = 0  # images are all of one size, so none is dropped

    def __len__(self) -> int:
        return len(self.pixels)

    @property
    def sha256(self) -> str:
        """A hash of these images, in order."""
        digest = hashlib.sha256(f"{self.pixels.dtype} {tuple(self.pixels.shape)} ".encode())
        content = self.pixels.numpy().reshape(-1).view(np.uint8)
        for start in range(0, len(content), CHUNK):
            digest.update(content[start : start + CHUNK].data)
        return digest.hexdigest()

    def batch(self, rows: Tensor, epoch: int) -> ImageBatch:
        """A batch of these images, possibly empty."""
        return ImageBatch(torch.index_select(self.pixels, 0, rows), torch.full((), epoch), rows)

    def in_order(self, size: int) -> Iterator[ImageBatch]:
        """Every image once, in order, `size` at a time."""
        for start in range(0, len(self), size):
            pixels = self.pixels[start : start + size]
            yield ImageBatch(pixels, torch.full((), -1), torch.arange(start, start + len(pixels)))


class ImageBatches(FixedEpochs):
    """The endless sequence of training batches; the last of an epoch may be smaller."""

    kind = ImageBatch
    few_shapes: ClassVar = True  # all batches but the last of an epoch have one shape

    def __init__(self, encoded: EncodedImages, seed: int, size: int) -> None:
        self.encoded = encoded
        self.size = min(size, len(encoded))
        self.count = -(-len(encoded) // self.size)  # batches per epoch
        self.one_shape = len(encoded) % self.size == 0
        self._order = EpochCache(lambda epoch: torch.from_numpy(permutation(seed, epoch, len(encoded))))  # (N,)

    def at(self, position: int, part: int = 0, parts: int = 1) -> ImageBatch:
        """The batch at a position, counted from 0 over all epochs, or one shard of it, which may be empty."""
        epoch, number = divmod(position, self.count)
        rows = self._order(epoch)[number * self.size : (number + 1) * self.size]  # (B,)
        return self.encoded.batch(rows if parts == 1 else rows[part::parts], epoch)

    def tokens(self, position: int) -> int:
        """The number of images in the whole batch at a position."""
        return min(self.size, len(self.encoded) - position % self.count * self.size)


def encode_images(images: Images) -> EncodedImages:
    """Images as a tensor, sharing memory if it is writable."""
    return EncodedImages(torch.from_numpy(np.require(images.pixels, requirements=["C", "W"])), images.labels)
