"""Permutation language modelling: texts, the tokens to predict, and the order in which they are predicted.

An example is `earlier text | A <sep> B <sep> <cls>`: A continues the earlier text; B continues A, or starts at a random
place. From step to step, each lane of a batch advances by its earlier text, which a model can keep in its memory (Yang
et al., 2019, section 2.4). One of K tokens is predicted: a span of L tokens in each stretch of K L tokens. The order is
given by ranks: tokens that are not predicted come first, and see each other; the predicted ones follow, one by one in
random order. Earlier text comes before A and B in the order, so that its memory does not depend on them.

An example is a function of the seed, the epoch and its index.

Differs from the published script: words may be split between spans, and no lane reads backwards.

B rows, T positions in a row, G positions to predict, N tokens of all documents.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heedful.data.batch import IGNORE_INDEX, FixedEpochs, Ints, TensorBatch
from heedful.data.order import random_bits, random_bits_at
from heedful.data.text.pretraining import EncodedDocuments

SPECIAL = 3  # two <sep>, and <cls>
SHIFT, SPLIT, RELATED, PLACE, LENGTH, START, ORDER = range(1, 8)  # streams of random numbers


@dataclass(frozen=True, slots=True)
class PermutationRules:
    """Which tokens are predicted, and how many of a row are earlier text."""

    one_in: int = 6  # K
    longest: int = 5  # tokens of a span
    unrelated: float = 0.5  # share of the pairs that do not follow each other
    earlier: int = 0  # tokens of a row that go into the memory

    def most(self, context: int) -> int:
        """The maximum number of predicted tokens in a row."""
        return context // self.one_in + self.longest


@dataclass(frozen=True, slots=True)
class PermutationBatch(TensorBatch):
    """Texts, the order in which their tokens are predicted, and those that are predicted."""

    ids: Tensor  # (B, T) long
    segments: Tensor  # (B, T) long
    ranks: Tensor  # (B, T) long
    places: Tensor  # (B, G) long, positions in the row, the last one repeated
    targets: Tensor  # (B, G) long, the ids there, IGNORE_INDEX where a position is repeated
    fresh: Tensor  # (B,) bool, the lane starts here
    whole: Tensor  # (2,) long: tokens, and tokens to predict, of the whole batch that this may be a shard of
    earlier: int  # the first tokens of a row, which go into the memory

    @property
    def tokens(self) -> int:
        """The number of input tokens."""
        return self.ids.numel() if bool((self.targets != IGNORE_INDEX).any()) else 0


def choose_spans(text: NDArray[np.bool_], rules: PermutationRules, lengths: Ints, starts: Ints) -> NDArray[np.bool_]:
    """Which positions (B, T) of text are predicted: a span of L in each stretch of K L, where L = lengths[b, number].

    In its stretch, the span starts at starts[b, number], modulo the number of possible places.
    """
    chosen = np.zeros_like(text)
    for row, marked in enumerate(chosen):
        at, number = 0, 0
        while at < len(marked):
            size = int(lengths[row, number])
            first = at + int(starts[row, number]) % (size * (rules.one_in - 1) + 1)
            marked[first : first + size] = True
            at, number = at + size * rules.one_in, number + 1
    return chosen & text


def order_ranks(chosen: NDArray[np.bool_], earlier: int, random: NDArray[np.uint64]) -> Ints:
    """The rank of each position (B, T): first what is not chosen, then what is, by its random number.

    This holds within the `earlier` positions, and again within the rest, which come after all of them.
    """
    ranks = np.zeros(chosen.shape, dtype=np.int64)
    for row, marked in enumerate(chosen):
        rank = 0
        for part in (slice(0, earlier), slice(earlier, None)):
            places = np.arange(chosen.shape[1])[part][marked[part]]
            ranks[row, part] = rank
            ranks[row, places[np.argsort(random[row, places], kind="stable")]] = rank + 1 + np.arange(len(places))
            rank += 1 + len(places)
    return ranks


def random_lengths(random: NDArray[np.uint64], longest: int) -> Ints:
    """Random lengths from 1 to `longest`; the probability of a length L is proportional to 1 / L."""
    ends = np.cumsum(1 / np.arange(1, longest + 1))
    return 1 + np.searchsorted(ends[:-1] / ends[-1], random / 2.0**64, side="right").astype(np.int64)


class PermutationBatches(FixedEpochs):
    """The endless sequence of batches; which one comes at a position depends on the seed and the lanes alone.

    Lanes start at equal distances in the text, whose first token follows its last one. From the second
    epoch on, all are shifted by a random offset.
    """

    kind: ClassVar = PermutationBatch
    few_shapes: ClassVar = True
    one_shape: ClassVar = True

    def __init__(self, encoded: EncodedDocuments, rules: PermutationRules, seed: int, batch_tokens: int) -> None:
        self.encoded, self.rules, self.seed = encoded, rules, seed
        self.lanes = max(1, batch_tokens // encoded.context)
        self.step = rules.earlier or encoded.context - SPECIAL  # tokens by which a lane advances
        self.count = max(1, -(-len(encoded) // (self.lanes * self.step)))

    def at(self, position: int, part: int = 0, parts: int = 1) -> PermutationBatch:
        """The batch at a position, counted from 0 over all epochs, or one shard of it: every `parts`-th lane."""
        epoch, number = divmod(position, self.count)
        lanes = np.arange(self.lanes)
        shift = int(random_bits(self.seed, epoch, SHIFT, 1)[0] % np.uint64(self.step)) if epoch else 0
        begins = (lanes * len(self.encoded) // self.lanes + shift + number * self.step) % len(self.encoded)
        ids, segments, chosen, ranks = self.build(epoch, lanes * self.count + number, begins)
        mine = lanes[part::parts] if part < self.lanes else lanes[:1]
        places = np.zeros((len(mine), self.rules.most(self.encoded.context)), dtype=np.int64)  # (B, G)
        targets = np.full_like(places, IGNORE_INDEX)  # (B, G)
        for row, lane in enumerate(mine if part < self.lanes else ()):
            found = np.flatnonzero(chosen[lane])
            places[row] = np.pad(found, (0, places.shape[1] - len(found)), mode="edge") if len(found) else 0
            targets[row, : len(found)] = ids[lane, found]
        rows = [torch.from_numpy(x[mine]) for x in (ids, segments, ranks)]
        return PermutationBatch(
            rows[0], rows[1], rows[2], torch.from_numpy(places), torch.from_numpy(targets),
            fresh=torch.full((len(mine),), number == 0),
            whole=torch.tensor([ids.size, int(chosen.sum())]),
            earlier=self.rules.earlier,
        )  # fmt: skip

    def tokens(self, position: int) -> int:
        """The number of input tokens in the whole batch at a position."""
        return self.lanes * self.encoded.context

    def build(self, epoch: int, examples: Ints, begins: Ints) -> tuple[Ints, Ints, NDArray[np.bool_], Ints]:
        """Ids, segments, the positions to predict and the ranks (B, T) of the texts that begin at these tokens."""
        encoded, rules, marks = self.encoded, self.rules, self.encoded.marks
        sentences, total, width = encoded.sentences, encoded.context - rules.earlier - SPECIAL, encoded.context

        def random(stream: int, columns: int = 1) -> NDArray[np.uint64]:
            return random_bits_at(self.seed, epoch, stream, examples[:, None] * width + np.arange(columns))

        first = begins + rules.earlier  # (B,) of A, which ends with a sentence, if one ends there
        low = np.searchsorted(sentences, first, side="right")
        ends = np.maximum(np.searchsorted(sentences, np.minimum(first + total, len(encoded)), side="left") - low, 0)
        split = low + (random(SPLIT)[:, 0] % np.maximum(ends, 1).astype(np.uint64)).astype(np.int64)
        size = np.where(ends > 0, sentences[np.minimum(split, len(sentences) - 1)] - first, total // 2)  # (B,)
        size = np.clip(size, 1, total - 1)[:, None]  # (B, 1)
        anywhere = sentences[(random(PLACE)[:, 0] % np.uint64(len(sentences) - 1)).astype(np.int64)]
        second = np.where(random(RELATED)[:, 0] / 2.0**64 < rules.unrelated, anywhere, first + size[:, 0])  # (B,)
        at, sep = np.arange(width), rules.earlier + size  # (T,), (B, 1)
        found = np.where(at > sep, second[:, None] + at - sep - 1, begins[:, None] + at)  # (B, T)
        ids = encoded.ids[found % len(encoded)].astype(np.int64)  # (B, T)
        special = (at == sep) | (at >= width - 2)  # (B, T)
        ids[special] = marks.sep
        ids[:, -1] = marks.cls
        segments = (at > sep).astype(np.int64) + (at == width - 1)  # (B, T)
        lengths = random_lengths(random(LENGTH, width), rules.longest)  # (B, T)
        starts = (random(START, width) >> np.uint64(1)).astype(np.int64)  # (B, T)
        chosen = choose_spans(~special, rules, lengths, starts)  # (B, T)
        return ids, segments, chosen, order_ranks(chosen, rules.earlier, random(ORDER, width))
