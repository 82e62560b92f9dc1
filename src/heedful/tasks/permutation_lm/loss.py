"""Permutation language modelling: the loss of tokens, each predicted from those before it in a random order.

B rows, T positions in a row, G positions to predict, D width, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from heedful.blocks.losses import Loss, cross_entropy, projected_cross_entropy
from heedful.blocks.state import reset_rows
from heedful.data.text.permutation import PermutationBatch, PermutationBatches
from heedful.training.metrics import Score

Streams = Callable[..., tuple[list[Tensor], Tensor]]


def permutation_loss(
    model: Any, batch: PermutationBatch, memory: Any = None, read: Streams | None = None
) -> tuple[Loss, Any]:
    """The mean loss of the predicted tokens of the whole batch, times its tokens; and the new memory.

    `read` replaces `model.two_streams`, for example by its compiled form.
    """
    query, memory = query_stream(read or model.two_streams, batch, memory)
    head = model.masked_words
    words = projected_cross_entropy(
        head(query.flatten(0, 1)), head.matrix(model.tokens.weight), batch.targets.flatten(), bias=head.bias
    )
    tokens, predicted = batch.whole.clamp(min=1).to(words.total.dtype)
    count = batch.ids.numel() * (batch.targets >= 0).any()
    return Loss(words.total / predicted * tokens, words.plain / predicted * tokens, count), memory


def query_stream(read: Streams, batch: PermutationBatch, memory: Any) -> tuple[Tensor, Any]:
    """The query stream (B, G, D) at the predicted positions, and the memory with the batch's earlier text."""
    memory = None if memory is None else reset_rows(memory, batch.fresh)
    content, query = read(batch.ids, batch.ranks, batch.places, batch.segments, None, memory)
    return query, None if memory is None else memory.append([x[:, : batch.earlier] for x in content])


@dataclass
class PermutationSums:
    """Losses and correct predictions, summed over a whole set."""

    total: float = 0.0
    count: int = 0
    correct: int = 0

    @property
    def loss(self) -> float:
        """The mean loss of a predicted token."""
        return self.total / max(1, self.count)

    def scores(self, one_in: int) -> tuple[Score, ...]:
        """Accuracy and perplexity of the predicted tokens, one of `one_in`."""
        how = f"words:{self.count}|one_in:{one_in}"
        accuracy = Score("permutation_accuracy", 100 * self.correct / max(1, self.count), how)
        return accuracy, Score("permutation_perplexity", math.exp(min(700.0, self.loss)), how)


@torch.inference_mode()
def predictions(
    model: Any, batches: PermutationBatches, device: torch.device, memory: int
) -> Iterator[tuple[PermutationBatch, Tensor]]:
    """The batches of the first epoch, and the logits (B, G, V) of their predicted tokens."""
    carry = model.start(batches.lanes, memory, device) if memory else None
    for position in range(batches.count):
        batch = batches.at(position).to(device)
        query, carry = query_stream(model.two_streams, batch, carry)
        yield batch, model.lens(query).float()


def evaluate_permutations(
    model: Any, batches: PermutationBatches, device: torch.device, memory: int
) -> PermutationSums:
    """Losses and correct predictions on held-out text, in the same orders each time."""
    found = PermutationSums()
    for batch, logits in predictions(model, batches, device, memory):
        loss = cross_entropy(logits.flatten(0, 1), batch.targets.flatten())
        found.total, found.count = found.total + loss.plain.item(), found.count + int(loss.count)
        found.correct += int((logits.argmax(-1) == batch.targets).sum())
    return found
