"""The losses of pre-training: masked language modelling and next-sentence prediction.

N pairs, M masked tokens, D width, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from heedful.blocks.losses import Loss, cross_entropy, projected_cross_entropy
from heedful.data.text.pretraining import EncodedDocuments
from heedful.data.text.pretraining_batches import PretrainingBatch, batches_in_order
from heedful.tasks.reading import layout_of
from heedful.training.metrics import Score


def pretraining_loss(model: Any, batch: PretrainingBatch, read: Callable[..., Tensor] | None = None) -> Loss:
    """The mean loss of the masked tokens plus the mean loss of the pairs, as published, times the number of tokens.

    Both means are over the whole batch, of which this one may be a part, so that the losses of parts add up exactly;
    several batches in a step are weighted by their tokens. A model without a head for pairs has only the first loss.
    `read` is called instead of `model.masked_vectors`, such as a compiled copy of it.
    """
    return _weighted(model, batch, read, batch.whole)


def summed_loss(model: Any, batch: PretrainingBatch, read: Callable[..., Tensor] | None = None) -> Loss:
    """The loss of each pair plus the losses of all its masked tokens, averaged over pairs, times the number of tokens.

    A masked token thus has the same weight as the next-sentence prediction of a pair, as in the lecture.
    """
    tokens, _, pairs = batch.whole
    return _weighted(model, batch, read, torch.stack([tokens, pairs, pairs]))


def masked_vectors(read: Callable[..., Tensor], batch: PretrainingBatch) -> Tensor:
    """The vectors (B * T, D) from which masked tokens are predicted, by token index."""
    return read(batch.ids, batch.segments, layout_of(batch.sequences), batch.places).flatten(0, 1)


def _weighted(model: Any, batch: PretrainingBatch, read: Callable[..., Tensor] | None, counts: Tensor) -> Loss:
    """(masked-token losses / counts[1] + pair losses / counts[2]) * counts[0]."""
    x = masked_vectors(model.masked_vectors if read is None else read, batch)  # (B * T, D)
    head = model.masked_words
    words = projected_cross_entropy(
        head(x[batch.places]), head.matrix(model.tokens.weight), batch.targets, bias=head.bias, ignore=-100
    )
    tokens, hidden, pairs = counts.clamp(min=1).to(words.total.dtype)
    total, plain, parts = words.total / hidden, words.plain / hidden, dict[str, Tensor]()
    if model.config.pairs is not None:
        related = cross_entropy(model.follows(x[batch.sequences.begins]), batch.follows)
        parts = {"masked": plain * tokens, model.config.pairs: related.plain / pairs * tokens}
        total, plain = total + related.total / pairs, plain + related.plain / pairs
    return Loss(total * tokens, plain * tokens, (batch.lengths * (batch.indices >= 0)).sum(), parts)


OBJECTIVES = {"means": pretraining_loss, "sum": summed_loss}


@dataclass
class PretrainingSums:
    """Losses and correct predictions of masked tokens and of pairs, summed over a set."""

    words: float = 0.0  # loss
    hidden: int = 0
    correct: int = 0
    related: float = 0.0  # loss
    pairs: int = 0
    correct_pairs: int = 0

    @property
    def loss(self) -> float:
        """The sum of the two mean losses."""
        return self.words / max(1, self.hidden) + self.related / max(1, self.pairs)

    @property
    def perplexity(self) -> float:
        """exp(mean loss per masked token)."""
        return math.exp(min(700.0, self.words / max(1, self.hidden)))

    def scores(self, share: float, objective: str | None) -> tuple[Score, ...]:
        """Accuracy of masked tokens and of pairs, and perplexity; `share` is the fraction of masked tokens."""
        words = f"words:{self.hidden}|share:{share:g}"
        accuracy = Score("masked_accuracy", 100 * self.correct / max(1, self.hidden), words)
        pairs = 100 * self.correct_pairs / max(1, self.pairs)
        follows = [Score(f"{objective}_accuracy", pairs, f"pairs:{self.pairs}")] if self.pairs else []
        return accuracy, *follows, Score("masked_perplexity", self.perplexity, words)


@torch.inference_mode()
def evaluate_pretraining(
    model: Any, encoded: EncodedDocuments, device: torch.device, batch_tokens: int
) -> PretrainingSums:
    """Losses and correct predictions on held-out text, where the masked tokens are always the same."""
    found = PretrainingSums()
    for batch in batches_in_order(encoded, batch_tokens):
        batch = batch.to(device)
        x = masked_vectors(model.masked_vectors, batch)  # (B * T, D)
        logits = model.words(x[batch.places]).float()  # (M, V)
        loss = cross_entropy(logits, batch.targets)
        found.words, found.hidden = found.words + loss.plain.item(), found.hidden + int(loss.count)
        found.correct += int((logits.argmax(-1) == batch.targets).sum())
        if model.config.pairs is not None:
            logits = model.follows(x[batch.sequences.begins]).float()  # (N, 2)
            loss = cross_entropy(logits, batch.follows)
            found.related, found.pairs = found.related + loss.plain.item(), found.pairs + int(loss.count)
            found.correct_pairs += int((logits.argmax(-1) == batch.follows).sum())
    return found


@torch.inference_mode()
def predict_masked(model: Any, batch: PretrainingBatch, vocab: int | None = None) -> tuple[list[int], list[int] | None]:
    """The predictions of the masked tokens, in order, and of the pairs, if the model has a head for them.

    `vocab` is the number of tokens, where the model has logits of more.
    """
    x = masked_vectors(model.masked_vectors, batch)  # (B * T, D)
    words = model.words(x[batch.places])[:, :vocab].argmax(-1).tolist()
    if model.config.pairs is None:
        return words, None
    return words, model.follows(x[batch.sequences.begins]).argmax(-1).tolist()
