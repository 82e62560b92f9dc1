"""Pre-training of encoders with two streams: permutation language modelling."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from heedful.blocks.losses import Loss
from heedful.data.batch import IGNORE_INDEX
from heedful.data.text.permutation import PermutationBatch, PermutationBatches, PermutationRules
from heedful.data.text.pretraining import EncodedDocuments, PairRules
from heedful.tasks.base import Evaluated, HeldOut
from heedful.tasks.permutation_lm.loss import evaluate_permutations, permutation_loss, predictions
from heedful.tasks.permutation_lm.recipe import PermutationRecipe
from heedful.tasks.pretraining.documents import DocumentsTask
from heedful.tasks.pretraining.predictor import TextEncoder

MOST_SHOWN = 48  # tokens of a sample


class PermutationTask(DocumentsTask):
    """Predict some of the tokens, each from those before it in a random order (Yang et al., 2019)."""

    def __init__(self, recipe: PermutationRecipe) -> None:
        super().__init__(recipe)
        task = recipe.task
        self.rules = PairRules(unrelated=task.unrelated)
        earlier = recipe.model.context // 2 if task.memory else 0
        self.orders = PermutationRules(task.one_in, task.longest_span, task.unrelated, earlier)

    def batches(self, encoded: EncodedDocuments, packed: bool, even: bool) -> PermutationBatches:
        """Texts from all over the documents, in another order in every epoch."""
        return PermutationBatches(encoded, self.orders, self.recipe.train.seed, self.recipe.train.batch_tokens)

    def loss_of(self, model: Any, packed: bool) -> Callable[..., Any]:
        """The loss of the predicted tokens, which may depend on a memory."""
        read = torch.compile(model.two_streams, dynamic=False) if self.recipe.train.compile else None
        if self.recipe.task.memory:
            return partial(permutation_loss, model, read=read)

        def loss(batch: PermutationBatch) -> Loss:
            return permutation_loss(model, batch, None, read)[0]

        return loss

    def first_carry(self, model: Any, batches: Any, device: torch.device) -> Any:
        """The memory before the first text of each lane: empty."""
        memory = self.recipe.task.memory
        return model.start(batches.lanes, memory, device) if memory else None

    def loss(self, predictor: TextEncoder, encoded: EncodedDocuments) -> float:
        """The mean loss on held-out text, in the same orders each time."""
        held_out, memory = self._held_out(encoded), self.recipe.task.memory
        return evaluate_permutations(predictor.model, held_out, predictor.device, memory).loss

    def evaluate(self, predictor: TextEncoder, held_out: HeldOut[Any, EncodedDocuments]) -> Evaluated:
        """Accuracy and perplexity of the predicted tokens."""
        batches, memory = self._held_out(held_out.encoded), self.recipe.task.memory
        found = evaluate_permutations(predictor.model, batches, predictor.device, memory)
        samples = self._samples(predictor, batches, held_out)
        return held_out.result(found.scores(self.recipe.task.one_in), samples)

    def _held_out(self, encoded: EncodedDocuments) -> PermutationBatches:
        return PermutationBatches(encoded, self.orders, 0, self.recipe.train.batch_tokens)

    def _samples(
        self, encoder: TextEncoder, batches: PermutationBatches, held_out: HeldOut[Any, EncodedDocuments]
    ) -> tuple[tuple[str, str, str], ...]:
        """Beginnings of texts with masks for the predicted tokens, these tokens in their order, and the predictions."""
        batch, logits = next(predictions(encoder.model, batches, encoder.device, self.recipe.task.memory))
        found, tokenizer = list[tuple[str, str, str]](), encoder.tokenizer
        best = logits[..., : tokenizer.vocab].argmax(-1)  # (B, G)
        for row in held_out.rows(len(batch.ids), self.recipe.train.samples):
            shown = batch.ids[row, :MOST_SHOWN].tolist()
            meant = (batch.targets[row] != IGNORE_INDEX) & (batch.places[row] < MOST_SHOWN)  # (G,)
            order = batch.ranks[row, batch.places[row]][meant].argsort()
            for place in batch.places[row][meant].tolist():
                shown[place] = tokenizer.mask
            right, predicted = (x[row][meant][order].tolist() for x in (batch.targets, best))
            hidden, words = (" ".join(tokenizer.pieces(some)) for some in (right, predicted))
            found.append((tokenizer.decode_with_special(shown), hidden, words))
        return tuple(found)
