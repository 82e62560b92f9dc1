"""Loss and perplexity of language models, in training and over whole texts.

B batch, T tokens, D width, N tokens of a text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch import Tensor

from heedful.blocks.losses import Loss, projected_cross_entropy
from heedful.blocks.state import reset_rows
from heedful.data.text.lanes import LaneBatch, Lanes
from heedful.data.text.windows import EncodedText, TextBatch

STRIDE = 2048  # tokens of a text that are read at a time
IGNORE_INDEX = -100  # the label of a token that is not predicted


class CausalModel(Protocol):
    """A causal language model; see `models/rnn_lm/model.py`."""

    tokens: Any

    def read(self, tokens: Tensor, /) -> Tensor: ...


class DocumentModel(Protocol):
    """A causal language model that reads each document by itself; see `models/gpt/model.py`."""

    tokens: Any

    def read(self, tokens: Tensor, documents: Tensor | None, /) -> Tensor: ...


class BidirectionalModel(Protocol):
    """A forward and a backward language model; see `models/elmo/model.py`."""

    tokens: Any

    def read(self, tokens: Tensor, real: Tensor | None = None, /) -> tuple[Tensor, Tensor]: ...


LossOf = Callable[[Any, TextBatch], Loss]


def causal_loss(model: CausalModel, batch: TextBatch) -> Loss:
    """Cross-entropy of each token given the earlier tokens of its window."""
    x = model.read(batch.ids[:, :-1])  # (B, T, D)
    return _loss(model, x, batch.ids[:, 1:], batch.real[:, 1:])


def stateful_loss(model: Any, batch: LaneBatch, carry: Any) -> tuple[Loss, Any]:
    """Cross-entropy of each token given all earlier tokens of its lane, and the new states of the lanes."""
    x, carry = model.features(batch.ids[:, :-1], reset_rows(carry, batch.fresh))  # (B, T, D)
    return _loss(model, x, batch.ids[:, 1:], batch.real[:, 1:]), carry


def document_loss(model: DocumentModel, batch: TextBatch) -> Loss:
    """Cross-entropy of each token given the earlier tokens of its document in the window."""
    x = model.read(batch.ids[:, :-1], batch.documents)  # (B, T, D), or all rows in one
    return _loss(model, x, batch.ids[:, 1:], batch.real[:, 1:])


def bidirectional_loss(model: BidirectionalModel, batch: TextBatch) -> Loss:
    """Cross-entropy of each token given the earlier ones, plus that of each token given the later ones.

    The reported loss is the mean of the two directions.
    """
    real = batch.real
    forward, backward = model.read(batch.ids, real)  # (B, T + 1, D)
    a = _loss(model, forward[:, :-1], batch.ids[:, 1:], real[:, 1:])
    b = _loss(model, backward[:, 1:], batch.ids[:, :-1], real[:, 1:])
    return Loss(a.total + b.total, (a.plain + b.plain) / 2, a.count)


def _loss(model: Any, x: Tensor, targets: Tensor, mask: Tensor) -> Loss:
    """Cross-entropy of the targets (B, T) where the mask is true."""
    targets = targets.masked_fill(~mask, IGNORE_INDEX).flatten()
    return projected_cross_entropy(x.flatten(0, 1), model.tokens.weight, targets, ignore=IGNORE_INDEX)


def windows_loss(loss_of: LossOf, model: Any, text: EncodedText, device: torch.device, batch_tokens: int) -> float:
    """The mean loss per token over a text, in windows without overlap."""
    losses = (loss_of(model, batch.to(device)) for batch in text.in_order(batch_tokens))
    return _mean(losses, text)


def lanes_loss(model: Any, text: EncodedText, device: torch.device, batch_tokens: int) -> float:
    """The mean loss per token over a text in lanes, given all earlier tokens of the lane."""
    lanes = Lanes(text, 0, min(batch_tokens, len(text) * text.context))  # a lane has at least one token

    def losses() -> Iterable[Loss]:
        carry = model.start(lanes.lanes, device)
        for position in range(lanes.count):
            loss, carry = stateful_loss(model, lanes.at(position).to(device), carry)
            yield loss

    return _mean(losses(), text)


def sliding_loss(
    model: DocumentModel, text: EncodedText, device: torch.device, stride: int, batch_tokens: int
) -> float:
    """The mean loss per token over a text, given at least `context - stride` earlier tokens of the document.

    Windows as long as the context overlap; each predicts only the tokens that the previous one did not.
    """

    def losses() -> Iterable[Loss]:
        for batch, is_new in text.sliding(stride, batch_tokens):
            moved, mask = batch.to(device), is_new.to(device)
            x = model.read(moved.ids[:, :-1], moved.documents)  # (B, T, D), or all rows in one
            yield _loss(model, x, moved.ids[:, 1:], mask)

    return _mean(losses(), text)


def text_loss(model: Any, text: EncodedText, device: torch.device, stride: int = STRIDE) -> float:
    """The mean loss per token over a text, given all earlier tokens; it does not depend on the stride."""

    def losses() -> Iterable[Loss]:
        state = model.start(1, device)
        for start in range(0, len(text), stride):
            ids = torch.from_numpy(text.ids[start : start + stride + 1].astype("int64")).to(device)  # (T + 1,)
            x, state = model.features(ids[None, :-1], state)  # (1, T, D)
            yield projected_cross_entropy(x[0], model.tokens.weight, ids[1:])

    return _mean(losses(), text)


@torch.inference_mode()
def _mean(losses: Iterable[Loss], text: EncodedText) -> float:
    """The sum of the losses, divided by the number of tokens of the text."""
    return sum(loss.plain.item() for loss in losses) / len(text)


def bits_per_character(loss: float, text: EncodedText) -> float:
    """A loss per token, converted to bits per character."""
    return loss * len(text) / text.amounts.characters / math.log(2)


def bits_per_byte(loss: float, text: EncodedText) -> float:
    """A loss per token, converted to bits per byte of the text in UTF-8."""
    return loss * len(text) / text.amounts.bytes / math.log(2)


def word_perplexity(loss: float, text: EncodedText) -> float:
    """The perplexity per word, where ends of lines count as words, as in papers on WikiText."""
    return perplexity(loss * len(text) / (text.amounts.words + text.amounts.lines))


def perplexity(loss: float) -> float:
    """exp(loss), at most as large as a float can be."""
    return math.exp(min(loss, 700))
