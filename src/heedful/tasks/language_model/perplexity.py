"""Loss and perplexity of language models, in training and over whole texts.

B batch, T tokens, D width, N tokens of a text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch import Tensor

from heedful.blocks.losses import Loss
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
    x, carry = _features(model, batch.ids[:, :-1], reset_rows(carry, batch.fresh), batch.documents)  # (B, T, D)
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


def _loss(model: Any, x: Tensor, labels: Tensor, mask: Tensor) -> Loss:
    """Cross-entropy of the labels (B, T) where the mask is true."""
    targets = labels.masked_fill(~mask, IGNORE_INDEX).flatten()
    loss: Loss = model.tokens.loss(x.flatten(0, 1), targets, ignore=IGNORE_INDEX)
    return loss


def _features(model: Any, tokens: Tensor, state: Any, documents: Tensor | None) -> tuple[Tensor, Any]:
    """The last layer (B, T, D) and the next state; of documents (B, T), if any, 0 is that of the state."""
    found: tuple[Tensor, Any] = (
        model.features(tokens, state) if documents is None else model.features(tokens, state, documents=documents)
    )
    return found


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


def text_loss(model: Any, text: EncodedText, device: torch.device, start: Any, stride: int = STRIDE) -> float:
    """The mean loss per token over a text, given all earlier tokens of its document, `stride` tokens at a time.

    `start` is the state before its first token. The stride does not matter, except to a model with `same_length:
    false`, whose segments these are.
    """

    def losses() -> Iterable[Loss]:
        state = start
        for at in range(0, len(text), stride):
            ids = torch.from_numpy(text.ids[at : at + stride + 1].astype("int64")).to(device)  # (T + 1,)
            documents = text.documents(at, len(ids) - 1)  # (T,)
            documents = None if documents is None else documents[None].to(device)  # (1, T)
            x, state = _features(model, ids[None, :-1], state, documents)  # (1, T, D)
            loss: Loss = model.tokens.loss(x[0], ids[1:])
            yield loss

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
