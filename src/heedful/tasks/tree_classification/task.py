"""Tree classification, optionally with pre-trained word vectors: accuracy of roots and of all nodes."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from heedful.blocks.losses import Loss
from heedful.data.embedding_init import require_width
from heedful.data.formats.sources import Split
from heedful.data.own import trees
from heedful.data.tokenizers.vocabulary import WordVocab, normalize_word
from heedful.data.trees.batches import EncodedTrees, TreeBatches, encode_trees
from heedful.data.trees.treebank import IGNORE_INDEX, Trees
from heedful.data.word_vectors import WordVectors, load_vectors
from heedful.errors import UserError
from heedful.models.roles import ModelConfig
from heedful.tasks.base import Codec, Evaluated, HeldOut, Names, Task
from heedful.tasks.imbalance import weights_for
from heedful.tasks.tree_classification.predictor import TreeClassifier, check_arity, class_name, mean_loss, tree_loss
from heedful.tasks.tree_classification.recipe import TreeRecipe
from heedful.training.class_report import ClassReport, class_report


class TreeTask(Task[Trees, WordVocab, EncodedTrees, TreeClassifier]):
    """Predict the class of every node of a tree."""

    words: ClassVar = Names(
        examples="trees",
        tokens="words",
        too_long="trees that are too large",
        blank="blank lines, left out",
        learning="collecting the words",
        encoding="encoding the trees",
        testing="classifying the {} set",
        sample=("sentence", "label", "predicted"),
    )
    decoding: ClassVar = None
    artifacts: ClassVar = {"tokenizer.json": Codec(WordVocab, WordVocab.load)}
    searches: ClassVar = False

    recipe: TreeRecipe

    collect = staticmethod(trees)

    def read(self, split: Split) -> Trees:
        """The trees of a split, whose arity and labels are checked against the model."""
        read: Trees = self.recipe.data.read(split)
        classes = self.recipe.model.classes
        for number, tree in enumerate(read.trees, start=1):
            where = f"{self.recipe.data.file(split)}, tree {number}"
            check_arity(tree, self.recipe.model, where)
            if max(tree.labels) >= classes:
                raise UserError(
                    "the model has no class for a label", where=where, found=str(max(tree.labels)),
                    expected=f"labels from 0 to {classes - 1}", todo="set model.classes",
                )  # fmt: skip
        return read

    def learn(self, read: Trees) -> WordVocab:
        """The vocabulary of the trees, with words that have a pre-trained vector."""
        texts = [[word for word in tree.words if word is not None] for tree in read.trees]
        wanted = {normalize_word(word, self.recipe.tokenizer.lowercase) for text in texts for word in text}
        vectors = self._vectors(wanted, self.recipe.tokenizer.known)
        words = WordVocab.learn(self.recipe.tokenizer, texts, vectors.rows if vectors else ())
        return words.initialized_from(vectors) if vectors else words

    def _vectors(self, wanted: set[str], known: int) -> WordVectors | None:
        """The pre-trained vectors of the recipe, if it has any, checked for the model's width."""
        path = self.recipe.vectors_file
        if path is None:
            return None
        vectors = load_vectors(path, only=wanted, most=known)
        require_width(vectors, self.recipe.model.width, path)
        return vectors

    def begin(self, model: Any, vocabulary: WordVocab) -> list[str]:
        """Initialize the embeddings with the pre-trained vectors, which must be those of the vocabulary."""
        vectors = self._vectors(set(vocabulary.words), 0)
        if vectors is not None:
            if vocabulary.vectors not in (None, sha256 := vocabulary.fingerprint(vectors)):
                raise UserError(
                    "these are not the word vectors that the run started with",
                    where=str(self.recipe.vectors_file),
                    found=f"vectors of SHA-256 {sha256[:16]}...",
                    expected=f"vectors of SHA-256 {vocabulary.vectors[:16]}...",
                    todo="restore the original file, or start over with another --run",
                )
            table, found = map(torch.from_numpy, vocabulary.table(vectors))
            weight = model.tokens.weight
            with torch.no_grad():
                weight[: len(table)][found.to(weight.device)] = table[found].to(weight)
        return []

    def encode(self, read: Trees, vocabulary: WordVocab) -> EncodedTrees:
        """The trees, with token ids."""
        return encode_trees(read.trees, vocabulary)

    def batches(self, encoded: EncodedTrees, packed: bool, even: bool) -> TreeBatches:
        """Batches of trees of similar depth, arranged by levels."""
        return TreeBatches(encoded, self.recipe.train.seed, self.recipe.train.batch_tokens)

    def loss_of(self, model: Any, packed: bool) -> Callable[[Any], Loss]:
        """The cross-entropy of the class of every node."""
        task = self.recipe.task
        return partial(tree_loss, model, label_smoothing=task.label_smoothing, penalty=task.confidence_penalty)

    def loss_on(self, model: Any, packed: bool, encoded: EncodedTrees, vocabulary: WordVocab) -> Callable[[Any], Loss]:
        """The cross-entropy of the class of every node, with the weights of the classes."""
        task, classes = self.recipe.task, self.recipe.model.classes
        names = [class_name(number, classes) for number in range(classes)]
        weights = weights_for(model, encoded.labels, names, task.class_weights)
        return partial(
            tree_loss, model, label_smoothing=task.label_smoothing, penalty=task.confidence_penalty, weights=weights
        )

    @staticmethod
    def predictor(
        model: Any,
        config: ModelConfig,
        vocabulary: WordVocab,
        decode: None,
        device: torch.device,
        notes: tuple[str, ...] = (),
    ) -> TreeClassifier:
        """The tree classifier of a trained model."""
        return TreeClassifier(model, vocabulary, device, notes)

    def loss(self, predictor: TreeClassifier, encoded: EncodedTrees) -> float:
        """The mean loss per labelled node."""
        return mean_loss(predictor.model, encoded, predictor.device)

    def evaluate(self, predictor: TreeClassifier, held_out: HeldOut[Trees, EncodedTrees]) -> Evaluated:
        """Accuracy of whole sentences, of their polarity, and of all nodes, and a few sentences."""
        found, classes = held_out.read.trees, self.recipe.model.classes
        some = [found[row] for row in held_out.rows(len(found), self.recipe.train.samples)]
        samples = [
            (tree.text, class_name(tree.labels[-1], classes), class_name(predicted.label, classes))
            for tree, predicted in zip(some, predictor.classify(some), strict=True)
        ]
        return held_out.result(predictor.accuracy(held_out.encoded).scores(classes), samples)

    def details(self, predictor: TreeClassifier, split: Split) -> ClassReport:
        """Of whole sentences: confusion, scores of each class, calibration and the worst mistakes."""
        trees = [tree for tree in self.read(split).trees if tree.labels[-1] != IGNORE_INDEX]
        found, classes = predictor.classify(trees), self.recipe.model.classes
        right, predicted = np.array([tree.labels[-1] for tree in trees]), np.array([one.label for one in found])
        shares = np.array([one.probabilities[one.label] for one in found])
        names = [class_name(number, classes) for number in range(classes)]
        return class_report(split, "trees", right, predicted, shares, names, lambda row: trees[row].text)

    @property
    def metric(self) -> str:
        """The accuracy of whole sentences."""
        return "accuracy"

    def next(self, folder: Path, test: Evaluated | None) -> list[str]:
        """Commands that classify trees, and that evaluate."""
        name = shlex.quote(str(folder))
        return [
            f"heedful classify-tree {name} '(2 (2 not) (2 (2 so) (2 bad)))' --nodes",
            f"heedful eval {name} --split valid",
        ]
