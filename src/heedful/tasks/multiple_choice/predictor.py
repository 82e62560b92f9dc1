"""The most plausible of several continuations (Devlin et al., 2019): a score for each, and a softmax over them.

N questions, C choices of each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from heedful.blocks.losses import Loss, cross_entropy
from heedful.data.batch import IGNORE_INDEX
from heedful.data.labelled.batches import LabelledBatch
from heedful.data.labelled.choice_batches import EncodedChoices
from heedful.data.labelled.choices import ChoicesTable
from heedful.data.tokenizers.base import PairTokenizer
from heedful.tasks.classification.predictor import outputs, outputs_of, tokenize_chunks
from heedful.tasks.predictor import Evaluation, Predictor, Result
from heedful.training.metrics import accuracy

Choices = tuple[str, Sequence[str]]  # a text, and its possible continuations


def choice_loss(model: Any, batch: LabelledBatch) -> Loss:
    """Cross-entropy of the correct choice of each question among all its choices."""
    scores = outputs(model, batch).view(len(batch.targets), -1)  # (N, C)
    return cross_entropy(scores, batch.targets, ignore=IGNORE_INDEX)


def scores_of(model: Any, encoded: EncodedChoices, device: torch.device) -> Tensor:
    """The score of every choice of a set (N, C)."""
    return outputs_of(model, encoded.texts, device).view(-1, encoded.choices)  # (N, C)


@dataclass(frozen=True, repr=False)
class Choice(Result):
    """The most probable choice, its index from 0, and the probability of each."""

    index: int
    choice: str
    probability: float
    probabilities: tuple[float, ...] = field(repr=False)
    cut: int = field(default=0, repr=False)  # tokens beyond the model's context, which were not read


@dataclass
class MultipleChoiceAnswerer(Predictor[Choices, Choice, tuple[Choices, int | str]]):
    """Chooses the most plausible continuation of a text; an input is (text, choices)."""

    task: ClassVar = "multiple_choice"

    model: nn.Module
    tokenizer: PairTokenizer
    device: torch.device
    context: int
    notes: tuple[str, ...] = ()

    def predict(self, inputs: Sequence[Choices]) -> list[Choice]:
        """The most plausible choice for each (text, choices)."""
        for _, choices in inputs:
            if isinstance(choices, str) or len(choices) < 2:
                raise ValueError("pass a list of at least two choices")
        scores, cut = list[Tensor](), list[Tensor]()
        pairs = [(text, choice) for text, choices in inputs for choice in choices]
        for encoded in tokenize_chunks(pairs, self.tokenizer, self.context):
            scores.append(outputs_of(self.model, encoded, self.device))
            cut.append(torch.as_tensor(encoded.lost))
        counts = [len(choices) for _, choices in inputs]
        parts = zip(inputs, torch.cat(scores).split(counts), torch.cat(cut).split(counts), strict=True) if pairs else ()
        return [self._choice(choices, each, int(lost.sum())) for (_, choices), each, lost in parts]

    def _evaluate(self, data: Path | Sequence[tuple[Choices, int | str]]) -> Evaluation:
        if isinstance(data, Path):
            rows = ChoicesTable(train=str(data), valid=str(data)).read("valid").items
            given, right = [(one.text, one.choices) for one in rows], [one.right for one in rows]
        else:
            given = [(text, tuple(choices)) for (text, choices), _ in data]
            right = [
                label if isinstance(label, int) else choices.index(label)
                for (_, choices), (_, label) in zip(given, data, strict=True)
            ]
        found = self.predict(given)
        loss = -sum(math.log(max(one.probabilities[at], 1e-38)) for one, at in zip(found, right, strict=True))
        scores = (accuracy(np.array([one.index for one in found]), np.array(right)),)
        return Evaluation.of(scores, loss / len(right), len(right))

    def choose(self, text: str, choices: Sequence[str]) -> Choice:
        """The most plausible of two or more choices as the continuation of a text."""
        return self.predict([(text, choices)])[0]

    @staticmethod
    def _choice(choices: Sequence[str], scores: Tensor, cut: int) -> Choice:
        """The choice with the highest of the scores (C,)."""
        probabilities = scores.softmax(0)  # (C,)
        best = int(probabilities.argmax())
        return Choice(best, choices[best], float(probabilities[best]), tuple(probabilities.tolist()), cut)
