"""Multiple choice: a score for each possible continuation of a text, by one layer on top of an encoder."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F

from heedful.blocks.losses import Loss
from heedful.data.formats.sources import Split
from heedful.data.labelled.choice_batches import ChoiceBatches, EncodedChoices, encode_choices
from heedful.data.labelled.choices import Questions
from heedful.data.own import choices
from heedful.data.tokenizers.base import MaskTokenizer
from heedful.models.heads.config import MultipleChoiceConfig
from heedful.tasks.base import Evaluated, HeldOut, Names
from heedful.tasks.classification.task import truncation_notes
from heedful.tasks.finetuning.task import FinetuningTask
from heedful.tasks.multiple_choice.predictor import MultipleChoiceAnswerer, choice_loss, scores_of
from heedful.training.class_report import ClassReport, class_report
from heedful.training.metrics import accuracy


class MultipleChoiceTask(FinetuningTask[Questions, MaskTokenizer, EncodedChoices, MultipleChoiceAnswerer]):
    """Predict which of several choices is correct."""

    words: ClassVar = Names(
        examples="questions",
        tokens="tokens",
        too_long="questions that are too long",
        blank="blank questions, left out",
        learning="preparing the tokenizer",
        encoding="tokenizing the texts",
        testing="evaluating the {} set",
        sample=("text", "right", "chosen"),
        counted="questions",
        loss="nats a question",
    )

    collect = staticmethod(choices)

    def texts(self, read: Questions) -> list[str]:
        """All texts, each followed by its choices."""
        return [text for one in read.items for text in (one.text, *one.choices)]

    def encode(self, read: Questions, vocabulary: MaskTokenizer) -> EncodedChoices:
        """Token ids of texts with their choices, truncated to the context."""
        return encode_choices(read.items, vocabulary, self.recipe.model.context)

    def notes(self, encoded: EncodedChoices) -> list[str]:
        """A note on the number of truncated texts."""
        return truncation_notes(encoded.texts)

    def batches(self, encoded: EncodedChoices, packed: bool, even: bool) -> ChoiceBatches:
        """Padded batches of questions of similar lengths, a row for each choice."""
        train = self.recipe.train
        return ChoiceBatches(encoded, train.seed, train.batch_tokens, train.batch_examples)

    def loss_of(self, model: Any, packed: bool) -> Callable[[Any], Loss]:
        """Cross-entropy of the correct choices."""
        return partial(choice_loss, model)

    @staticmethod
    def predictor(
        model: Any,
        config: MultipleChoiceConfig,
        vocabulary: MaskTokenizer,
        decode: None,
        device: torch.device,
        notes: tuple[str, ...] = (),
    ) -> MultipleChoiceAnswerer:
        """The multiple-choice answerer of a trained model."""
        return MultipleChoiceAnswerer(model, vocabulary, device, config.context, notes)

    def loss(self, predictor: MultipleChoiceAnswerer, encoded: EncodedChoices) -> float:
        """The mean loss per question."""
        scores = scores_of(predictor.model, encoded, predictor.device)  # (N, C)
        return float(F.cross_entropy(scores, torch.from_numpy(encoded.targets)))

    def evaluate(self, predictor: MultipleChoiceAnswerer, held_out: HeldOut[Questions, EncodedChoices]) -> Evaluated:
        """Accuracy, and a few texts with the predicted choices."""
        items, encoded = held_out.read.items, held_out.encoded
        probabilities = scores_of(predictor.model, encoded, predictor.device).softmax(-1)  # (N, C)
        found = probabilities.argmax(-1).numpy()  # (N,)
        samples = []
        for row in held_out.rows(len(items), self.recipe.train.samples):
            one, best = items[row], int(found[row])
            samples.append((one.text, one.choices[one.right], f"{one.choices[best]} ({probabilities[row, best]:.0%})"))
        return held_out.result((accuracy(found, encoded.targets),), samples)

    def details(self, predictor: MultipleChoiceAnswerer, split: Split) -> ClassReport:
        """Calibration and the worst mistakes, and how often each place among the choices is right and chosen."""
        read = self.read(split)
        encoded = encode_choices(read.items, predictor.tokenizer, predictor.context)
        best = scores_of(predictor.model, encoded, predictor.device).softmax(-1).max(-1)  # (N,)
        found, places = best.indices.numpy(), [f"choice {number}" for number in range(1, encoded.choices + 1)]

        def show(row: int) -> str:
            one = read.items[row]
            return f"{one.text} / {one.choices[one.right]} / not {one.choices[int(found[row])]}"

        return class_report(split, "questions", encoded.targets, found, best.values.numpy(), places, show)

    @property
    def metric(self) -> str:
        """Accuracy."""
        return "accuracy"

    def next(self, folder: Path, test: Evaluated | None) -> list[str]:
        """Commands that choose a continuation, and that evaluate."""
        name = shlex.quote(str(folder))
        return [f"heedful choose {name} 'a text' 'one continuation' 'another'", f"heedful eval {name} --split valid"]
