"""Rows of tokens as trees that branch to the left, for models that read trees."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from torch import Tensor

from heedful.data.trees.batches import TreeBatch, encode_trees
from heedful.data.trees.treebank import Tree


def left_tree(leaves: int) -> Tree:
    """A tree over this many leaves: ((((1 2) 3) 4) ...), children before parents."""
    words, children = ["leaf"], list[tuple[int, ...]]([()])
    for _ in range(leaves - 1):
        top = len(words) - 1
        words += ["leaf", ""]
        children += [(), (top, top + 1)]
    return Tree((0,) * len(words), tuple(words), tuple(children))


def left_trees(tokens: Tensor, real: Tensor) -> TreeBatch:
    """A tree for each row of tokens (B, T), of its real ones."""
    encoded = encode_trees([left_tree(count) for count in real.sum(1).tolist()], None)
    words = encoded.words.copy()
    words[encoded.counts == 0] = tokens[real].cpu().numpy()
    words[encoded.counts > 0] = -1
    batch = replace(encoded, words=words).batch(np.arange(len(tokens)))
    return batch.to(tokens.device)
