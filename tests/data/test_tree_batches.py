"""Batches of trees, level by level."""

from itertools import chain, pairwise

import numpy as np
import pytest
import torch

from heedful.data.tokenizers.vocabulary import WordVocab
from heedful.data.trees.batches import EncodedTrees, TreeBatches, encode_trees
from heedful.data.trees.treebank import IGNORE_INDEX, Tree, WordsConfig, parse_tree
from heedful.errors import UserError
from random_trees import random_tree

LINES = ["(3 (2 It) (4 (2 's) (4 great)))", "(1 no)", "(0 (1 (2 very) (1 bad)) (2 .))"]


def vocabulary(trees: list[Tree]) -> WordVocab:
    return WordVocab.learn(WordsConfig(), [[word for word in tree.words if word] for tree in trees])


def encode(lines: list[str]) -> EncodedTrees:
    trees = [parse_tree(line, "here", 5) for line in lines]
    return encode_trees(trees, vocabulary(trees))


def test_tree_batch_is_ordered_by_level() -> None:
    batch = encode(LINES).batch(np.arange(3))
    assert batch.leaf_counts == (4, 2, 1)  # the deepest level first
    assert batch.inner_counts == (0, 2, 2)
    assert batch.labels.tolist() == [2, 4, 2, 1, 2, 2, 1, 4, 1, 3, 0]
    assert batch.parents.tolist() == [0, 0, 1, 1, 0, 1, 0, 1]  # 's great very bad, and above: two inner nodes, It .
    assert batch.places.tolist() == [0, 1, 0, 1, 1, 0, 0, 1]
    assert batch.labels[batch.roots].tolist() == [3, 1, 0]
    assert (batch.widest, batch.tokens, batch.indices.tolist()) == (2, 11, [0, 1, 2])
    assert len(batch.words) == 7 and not len(batch.inner)


@pytest.mark.parametrize("widest", [2, 5])
def test_children_of_a_level_are_the_level_below(widest: int) -> None:
    trees = [parse_tree(random_tree(seed, 1 + seed, widest), "here", 5) for seed in range(12)]
    batch = encode_trees(trees, vocabulary(trees)).batch(np.arange(12))
    counts = [inner + leaves for inner, leaves in zip(batch.inner_counts, batch.leaf_counts, strict=True)]
    assert counts[-1] == 12 and sum(counts) == sum(map(len, trees)) == len(batch.labels)
    assert len(counts) == max(depth(tree) for tree in trees)
    parts = batch.parents.split(counts[:-1])
    for to, inner in zip(parts, batch.inner_counts[1:], strict=True):
        assert set(to.tolist()) == set(range(inner))  # every inner node has a child, and every child a parent
    assert sorted(batch.nodes.tolist()) == list(range(len(batch.nodes)))
    flat = torch.tensor([label for tree in trees for label in tree.labels])
    assert batch.labels.equal(flat[batch.nodes])


def depth(tree: Tree) -> int:
    heights: list[int] = []
    for below in tree.children:
        heights.append(1 + max((heights[child] for child in below), default=0))
    return heights[-1]


def test_inner_nodes_may_have_words() -> None:
    tree = Tree((0, IGNORE_INDEX, 1), ("a", "b", None), ((), (0,), (1,)))
    batch = encode_trees([tree], vocabulary([tree])).batch(np.zeros(1, np.int64))
    assert batch.inner.tolist() == [0]
    assert batch.words.tolist() == [2, 3]
    assert batch.tokens == 2


def test_leaf_without_a_word_is_reported() -> None:
    good, bare = Tree((0,), ("a",), ((),)), Tree((0, 0, 1), ("a", None, None), ((), (), (0, 1)))
    with pytest.raises(UserError, match="a leaf has no word") as caught:
        encode_trees([good, bare], None)
    assert caught.value.where == "tree 2"
    assert caught.value.found == "neither a word nor children at node 2"


def test_unknown_words_share_one_id() -> None:
    tree = parse_tree(LINES[1], "here", 5)
    assert encode_trees([tree], None).words.tolist() == [WordVocab.unk]


def test_empty_batch_has_no_targets() -> None:
    batch = encode(LINES).batch(np.array([], np.int64))
    assert batch.tokens == 0
    assert batch.indices.tolist() == [-1]


def test_every_tree_comes_once_per_epoch_within_the_budget() -> None:
    data = encode([random_tree(seed, 1 + seed % 17) for seed in range(200)])
    batches = TreeBatches(data, seed=3, batch_nodes=60)
    epochs: list[set[tuple[int, ...]]] = []
    position = 0
    for epoch in range(3):
        groups = set()
        while batches.epoch_of(position) == epoch:
            batch = batches.at(position)
            assert len(batch.labels) <= 60
            assert batches.tokens(position) == batch.tokens == int((batch.labels != IGNORE_INDEX).sum())
            groups.add(tuple(sorted(batch.indices.tolist())))
            position += 1
        assert sorted(chain(*groups)) == list(range(200))
        epochs.append(groups)
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]  # other trees come together, not only in another order


def test_tree_batch_depends_on_seed_and_position_only() -> None:
    data = encode([random_tree(seed, 1 + seed % 9) for seed in range(60)])
    one, two = TreeBatches(data, 1, 50), TreeBatches(data, 1, 50)
    ahead = [one.at(position).indices.tolist() for position in range(40)]
    assert [two.at(position).indices.tolist() for position in reversed(range(40))] == ahead[::-1]
    assert TreeBatches(data, 2, 50).at(0).indices.tolist() != ahead[0]


def test_shards_of_trees_make_up_the_batch() -> None:
    data = encode([random_tree(seed, 1 + seed % 9) for seed in range(30)])
    batches = TreeBatches(data, 0, 100)
    parts = [batches.at(1, part, 3).indices.tolist() for part in range(3)]
    assert sorted(chain(*parts)) == sorted(batches.at(1).indices.tolist())
    assert sum(batches.at(1, part, 3).tokens for part in range(3)) == batches.tokens(1)
    assert TreeBatches(encode(LINES[:1]), 0, 9).at(0, 1, 2).tokens == 0


def test_trees_of_similar_depth_are_batched() -> None:
    data = encode([random_tree(seed, 1 + seed % 40) for seed in range(400)])
    batches = TreeBatches(data, 0, 400)
    steps = 0
    position = 0
    while batches.epoch_of(position) == 0:
        steps += len(batches.at(position).leaf_counts)
        position += 1
    shuffled = [np.arange(400)[at::position] for at in range(position)]
    assert steps < 0.9 * sum(len(data.batch(rows).leaf_counts) for rows in shuffled)


def test_tree_over_the_budget_is_a_batch_of_its_own() -> None:
    data = encode([random_tree(0, 50), *LINES])
    sizes = [batch.indices.tolist() for batch in data.in_order(10)]
    assert [0] in sizes
    assert sorted(chain(*sizes)) == [0, 1, 2, 3]
    assert all(a >= b for a, b in pairwise(len(batch.leaf_counts) for batch in data.in_order(10)))


def test_batch_moves_to_a_device() -> None:
    batch = encode(LINES).batch(np.arange(3))
    moved = batch.to("cpu")
    assert type(moved) is type(batch) and moved.tokens == batch.tokens
    assert moved.to("meta").words.device.type == moved.to("meta").nodes.device.type == "meta"


def test_hash_covers_order_words_and_labels() -> None:
    names = {encode(LINES).sha256, encode(LINES[::-1]).sha256, encode(["(2 no)", *LINES[1:]]).sha256}
    assert len(names) == 3 and encode(LINES).sha256 in names
