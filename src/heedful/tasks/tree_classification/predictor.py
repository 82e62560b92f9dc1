"""Tree classification: the class of every node, such as the sentiment of each phrase and, at the root, of the sentence.

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

from heedful.blocks.losses import Loss, confidence_penalty, cross_entropy
from heedful.data.tokenizers.vocabulary import WordVocab
from heedful.data.trees.batches import EncodedTrees, TreeBatch, encode_trees
from heedful.data.trees.treebank import IGNORE_INDEX, Tree, parse_tree, read_trees
from heedful.errors import UserError
from heedful.tasks.predictor import Evaluation, Predictor, Result, batch_of
from heedful.training.metrics import Score, accuracy

BATCH_NODES = 16384  # nodes of a batch
MAX_LINE = 1_000_000  # characters of a line in a file
SENTIMENTS = ("very negative", "negative", "neutral", "positive", "very positive")

TreeModel = Callable[[TreeBatch], Tensor]  # a batch -> logits (N, C); see `models/tree_lstm/model.py`


def tree_loss(
    model: TreeModel,
    batch: TreeBatch,
    label_smoothing: float = 0.0,
    penalty: float = 0.0,
    weights: Tensor | None = None,
) -> Loss:
    """Cross-entropy of the class of every labelled node, with a confidence penalty; classes may have weights (C,)."""
    logits = model(batch)  # (N, C)
    loss = cross_entropy(logits, batch.labels, label_smoothing, IGNORE_INDEX, weights)
    return confidence_penalty(loss, logits, batch.labels != IGNORE_INDEX, penalty)


@torch.inference_mode()
def mean_loss(model: TreeModel, encoded: EncodedTrees, device: torch.device) -> float:
    """The mean loss per labelled node over a set, without label smoothing."""
    total, count = 0.0, 0
    for batch in encoded.in_order(BATCH_NODES):
        total, count = total + tree_loss(model, batch.to(device)).plain.item(), count + batch.tokens
    return total / count


def class_name(label: int, classes: int) -> str:
    """The name of a class: a sentiment if there are five classes, else its number."""
    return SENTIMENTS[label] if classes == len(SENTIMENTS) and label != IGNORE_INDEX else str(label)


@dataclass(frozen=True)
class Accuracy:
    """Numbers of correct predictions and of all predictions."""

    root: tuple[int, int]  # whole sentences
    binary: tuple[int, int]  # whole sentences, negative or positive; neutral ones are left out
    nodes: tuple[int, int]  # all labelled nodes

    def scores(self, classes: int) -> tuple[Score, ...]:
        """The accuracies in percent."""
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
    nodes: list[int]  # children before parents, as in the tree


def check_arity(tree: Tree, config: Any, where: str) -> None:
    """Refuse a tree in which a node has more children than the arity of the model."""
    children = max(map(len, tree.children))
    if config.form == "nary" and children > config.arity:
        raise UserError(
            "a node has more children than the model supports",
            where=where,
            found=f"{children} children",
            expected=f"at most {config.arity}, the model's arity",
            todo=f"train with model.arity={children}, or with model.form=child_sum",
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
        """The classes of the nodes of each tree; see `classify`."""
        return self.classify(inputs)

    def _evaluate(self, data: Path | Sequence[tuple[Tree | str, int]]) -> Evaluation:
        if isinstance(data, Path):
            encoded = encode_trees(read_trees(data, MAX_LINE, self.classes).trees, self.tokenizer)
            loss, count = mean_loss(self.model, encoded, self.device), len(encoded)
            return Evaluation.of(self.accuracy(encoded).scores(self.classes), loss, count)
        found, right = self.predict([tree for tree, _ in data]), np.array([label for _, label in data])
        return Evaluation.of((accuracy(np.array([one.label for one in found]), right),), None, len(right))

    def classify(self, trees: Sequence[Tree | str]) -> list[TreeClassification]:
        """The predicted classes of each tree, or of each line in bracket notation; labels in it are ignored."""
        batch_of(trees, "trees, as [line]")
        read = [
            tree if isinstance(tree, Tree) else parse_tree(tree, f"tree {number}", None)
            for number, tree in enumerate(trees, start=1)
        ]
        for number, tree in enumerate(read, start=1):
            check_arity(tree, self._net.config, f"tree {number}")
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
        """The accuracy of nodes, roots, and roots as negative or positive."""
        root, binary, nodes = [0, 0], [0, 0], [0, 0]
        for batch, logs in self.logs(encoded):
            labels = batch.labels[batch.roots]
            _count(root, logs[batch.roots].argmax(-1), labels)
            _count(binary, *binarize(logs[batch.roots], labels))
            _count(nodes, logs.argmax(-1), batch.labels)
        return Accuracy((root[0], root[1]), (binary[0], binary[1]), (nodes[0], nodes[1]))

    @torch.inference_mode()
    def logs(self, encoded: EncodedTrees) -> Iterable[tuple[TreeBatch, Tensor]]:
        """The log-probabilities (N, C) of all nodes, batch by batch."""
        for batch in encoded.in_order(BATCH_NODES):
            batch = batch.to(self.device)
            yield batch, self.model(batch).float().log_softmax(-1)


def binarize(logs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Predictions and labels (B,) as 0 (below the middle class) or 1 (above it); a label in the middle is ignored."""
    classes = logs.shape[-1]
    below, above = classes // 2, (classes + 1) // 2  # an even number of classes has no middle
    predicted = logs[:, above:].logsumexp(-1) > logs[:, :below].logsumexp(-1)  # (B,)
    sides = torch.where(labels >= above, 1, 0)  # (B,)
    return predicted.long(), torch.where(
        (labels >= below) & (labels < above) | (labels == IGNORE_INDEX), IGNORE_INDEX, sides
    )


def _count(counts: list[int], predicted: Tensor, labels: Tensor) -> None:
    real = labels != IGNORE_INDEX
    counts[0] += int(((predicted == labels) & real).sum())
    counts[1] += int(real.sum())
