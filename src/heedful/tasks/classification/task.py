"""Text classification by any model that reads texts, and text regression."""

from __future__ import annotations

import shlex
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from heedful.blocks.losses import Loss
from heedful.data.formats.sources import Split
from heedful.data.formats.tables import Columns, Items, JsonlTable, class_numbers, collect_labels, label_values
from heedful.data.labelled.batches import EncodedTexts, LabelledBatch, LabelledBatches, encode_texts
from heedful.data.own import labelled
from heedful.data.tokenizers.base import PairTokenizer
from heedful.data.tokenizers.vocabulary import TextVocab, split_words
from heedful.data.word_vectors import WordVectors
from heedful.errors import UserError, shown
from heedful.models.heads.config import RegressorConfig
from heedful.tasks.base import Codec, Evaluated, Example, HeldOut, Names, P
from heedful.tasks.classification.predictor import (
    TextClassifier,
    TextRegressor,
    class_loss,
    class_scores,
    mean_loss,
    number_loss,
    number_scores,
    outputs_of,
)
from heedful.tasks.classification.recipe import TextClassificationRecipe
from heedful.tasks.finetuning.task import FinetuningTask

BETWEEN = " || "  # the texts of a pair, in a sample
WORDS = Names(
    examples="texts",
    tokens="tokens",
    too_long="texts that are too long",
    blank="blank texts, left out",
    learning="preparing the tokenizer",
    encoding="turning texts into tokens",
    testing="reading the {} set",
    sample=("text", "label", "predicted"),
    counted="texts",
)


class TextTask(FinetuningTask[Items, PairTokenizer, EncodedTexts, P]):
    """What both tasks share: texts or pairs of texts, each with a target."""

    words: ClassVar = WORDS

    collect = staticmethod(labelled)

    @abstractmethod
    def targets(self, read: Items, vocabulary: PairTokenizer) -> NDArray[np.int64]:
        """The target of each text: a class, or the bits of a number."""

    @abstractmethod
    def text_loss(self, model: Any, batch: LabelledBatch) -> Loss:
        """The loss of a batch, as it is reported."""

    def texts(self, read: Items) -> Sequence[str]:
        """All texts, those of a pair one after the other."""
        return texts_of(read)

    def encode(self, read: Items, vocabulary: PairTokenizer) -> EncodedTexts:
        """Token ids of texts, which are truncated to the context."""
        pairs = [(item.text, item.pair) for item in read.items]
        return encode_texts(pairs, self.targets(read, vocabulary), vocabulary, self.recipe.model.context)

    def notes(self, encoded: EncodedTexts) -> list[str]:
        """How many texts are truncated."""
        return cut_notes(encoded)

    def batches(self, encoded: EncodedTexts, packed: bool, even: bool) -> LabelledBatches:
        """Texts of similar lengths, a row each; or packed end to end."""
        train = self.recipe.train
        return LabelledBatches(encoded, train.seed, train.batch_tokens, train.batch_examples, packed)

    def loss(self, predictor: P, encoded: EncodedTexts) -> float:
        """The mean loss of a text."""
        return mean_loss(self.text_loss, predictor.model, encoded, predictor.device)

    def example(self, sample: tuple[str, str, str]) -> Example:
        """The text or the pair of a sample."""
        first, _, second = sample[0].partition(BETWEEN)
        return Example(first, second, sample[1]) if are_pairs(self.recipe.data) else Example(sample[0], None, sample[1])

    def examples(self, split: Split) -> Iterator[Example]:
        """The texts or pairs of a split."""
        return (Example(item.text, item.pair, item.label) for item in self.read(split).items)

    @property
    def metric(self) -> str:
        """The score that the task names."""
        return str(self.recipe.task.metric)

    def next(self, folder: Path, test: Evaluated | None) -> list[str]:
        """To classify texts, and to evaluate."""
        return next_verbs(folder, self.recipe.data)


def one_class_remarks(result: Evaluated) -> list[str]:
    """A remark on a Matthews correlation of 0, where a model does not distinguish the classes."""
    if not any(score.name == "matthews" and score.value == 0 for score in result.scores):
        return []
    return [
        "Matthews' correlation is 0: the predictions say nothing about the classes, as when a model predicts the most "
        "frequent class for every text; train longer, change the learning rate, or balance the training data"
    ]


def cut_notes(encoded: EncodedTexts) -> list[str]:
    """How many texts are truncated, if any are."""
    cut = np.count_nonzero(encoded.lost)
    note = f"{cut:,} of {len(encoded):,} texts are longer than {encoded.context} tokens, and are truncated"
    return [note] if cut else []


def texts_of(read: Items) -> list[str]:
    """All texts, those of a pair one after the other."""
    return [text for item in read.items for text in (item.text, item.pair) if text is not None]


def next_verbs(folder: Path, data: Any) -> list[str]:
    """Commands that classify texts, or pairs where the data are pairs, and evaluate."""
    name = shlex.quote(str(folder))
    given = "--pair 'one text' 'the other text'" if are_pairs(data) else "'a text of your own'"
    return [f"heedful classify {name} {given}", f"heedful eval {name} --split valid"]


def are_pairs(data: Any) -> bool:
    """Whether each example of some data is a pair of texts."""
    return isinstance(data, Columns | JsonlTable) and data.pair is not None


def joined(text: str, pair: str | None) -> str:
    """One text or two as a sample shows them."""
    return text if pair is None else f"{text}{BETWEEN}{pair}"


class ClassificationTask(TextTask[TextClassifier]):
    """The class of a text or a pair."""

    def labels(self, vocabulary: PairTokenizer) -> Sequence[str]:
        """The classes, which the run's recipe holds."""
        found: Sequence[str] = self.recipe.model.labels
        return found

    def targets(self, read: Items, vocabulary: PairTokenizer) -> NDArray[np.int64]:
        """The number of each text's class."""
        return np.array(class_numbers(read.items, self.labels(vocabulary)), dtype=np.int64)

    def text_loss(self, model: Any, batch: LabelledBatch) -> Loss:
        """Cross-entropy, without label smoothing."""
        return class_loss(model, batch)

    def loss_of(self, model: Any, packed: bool) -> Callable[[Any], Loss]:
        """Cross-entropy of the classes."""
        return partial(class_loss, model, label_smoothing=self.recipe.task.label_smoothing)

    @staticmethod
    def predictor(
        model: Any,
        config: Any,
        vocabulary: PairTokenizer,
        decode: None,
        device: torch.device,
        notes: tuple[str, ...] = (),
    ) -> TextClassifier:
        """The classifier of a trained model."""
        return TextClassifier(model, vocabulary, device, config.labels or (), config.context, notes)

    def evaluate(self, predictor: TextClassifier, held_out: HeldOut[Items, EncodedTexts]) -> Evaluated:
        """Accuracy, F1 and Matthews' correlation, and a few texts with predicted classes."""
        items, encoded = held_out.read.items, held_out.encoded
        probabilities = outputs_of(predictor.model, encoded, predictor.device).softmax(-1)  # (N, C)
        samples = []
        for row in held_out.rows(len(items), self.recipe.train.samples):
            item, best = items[row], predictor.classification(probabilities[row].tolist())
            samples.append((joined(item.text, item.pair), item.label, f"{best.label} ({best.probability:.0%})"))
        found = probabilities.argmax(-1).numpy()  # (N,)
        return held_out.result(class_scores(found, encoded.targets, predictor.labels), samples)

    def remarks(self, result: Evaluated) -> list[str]:
        """Whether the model does not distinguish the classes."""
        return one_class_remarks(result)


class TextClassificationTask(ClassificationTask):
    """Classification by a model of words or characters, without an encoder; it may start from word vectors."""

    artifacts: ClassVar = {"tokenizer.json": Codec(TextVocab, TextVocab.load)}
    recipe: TextClassificationRecipe

    def elsewhere(self, folder: Path) -> None:
        """None: there is no encoder to start from."""
        return

    def learn(self, read: Items) -> TextVocab:
        """The words of the texts, those that a vector is known for, and the classes."""
        config, texts = self.recipe.tokenizer, texts_of(read)
        labels = self.recipe.model.labels or collect_labels(read.items, "the training data")
        vectors = None
        if config.kind == "words":
            wanted = {word for text in texts for word in split_words(text, "words", config.lowercase)}
            vectors = self._vectors(wanted, config.known)
        return TextVocab.learn(texts, labels, config.kind, config.lowercase, config.at_least, vectors)

    def _vectors(self, wanted: set[str], known: int) -> WordVectors | None:
        """The vectors that the recipe names, if it names any."""
        begins = self.recipe.embedding_init
        return None if begins is None else begins.read(wanted, known, self.recipe.model.width)

    def labels(self, vocabulary: PairTokenizer) -> Sequence[str]:
        """The classes, which the vocabulary keeps."""
        assert isinstance(vocabulary, TextVocab), "as it was learned"
        return vocabulary.labels

    @staticmethod
    def fitted(config: Any, vocabulary: TextVocab, where: str) -> Any:
        """The settings of a model with the words and classes that it is for."""
        if config.labels not in (None, vocabulary.labels):
            raise UserError(
                "the model has other classes than its list of words", where=f"{where}.labels",
                found=shown(config.labels), expected=shown(vocabulary.labels),
            )  # fmt: skip
        return ClassificationTask.fitted(config.model_copy(update={"labels": vocabulary.labels}), vocabulary, where)

    def begin(self, model: Any, vocabulary: PairTokenizer) -> list[str]:
        """Put in the word vectors that are known, which are those that the words were gathered with."""
        assert isinstance(vocabulary, TextVocab), "as it was learned"
        begins = self.recipe.embedding_init
        vectors = self._vectors(set(vocabulary.words), 0)
        if begins is None or vectors is None:
            return []
        if (found := vocabulary.fingerprint(vectors)) != vocabulary.vectors:
            raise UserError(
                "these are not the word vectors that the run started with", where=begins.file,
                found=f"vectors of SHA-256 {found[:16]}...", expected=f"vectors of SHA-256 {vocabulary.vectors}",
                todo="restore the former file, or start over with another --run",
            )  # fmt: skip
        places, rows = map(torch.from_numpy, vocabulary.rows(vectors))
        weight = model.tokens.weight
        with torch.no_grad():
            weight[places.to(weight.device)] = rows.to(weight)
        return [*vectors.notes, f"{len(places):,} of {vocabulary.vocab:,} words start from {begins.file}"]


class RegressionTask(TextTask[TextRegressor]):
    """A number for a text or a pair."""

    def targets(self, read: Items, vocabulary: PairTokenizer) -> NDArray[np.int64]:
        """The bits of each text's number."""
        return np.array(label_values(read.items), dtype=np.float64).view(np.int64)

    def text_loss(self, model: Any, batch: LabelledBatch) -> Loss:
        """Squared errors."""
        return number_loss(model, batch)

    def loss_of(self, model: Any, packed: bool) -> Callable[[Any], Loss]:
        """The squared error of the numbers."""
        return partial(number_loss, model)

    @staticmethod
    def predictor(
        model: Any,
        config: RegressorConfig,
        vocabulary: PairTokenizer,
        decode: None,
        device: torch.device,
        notes: tuple[str, ...] = (),
    ) -> TextRegressor:
        """The regressor of a trained model."""
        return TextRegressor(model, vocabulary, device, config.context, notes)

    def evaluate(self, predictor: TextRegressor, held_out: HeldOut[Items, EncodedTexts]) -> Evaluated:
        """Both correlations, and a few texts with predicted numbers."""
        items, encoded = held_out.read.items, held_out.encoded
        found = outputs_of(predictor.model, encoded, predictor.device).double().numpy()  # (N,)
        rows = held_out.rows(len(items), self.recipe.train.samples)
        samples = [(joined(items[row].text, items[row].pair), items[row].label, f"{found[row]:.2f}") for row in rows]
        return held_out.result(number_scores(found, encoded.targets.view(np.float64)), samples)
