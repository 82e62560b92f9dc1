import math

import numpy as np
import pytest
import torch
from torch import Tensor

from heedful.data.tokenizers.vocabulary import WordVocab
from heedful.data.trees.batches import TreeBatch, encode_trees
from heedful.data.trees.treebank import IGNORE_INDEX, Tree, WordsConfig, parse_tree
from heedful.errors import UserError
from heedful.models import build
from heedful.models.tree_lstm.config import TreeLSTMConfig
from heedful.tasks.tree_classification.predictor import TreeClassifier, binarize, mean_loss, tree_loss

CPU = torch.device("cpu")
LINES = ["(4 (2 It) (4 (2 's) (4 great)))", "(1 no)", "(0 (1 (2 very) (1 bad)) (2 .))", "(2 (2 so) (2 what))"]
TREES = [parse_tree(line, "here", 5) for line in LINES]
WORDS = WordVocab.learn(WordsConfig(), [[word for word in tree.words if word] for tree in TREES])


class FixedModel(torch.nn.Module):
    """A model that gives chosen classes to nodes by their label, with some confidence."""

    def __init__(self, said: dict[int, int]) -> None:
        super().__init__()
        self.said, self.config = said, TreeLSTMConfig()

    def forward(self, batch: TreeBatch) -> Tensor:
        classes = torch.tensor([self.said.get(label, label) for label in batch.labels.tolist()])
        return 3.0 * torch.nn.functional.one_hot(classes.clamp(min=0), 5).float()


def fixed_classifier(said: dict[int, int]) -> TreeClassifier:
    return TreeClassifier(FixedModel(said), WORDS, CPU)


def test_loss_is_over_every_labelled_node() -> None:
    unlabelled = Tree((2, IGNORE_INDEX, IGNORE_INDEX), ("a", "b", None), ((), (), (0, 1)))
    batch = encode_trees([*TREES, unlabelled], WORDS).batch(np.arange(5))
    loss = tree_loss(FixedModel({}), batch)
    right = -math.log(math.exp(3) / (math.exp(3) + 4))
    assert int(loss.count) == batch.tokens == 15
    assert loss.total.item() == pytest.approx(15 * right, rel=1e-5)
    wrong = tree_loss(FixedModel({0: 1}), batch)
    assert wrong.total.item() == pytest.approx(15 * right + 3, rel=1e-5)
    smooth = tree_loss(FixedModel({}), batch, label_smoothing=0.1)
    assert smooth.total > loss.total and smooth.plain == loss.plain


def test_mean_loss_does_not_depend_on_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = encode_trees(TREES, WORDS)
    whole = mean_loss(FixedModel({0: 1}), encoded, CPU)
    monkeypatch.setattr("heedful.tasks.tree_classification.predictor.BATCH_NODES", 4)
    assert mean_loss(FixedModel({0: 1}), encoded, CPU) == pytest.approx(whole, rel=1e-6)
    right = -math.log(math.exp(3) / (math.exp(3) + 4))
    assert whole == pytest.approx(right + 3 / 14, rel=1e-5)


def test_accuracy_counts_roots_binary_roots_and_nodes() -> None:
    encoded = encode_trees(TREES, WORDS)
    perfect = fixed_classifier({}).accuracy(encoded)
    assert (perfect.root, perfect.binary, perfect.nodes) == ((4, 4), (3, 3), (14, 14))  # one root is neutral
    near = fixed_classifier({0: 1, 4: 3}).accuracy(encoded)  # wrong by one, on the right side
    assert (near.root, near.binary, near.nodes) == ((2, 4), (3, 3), (10, 14))
    far = fixed_classifier({0: 4}).accuracy(encoded)
    assert (far.root, far.binary) == ((3, 4), (2, 3))


def test_binary_probabilities_are_sums_without_the_neutral_class() -> None:
    logs = torch.tensor([[0.05, 0.05, 0.4, 0.3, 0.2], [0.3, 0.3, 0.0, 0.4, 0.0]]).log()
    said, sides = binarize(logs, torch.tensor([2, 4]))
    assert said.tolist() == [1, 0]  # the second for its sum, though class 3 is the likeliest
    assert sides.tolist() == [IGNORE_INDEX, 1]
    said, sides = binarize(torch.randn(4, 4), torch.arange(4))
    assert sides.tolist() == [0, 0, 1, 1]
    assert binarize(torch.randn(1, 5), torch.tensor([IGNORE_INDEX]))[1].tolist() == [IGNORE_INDEX]


def random_classifier() -> TreeClassifier:
    return TreeClassifier(build(TreeLSTMConfig(vocab=WORDS.vocab, width=6, hidden=7)), WORDS, CPU)


def test_predictions_are_in_the_order_of_trees_and_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heedful.tasks.tree_classification.predictor.BATCH_NODES", 6)
    found = fixed_classifier({}).classify(TREES)
    assert [one.label for one in found] == [4, 1, 0, 2]
    assert [one.nodes for one in found] == [list(tree.labels) for tree in TREES]
    assert all(sum(one.probabilities) == pytest.approx(1) and len(one.probabilities) == 5 for one in found)
    assert all(one.probabilities[one.label] == max(one.probabilities) for one in found)


def test_labels_in_the_input_do_not_matter() -> None:
    predictor = random_classifier()
    renamed = [line.translate(str.maketrans("01234", "SNVPX")) for line in LINES]
    assert predictor.classify(renamed) == predictor.classify(LINES) == predictor.classify(TREES)
    assert predictor.classify([]) == []
    assert predictor.classify([TREES[1]]) == pytest.approx(predictor.classify(TREES)[1:2])


def test_invalid_tree_is_named_by_its_number() -> None:
    with pytest.raises(UserError) as caught:
        random_classifier().classify([LINES[0], "(2 (2 so)"])
    assert caught.value.where == "tree 2:1"


def test_unknown_word_is_classified() -> None:
    assert 0 <= random_classifier().classify(["(2 unheard)"])[0].label < 5


def test_single_string_is_rejected() -> None:
    with pytest.raises(TypeError, match="a list of trees"):
        random_classifier().classify(LINES[0])
