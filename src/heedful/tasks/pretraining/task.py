"""Pre-training of encoders: masked language modelling, and next sentences or their order where the model has a head."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from heedful.blocks.losses import Loss
from heedful.data.text.documents import Prose
from heedful.data.text.pretraining import EncodedDocuments, PairRules
from heedful.data.text.pretraining_batches import PretrainingBatches, padded_batch
from heedful.data.text.token_documents import TokenizedDocuments
from heedful.data.tokenizers.base import MaskTokenizer
from heedful.tasks.base import Evaluated, HeldOut
from heedful.tasks.pretraining.distillation import (
    distillation_loss,
    initialize_student,
    teacher_hash,
    teacher_model,
    teacher_tokenizer,
)
from heedful.tasks.pretraining.documents import DocumentsTask
from heedful.tasks.pretraining.loss import OBJECTIVES, evaluate_pretraining, predict_masked
from heedful.tasks.pretraining.predictor import TextEncoder
from heedful.tasks.pretraining.recipe import PretrainingRecipe

SAMPLE_TOKENS = 48  # tokens of a sample


class PretrainingTask(DocumentsTask):
    """Masked tokens from those around them, and whether two texts follow each other (Devlin et al., 2019)."""

    def __init__(self, recipe: PretrainingRecipe) -> None:
        super().__init__(recipe)
        task = recipe.task
        pairs, swapped = recipe.model.segment_types > 1, recipe.model.pairs == "sentence_order"
        self.rules = PairRules(
            task.hidden,
            task.whole_words,
            task.unrelated,
            task.short,
            task.last_sep,
            pairs,
            task.full_sentences,
            swapped,
        )

    def learn(self, read: Prose | TokenizedDocuments) -> MaskTokenizer:
        """The tokenizer of the text, or that of the teacher."""
        teacher = self.recipe.task.teacher
        return super().learn(read) if teacher is None else teacher_tokenizer(teacher)

    def begin(self, model: Any, vocabulary: MaskTokenizer) -> list[str]:
        """Start a student with the weights of its teacher."""
        teacher = self.recipe.task.teacher
        return [] if teacher is None else initialize_student(model, teacher)

    def sources(self) -> dict[str, tuple[str, str]]:
        """The weights of the teacher."""
        teacher = self.recipe.task.teacher
        return {} if teacher is None else {"teacher": (teacher_hash(teacher), f"task.teacher.folder: {teacher.folder}")}

    def batches(self, encoded: EncodedDocuments, packed: bool, even: bool) -> PretrainingBatches:
        """Batches of random pairs, masked differently in every epoch."""
        return PretrainingBatches(encoded, self.recipe.train.seed, self.recipe.train.batch_tokens, packed, even)

    def loss_of(self, model: Any, packed: bool) -> Callable[[Any], Loss]:
        """The loss of masked words and of pairs, and with a teacher, of what it predicts."""
        task, compiles = self.recipe.task, self.recipe.train.compile
        read = torch.compile(model.masked_vectors, dynamic=not packed) if compiles else model.masked_vectors
        objective = OBJECTIVES[task.objective]
        if task.teacher is None:
            return partial(objective, model, read=read)
        teacher = teacher_model(self.recipe, next(model.parameters()).device)
        return partial(distillation_loss, objective, task.teacher, teacher, model, read=read)

    def loss(self, predictor: TextEncoder, encoded: EncodedDocuments) -> float:
        """The sum of the two mean losses on held-out text, where the masked tokens are always the same."""
        return evaluate_pretraining(predictor.model, encoded, predictor.device, self.recipe.train.batch_tokens).loss

    def evaluate(
        self, predictor: TextEncoder, held_out: HeldOut[Prose | TokenizedDocuments, EncodedDocuments]
    ) -> Evaluated:
        """Accuracy of masked tokens and of pairs, and the perplexity of masked tokens."""
        encoded = held_out.encoded
        found = evaluate_pretraining(predictor.model, encoded, predictor.device, self.recipe.train.batch_tokens)
        return held_out.result(
            found.scores(self.rules.hidden, self.recipe.model.pairs), self._samples(predictor, encoded, held_out.step)
        )

    def _samples(self, encoder: TextEncoder, encoded: EncodedDocuments, step: int) -> tuple[tuple[str, str, str], ...]:
        """The beginnings of masked pairs, the masked tokens, and the predicted ones."""
        count = min(self.recipe.train.samples, encoded.cells)
        cells = np.array(sorted(random.Random(step).sample(range(encoded.cells), count)), dtype=np.int64)
        if not count:
            return ()
        built = encoded.build(0, 0, cells)
        batch = padded_batch(built, cells, np.arange(count), encoded.marks)
        predicted, _ = predict_masked(encoder.model, batch.to(encoder.device), encoder.tokenizer.vocab)
        rows, columns = np.nonzero(built.hidden)
        found: list[tuple[str, str, str]] = []
        for row in range(count):
            masked = [index for index, of_row in enumerate(rows) if of_row == row and columns[index] < SAMPLE_TOKENS]
            expected = [int(built.ids[row, columns[index]]) for index in masked]
            shown = built.shown[row, : min(int(built.lengths[row]), SAMPLE_TOKENS)].tolist()
            hidden, predictions = map(encoder.tokenizer.pieces, (expected, [predicted[index] for index in masked]))
            found.append((encoder.tokenizer.decode_with_special(shown), " ".join(hidden), " ".join(predictions)))
        return tuple(found)
