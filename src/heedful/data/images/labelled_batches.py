"""Batches of images with their classes; which ones come, and how they are augmented, depends on the seed alone.

B images of a batch, N of all, C channels, Y rows, X columns.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heedful.data.batch import EpochCache, FixedEpochs, TensorBatch
from heedful.data.images.augment import Draws, augment, mix, partners
from heedful.data.images.augmentation import Augmentation
from heedful.data.images.batches import encode_images
from heedful.data.images.file_images import FileImages, available_threads
from heedful.data.images.image_spec import ImageSpec
from heedful.data.images.sources import Images
from heedful.data.order import balanced_order, permutation
from heedful.errors import UserError, shown


@dataclass(frozen=True, slots=True)
class LabelledImageBatch(TensorBatch):
    """A batch of images with the class of each, or, of mixed images, with two classes."""

    pixels: Tensor  # (B, C, Y, X) uint8 or float, as they are stored
    targets: Tensor  # (B,) long: the class
    others: Tensor  # (B,) long: the class of the image that is mixed in
    shares: Tensor  # (B,) float: the share of the first class, 1 where nothing is mixed in
    weights: Tensor  # (B,) float: the weight of its loss
    indices: Tensor  # (B,) long: the number of each image
    mean: tuple[float, ...]  # of each channel, to normalize the pixels with
    std: tuple[float, ...]

    @property
    def tokens(self) -> int:
        """The number of images."""
        return len(self.indices)


@dataclass(frozen=True, slots=True, eq=False)
class EncodedLabelledImages:
    """All images of a split, in one tensor or in their files, with their classes."""

    pixels: Tensor | FileImages  # (N, C, Y, X) uint8 or float
    labels: NDArray[np.int64]  # (N,)
    spec: ImageSpec
    files: tuple[str, ...] = ()  # of each image, if each has its own
    dropped: int = 0  # images are all of one size, so none is dropped

    def __len__(self) -> int:
        return len(self.pixels)

    @property
    def sha256(self) -> str:
        """A hash of these images and their classes, in order."""
        digest = hashlib.sha256(f"{self.pixels.dtype} {tuple(self.pixels.shape)} ".encode())
        if isinstance(self.pixels, FileImages):
            digest.update(self.pixels.sha256.encode())
        else:
            digest.update(self.pixels.numpy().reshape(-1).view(np.uint8).data)
        digest.update(np.ascontiguousarray(self.labels).data)
        return digest.hexdigest()

    def batch(self, rows: Tensor, weights: Tensor | None = None) -> LabelledImageBatch:
        """A batch of these images as they are stored, possibly empty; without weights, each loss counts once."""
        return self._batch(self.images(rows), rows, weights)

    def name(self, row: int) -> str:
        """The file of an image, or its number."""
        return self.files[row] if self.files else f"image {row}"

    def images(self, rows: Tensor, threads: int = 1) -> Tensor:
        """The pixels of these images (B, C, Y, X); those in files are decoded by some threads."""
        if isinstance(self.pixels, FileImages):
            return torch.from_numpy(self.pixels.take(rows.numpy(), threads))
        return torch.index_select(self.pixels, 0, rows)

    def array(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """The pixels of these images (B, C, Y, X) as an array."""
        return self.images(torch.from_numpy(rows)).numpy()

    def _batch(self, pixels: Tensor, rows: Tensor, weights: Tensor | None = None) -> LabelledImageBatch:
        targets = torch.from_numpy(self.labels)[rows]  # (B,)
        ones = torch.ones(len(rows))  # (B,)
        return LabelledImageBatch(
            pixels, targets, targets, ones, ones if weights is None else weights[targets], rows, self.spec.mean,
            self.spec.std,
        )  # fmt: skip

    def in_order(self, size: int) -> Iterator[LabelledImageBatch]:
        """Every image once, in order, `size` at a time."""
        for start in range(0, len(self), size):
            rows = torch.arange(start, min(start + size, len(self)))
            yield self._batch(self.images(rows, available_threads()), rows)


def encode_labelled_images(images: Images, spec: ImageSpec) -> EncodedLabelledImages:
    """Images with their classes by number in the spec; every class must be one of those."""
    assert images.labels is not None, "checked when the data were read"
    numbers = {name: number for number, name in enumerate(spec.names)}
    table = np.array([numbers.get(name, -1) for name in images.names], np.int64)
    labels: NDArray[np.int64] = table[images.labels]
    if (labels < 0).any():
        unknown = images.names[int(images.labels[int(np.argmin(labels))])]
        raise UserError(
            "there are no training images of this class", where="the data", found=shown(unknown),
            expected="a class of the training images: " + ", ".join(map(shown, spec.names[:20])),
            todo="add such images to the training data, or leave these out",
        )  # fmt: skip
    pixels = images.stored if isinstance(images.stored, FileImages) else encode_images(images).pixels
    return EncodedLabelledImages(pixels, labels, spec, images.files)


class LabelledImageBatches(FixedEpochs):
    """The endless sequence of training batches; those of an epoch differ in size by one image at most.

    So none is small, and its statistics are as good as any other's. `weights` are those of the classes, if any;
    `balanced` gives as many images of each class.
    """

    kind = LabelledImageBatch
    few_shapes: ClassVar = True

    def __init__(
        self,
        encoded: EncodedLabelledImages,
        seed: int,
        size: int,
        weights: Sequence[float] = (),
        balanced: bool = False,
        augmentation: Augmentation | None = None,
    ) -> None:
        self.encoded, self.seed, self.augmentation = encoded, seed, augmentation or Augmentation()
        self.count = -(-len(encoded) // size)  # batches per epoch
        self.one_shape = len(encoded) % self.count == 0
        self.weights = torch.tensor(weights) if weights else None
        self._order = EpochCache(  # (N,)
            lambda epoch: torch.from_numpy(
                balanced_order(seed, epoch, encoded.labels) if balanced else permutation(seed, epoch, len(encoded))
            )
        )

    def at(self, position: int, part: int = 0, parts: int = 1) -> LabelledImageBatch:
        """The batch at a position, counted from 0 over all epochs, or one shard of it, which may be empty."""
        epoch, number = divmod(position, self.count)
        keys = self._order(epoch)[self._start(number) : self._start(number + 1)]  # (B,)
        return self.augmented(keys[part::parts], epoch)

    def augmented(self, keys: Tensor, epoch: int) -> LabelledImageBatch:
        """The images of these keys, augmented for an epoch: the same alone and in any batch."""
        settings, count = self.augmentation, len(self.encoded)
        batch = self.encoded.batch(keys % count, self.weights)
        if settings == Augmentation():
            return batch
        draws = Draws(self.seed, epoch, keys.numpy())
        pixels = augment(batch.pixels, settings, self.encoded.spec.mean, draws)
        if not (settings.mixup or settings.cutmix):
            return replace(batch, pixels=pixels)
        chosen = partners(draws, count)
        other = self.encoded.batch(torch.from_numpy(chosen))
        changed = augment(other.pixels, settings, self.encoded.spec.mean, replace(draws, keys=chosen))
        mixed, shares = mix(pixels, changed, settings, draws)
        return replace(batch, pixels=mixed, others=other.targets, shares=shares)

    def tokens(self, position: int) -> int:
        """The number of images in the whole batch at a position."""
        number = position % self.count
        return self._start(number + 1) - self._start(number)

    def _start(self, number: int) -> int:
        """The position in an epoch at which a batch begins."""
        return number * len(self.encoded) // self.count
