"""Text classification and regression: losses, scores and predictors.

N texts, C classes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from heedful.blocks.losses import Loss, confidence_penalty, cross_entropy
from heedful.data.batch import IGNORE_INDEX
from heedful.data.formats.sources import open_plain_or_gzip
from heedful.data.formats.tables import CsvTable, Item, JsonlTable, TsvTable, class_numbers, label_values
from heedful.data.labelled.batches import EncodedTexts, LabelledBatch, encode_texts
from heedful.data.tokenizers.base import PairTokenizer
from heedful.tasks.predictor import Evaluation, Predictor, Result, batch_of
from heedful.tasks.reading import layout_of
from heedful.training.metrics import Score, accuracy, f1, matthews, pearson, spearman

BATCH_TOKENS = 16384  # tokens of a batch
CHUNK = 4096  # texts that are tokenized at a time
MAX_HEADER = 1_000_000  # bytes of a file's first line that are read

TextOrPair = str | tuple[str, str]


def outputs(model: Any, batch: LabelledBatch) -> Tensor:
    """The model's outputs for the texts of a batch: logits or numbers (N, C), or a number each (N,)."""
    found: Tensor = model(batch.ids, batch.segments, layout_of(batch.sequences))
    return found


def class_loss(
    model: Any, batch: LabelledBatch, label_smoothing: float = 0.0, penalty: float = 0.0, weights: Tensor | None = None
) -> Loss:
    """Cross-entropy of the class of each text, with a confidence penalty; classes may have weights (C,)."""
    logits = outputs(model, batch)  # (N, C)
    loss = cross_entropy(logits, batch.targets, label_smoothing, IGNORE_INDEX, weights)
    return confidence_penalty(loss, logits, batch.targets != IGNORE_INDEX, penalty)


def number_loss(model: Any, batch: LabelledBatch) -> Loss:
    """The squared error of the predicted numbers, averaged over those of a text."""
    real = batch.indices >= 0  # (N,)
    squares = (outputs(model, batch).float() - batch.numbers).square()  # (N,) or (N, C)
    squares = torch.where(real, squares if squares.dim() == 1 else squares.mean(-1), 0.0)  # (N,)
    return Loss(squares.sum(), squares.detach().sum(), real.sum())


@torch.inference_mode()
def mean_loss(
    loss_of: Callable[[Any, LabelledBatch], Loss], model: Any, encoded: EncodedTexts, device: torch.device
) -> float:
    """The mean loss per text over a set."""
    total = sum(loss_of(model, batch.to(device)).plain.item() for batch in encoded.in_order(BATCH_TOKENS))
    return total / len(encoded)


@torch.inference_mode()
def outputs_of(model: Any, encoded: EncodedTexts, device: torch.device) -> Tensor:
    """The outputs for all texts, in their order."""
    found: dict[int, Tensor] = {}
    for batch in encoded.in_order(BATCH_TOKENS):
        found |= dict(zip(batch.indices.tolist(), outputs(model, batch.to(device)).float().cpu(), strict=True))
    return torch.stack([found[row] for row in range(len(encoded))])


@dataclass(frozen=True, repr=False)
class Classification(Result):
    """The most probable class of a text, its probability, and the probability of every class."""

    label: str
    probability: float
    probabilities: dict[str, float] = field(repr=False)
    cut: int = field(default=0, repr=False)  # tokens beyond the model's context, which were not read


@dataclass(frozen=True, repr=False)
class Regression(Result):
    """The number that the model predicts for a text."""

    value: float
    cut: int = field(default=0, repr=False)  # tokens beyond the model's context, which were not read


@dataclass
class TextClassifier(Predictor[TextOrPair, Classification, tuple[TextOrPair, str]]):
    """Predicts the class of texts, or of pairs of texts."""

    task: ClassVar = "classification"

    model: nn.Module
    tokenizer: PairTokenizer
    device: torch.device
    labels: tuple[str, ...]
    context: int
    notes: tuple[str, ...] = ()

    def classify(self, texts: Sequence[TextOrPair]) -> list[Classification]:
        """The class of each text, or of each pair of texts."""
        found = []
        for encoded in tokenize_chunks(texts, self.tokenizer, self.context):
            probabilities = outputs_of(self.model, encoded, self.device).softmax(-1).tolist()
            found += [
                self.classification(each, int(cut)) for each, cut in zip(probabilities, encoded.lost, strict=True)
            ]
        return found

    def predict(self, inputs: Sequence[TextOrPair]) -> list[Classification]:
        """The class of each text; see `classify`."""
        return self.classify(inputs)

    def _evaluate(self, data: Path | Sequence[tuple[TextOrPair, str]]) -> Evaluation:
        items = read_items(data)
        targets = np.array(class_numbers(items, self.labels), np.int64)
        encoded = encode_texts([(one.text, one.pair) for one in items], targets, self.tokenizer, self.context)
        logits = outputs_of(self.model, encoded, self.device)  # (N, C)
        loss = float(F.cross_entropy(logits, torch.from_numpy(targets)))
        return Evaluation.of(class_scores(logits.argmax(-1).numpy(), targets, self.labels), loss, len(targets))

    def classification(self, probabilities: Sequence[float], cut: int = 0) -> Classification:
        """A classification from the probabilities of the classes."""
        best = max(range(len(probabilities)), key=probabilities.__getitem__)
        return Classification(
            self.labels[best], probabilities[best], dict(zip(self.labels, probabilities, strict=True)), cut
        )


@dataclass
class TextRegressor(Predictor[TextOrPair, Regression, tuple[TextOrPair, float]]):
    """Predicts a number for texts, or for pairs of texts."""

    task: ClassVar = "regression"

    model: nn.Module
    tokenizer: PairTokenizer
    device: torch.device
    context: int
    notes: tuple[str, ...] = ()

    def predict(self, inputs: Sequence[TextOrPair]) -> list[Regression]:
        """The predicted number of each text, or of each pair of texts."""
        return [
            Regression(value, int(cut))
            for encoded in tokenize_chunks(inputs, self.tokenizer, self.context)
            for value, cut in zip(outputs_of(self.model, encoded, self.device).tolist(), encoded.lost, strict=True)
        ]

    def _evaluate(self, data: Path | Sequence[tuple[TextOrPair, float]]) -> Evaluation:
        items = read_items(data)
        right = np.array(label_values(items), np.float64)  # (N,)
        encoded = encode_texts(
            [(one.text, one.pair) for one in items], right.view(np.int64), self.tokenizer, self.context
        )
        found = outputs_of(self.model, encoded, self.device).double().numpy()  # (N,)
        return Evaluation.of(number_scores(found, right), float(((found - right) ** 2).mean()), len(right))


def number_scores(found: NDArray[np.float64], right: NDArray[np.float64]) -> tuple[Score, ...]:
    """Pearson's and Spearman's correlation of predicted numbers."""
    return pearson(found, right), spearman(found, right)


def class_scores(found: NDArray[np.int64], right: NDArray[np.int64], labels: Sequence[str]) -> tuple[Score, ...]:
    """Accuracy, F1 and Matthews' correlation of predicted classes."""
    return accuracy(found, right), f1(found, right, labels), matthews(found, right)


def read_items(data: Path | Sequence[tuple[TextOrPair, str | float]]) -> list[Item]:
    """Labelled texts or pairs of texts, from examples or from a file with `text`, `label` and optionally `pair`.

    A file has JSON lines, or is a .tsv or .csv table with a header.
    """
    if not isinstance(data, Path):
        items = []
        for number, (given, label) in enumerate(data, 1):
            text, pair = (given, None) if isinstance(given, str) else given
            items.append(Item(text, pair, str(label), f"example {number}"))
        return items
    with open_plain_or_gzip(data) as file:
        first = file.readline(MAX_HEADER).decode(errors="replace").strip()
    pair = "pair" if '"pair":' in first or "pair" in re.split(r"[\t,]", first) else None
    settings: dict[str, Any] = {"train": str(data), "valid": str(data), "text": "text", "label": "label", "pair": pair}
    kinds: dict[str, type[JsonlTable | TsvTable | CsvTable]] = {".tsv": TsvTable, ".csv": CsvTable}
    return kinds.get(Path(data.name.removesuffix(".gz")).suffix, JsonlTable)(**settings).read("valid").items


def tokenize_chunks(texts: Sequence[TextOrPair], tokenizer: PairTokenizer, context: int) -> Iterator[EncodedTexts]:
    """Tokenized texts, a few thousand at a time."""
    batch_of(texts)
    for start in range(0, len(texts), CHUNK):
        some = [(text, None) if isinstance(text, str) else text for text in texts[start : start + CHUNK]]
        yield encode_texts(some, np.full(len(some), IGNORE_INDEX), tokenizer, context)
