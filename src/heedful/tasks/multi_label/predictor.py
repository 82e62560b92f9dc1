"""Multi-label classification: the loss, scores and the predictor.

N texts, C labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from heedful.blocks.losses import Loss
from heedful.data.formats.tables import Item, class_numbers
from heedful.data.labelled.batches import EncodedTexts, LabelledBatch, encode_texts
from heedful.data.tokenizers.base import PairTokenizer
from heedful.errors import UserError
from heedful.tasks.classification.predictor import TextOrPair, outputs, outputs_of, read_items, tokenize_chunks
from heedful.tasks.multi_label.recipe import split_labels
from heedful.tasks.predictor import Evaluation, Predictor, Result
from heedful.training.metrics import Score, label_accuracy, macro_f1, micro_f1


def label_loss(model: Any, batch: LabelledBatch, weights: Tensor | None = None) -> Loss:
    """The binary cross-entropy of each label, averaged over the labels of a text.

    Weights (C,) count where a text has the label; the loss that is reported has none.
    """
    real = batch.indices >= 0  # (N,)
    targets = torch.where(real[:, None], batch.targets, 0).float()  # (N, C)
    logits = outputs(model, batch).float()  # (N, C)
    each = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")  # (N, C)
    plain = torch.where(real, each.mean(-1), 0.0).detach().sum()
    if weights is not None:
        each = each * torch.where(targets > 0, weights, 1.0)
    return Loss(torch.where(real, each.mean(-1), 0.0).sum(), plain, real.sum())


def label_targets(items: Sequence[Item], labels: Sequence[str]) -> NDArray[np.int64]:
    """Which labels each text has (N, C), as 1 and 0."""
    targets = np.zeros((len(items), len(labels)), dtype=np.int64)
    for row, item in enumerate(items):
        targets[row, class_numbers([item._replace(label=one) for one in split_labels(item.label)], labels)] = 1
    return targets


def label_scores(found: NDArray[np.int64], right: NDArray[np.int64]) -> tuple[Score, ...]:
    """Micro and macro F1, and the share of texts with all labels right."""
    return micro_f1(found, right), macro_f1(found, right), label_accuracy(found, right)


@dataclass(frozen=True, repr=False)
class TextLabels(Result):
    """The labels of a text, and the probability of each label."""

    labels: tuple[str, ...]
    probabilities: dict[str, float] = field(repr=False)
    cut: int = field(default=0, repr=False)  # tokens beyond the model's context, which were not read


@dataclass
class MultiLabelClassifier(Predictor[TextOrPair, TextLabels, tuple[TextOrPair, str]]):
    """Predicts all labels of texts, or of pairs of texts: those whose probability is at least `threshold`.

    The expected labels of an example are one string, with commas between them.
    """

    task: ClassVar = "multi_label"

    model: nn.Module
    tokenizer: PairTokenizer
    device: torch.device
    labels: tuple[str, ...]
    context: int
    notes: tuple[str, ...] = ()
    threshold: float = 0.5

    def predict(self, inputs: Sequence[TextOrPair], threshold: float | None = None) -> list[TextLabels]:
        """The labels of each text, or of each pair of texts."""
        least = self._threshold(threshold)
        return [
            self.chosen(row, int(cut), least)
            for encoded in tokenize_chunks(inputs, self.tokenizer, self.context)
            for row, cut in zip(self._probabilities(encoded), encoded.lost, strict=True)
        ]

    def _probabilities(self, encoded: EncodedTexts) -> list[list[float]]:
        """The probability of each label, for each text."""
        found: list[list[float]] = outputs_of(self.model, encoded, self.device).sigmoid().tolist()
        return found

    def chosen(self, probabilities: Sequence[float], cut: int = 0, threshold: float | None = None) -> TextLabels:
        """The labels whose probability is high enough, the most probable first."""
        each, least = dict(zip(self.labels, probabilities, strict=True)), self._threshold(threshold)
        return TextLabels(tuple(sorted((x for x in each if each[x] >= least), key=lambda x: -each[x])), each, cut)

    def above(self, logits: Tensor) -> NDArray[np.int64]:
        """Which labels (N, C) are predicted by the logits."""
        return (logits.sigmoid() >= self.threshold).long().numpy()

    def _threshold(self, asked: float | None) -> float:
        found = self.threshold if asked is None else asked
        if not 0 <= found <= 1:
            raise UserError("this is no probability", where="threshold", found=f"{found:g}", expected="from 0 to 1")
        return found

    def _evaluate(self, data: Path | Sequence[tuple[TextOrPair, str]]) -> Evaluation:
        items = read_items(data)
        targets = label_targets(items, self.labels)  # (N, C)
        encoded = encode_texts([(one.text, one.pair) for one in items], targets, self.tokenizer, self.context)
        logits = outputs_of(self.model, encoded, self.device)  # (N, C)
        loss = float(F.binary_cross_entropy_with_logits(logits, torch.from_numpy(targets).float()))
        return Evaluation.of(label_scores(self.above(logits), targets), loss, len(targets))
