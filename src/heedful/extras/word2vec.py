"""Skip-gram with negative sampling (Mikolov et al., 2013): word vectors trained on a text.

Each word has an input vector x and an output vector y. For a center word, a context word and k negative samples, the
objective log s(x.y) + sum log s(-x.y') is maximized, where s is the logistic function.

Unlike in word2vec, negative samples are shared: positions of the text form blocks, and all center words of a block are
compared with all words around it and with the same `NEGATIVES` sampled words, each with weight k / NEGATIVES. The
expected objective is the same, and a step is three matrix products. The gradients of a step are summed, so a word with
more than `MAX_PAIRS` expected pairs in a step has a proportionally smaller learning rate.

G blocks of a step, M positions in a block, S positions of their context, N negative samples, D width, V words.
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
LONGEST = 100_000_000  # characters of a line at most
BLOCK, BLOCKS, NEGATIVES = 32, 8, 32  # positions in a block, blocks in a step, negative samples of a block
CHUNK = 64  # steps that are prepared together
SUBSAMPLING, WINDOWS, ORDER, WEIGHTS, SAMPLES = range(5)  # random streams; chunks use SAMPLES and those after it
MAX_PAIRS = 64  # expected pairs of a word in a step, above which its learning rate is reduced
FINAL_RATE = 1e-4  # share of the learning rate at the end of training

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Corpus:
    """A text as word ids, by falling frequency and without rare words."""

    words: list[str]
    counts: Ints  # (V,)
    ids: Ints  # (T,)
    lines: Ints  # (T,) the number of each word's line; contexts do not cross lines


def read_corpus(paths: Iterable[Path], config: SkipGramConfig) -> Corpus:
    """Read text files, plain or gzip; a word is letters and digits, with apostrophes between them."""
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
    frequent = np.flatnonzero(counts >= config.min_count)
    if len(frequent) < 2:
        raise UserError(
            "there are too few words to learn from", where=", ".join(map(str, paths)),
            found=f"{len(frequent)} words that occur at least {config.min_count} times", expected="2 or more",
            todo="give more text, or lower --min-count",
        )  # fmt: skip
    frequent = frequent[np.lexsort((names[frequent], -counts[frequent]))]
    new_ids = np.full(len(known), -1)
    new_ids[frequent] = np.arange(len(frequent))
    renumbered = new_ids[every]
    numbers = np.searchsorted(np.frombuffer(ends, np.int64), np.arange(len(every)), side="right")
    return Corpus(names[frequent].tolist(), counts[frequent], renumbered[renumbered >= 0], numbers[renumbered >= 0])


def uniform(seed: int, counter: int, stream: int, count: int) -> NDArray[np.float64]:
    """Random numbers in [0, 1)."""
    return (random_bits(seed, counter, stream, count) >> np.uint64(11)).astype(np.float64) * 2.0**-53


@dataclass(frozen=True)
class Step:
    """The pairs of a step and their weights, which are zero outside of the context window."""

    centers: Tensor  # (G, M)
    others: Tensor  # (G, S + N) the context words, then the negative samples
    weights: Tensor  # (G, M, S + N)


@dataclass(frozen=True)
class Table:
    """Trainable vectors, and a factor of the learning rate for each word."""

    vectors: Tensor  # (V, D)
    shares: Tensor  # (V, 1)

    def rows(self, ids: Tensor) -> Tensor:
        return self.vectors.index_select(0, ids.flatten()).view(*ids.shape, -1)

    def move(self, ids: Tensor, by: Tensor) -> None:
        """Add to the vectors of words; changes of the same word are summed."""
        flat, width = ids.flatten(), self.vectors.shape[1]
        by = by.view(-1, width) * self.shares.index_select(0, flat)
        self.vectors.scatter_add_(0, flat[:, None].expand(-1, width), by)


def learn(inner: Table, outer: Table, step: Step, around: int, rate: float) -> None:
    """One step of gradient ascent on all pairs; the first `around` of each position are context words."""
    x, y = inner.rows(step.centers), outer.rows(step.others)  # (G, M, D), (G, S + N, D)
    slope = (x @ y.mT).sigmoid_()  # (G, M, S + N)
    slope[..., :around] -= 1
    slope *= step.weights
    slope *= -rate
    inner.move(step.centers, slope @ y)
    outer.move(step.others, slope.mT @ x)


class Plan:
    """The steps of an epoch, which depend only on the text, the settings and the epoch."""

    def __init__(self, corpus: Corpus, config: SkipGramConfig, epoch: int) -> None:
        self.config, self.epoch = config, epoch
        kept = (
            uniform(config.seed, epoch, SUBSAMPLING, len(corpus.ids))
            < keep_probabilities(corpus.counts, config.sample)[corpus.ids]
        )
        count, window = int(kept.sum()), config.window
        self.blocks = -(-count // (BLOCK * BLOCKS)) * BLOCKS
        rest = (window, window + self.blocks * BLOCK - count)
        self._ids = torch.from_numpy(np.pad(corpus.ids[kept], rest)).unfold(0, BLOCK + 2 * window, BLOCK)
        self._lines = torch.from_numpy(np.pad(corpus.lines[kept], rest, constant_values=-1)).unfold(
            0, BLOCK + 2 * window, BLOCK
        )
        reach = 1 + (random_bits(config.seed, epoch, WINDOWS, self.blocks * BLOCK) % np.uint64(window)).astype(np.int64)
        reach[count:] = 0
        self._reach = torch.from_numpy(reach).view(-1, BLOCK)
        self._order = torch.from_numpy(permutation(config.seed, epoch, self.blocks, ORDER))
        self._cumulative = np.cumsum(sampling_probabilities(corpus.counts))
        offsets = torch.arange(BLOCK)[:, None] + window - torch.arange(BLOCK + 2 * window)
        self._distances = offsets.abs()  # (M, S)

    def __iter__(self) -> Iterator[Step]:
        for start in range(0, self.blocks, BLOCKS * CHUNK):
            yield from self._chunk(start)

    def _chunk(self, start: int) -> Iterator[Step]:
        blocks, window = self._order[start : start + BLOCKS * CHUNK], self.config.window
        around, lines, reach = self._ids[blocks], self._lines[blocks], self._reach[blocks]
        centers = around[:, window : window + BLOCK].contiguous()
        near = (self._distances > 0) & (self._distances <= reach[..., None])
        near &= lines[:, None, :] == lines[:, window : window + BLOCK, None]
        pairs = near.to(torch.float32)
        counted = pairs.sum(-1, keepdim=True) * (self.config.negatives / NEGATIVES)
        weights = torch.cat([pairs, counted.expand(-1, -1, NEGATIVES)], -1)
        stream = SAMPLES + start // (BLOCKS * CHUNK)
        samples = np.searchsorted(
            self._cumulative, uniform(self.config.seed, self.epoch, stream, len(blocks) * NEGATIVES), side="right"
        )
        others = torch.cat([around, torch.from_numpy(samples).view(len(blocks), NEGATIVES)], 1)
        for parts in zip(*(whole.split(BLOCKS) for whole in (centers, others, weights)), strict=True):
            yield Step(*parts)


def keep_probabilities(counts: Ints, sample: float) -> NDArray[np.float64]:
    """The probability (V,) that an occurrence of a word is kept in subsampling, as word2vec computes it."""
    shares = counts / counts.sum() / sample  # (V,)
    return np.minimum(1.0, np.sqrt(1 / shares) + 1 / shares)


def sampling_probabilities(counts: Ints) -> NDArray[np.float64]:
    """The probability of each word as a negative sample, proportional to its count to the power of 3/4."""
    powers = counts**0.75  # (V,)
    return np.asarray(powers / powers.sum(), np.float64)


def rate_factors(corpus: Corpus, config: SkipGramConfig) -> tuple[Tensor, Tensor]:
    """The factors of the learning rate for the input and output vectors of each word, (V, 1)."""
    kept = corpus.counts * keep_probabilities(corpus.counts, config.sample)  # (V,)
    positions, pairs = BLOCK * BLOCKS, config.window + 1  # of a step, and the mean number of context words
    positive = positions * pairs * kept / kept.sum()
    negative = positions * pairs * config.negatives * sampling_probabilities(corpus.counts)
    inner, outer = MAX_PAIRS / (positive * (1 + config.negatives)), MAX_PAIRS / (positive + negative)
    first, second = (torch.from_numpy(np.minimum(1, shares)).float()[:, None] for shares in (inner, outer))
    return first, second


def train_vectors(
    corpus: Corpus, config: SkipGramConfig, progress: Callable[[float], None] = lambda share: None
) -> WordVectors:
    """Train word vectors; results are bit for bit reproducible, on any number of cores."""
    vocab, width = len(corpus.words), config.width
    initial = (uniform(config.seed, 0, WEIGHTS, vocab * width) - 0.5) / width
    inner_rates, outer_rates = rate_factors(corpus, config)
    inner = Table(torch.from_numpy(initial.astype(np.float32)).view(vocab, width), inner_rates)
    outer = Table(torch.zeros(vocab, width), outer_rates)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # products of this size are faster on one, and reproducible
    try:
        for epoch in range(config.epochs):
            plan = Plan(corpus, config, epoch)
            for number, step in enumerate(plan):
                share = (epoch + number * BLOCKS / plan.blocks) / config.epochs
                learn(inner, outer, step, BLOCK + 2 * config.window, config.lr * max(FINAL_RATE, 1 - share))
                if number % CHUNK == 0:
                    progress(share)
            if not inner.vectors.isfinite().all():
                raise UserError("the vectors are not finite", where="--lr", found=str(config.lr),
                                todo="use a lower --lr")  # fmt: skip
    finally:
        torch.set_num_threads(threads)
    progress(1.0)
    return WordVectors(corpus.words, inner.vectors.numpy())
