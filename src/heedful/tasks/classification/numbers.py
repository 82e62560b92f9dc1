"""Regression with several numbers for a text: targets, scores and the predictor.

N texts, C numbers of a text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from heedful.data.formats.tables import Item, label_values
from heedful.data.labelled.batches import encode_texts
from heedful.data.tokenizers.base import PairTokenizer
from heedful.errors import UserError, shown
from heedful.tasks.classification.predictor import TextOrPair, number_scores, outputs_of, read_items, tokenize_chunks
from heedful.tasks.predictor import Evaluation, Predictor, Result
from heedful.training.metrics import Score

SEPARATOR = ","  # between the numbers of a text


@dataclass(frozen=True, repr=False)
class TextNumbers(Result):
    """The numbers that the model predicts for a text, by name."""

    values: dict[str, float]
    cut: int = field(default=0, repr=False)  # tokens beyond the model's context, which were not read


@dataclass
class MultiRegressor(Predictor[TextOrPair, TextNumbers, tuple[TextOrPair, str]]):
    """Predicts several numbers for texts, or for pairs of texts.

    The expected numbers of an example are one string, in the order of `names`, with commas between them.
    """

    task: ClassVar = "regression"

    model: nn.Module
    tokenizer: PairTokenizer
    device: torch.device
    names: tuple[str, ...]
    context: int
    notes: tuple[str, ...] = ()

    def predict(self, inputs: Sequence[TextOrPair]) -> list[TextNumbers]:
        """The predicted numbers of each text, or of each pair of texts."""
        return [
            TextNumbers(dict(zip(self.names, values, strict=True)), int(cut))
            for encoded in tokenize_chunks(inputs, self.tokenizer, self.context)
            for values, cut in zip(outputs_of(self.model, encoded, self.device).tolist(), encoded.lost, strict=True)
        ]

    def _evaluate(self, data: Path | Sequence[tuple[TextOrPair, str]]) -> Evaluation:
        items = read_items(data)
        right = number_targets(items, self.names)  # (N, C)
        encoded = encode_texts(
            [(one.text, one.pair) for one in items], right.view(np.int64), self.tokenizer, self.context
        )
        found = outputs_of(self.model, encoded, self.device).double().numpy()  # (N, C)
        return Evaluation.of(mean_scores(found, right), float(((found - right) ** 2).mean()), len(right))


def number_targets(items: Sequence[Item], names: Sequence[str]) -> NDArray[np.float64]:
    """The numbers of each text (N, C)."""
    rows = []
    for item in items:
        parts = [part.strip() for part in item.label.split(SEPARATOR)]
        if len(parts) != len(names):
            raise UserError(
                "these are not the numbers of a text", where=item.where, found=shown(item.label),
                expected=f"{len(names)} numbers with commas between them: {', '.join(names)}",
            )  # fmt: skip
        rows.append(label_values([item._replace(label=part) for part in parts]))
    return np.array(rows, np.float64)


def mean_scores(found: NDArray[np.float64], right: NDArray[np.float64]) -> tuple[Score, ...]:
    """Both correlations, each the mean of those of the numbers (N, C)."""
    each = [number_scores(*columns) for columns in zip(found.T, right.T, strict=True)]
    return tuple(
        replace(same[0], value=sum(score.value for score in same) / len(same), signature=f"{same[0].signature}, mean")
        for same in zip(*each, strict=True)
    )
