"""Skip-gram with negative sampling (Mikolov et al., 2013): word vectors that are learned from a text.

Each word has a vector x to look around with, and a vector y to be seen with. For a word and one that stands near it,
and k random words, log s(x.y) + sum log s(-x.y') is made larger, where s is the logistic function.

Differs: the chance words are shared. Places of the text lie in blocks; all words of a block are compared with all
words around it and with `DRAWN` chance words, each of which counts k / DRAWN times for each pair. What is made larger
is the same in the mean, and it is three products of matrices. A word that a step is expected to compare more than
`MOST` times learns so much more slowly, since the step's comparisons do not know of each other.

G blocks of a step, M places in a block, S places that these may see, N chance words, D width, V words.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heedful.data.formats.sources import lines
from heedful.data.order import permutation, random_bits
from heedful.data.word_vectors import WordVectors
from heedful.errors import UserError
from heedful.extras.word2vec_config import SkipGramConfig

WORD = re.compile(r"\w+(?:['’]\w+)*")
LONGEST = 100_000_000  # characters of a line
BLOCK, TOGETHER, DRAWN = 32, 8, 32  # places of a block, blocks of a step, chance words of a block
STRETCH = 64  # steps that are got ready together
KEPT, REACH, ORDER, BEGIN, CHANCE = range(5)  # what random numbers are for; stretches take CHANCE and those after it
MOST = 64  # comparisons of a word in a step
LEAST = 1e-4  # share of the learning rate that is left at the end

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Corpus:
    """A text as the numbers of its words, the rare ones left out, the most frequent word being 0."""

    words: list[str]
    counts: Ints  # (V,)
    ids: Ints  # (T,)
    lines: Ints  # (T,) the line that each stands in; words of two lines do not see each other


def read_corpus(paths: Iterable[Path], config: SkipGramConfig) -> Corpus:
    """The words of files of text, plain or gzip: letters and digits, and apostrophes between them."""
    known: dict[str, int] = {}
    ids, ends = array("q"), array("q")
    for path in paths:
        for line in lines(path, LONGEST):
            words = WORD.findall(line.lower() if config.lowercase else line)
            ids.extend([known.setdefault(word, len(known)) for word in words])
            ends.append(len(ids))
    every = np.frombuffer(ids, np.int64) if ids else np.zeros(0, np.int64)
    counts = np.bincount(every, minlength=len(known))
    names = np.array(list(known), dtype=object)
    often = np.flatnonzero(counts >= config.min_count)
    if len(often) < 2:
        raise UserError(
            "there are too few words to learn from", where=", ".join(map(str, paths)),
            found=f"{len(often)} words that stand at least {config.min_count} times", expected="2 or more",
            todo="give more text, or lower --min-count",
        )  # fmt: skip
    often = often[np.lexsort((names[often], -counts[often]))]
    places = np.full(len(known), -1)
    places[often] = np.arange(len(often))
    found = places[every]
    numbers = np.searchsorted(np.frombuffer(ends, np.int64), np.arange(len(every)), side="right")
    return Corpus(names[often].tolist(), counts[often], found[found >= 0], numbers[found >= 0])


def uniform(seed: int, counter: int, stream: int, count: int) -> NDArray[np.float64]:
    """Random numbers from 0 up to 1."""
    return (random_bits(seed, counter, stream, count) >> np.uint64(11)).astype(np.float64) * 2.0**-53


@dataclass(frozen=True)
class Step:
    """Which words are compared, and how much each comparison counts: nothing, where they are no neighbours."""

    centres: Tensor  # (G, M)
    others: Tensor  # (G, S + N) the words around, and then the random ones
    weights: Tensor  # (G, M, S + N)


@dataclass(frozen=True)
class Table:
    """Vectors that learn, and the share of the learning rate that each word has."""

    vectors: Tensor  # (V, D)
    shares: Tensor  # (V, 1)

    def rows(self, ids: Tensor) -> Tensor:
        return self.vectors.index_select(0, ids.flatten()).view(*ids.shape, -1)

    def move(self, ids: Tensor, by: Tensor) -> None:
        """Add to the words' vectors; where a word stands several times, all of it."""
        flat, width = ids.flatten(), self.vectors.shape[1]
        by = by.view(-1, width) * self.shares.index_select(0, flat)
        self.vectors.scatter_add_(0, flat[:, None].expand(-1, width), by)


def learn(inner: Table, outer: Table, step: Step, around: int, rate: float) -> None:
    """One step up: the gradient of all comparisons, of which the first `around` of each place are neighbours."""
    x, y = inner.rows(step.centres), outer.rows(step.others)  # (G, M, D), (G, S + N, D)
    slope = (x @ y.mT).sigmoid_()  # (G, M, S + N)
    slope[..., :around] -= 1
    slope *= step.weights
    slope *= -rate
    inner.move(step.centres, slope @ y)
    outer.move(step.others, slope.mT @ x)


class Plan:
    """The steps of an epoch, which depend on the text, the settings and the epoch alone."""

    def __init__(self, corpus: Corpus, config: SkipGramConfig, epoch: int) -> None:
        self.config, self.epoch = config, epoch
        kept = (
            uniform(config.seed, epoch, KEPT, len(corpus.ids))
            < keep_probabilities(corpus.counts, config.sample)[corpus.ids]
        )
        count, window = int(kept.sum()), config.window
        self.blocks = -(-count // (BLOCK * TOGETHER)) * TOGETHER
        rest = (window, window + self.blocks * BLOCK - count)
        self._ids = torch.from_numpy(np.pad(corpus.ids[kept], rest)).unfold(0, BLOCK + 2 * window, BLOCK)
        self._lines = torch.from_numpy(np.pad(corpus.lines[kept], rest, constant_values=-1)).unfold(
            0, BLOCK + 2 * window, BLOCK
        )
        reach = 1 + (random_bits(config.seed, epoch, REACH, self.blocks * BLOCK) % np.uint64(window)).astype(np.int64)
        reach[count:] = 0
        self._reach = torch.from_numpy(reach).view(-1, BLOCK)
        self._order = torch.from_numpy(permutation(config.seed, epoch, self.blocks, ORDER))
        self._chances = np.cumsum(chances(corpus.counts))
        places = torch.arange(BLOCK)[:, None] + window - torch.arange(BLOCK + 2 * window)
        self._distances = places.abs()  # (M, S)

    def __iter__(self) -> Iterator[Step]:
        for stretch in range(0, self.blocks, TOGETHER * STRETCH):
            yield from self._stretch(stretch)

    def _stretch(self, start: int) -> Iterator[Step]:
        blocks, window = self._order[start : start + TOGETHER * STRETCH], self.config.window
        around, lines, reach = self._ids[blocks], self._lines[blocks], self._reach[blocks]
        centres = around[:, window : window + BLOCK].contiguous()
        near = (self._distances > 0) & (self._distances <= reach[..., None])
        near &= lines[:, None, :] == lines[:, window : window + BLOCK, None]
        pairs = near.to(torch.float32)
        counted = pairs.sum(-1, keepdim=True) * (self.config.negatives / DRAWN)
        weights = torch.cat([pairs, counted.expand(-1, -1, DRAWN)], -1)
        stream = CHANCE + start // (TOGETHER * STRETCH)
        chance = np.searchsorted(
            self._chances, uniform(self.config.seed, self.epoch, stream, len(blocks) * DRAWN), side="right"
        )
        others = torch.cat([around, torch.from_numpy(chance).view(len(blocks), DRAWN)], 1)
        for parts in zip(*(whole.split(TOGETHER) for whole in (centres, others, weights)), strict=True):
            yield Step(*parts)


def keep_probabilities(counts: Ints, sample: float) -> NDArray[np.float64]:
    """How likely a place is kept, by its word: the more frequent, the less, as word2vec computes it."""
    shares = counts / counts.sum() / sample  # (V,)
    return np.minimum(1.0, np.sqrt(1 / shares) + 1 / shares)


def chances(counts: Ints) -> NDArray[np.float64]:
    """The probability of each word as a negative sample: the 3/4th power of its count, as published."""
    powers = counts**0.75  # (V,)
    return np.asarray(powers / powers.sum(), np.float64)


def rate_shares(corpus: Corpus, config: SkipGramConfig) -> tuple[Tensor, Tensor]:
    """The share of the learning rate that each word has, as one that sees and as one that is seen."""
    kept = corpus.counts * keep_probabilities(corpus.counts, config.sample)  # (V,)
    places, pairs = BLOCK * TOGETHER, config.window + 1  # of a step, and the mean number of a place's neighbours
    seeing = places * pairs * kept / kept.sum()
    drawn = places * pairs * config.negatives * chances(corpus.counts)
    inner, outer = MOST / (seeing * (1 + config.negatives)), MOST / (seeing + drawn)
    first, second = (torch.from_numpy(np.minimum(1, shares)).float()[:, None] for shares in (inner, outer))
    return first, second


def train_vectors(
    corpus: Corpus, config: SkipGramConfig, progress: Callable[[float], None] = lambda share: None
) -> WordVectors:
    """Learn the vectors of a text; the same text, settings and versions give the same bits, on any number of cores."""
    vocab, width = len(corpus.words), config.width
    begun = (uniform(config.seed, 0, BEGIN, vocab * width) - 0.5) / width
    sees, is_seen = rate_shares(corpus, config)
    inner = Table(torch.from_numpy(begun.astype(np.float32)).view(vocab, width), sees)
    outer = Table(torch.zeros(vocab, width), is_seen)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # products of this size are quicker on one, and always the same
    try:
        for epoch in range(config.epochs):
            plan = Plan(corpus, config, epoch)
            for number, step in enumerate(plan):
                share = (epoch + number * TOGETHER / plan.blocks) / config.epochs
                learn(inner, outer, step, BLOCK + 2 * config.window, config.lr * max(LEAST, 1 - share))
                if number % STRETCH == 0:
                    progress(share)
            if not inner.vectors.isfinite().all():
                raise UserError("the vectors grew beyond all bounds", where="rate", found=str(config.lr),
                                todo="learn with a lower --lr")  # fmt: skip
    finally:
        torch.set_num_threads(threads)
    progress(1.0)
    return WordVectors(corpus.words, inner.vectors.numpy())
