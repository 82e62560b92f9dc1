"""Batches of images with paragraphs; the order depends on the seed alone.

B images of a batch, N of all, C channels, Y rows, X columns, R regions, S sentences, K regions of a sentence,
Q phrases of all images, U sentences of all images, T tokens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from heedful.data.batch import EpochCache, FixedEpochs, TensorBatch, fingerprint
from heedful.data.images.image_spec import ImageSpec
from heedful.data.images.paragraphs import Box, DescribedImages, Paragraph
from heedful.data.order import permutation
from heedful.data.tokenizers.tokenizer import TrainedTokenizer
from heedful.errors import UserError

WHOLE: Box = (0.0, 0.0, 1.0, 1.0)  # the box of the whole image, which is region 0


@dataclass(frozen=True, slots=True)
class ParagraphBatch(TensorBatch):
    """Images with their regions, and all phrases and sentences one after the other, padded to one length.

    Phrases and sentences start with the start token and end with the end token; `phrase_rows` and `sentence_rows` are
    their places among the B * R regions and the B * S sentences.
    """

    pixels: Tensor  # (B, C, Y, X) uint8 or float, as they are stored
    boxes: Tensor  # (B, R, 4) top, left, bottom, right, from 0 to 1; the first is the whole image
    regions: Tensor  # (B,) long: how many regions are real
    phrases: Tensor  # (Q, T) long
    phrase_rows: Tensor  # (Q,) long
    sentences: Tensor  # (U, T) long
    sentence_rows: Tensor  # (U,) long
    counts: Tensor  # (B,) long: how many sentences there are
    chosen: Tensor  # (B, S, K) long: the regions of each sentence; -1: not known
    tokens: int  # of phrases and sentences, without the start tokens
    mean: tuple[float, ...]  # of each channel, to normalize the pixels with
    std: tuple[float, ...]

    @property
    def real(self) -> Tensor:
        """Which regions are not padding (B, R)."""
        return torch.arange(self.boxes.shape[1], device=self.boxes.device) < self.regions[:, None]


@dataclass(frozen=True)
class EncodedParagraph:
    """A paragraph as numbers: boxes, and the tokens of phrases and sentences."""

    boxes: tuple[Box, ...]
    phrases: tuple[list[int], ...]
    sentences: tuple[list[int], ...]
    chosen: tuple[tuple[int, ...], ...]  # K regions of each sentence

    @property
    def longest(self) -> int:
        """The most tokens of a phrase or a sentence, without the start token."""
        return max(map(len, (*self.phrases, *self.sentences))) - 1

    @property
    def tokens(self) -> int:
        """The tokens that are predicted."""
        return sum(len(ids) - 1 for ids in (*self.phrases, *self.sentences))


@dataclass(frozen=True, slots=True, eq=False)
class EncodedParagraphs:
    """All images of a split in one tensor, with their paragraphs."""

    pixels: Tensor  # (N, C, Y, X) uint8 or float
    paragraphs: tuple[EncodedParagraph, ...]
    spec: ImageSpec
    dropped: int = 0  # images whose paragraph has a sentence longer than the context

    def __len__(self) -> int:
        return len(self.pixels)

    @property
    def sha256(self) -> str:
        """A hash of these images and paragraphs, in order."""
        digest = hashlib.sha256(repr([vars(each) for each in self.paragraphs]).encode())
        digest.update(fingerprint(self.pixels.numpy()).encode())
        return digest.hexdigest()

    def batch(self, rows: Tensor) -> ParagraphBatch:
        """A batch of these images."""
        found = [self.paragraphs[row] for row in rows.tolist()]
        regions, counts = [1 + len(p.boxes) for p in found], [len(p.sentences) for p in found]
        most, longest, slots = max(regions, default=1), max(counts, default=1), len(self.paragraphs[0].chosen[0])
        boxes = [[WHOLE, *p.boxes, *[WHOLE] * (most - 1 - len(p.boxes))] for p in found]
        chosen = [[*p.chosen, *[(-1,) * slots] * (longest - len(p.chosen))] for p in found]
        phrase_rows = [b * most + 1 + n for b, p in enumerate(found) for n in range(len(p.phrases))]
        sentence_rows = [b * longest + n for b, p in enumerate(found) for n in range(len(p.sentences))]
        return ParagraphBatch(
            torch.index_select(self.pixels, 0, rows), torch.tensor(boxes).reshape(-1, most, 4), ints(regions),
            pad([ids for p in found for ids in p.phrases]), ints(phrase_rows),
            pad([ids for p in found for ids in p.sentences]), ints(sentence_rows), ints(counts),
            ints(chosen).reshape(-1, longest, slots), sum(p.tokens for p in found), self.spec.mean, self.spec.std,
        )  # fmt: skip

    def in_order(self, size: int) -> Iterator[ParagraphBatch]:
        """Every image once, in order, `size` at a time."""
        for start in range(0, len(self), size):
            yield self.batch(torch.arange(start, min(start + size, len(self))))


def pad(rows: Sequence[Sequence[int]]) -> Tensor:
    """Rows of tokens, padded on the right to the longest (N, T)."""
    longest = max(2, *map(len, rows), 2)  # a start and an end
    return ints([[*row, *[TrainedTokenizer.pad] * (longest - len(row))] for row in rows]).reshape(-1, longest)


def ints(values: Sequence[object]) -> Tensor:
    """Whole numbers, possibly none, as a tensor."""
    return torch.tensor(values, dtype=torch.long)


def encode_paragraphs(
    read: DescribedImages, spec: ImageSpec, tokenizer: TrainedTokenizer, context: int, slots: int
) -> EncodedParagraphs:
    """Images with tokens; those with a sentence or phrase longer than the context are left out."""
    encoded = [_encode(paragraph, tokenizer, slots) for paragraph in read.paragraphs]
    kept = [row for row, each in enumerate(encoded) if each.longest <= context]
    if not kept:
        raise UserError(
            "no paragraph fits the model's context", where="model.context", found=f"{context} tokens",
            expected=f"{min(each.longest for each in encoded)} or more, the longest sentence of a paragraph",
            todo="raise it, or write a larger tokenizer.vocab",
        )  # fmt: skip
    pixels = np.require(read.pixels if len(kept) == len(encoded) else read.pixels[kept], requirements=["C", "W"])
    return EncodedParagraphs(
        torch.from_numpy(pixels), tuple(encoded[row] for row in kept), spec, len(encoded) - len(kept)
    )


def _encode(paragraph: Paragraph, tokenizer: TrainedTokenizer, slots: int) -> EncodedParagraph:
    ids = [[tokenizer.bos, *row, tokenizer.eos] for row in tokenizer.ids([*paragraph.phrases, *paragraph.sentences])]
    count = len(paragraph.phrases)
    chosen = tuple(fill(named, slots) for named in paragraph.regions)
    return EncodedParagraph(paragraph.boxes, tuple(ids[:count]), tuple(ids[count:]), chosen)


def fill(named: Sequence[int], slots: int) -> tuple[int, ...]:
    """The regions of a sentence in each of its slots: the last named again, where it speaks of fewer."""
    last = named[-1] if named else -1
    return tuple(named[slot] if slot < len(named) else last for slot in range(slots))


class ParagraphBatches(FixedEpochs):
    """The endless sequence of training batches; those of an epoch differ in size by one image at most."""

    kind = ParagraphBatch
    few_shapes: ClassVar = False

    def __init__(self, encoded: EncodedParagraphs, seed: int, size: int) -> None:
        self.encoded = encoded
        self.count = -(-len(encoded) // size)  # batches per epoch
        self._sizes = torch.tensor([paragraph.tokens for paragraph in encoded.paragraphs])  # (N,)
        self._order = EpochCache(lambda epoch: torch.from_numpy(permutation(seed, epoch, len(encoded))))  # (N,)

    def at(self, position: int, part: int = 0, parts: int = 1) -> ParagraphBatch:
        """The batch at a position, counted from 0 over all epochs, or one shard of it."""
        return self.encoded.batch(self._rows(position)[part::parts])

    def tokens(self, position: int) -> int:
        """The number of tokens in the whole batch at a position."""
        return int(self._sizes[self._rows(position)].sum())

    def _rows(self, position: int) -> Tensor:
        epoch, number = divmod(position, self.count)
        first, last = (at * len(self.encoded) // self.count for at in (number, number + 1))
        return self._order(epoch)[first:last]  # (B,)
