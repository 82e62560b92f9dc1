"""Which of several texts goes on best from another (Devlin et al., 2019): a score for each, and a softmax over them.

N questions, C choices of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from heedful.blocks.losses import Loss, cross_entropy
from heedful.data.batch import IGNORE_INDEX
from heedful.data.labelled.batches import LabelledBatch
from heedful.data.labelled.choice_batches import EncodedChoices
from heedful.data.tokenizers.base import PairTokenizer
from heedful.tasks.classification.predictor import encodings, outputs, said


def choice_loss(model: Any, batch: LabelledBatch) -> Loss:
    """Cross-entropy of the right choice of each question among all its choices."""
    scores = outputs(model, batch).view(len(batch.targets), -1)  # (N, C)
    return cross_entropy(scores, batch.targets, ignore=IGNORE_INDEX)


def scores_of(model: Any, encoded: EncodedChoices, device: torch.device) -> Tensor:
    """The score of every choice of a set (N, C)."""
    return said(model, encoded.texts, device).view(-1, encoded.choices)  # (N, C)


@dataclass(frozen=True)
class Choice:
    """The choice that the model takes for right, from 0, and how likely it holds each."""

    index: int
    choice: str
    probability: float
    probabilities: tuple[float, ...]
    cut: int = 0  # tokens that were not read, since a text and a choice are too long for the model


@dataclass
class MultipleChoiceAnswerer:
    """A model with its tokenizer, ready to choose how texts go on."""

    model: Any
    tokenizer: PairTokenizer
    device: torch.device
    context: int
    notes: tuple[str, ...] = ()  # what whoever loads it should know

    def __post_init__(self) -> None:
        self.model.to(self.device).eval()

    def choose(self, text: str, choices: Sequence[str]) -> Choice:
        """Which of some choices, two or any number more, goes on best from a text."""
        if isinstance(choices, str) or len(choices) < 2:
            raise ValueError("give a list of two choices or more")
        scores, cut = list[Tensor](), 0
        for encoded in encodings([(text, choice) for choice in choices], self.tokenizer, self.context):
            scores.append(said(self.model, encoded, self.device))
            cut += int(encoded.lost.sum())
        probabilities = torch.cat(scores).softmax(0)  # (C,)
        best = int(probabilities.argmax())
        return Choice(best, choices[best], float(probabilities[best]), tuple(probabilities.tolist()), cut)
