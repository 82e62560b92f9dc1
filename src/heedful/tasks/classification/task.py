"""Text classification, with an encoder or from words, and text regression."""

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
from heedful.data.tables.texts import TargetTable
from heedful.data.tokenizers.base import PairTokenizer
from heedful.data.tokenizers.vocabulary import TextVocab, split_words
from heedful.data.word_vectors import WordVectors
from heedful.errors import UserError, shown
from heedful.models.heads.config import RegressorConfig
from heedful.tasks.base import Codec, Evaluated, Example, HeldOut, Names, P
from heedful.tasks.classification.numbers import MultiRegressor, mean_scores, number_targets
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
from heedful.tasks.imbalance import weights_for
from heedful.training.class_report import ClassReport, class_report

SEPARATOR = " || "  # between the texts of a pair in a sample
WORDS = Names(
    examples="texts",
    tokens="tokens",
    too_long="texts that are too long",
    blank="blank texts, left out",
    learning="preparing the tokenizer",
    encoding="tokenizing the texts",
    testing="evaluating the {} set",
    sample=("text", "label", "predicted"),
    counted="texts",
)


class TextTask(FinetuningTask[Items, PairTokenizer, EncodedTexts, P]):
    """The base of both tasks: texts or pairs of texts, each with a target."""

    words: ClassVar = WORDS

    collect = staticmethod(labelled)

    @abstractmethod
    def targets(self, read: Items, vocabulary: PairTokenizer) -> NDArray[np.int64]:
        """The target of each text: the index of a class, or the bits of a number."""

    @abstractmethod
    def text_loss(self, model: Any, batch: LabelledBatch) -> Loss:
        """The reported loss of a batch, without label smoothing."""

    @property
    def balanced(self) -> bool:
        """Whether a training epoch has as many texts of each class."""
        return False

    def texts(self, read: Items) -> Sequence[str]:
        """All texts, those of a pair one after the other."""
        return all_texts(read)

    def encode(self, read: Items, vocabulary: PairTokenizer) -> EncodedTexts:
        """Token ids of texts, which are truncated to the context."""
        pairs = [(item.text, item.pair) for item in read.items]
        return encode_texts(pairs, self.targets(read, vocabulary), vocabulary, self.recipe.model.context)

    def notes(self, encoded: EncodedTexts) -> list[str]:
        """A note on the number of truncated texts."""
        return truncation_notes(encoded)

    def batches(self, encoded: EncodedTexts, packed: bool, even: bool) -> LabelledBatches:
        """Padded batches of texts of similar lengths, or packed batches."""
        train = self.recipe.train
        classes = encoded.targets if self.balanced else None
        return LabelledBatches(encoded, train.seed, train.batch_tokens, train.batch_examples, packed, classes)

    def loss(self, predictor: P, encoded: EncodedTexts) -> float:
        """The mean loss per text."""
        return mean_loss(self.text_loss, predictor.model, encoded, predictor.device)

    def example(self, sample: tuple[str, str, str]) -> Example:
        """The text or the pair of a sample."""
        first, _, second = sample[0].partition(SEPARATOR)
        return Example(first, second, sample[1]) if are_pairs(self.recipe.data) else Example(sample[0], None, sample[1])

    def examples(self, split: Split) -> Iterator[Example]:
        """The texts or pairs of a split."""
        return (Example(item.text, item.pair, item.label) for item in self.read(split).items)

    @property
    def metric(self) -> str:
        """The score in `task.metric`."""
        return str(self.recipe.task.metric)

    def next(self, folder: Path, test: Evaluated | None) -> list[str]:
        """Commands that classify texts, and that evaluate."""
        return next_commands(folder, self.recipe.data)


def constant_prediction_remarks(result: Evaluated) -> list[str]:
    """A remark on a Matthews correlation of 0, as of constant predictions."""
    if not any(score.name == "matthews" and score.value == 0 for score in result.scores):
        return []
    return [
        "Matthews' correlation is 0: the predictions do not depend on the classes; the model may predict the most "
        "frequent class for every text; train longer, change the learning rate, or balance the training data"
    ]


def truncation_notes(encoded: EncodedTexts) -> list[str]:
    """A note on the number of truncated texts, if there are any."""
    cut = np.count_nonzero(encoded.lost)
    note = f"{cut:,} of {len(encoded):,} texts are longer than {encoded.context} tokens, and are truncated"
    return [note] if cut else []


def all_texts(read: Items) -> list[str]:
    """All texts, those of a pair one after the other."""
    return [text for item in read.items for text in (item.text, item.pair) if text is not None]


def next_commands(folder: Path, data: Any) -> list[str]:
    """Commands that classify texts or pairs of texts, as in the data, and that evaluate."""
    name = shlex.quote(str(folder))
    given = "--pair 'one text' 'the other text'" if are_pairs(data) else "'a text of your own'"
    return [f"heedful classify {name} {given}", f"heedful eval {name} --split valid"]


def are_pairs(data: Any) -> bool:
    """Whether each example of some data is a pair of texts."""
    return isinstance(data, Columns | JsonlTable | TargetTable) and data.pair is not None


def sample_text(text: str, pair: str | None) -> str:
    """A text or a pair of texts as a sample shows it."""
    return text if pair is None else f"{text}{SEPARATOR}{pair}"


class ClassificationTask(TextTask[TextClassifier]):
    """Predict the class of a text or of a pair of texts."""

    @property
    def balanced(self) -> bool:
        """Whether a training epoch has as many texts of each class."""
        return bool(self.recipe.task.sampling == "balanced")

    def labels(self, vocabulary: PairTokenizer) -> Sequence[str]:
        """The names of the classes, which the recipe of the run contains."""
        found: Sequence[str] = self.recipe.model.labels
        return found

    def targets(self, read: Items, vocabulary: PairTokenizer) -> NDArray[np.int64]:
        """The index of the class of each text."""
        return np.array(class_numbers(read.items, self.labels(vocabulary)), dtype=np.int64)

    def text_loss(self, model: Any, batch: LabelledBatch) -> Loss:
        """Cross-entropy, without label smoothing."""
        return class_loss(model, batch)

    def loss_of(self, model: Any, packed: bool) -> Callable[[Any], Loss]:
        """Cross-entropy of the classes."""
        task = self.recipe.task
        return partial(class_loss, model, label_smoothing=task.label_smoothing, penalty=task.confidence_penalty)

    def loss_on(
        self, model: Any, packed: bool, encoded: EncodedTexts, vocabulary: PairTokenizer
    ) -> Callable[[Any], Loss]:
        """Cross-entropy of the classes with their weights."""
        task, names = self.recipe.task, self.labels(vocabulary)
        weights = weights_for(model, encoded.targets, names, task.class_weights)
        return partial(
            class_loss, model, label_smoothing=task.label_smoothing, penalty=task.confidence_penalty, weights=weights
        )

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
            samples.append((sample_text(item.text, item.pair), item.label, f"{best.label} ({best.probability:.0%})"))
        found = probabilities.argmax(-1).numpy()  # (N,)
        return held_out.result(class_scores(found, encoded.targets, predictor.labels), samples)

    def details(self, predictor: TextClassifier, split: Split) -> ClassReport:
        """Confusion, scores of each class, calibration and the worst mistakes."""
        read = self.read(split)
        encoded = self.encode(read, predictor.tokenizer)
        best = outputs_of(predictor.model, encoded, predictor.device).softmax(-1).max(-1)  # (N,)

        def show(row: int) -> str:
            return sample_text(read.items[row].text, read.items[row].pair)

        found, shares = best.indices.numpy(), best.values.numpy()
        return class_report(split, "texts", encoded.targets, found, shares, predictor.labels, show)

    def remarks(self, result: Evaluated) -> list[str]:
        """A remark if the predictions do not depend on the text."""
        return constant_prediction_remarks(result)


class TextClassificationTask(ClassificationTask):
    """Classification by a model of words or characters, without an encoder; word vectors may be pre-trained."""

    artifacts: ClassVar = {"tokenizer.json": Codec(TextVocab, TextVocab.load)}
    recipe: TextClassificationRecipe

    def elsewhere(self, folder: Path) -> None:
        """None: there is no encoder to start from."""
        return

    def learn(self, read: Items) -> TextVocab:
        """The vocabulary of the texts, with words that have a pre-trained vector, and the classes."""
        config, texts = self.recipe.tokenizer, all_texts(read)
        labels = self.recipe.model.labels or collect_labels(read.items, "the training data")
        vectors = None
        if config.kind == "words":
            wanted = {word for text in texts for word in split_words(text, "words", config.lowercase)}
            vectors = self._vectors(wanted, config.known)
        return TextVocab.learn(texts, labels, config.kind, config.lowercase, config.at_least, vectors)

    def _vectors(self, wanted: set[str], known: int) -> WordVectors | None:
        """The pre-trained vectors of the recipe, if it has any."""
        source = self.recipe.embedding_init
        return None if source is None else source.read(wanted, known, self.recipe.model.width)

    def labels(self, vocabulary: PairTokenizer) -> Sequence[str]:
        """The names of the classes, which the vocabulary contains."""
        assert isinstance(vocabulary, TextVocab), "as it was learned"
        return vocabulary.labels

    @staticmethod
    def fitted(config: Any, vocabulary: TextVocab, where: str) -> Any:
        """The settings of a model with the size of the vocabulary and the classes."""
        if config.labels not in (None, vocabulary.labels):
            raise UserError(
                "the model has other classes than its vocabulary", where=f"{where}.labels",
                found=shown(config.labels), expected=shown(vocabulary.labels),
            )  # fmt: skip
        return ClassificationTask.fitted(config.model_copy(update={"labels": vocabulary.labels}), vocabulary, where)

    def begin(self, model: Any, vocabulary: PairTokenizer) -> list[str]:
        """Initialize the embeddings with the pre-trained vectors, which must be those of the vocabulary."""
        assert isinstance(vocabulary, TextVocab), "as it was learned"
        source = self.recipe.embedding_init
        vectors = self._vectors(set(vocabulary.words), 0)
        if source is None or vectors is None:
            return []
        if (found := vocabulary.fingerprint(vectors)) != vocabulary.vectors:
            raise UserError(
                "these are not the word vectors that the run started with", where=source.file,
                found=f"vectors of SHA-256 {found[:16]}...", expected=f"vectors of SHA-256 {vocabulary.vectors}",
                todo="restore the original file, or start over with another --run",
            )  # fmt: skip
        indices, rows = map(torch.from_numpy, vocabulary.rows(vectors))
        weight = model.tokens.weight
        with torch.no_grad():
            weight[indices.to(weight.device)] = rows.to(weight)
        return [*vectors.notes, f"{len(indices):,} of {vocabulary.vocab:,} words start from {source.file}"]


class RegressionTask(TextTask[TextRegressor | MultiRegressor]):
    """Predict a number, or several, for a text or for a pair of texts."""

    def targets(self, read: Items, vocabulary: PairTokenizer) -> NDArray[np.int64]:
        """The bits of the number of each text, or of its numbers (N, C)."""
        if names := self.recipe.model.numbers:
            return number_targets(read.items, names).view(np.int64)
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
    ) -> TextRegressor | MultiRegressor:
        """The regressor of a trained model."""
        if config.numbers:
            return MultiRegressor(model, vocabulary, device, config.numbers, config.context, notes)
        return TextRegressor(model, vocabulary, device, config.context, notes)

    def evaluate(self, predictor: TextRegressor | MultiRegressor, held_out: HeldOut[Items, EncodedTexts]) -> Evaluated:
        """Both correlations, and a few texts with predicted numbers."""
        items, encoded = held_out.read.items, held_out.encoded
        found = outputs_of(predictor.model, encoded, predictor.device).double().numpy()  # (N,) or (N, C)
        rows = held_out.rows(len(items), self.recipe.train.samples)
        samples = [
            (
                sample_text(items[row].text, items[row].pair), items[row].label,
                ", ".join(f"{value:.2f}" for value in np.atleast_1d(found[row])),
            )
            for row in rows
        ]  # fmt: skip
        scores = number_scores if found.ndim == 1 else mean_scores
        return held_out.result(scores(found, encoded.targets.view(np.float64)), samples)
