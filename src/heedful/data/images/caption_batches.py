"""Batches of images with captions; which come, and how images are augmented, depends on the seed alone.

B images of a batch, N of all, K captions of an image, R = B * K, T positions of a caption, C channels, Y rows,
X columns.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heedful.data.batch import EpochCache, FixedEpochs, Ragged, TensorBatch, round_up
from heedful.data.images.augment import Draws, augment
from heedful.data.images.augmentation import Augmentation
from heedful.data.images.captions import CaptionedImages
from heedful.data.images.image_spec import ImageSpec
from heedful.data.order import permutation, random_bits_at
from heedful.data.tokenizers.tokenizer import TrainedTokenizer
from heedful.errors import UserError

CHUNK = 1024  # captions tokenized at a time


@dataclass(frozen=True, slots=True)
class CaptionBatch(TensorBatch):
    """Images, and K captions of each from bos to eos, padded to the right; those of an image follow each other."""

    pixels: Tensor  # (B, C, Y, X) uint8 or float, as they are stored
    captions: Tensor  # (R, T) long
    lengths: Tensor  # (R,) long
    indices: Tensor  # (B,) long: the number of each image
    mean: tuple[float, ...]  # of each channel, to normalize the pixels with
    std: tuple[float, ...]

    @property
    def tokens(self) -> int:
        """The number of predicted tokens; on a GPU this synchronizes, so call it before moving there."""
        return int(self.lengths.sum()) - len(self.lengths)


@dataclass(frozen=True, slots=True, eq=False)
class EncodedCaptions:
    """All images of a split in one tensor, and the token ids of their captions."""

    pixels: Tensor  # (N, C, Y, X) uint8 or float
    ids: Ragged  # of all captions
    starts: NDArray[np.int64]  # (N + 1,) the captions of image i are those from starts[i] to starts[i + 1]
    spec: ImageSpec
    dropped: int = 0  # captions longer than the model's context

    def __len__(self) -> int:
        return len(self.pixels)

    @property
    def counts(self) -> NDArray[np.int64]:
        """The number of captions of each image."""
        return np.diff(self.starts)

    @property
    def references(self) -> list[list[list[int]]]:
        """The token ids of the captions of each image, from the first word to eos."""
        return [
            [self.ids[number][1:].tolist() for number in range(self.starts[image], self.starts[image + 1])]
            for image in range(len(self))
        ]

    @property
    def sha256(self) -> str:
        """A hash of these images and captions, in order."""
        digest = hashlib.sha256(f"{self.pixels.dtype} {tuple(self.pixels.shape)} ".encode())
        digest.update(self.pixels.numpy().reshape(-1).view(np.uint8).data)
        for array in (self.ids.flat, self.ids.starts, self.starts):
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def batch(self, rows: NDArray[np.int64], captions: NDArray[np.int64], width: int = 0) -> CaptionBatch:
        """Images, and captions of them by their numbers (B, K), padded to at least this width."""
        flat = captions.reshape(-1)
        lengths = self.ids.lengths[flat]  # (R,)
        places = np.arange(max(int(lengths.max(initial=2)), width))  # (T,)
        real = places < lengths[:, None]  # (R, T)
        ids = np.full(real.shape, TrainedTokenizer.pad, np.int64)  # (R, T)
        ids[real] = self.ids.flat[(self.ids.starts[flat][:, None] + places)[real]]
        index = torch.from_numpy(rows)
        return CaptionBatch(
            torch.index_select(self.pixels, 0, index), torch.from_numpy(ids), torch.from_numpy(lengths), index,
            self.spec.mean, self.spec.std,
        )  # fmt: skip

    def in_order(self, size: int) -> Iterator[CaptionBatch]:
        """Every caption once, about `size` at a time; images with as many captions are together, in order."""
        counts = self.counts
        for count in np.unique(counts).tolist():
            images = np.flatnonzero(counts == count)
            step = max(1, size // count)
            for start in range(0, len(images), step):
                rows = images[start : start + step]
                yield self.batch(rows, self.starts[rows][:, None] + np.arange(count))


def encode_captions(
    images: CaptionedImages, spec: ImageSpec, tokenizer: TrainedTokenizer, context: int
) -> EncodedCaptions:
    """The pixels, and the ids of all captions; a caption that is too long is left out."""
    texts = [text for captions in images.captions for text in captions]
    owners = np.repeat(np.arange(len(images)), [len(captions) for captions in images.captions])
    found, kept = list[NDArray[np.int32]](), list[int]()
    for start in range(0, len(texts), CHUNK):
        for number, ids in enumerate(tokenizer.ids(texts[start : start + CHUNK]), start):
            if len(ids) + 1 <= context:  # the model reads bos and all ids, and predicts eos last
                found.append(np.array([tokenizer.bos, *ids, tokenizer.eos], np.int32))
                kept.append(number)
    counts = np.bincount(owners[kept], minlength=len(images)) if kept else np.zeros(len(images), np.int64)
    if not counts.all():
        empty = int(np.argmin(counts > 0))
        raise UserError(
            f"all captions of {int((counts == 0).sum()):,} images are longer than the model's context",
            where=images.names[empty], found=images.captions[empty][0][:80],
            expected=f"a caption of at most {context - 1:,} tokens", todo="raise model.context",
        )  # fmt: skip
    pixels = torch.from_numpy(np.require(images.pixels, requirements=["C", "W"]))
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return EncodedCaptions(pixels, Ragged.of([len(ids) for ids in found], found), starts, spec, len(texts) - len(kept))


class CaptionBatches(FixedEpochs):
    """The endless sequence of training batches; each image comes once an epoch, with `per_image` of its captions.

    Its captions come in turn, so that all are used equally often.
    """

    kind = CaptionBatch

    def __init__(
        self,
        encoded: EncodedCaptions,
        seed: int,
        size: int,
        per_image: int,
        augmentation: Augmentation,
        even: bool = False,
    ) -> None:
        self.encoded, self.seed, self.per_image, self.augmentation = encoded, seed, per_image, augmentation
        self.few_shapes = even
        self.count = max(1, round(len(encoded) / size))  # batches per epoch
        self.one_shape = False
        self._order = EpochCache(lambda epoch: permutation(seed, epoch, len(encoded)))  # (N,)
        # For each image, which of its captions comes first.
        self._first = (random_bits_at(seed, 0, 1, np.arange(len(encoded))) % encoded.counts.astype(np.uint64)).astype(
            np.int64
        )

    def at(self, position: int, part: int = 0, parts: int = 1) -> CaptionBatch:
        """The batch at a position, counted from 0 over all epochs, or one shard of it, which may be empty."""
        epoch, rows, captions = self._chosen(position)
        lengths = self.encoded.ids.lengths[captions]
        width = round_up(int(lengths.max())) if self.few_shapes else 0
        batch = self.encoded.batch(rows[part::parts], captions[part::parts], width)
        if self.augmentation == Augmentation():
            return batch
        draws = Draws(self.seed, epoch, rows[part::parts])
        return replace(batch, pixels=augment(batch.pixels, self.augmentation, self.encoded.spec.mean, draws))

    def _chosen(self, position: int) -> tuple[int, NDArray[np.int64], NDArray[np.int64]]:
        """The epoch, the images (B,) and the numbers of their captions (B, K) at a position."""
        epoch, number = divmod(position, self.count)
        total = len(self.encoded)
        rows = self._order(epoch)[number * total // self.count : (number + 1) * total // self.count]  # (B,)
        turns = self._first[rows][:, None] + epoch * self.per_image + np.arange(self.per_image)  # (B, K)
        return epoch, rows, self.encoded.starts[rows][:, None] + turns % self.encoded.counts[rows][:, None]

    def tokens(self, position: int) -> int:
        """The number of predicted tokens in the whole batch at a position."""
        _, _, captions = self._chosen(position)
        return int(self.encoded.ids.lengths[captions].sum()) - captions.size
