"""Batches of trees, which are computed level by level for all trees at once.

A node's level is its distance from the root of its tree. All trees of a batch have their roots on the same level, so
that the children of a level are the whole level below it, and a batch takes as many steps as its deepest tree is deep.

B trees, N nodes, L leaves, W nodes with a word.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from heedful.data.batch import Epochs, Ints, TensorBatch, fingerprint
from heedful.data.order import permutation
from heedful.data.tokenizers.vocabulary import WordVocab
from heedful.data.trees.treebank import IGNORE_INDEX, Tree
from heedful.errors import UserError

POOL = 32  # batches per pool that is sorted by depth: more waste fewer steps, fewer are more random


@dataclass(frozen=True, slots=True)
class TreeBatch(TensorBatch):
    """Trees side by side: first all leaves, then all inner nodes, of each the deepest level first.

    Within a level, inner nodes come before leaves: that is the order of `parents` and `places`.
    """

    words: Tensor  # (W,) long, of all leaves, then of the inner nodes that have a word
    inner: Tensor  # (W - L,) long, the indices of these inner nodes
    labels: Tensor  # (N,) long, IGNORE_INDEX where there is none
    parents: Tensor  # (N - B,) long, the parent's index in the level above, level by level
    places: Tensor  # (N - B,) long, index among the children of its parent
    roots: Tensor  # (B,) long, the index of each tree's root among all nodes
    nodes: Tensor  # (N,) long, the index of each node when the trees are concatenated, children first
    indices: Tensor  # (B,) long, the index of each tree in the encoded list, -1 for padding
    leaf_counts: tuple[int, ...]  # of each level, the deepest first
    inner_counts: tuple[int, ...]
    widest: int  # no node has more children
    tokens: int  # labelled nodes


@dataclass(frozen=True, slots=True)
class EncodedTrees:
    """All trees of a split, concatenated, children before parents."""

    words: Ints  # (N,) ids, -1 where there is no word
    labels: Ints  # (N,)
    parents: Ints  # (N,) index of the parent, -1 for a root
    places: Ints  # (N,) index among the children of the parent
    levels: Ints  # (N,) depth below the root
    counts: Ints  # (N,) children
    starts: Ints  # (B + 1,)

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def dropped(self) -> int:
        """The number of dropped trees: none, since a tree may have any size."""
        return 0

    @property
    def sizes(self) -> Ints:
        """The number of nodes of each tree."""
        return np.diff(self.starts)

    @property
    def depths(self) -> Ints:
        """The depth of each tree."""
        return np.maximum.reduceat(self.levels, self.starts[:-1]) + 1

    @property
    def sha256(self) -> str:
        """A hash of these trees, in order."""
        return fingerprint(self.words, self.labels, self.parents, self.places, self.starts)

    def batch(self, rows: Ints) -> TreeBatch:
        """A batch of these trees; for no trees, one leaf without a label."""
        if not len(rows):
            nothing = encode_trees([Tree((IGNORE_INDEX,), ("",), ((),))], None)
            empty = nothing.batch(np.zeros(1, np.int64))
            empty.indices.fill_(-1)
            return empty
        sizes = self.starts[rows + 1] - self.starts[rows]  # (B,)
        ends = np.cumsum(sizes)
        shift = np.repeat(self.starts[rows] - (ends - sizes), sizes)  # (N,)
        at = np.arange(ends[-1]) + shift  # (N,) index of each node among all trees
        levels, leaf = self.levels[at], self.counts[at] == 0
        order = np.lexsort((-levels, ~leaf))  # (N,) as the batch has its nodes
        where = np.empty_like(order)
        where[order] = np.arange(len(order))
        up = np.lexsort((leaf, -levels))  # (N,) level by level
        depth = int(levels.max()) + 1
        all_counts = np.bincount(depth - 1 - levels, minlength=depth)
        leaf_counts = np.bincount(depth - 1 - levels[leaf], minlength=depth)
        place = np.empty_like(up)
        place[up] = np.arange(len(up)) - np.repeat(np.cumsum(all_counts) - all_counts, all_counts)
        below = up[: len(up) - len(rows)]  # all but the roots
        words = self.words[at][order]
        leaves = int(leaf.sum())
        inner = np.flatnonzero(words[leaves:] >= 0)
        labels = self.labels[at][order]
        return TreeBatch(
            words=torch.from_numpy(np.concatenate([words[:leaves], words[leaves:][inner]])),
            inner=torch.from_numpy(inner),
            labels=torch.from_numpy(labels),
            parents=torch.from_numpy(place[(self.parents[at] - shift)[below]]),
            places=torch.from_numpy(self.places[at][below]),
            roots=torch.from_numpy(where[ends - 1]),
            nodes=torch.from_numpy(order),
            indices=torch.from_numpy(np.array(rows)),
            leaf_counts=tuple(leaf_counts.tolist()),
            inner_counts=tuple((all_counts - leaf_counts).tolist()),
            widest=int(self.counts[at].max()),
            tokens=int(np.count_nonzero(labels != IGNORE_INDEX)),
        )

    def in_order(self, batch_nodes: int) -> Iterator[TreeBatch]:
        """Every tree once, for evaluation: the largest first, so that running out of memory shows at once."""
        sizes = self.sizes
        for rows in reversed(split_by_nodes(by_size(np.arange(len(self)), sizes, self.depths), sizes, batch_nodes)):
            yield self.batch(rows)


class TreeBatches:
    """The endless sequence of training batches; which one comes at a position depends on the seed alone."""

    kind: ClassVar = TreeBatch
    few_shapes: ClassVar = False  # batches rarely have the same shape
    one_shape: ClassVar = False

    def __init__(self, encoded: EncodedTrees, seed: int, batch_nodes: int) -> None:
        self.encoded = encoded
        self._labelled = np.add.reduceat(encoded.labels != IGNORE_INDEX, encoded.starts[:-1], dtype=np.int64)
        sizes, depths = encoded.sizes, encoded.depths
        self._rows = Epochs(lambda epoch: plan_trees(sizes, depths, seed, epoch, batch_nodes))

    def at(self, position: int, part: int = 0, parts: int = 1) -> TreeBatch:
        """The batch at a position, counted from 0 over all epochs, or one shard of it, which may be empty."""
        return self.encoded.batch(self._rows.at(position)[part::parts])

    def tokens(self, position: int) -> int:
        """The number of labelled nodes in the whole batch at a position."""
        return int(self._labelled[self._rows.at(position)].sum())

    def epoch_of(self, position: int) -> int:
        """The epoch, counted from 0, that the batch at a position belongs to."""
        return self._rows.epoch_of(position)


def encode_trees(trees: Sequence[Tree], words: WordVocab | None) -> EncodedTrees:
    """Encode trees with words as ids; without a vocabulary, every word is unknown."""
    starts = np.cumsum([0, *map(len, trees)], dtype=np.int64)
    total = int(starts[-1])
    parents, places, levels = [-1] * total, [0] * total, [0] * total
    for start, tree in zip(starts.tolist(), trees, strict=False):
        for node in reversed(range(len(tree))):  # parents before children
            for place, child in enumerate(tree.children[node]):
                parents[start + child], places[start + child] = start + node, place
                levels[start + child] = levels[start + node] + 1
    ids = np.array([_id(word, words) for tree in trees for word in tree.words], np.int64)
    counts = np.array([len(some) for tree in trees for some in tree.children], np.int64)
    if (bare := np.flatnonzero((ids < 0) & (counts == 0))).size:
        row = int(np.searchsorted(starts, bare[0], side="right")) - 1
        found = f"neither a word nor children at node {bare[0] - starts[row] + 1}"
        raise UserError("a leaf has no word", where=f"tree {row + 1}", found=found)
    return EncodedTrees(
        words=ids,
        labels=np.array([label for tree in trees for label in tree.labels], np.int64),
        parents=np.array(parents, np.int64),
        places=np.array(places, np.int64),
        levels=np.array(levels, np.int64),
        counts=counts,
        starts=starts,
    )


def _id(word: str | None, words: WordVocab | None) -> int:
    if word is None:
        return -1
    return WordVocab.unk if words is None else words.id(word)


def plan_trees(sizes: Ints, depths: Ints, seed: int, epoch: int, batch_nodes: int) -> list[Ints]:
    """The batches of an epoch as row numbers: shuffle, sort by depth in pools, split by budget, shuffle each pool."""
    order = permutation(seed, epoch, len(sizes))  # (B,)
    size = max(1, int(POOL * batch_nodes / float(sizes.mean())))
    batches = []
    for number, start in enumerate(range(0, len(order), size)):
        pool = split_by_nodes(by_size(order[start : start + size], sizes, depths), sizes, batch_nodes)
        batches += [pool[place] for place in permutation(seed, epoch, len(pool), stream=1 + number)]
    return batches


def by_size(rows: Ints, sizes: Ints, depths: Ints) -> Ints:
    """Sort rows by depth, then by size; the sort is stable."""
    return rows[np.lexsort((sizes[rows], depths[rows]))]


def split_by_nodes(rows: Ints, sizes: Ints, batch_nodes: int) -> list[Ints]:
    """Split rows so that the nodes of each part fit the budget; a tree over the budget is a batch of its own."""
    ends = np.cumsum(sizes[rows])
    batches = []
    start = 0
    while start < len(rows):
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + batch_nodes, side="right")))
        batches.append(rows[start:stop])
        start = stop
    return batches
