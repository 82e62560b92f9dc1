"""Pre-training of an encoder: masked words from those on either side, and whether two texts belong together.

N pairs, M masked words, D width, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from heedful.blocks.losses import Loss, cross_entropy, projected_cross_entropy
from heedful.data.text.pretraining import EncodedDocuments, PretrainingBatch
from heedful.tasks.reading import layout_of
from heedful.training.metrics import Score


def pretraining_loss(model: Any, batch: PretrainingBatch, read: Callable[..., Tensor] | None = None) -> Loss:
    """The mean loss of the masked words plus the mean loss of the pairs, as published, times the tokens read.

    Both means are over the whole batch that this one may be a part of, so that parts add up to it exactly; of several
    batches in a step, each counts by its tokens. A model without a head for pairs learns from words alone.
    `read` is what reads instead of `model.masked_vectors`, such as the same compiled.
    """
    return _weighted(model, batch, read, batch.whole)


def summed_loss(model: Any, batch: PretrainingBatch, read: Callable[..., Tensor] | None = None) -> Loss:
    """The loss of each pair plus the losses of all its masked words, as a mean over the pairs, times the tokens read.

    A word thus counts as much as whether a pair belongs together, as the lecture has it.
    """
    tokens, _, pairs = batch.whole
    return _weighted(model, batch, read, torch.stack([tokens, pairs, pairs]))


def masked_vectors(read: Callable[..., Tensor], batch: PretrainingBatch) -> Tensor:
    """The vectors (B * T, D) that masked tokens are predicted from, by token index."""
    return read(batch.ids, batch.segments, layout_of(batch.sequences), batch.places).flatten(0, 1)


def _weighted(model: Any, batch: PretrainingBatch, read: Callable[..., Tensor] | None, counts: Tensor) -> Loss:
    """The losses of all masked words over the second count, plus those of all pairs over the third, times the first."""
    x = masked_vectors(model.masked_vectors if read is None else read, batch)  # (B * T, D)
    heads = model.masked_words
    words = projected_cross_entropy(
        heads(x[batch.places]), model.tokens.weight, batch.targets, bias=heads.bias, ignore=-100
    )
    tokens, hidden, pairs = counts.clamp(min=1).to(words.total.dtype)
    total, plain = words.total / hidden, words.plain / hidden
    if model.config.pairs is not None:
        related = cross_entropy(model.follows(x[batch.sequences.begins]), batch.follows)
        total, plain = total + related.total / pairs, plain + related.plain / pairs
    return Loss(total * tokens, plain * tokens, (batch.lengths * (batch.indices >= 0)).sum())


OBJECTIVES = {"means": pretraining_loss, "sum": summed_loss}


@dataclass
class PretrainingSums:
    """Losses and right predictions of masked tokens and of pairs, summed over a whole set."""

    words: float = 0.0  # loss
    hidden: int = 0
    right: int = 0
    related: float = 0.0  # loss
    pairs: int = 0
    right_pairs: int = 0

    @property
    def loss(self) -> float:
        """The sum of the two mean losses."""
        return self.words / max(1, self.hidden) + self.related / max(1, self.pairs)

    @property
    def perplexity(self) -> float:
        """e to the mean loss of a masked word."""
        return math.exp(min(700.0, self.words / max(1, self.hidden)))

    def scores(self, share: float, objective: str | None) -> tuple[Score, ...]:
        """Accuracy of masked tokens and of pairs, and perplexity; `share` of the tokens was masked."""
        words = f"words:{self.hidden}|share:{share:g}"
        accuracy = Score("masked_accuracy", 100 * self.right / max(1, self.hidden), words)
        pairs = 100 * self.right_pairs / max(1, self.pairs)
        follows = [Score(f"{objective}_accuracy", pairs, f"pairs:{self.pairs}")] if self.pairs else []
        return accuracy, *follows, Score("masked_perplexity", self.perplexity, words)


@torch.inference_mode()
def evaluate_pretraining(
    model: Any, encoded: EncodedDocuments, device: torch.device, batch_tokens: int
) -> PretrainingSums:
    """Losses and right predictions on held-out text, where the same tokens are masked each time."""
    found = PretrainingSums()
    for batch in encoded.in_order(batch_tokens):
        batch = batch.to(device)
        x = masked_vectors(model.masked_vectors, batch)  # (B * T, D)
        logits = model.words(x[batch.places]).float()  # (M, V)
        loss = cross_entropy(logits, batch.targets)
        found.words, found.hidden = found.words + loss.plain.item(), found.hidden + int(loss.count)
        found.right += int((logits.argmax(-1) == batch.targets).sum())
        if model.config.pairs is not None:
            logits = model.follows(x[batch.sequences.begins]).float()  # (N, 2)
            loss = cross_entropy(logits, batch.follows)
            found.related, found.pairs = found.related + loss.plain.item(), found.pairs + int(loss.count)
            found.right_pairs += int((logits.argmax(-1) == batch.follows).sum())
    return found


@torch.inference_mode()
def predict_masked(model: Any, batch: PretrainingBatch) -> tuple[list[int], list[int] | None]:
    """The predicted masked tokens, in their order; and which pairs follow, if the model has a head for that."""
    x = masked_vectors(model.masked_vectors, batch)  # (B * T, D)
    words = model.words(x[batch.places]).argmax(-1).tolist()
    if model.config.pairs is None:
        return words, None
    return words, model.follows(x[batch.sequences.begins]).argmax(-1).tolist()
