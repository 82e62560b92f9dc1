"""A class, or a number, for a text or a pair of texts.

N texts, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from heedful.blocks.losses import Loss, cross_entropy
from heedful.data.batch import IGNORE_INDEX
from heedful.data.labelled.batches import EncodedTexts, LabelledBatch, encode_texts
from heedful.data.tokenizers.base import PairTokenizer
from heedful.tasks.reading import layout_of

BATCH_TOKENS = 16384  # tokens that are read together
MOST = 4096  # texts that are encoded together

Given = str | tuple[str, str]


def outputs(model: Any, batch: LabelledBatch) -> Tensor:
    """What a model says of each text of a batch: logits (N, C), or a number each (N,)."""
    found: Tensor = model(batch.ids, batch.segments, layout_of(batch.sequences), batch.sequences.begins)
    return found


def class_loss(model: Any, batch: LabelledBatch, label_smoothing: float = 0.0) -> Loss:
    """Cross-entropy of the class of each text."""
    return cross_entropy(outputs(model, batch), batch.targets, label_smoothing, ignore=IGNORE_INDEX)


def number_loss(model: Any, batch: LabelledBatch) -> Loss:
    """The squared distance of what the model says from each text's number."""
    real = batch.indices >= 0
    squares = torch.where(real, (outputs(model, batch).float() - batch.numbers).square(), 0.0)  # (N,)
    return Loss(squares.sum(), squares.detach().sum(), real.sum())


@torch.inference_mode()
def mean_loss(
    loss_of: Callable[[Any, LabelledBatch], Loss], model: Any, encoded: EncodedTexts, device: torch.device
) -> float:
    """The mean loss a text over a whole set."""
    total = sum(loss_of(model, batch.to(device)).plain.item() for batch in encoded.in_order(BATCH_TOKENS))
    return total / len(encoded)


@torch.inference_mode()
def said(model: Any, encoded: EncodedTexts, device: torch.device) -> Tensor:
    """What a model says of all texts of a set, in their order, whatever order it reads them in."""
    found: dict[int, Tensor] = {}
    for batch in encoded.in_order(BATCH_TOKENS):
        found |= dict(zip(batch.indices.tolist(), outputs(model, batch.to(device)).float().cpu(), strict=True))
    return torch.stack([found[row] for row in range(len(encoded))])


@dataclass(frozen=True)
class Classification:
    """What the model says of a text: its class, how sure it is, and how likely it holds each class."""

    label: str
    probability: float
    probabilities: dict[str, float]
    cut: int = 0  # tokens at the text's end that were not read, since it is too long for the model


@dataclass(frozen=True)
class Regression:
    """What the model says of a text, as a number."""

    value: float
    cut: int = 0  # tokens at the text's end that were not read, since it is too long for the model


@dataclass
class TextClassifier:
    """A model with its tokenizer, ready to say the class of texts."""

    model: Any
    tokenizer: PairTokenizer
    device: torch.device
    labels: tuple[str, ...]
    context: int
    notes: tuple[str, ...] = ()  # what whoever loads it should know

    def __post_init__(self) -> None:
        self.model.to(self.device).eval()

    def classify(self, texts: Sequence[Given]) -> list[Classification]:
        """The class of each text, or of each pair of texts."""
        found = []
        for encoded in encodings(texts, self.tokenizer, self.context):
            probabilities = said(self.model, encoded, self.device).softmax(-1).tolist()
            found += [
                self.classification(each, int(cut)) for each, cut in zip(probabilities, encoded.lost, strict=True)
            ]
        return found

    def classification(self, probabilities: Sequence[float], cut: int = 0) -> Classification:
        """Probabilities with the classes' names to them."""
        best = max(range(len(probabilities)), key=probabilities.__getitem__)
        return Classification(
            self.labels[best], probabilities[best], dict(zip(self.labels, probabilities, strict=True)), cut
        )


@dataclass
class TextRegressor:
    """A model with its tokenizer, ready to say a number of texts."""

    model: Any
    tokenizer: PairTokenizer
    device: torch.device
    context: int
    notes: tuple[str, ...] = ()  # what whoever loads it should know

    def __post_init__(self) -> None:
        self.model.to(self.device).eval()

    def predict(self, texts: Sequence[Given]) -> list[Regression]:
        """The number of each text, or of each pair of texts."""
        return [
            Regression(value, int(cut))
            for encoded in encodings(texts, self.tokenizer, self.context)
            for value, cut in zip(said(self.model, encoded, self.device).tolist(), encoded.lost, strict=True)
        ]


def encodings(texts: Sequence[Given], tokenizer: PairTokenizer, context: int) -> Iterator[EncodedTexts]:
    """Texts as a model reads them, some thousands at a time."""
    if isinstance(texts, str):
        raise TypeError("give a list of texts, as [text]")
    for start in range(0, len(texts), MOST):
        some = [(text, None) if isinstance(text, str) else text for text in texts[start : start + MOST]]
        yield encode_texts(some, np.full(len(some), IGNORE_INDEX), tokenizer, context)
