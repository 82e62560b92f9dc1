"""Classes for the nodes of trees: the sentiment of each phrase, and of the whole sentence at the root.

B trees, N nodes, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from heedful.blocks.losses import Loss, cross_entropy
from heedful.data.tokenizers.vocabulary import WordVocab
from heedful.data.trees.batches import EncodedTrees, TreeBatch, encode_trees
from heedful.data.trees.treebank import IGNORE_INDEX, Tree, parse_tree, read_trees
from heedful.errors import UserError
from heedful.tasks.predictor import Evaluation, Predictor, Result, batch_of
from heedful.training.metrics import Score, accuracy

BATCH_NODES = 16384  # nodes that are classified together
LONGEST = 1_000_000  # characters that a line of a file may have
FIVE = ("very negative", "negative", "neutral", "positive", "very positive")

Classifying = Callable[[TreeBatch], Tensor]  # a batch -> logits (N, C); see `models/tree_lstm/model.py`


def tree_loss(model: Classifying, batch: TreeBatch, label_smoothing: float = 0.0) -> Loss:
    """Cross-entropy of the class of every labelled node."""
    return cross_entropy(model(batch), batch.labels, label_smoothing, ignore=IGNORE_INDEX)


@torch.inference_mode()
def mean_loss(model: Classifying, encoded: EncodedTrees, device: torch.device) -> float:
    """The mean loss a labelled node over a whole set, without label smoothing."""
    total, count = 0.0, 0
    for batch in encoded.in_order(BATCH_NODES):
        total, count = total + tree_loss(model, batch.to(device)).plain.item(), count + batch.tokens
    return total / count


def class_name(label: int, classes: int) -> str:
    """What a class is called: a shade of sentiment if there are five, else its number."""
    return FIVE[label] if classes == len(FIVE) and label != IGNORE_INDEX else str(label)


@dataclass(frozen=True)
class Accuracy:
    """Counts of right classes, and of all."""

    root: tuple[int, int]  # whole sentences
    binary: tuple[int, int]  # whole sentences, the classes below and above the middle as two, the middle left out
    nodes: tuple[int, int]  # all labelled nodes

    def scores(self, classes: int) -> tuple[Score, ...]:
        """The same in percent."""
        counts = (
            ("accuracy", self.root, f"classes:{classes}|trees:{self.root[1]}"),
            ("binary_accuracy", self.binary, f"classes:2|middle:left out|trees:{self.binary[1]}"),
            ("node_accuracy", self.nodes, f"classes:{classes}|nodes:{self.nodes[1]}"),
        )
        return tuple(Score(name, 100 * right / max(1, every), how) for name, (right, every), how in counts)


@dataclass(frozen=True, repr=False)
class TreeClassification(Result):
    """The class of a tree's root, the probabilities of all classes there, and the class of every node."""

    label: int
    probabilities: list[float]
    nodes: list[int]  # children before parents, as the tree has them


def require_narrow(tree: Tree, config: Any, where: str) -> None:
    """Refuse a tree with a node of more children than the model has places for."""
    widest = max(map(len, tree.children))
    if config.form == "nary" and widest > config.arity:
        raise UserError(
            "a node has more children than the model can take",
            where=where,
            found=f"{widest} children",
            expected=f"at most {config.arity}, the model's arity",
            todo=f"train with model.arity={widest}, or with model.form=child_sum",
        )


@dataclass
class TreeClassifier(Predictor[Tree | str, TreeClassification, tuple[Tree | str, int]]):
    """Predicts the class of every node of a tree; a tree may be given as a line such as `(3 (2 so) (3 good))`."""

    task: ClassVar = "tree_classification"

    model: nn.Module
    tokenizer: WordVocab
    device: torch.device
    notes: tuple[str, ...] = ()

    @property
    def classes(self) -> int:
        """The number of classes."""
        found: int = self._net.config.classes
        return found

    def predict(self, inputs: Sequence[Tree | str]) -> list[TreeClassification]:
        """The classes of the nodes of each tree, as `classify` gives them."""
        return self.classify(inputs)

    def _evaluate(self, data: Path | Sequence[tuple[Tree | str, int]]) -> Evaluation:
        if isinstance(data, Path):
            encoded = encode_trees(read_trees(data, LONGEST, self.classes).trees, self.tokenizer)
            loss, count = mean_loss(self.model, encoded, self.device), len(encoded)
            return Evaluation.of(self.accuracy(encoded).scores(self.classes), loss, count)
        found, right = self.predict([tree for tree, _ in data]), np.array([label for _, label in data])
        return Evaluation.of((accuracy(np.array([one.label for one in found]), right),), None, len(right))

    def classify(self, trees: Sequence[Tree | str]) -> list[TreeClassification]:
        """The predicted classes of each tree, or of each line that spells one, whatever its own labels."""
        batch_of(trees, "trees, as [line]")
        read = [
            tree if isinstance(tree, Tree) else parse_tree(tree, f"tree {number}", None)
            for number, tree in enumerate(trees, start=1)
        ]
        for number, tree in enumerate(read, start=1):
            require_narrow(tree, self._net.config, f"tree {number}")
        found: dict[int, TreeClassification] = {}
        for batch, logs in self.logs(encode_trees(read, self.tokenizer)) if read else ():
            roots = logs[batch.roots].exp().tolist()
            classes = torch.empty_like(batch.nodes)
            classes[batch.nodes] = logs.argmax(-1)
            sizes = [len(read[row]) for row in batch.indices.tolist()]
            for row, root, nodes in zip(batch.indices.tolist(), roots, classes.split(sizes), strict=True):
                found[row] = TreeClassification(int(nodes[-1]), root, nodes.tolist())
        return [found[row] for row in range(len(read))]

    def accuracy(self, encoded: EncodedTrees) -> Accuracy:
        """How many nodes, roots and sides are classified correctly."""
        root, binary, nodes = [0, 0], [0, 0], [0, 0]
        for batch, logs in self.logs(encoded):
            labels = batch.labels[batch.roots]
            _count(root, logs[batch.roots].argmax(-1), labels)
            _count(binary, *two_sided(logs[batch.roots], labels))
            _count(nodes, logs.argmax(-1), batch.labels)
        return Accuracy((root[0], root[1]), (binary[0], binary[1]), (nodes[0], nodes[1]))

    @torch.inference_mode()
    def logs(self, encoded: EncodedTrees) -> Iterable[tuple[TreeBatch, Tensor]]:
        """Log-probabilities (N, C) of all nodes, batch by batch."""
        for batch in encoded.in_order(BATCH_NODES):
            batch = batch.to(self.device)
            yield batch, self.model(batch).float().log_softmax(-1)


def two_sided(logs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Predictions and labels as 0, below the middle class, or 1, above it; a label in the middle is none."""
    classes = logs.shape[-1]
    below, above = classes // 2, (classes + 1) // 2  # with an even number of classes there is no middle
    said = logs[:, above:].logsumexp(-1) > logs[:, :below].logsumexp(-1)  # (B,)
    sides = torch.where(labels >= above, 1, 0)  # (B,)
    return said.long(), torch.where(
        (labels >= below) & (labels < above) | (labels == IGNORE_INDEX), IGNORE_INDEX, sides
    )


def _count(counts: list[int], said: Tensor, labels: Tensor) -> None:
    real = labels != IGNORE_INDEX
    counts[0] += int(((said == labels) & real).sum())
    counts[1] += int(real.sum())
