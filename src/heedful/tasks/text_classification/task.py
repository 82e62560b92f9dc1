"""Texts with a class each: filters over their words, and word vectors to begin from."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from heedful.blocks.losses import Loss
from heedful.data.formats.sources import Split
from heedful.data.formats.tables import Items, class_numbers, labels_of
from heedful.data.labelled.batches import EncodedTexts, LabelledBatches, encode_texts
from heedful.data.tokenizers.text_words import TextWords, cut
from heedful.data.word_vectors import WordVectors
from heedful.errors import UserError, shown
from heedful.tasks.base import Codec, Evaluated, Names, Progress, Task
from heedful.tasks.classification.predictor import Labeller, class_loss, mean_loss
from heedful.tasks.classification.task import WORDS, cut_notes, judged, next_verbs, one_class_remarks, texts_of
from heedful.tasks.text_classification.recipe import TextClassificationRecipe


class TextClassificationTask(Task[Items, TextWords, EncodedTexts, Labeller]):
    """The class of a text or a pair, from its words."""

    words: ClassVar[Names] = WORDS
    decoding: ClassVar = None
    artifacts: ClassVar = {"tokenizer.json": Codec(TextWords, TextWords.load)}
    searches: ClassVar = False

    recipe: TextClassificationRecipe

    def read(self, split: Split) -> Items:
        """The texts of a split."""
        return self.recipe.data.read(split)

    def learn(self, read: Items) -> TextWords:
        """The words of the texts, those that a vector is known for, and the classes."""
        config, texts = self.recipe.tokenizer, texts_of(read)
        labels = self.recipe.model.labels or labels_of(read.items, "the training data")
        vectors = None
        if config.kind == "words":
            wanted = {word for text in texts for word in cut(text, "words", config.lowercase)}
            vectors = self._vectors(wanted, config.known)
        return TextWords.learn(texts, labels, config.kind, config.lowercase, config.at_least, vectors)

    def _vectors(self, wanted: set[str], known: int) -> WordVectors | None:
        """The vectors that the recipe names, if it names any."""
        begins = self.recipe.embedding_init
        return None if begins is None else begins.read(wanted, known, self.recipe.model.width)

    @staticmethod
    def fitted(config: Any, vocabulary: TextWords, where: str) -> Any:
        """The settings of a model with the words and classes that it is for."""
        if config.labels not in (None, vocabulary.labels):
            raise UserError(
                "the model has other classes than its list of words", where=f"{where}.labels",
                found=shown(config.labels), expected=shown(vocabulary.labels),
            )  # fmt: skip
        return Task.fitted(config.model_copy(update={"labels": vocabulary.labels}), vocabulary, where)

    def begin(self, model: Any, vocabulary: TextWords) -> list[str]:
        """Put in the word vectors that are known, which are those that the words were gathered with."""
        begins = self.recipe.embedding_init
        vectors = self._vectors(set(vocabulary.words), 0)
        if begins is None or vectors is None:
            return []
        if (found := vocabulary.fingerprint(vectors)) != vocabulary.vectors:
            raise UserError(
                "these are not the word vectors that the run began with", where=begins.file,
                found=f"vectors of SHA-256 {found[:16]}...", expected=f"vectors of SHA-256 {vocabulary.vectors}",
                todo="put the former file back, or begin anew with another --run",
            )  # fmt: skip
        places, rows = map(torch.from_numpy, vocabulary.rows(vectors))
        weight = model.tokens.weight
        with torch.no_grad():
            weight[places.to(weight.device)] = rows.to(weight)
        return [*vectors.notes, f"{len(places):,} of {vocabulary.vocab:,} words begin from {begins.file}"]

    def encode(self, read: Items, vocabulary: TextWords) -> EncodedTexts:
        """Texts as numbers, what is too long being cut."""
        targets = np.array(class_numbers(read.items, vocabulary.labels), dtype=np.int64)
        pairs = [(item.text, item.pair) for item in read.items]
        return encode_texts(pairs, targets, vocabulary, self.recipe.model.context)

    def notes(self, encoded: EncodedTexts) -> list[str]:
        """How many texts are not read to their end."""
        return cut_notes(encoded)

    def batches(self, encoded: EncodedTexts, packed: bool, even: bool) -> LabelledBatches:
        """Texts of like lengths, a row each."""
        train = self.recipe.train
        return LabelledBatches(encoded, train.seed, train.batch_tokens, train.batch_examples)

    def loss_of(self, model: Any, packed: bool) -> Callable[[Any], Loss]:
        """Cross-entropy of the classes."""
        return partial(class_loss, model, label_smoothing=self.recipe.task.label_smoothing)

    @staticmethod
    def predictor(
        model: Any,
        config: Any,
        vocabulary: TextWords,
        decode: None,
        device: torch.device,
        notes: tuple[str, ...] = (),
    ) -> Labeller:
        """The model with its words, ready to say classes."""
        return Labeller(model, vocabulary, device, vocabulary.labels, config.context, notes)

    def loss(self, predictor: Labeller, encoded: EncodedTexts) -> float:
        """The mean loss a text."""
        return mean_loss(class_loss, predictor.model, encoded, predictor.device)

    def evaluate(
        self,
        predictor: Labeller,
        read: Items,
        encoded: EncodedTexts,
        loss: float,
        step: int,
        split: Split,
        beams: int | None = None,
        progress: Progress | None = None,
    ) -> Evaluated:
        """Accuracy, F1 and Matthews' correlation, and a few texts with what is said of them."""
        return judged(predictor, read, encoded, loss, step, split, self.recipe.train.samples)

    def remarks(self, result: Evaluated) -> list[str]:
        """Whether the model tells no classes apart."""
        return one_class_remarks(result)

    @property
    def metric(self) -> str:
        """The score that the task names."""
        return str(self.recipe.task.metric)

    def next(self, folder: Path, test: Evaluated | None) -> list[str]:
        """To read texts of one's own, and to look at others."""
        return next_verbs(folder, self.recipe.data)
