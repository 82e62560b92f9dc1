"""The loss and the perplexity of language models: in training, and over whole texts.

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

STRIDE = 2048  # tokens of a whole text that are read at a time
NONE = -100  # in place of a token that is not to be predicted


class Ahead(Protocol):
    """What a language model that reads ahead offers; see `models/rnn_lm/model.py`."""

    tokens: Any

    def read(self, tokens: Tensor, /) -> Tensor: ...


class ByDocument(Protocol):
    """What one offers that reads each document for itself; see `models/gpt/model.py`."""

    tokens: Any

    def read(self, tokens: Tensor, documents: Tensor | None, /) -> Tensor: ...


class BothWays(Protocol):
    """What a language model that reads in both directions offers; see `models/elmo/model.py`."""

    tokens: Any

    def read(self, tokens: Tensor, real: Tensor | None = None, /) -> tuple[Tensor, Tensor]: ...


LossOf = Callable[[Any, TextBatch], Loss]


def ahead_loss(model: Ahead, batch: TextBatch) -> Loss:
    """Cross-entropy of every token given those before it in its window."""
    x = model.read(batch.ids[:, :-1])  # (B, T, D)
    return _loss(model, x, batch.ids[:, 1:], batch.real[:, 1:])


def onward_loss(model: Any, batch: LaneBatch, carry: Any) -> tuple[Loss, Any]:
    """Cross-entropy of every token given all before it in its lane, and the state of the lanes then."""
    x, carry = _onward(model, batch.ids[:, :-1], reset_rows(carry, batch.fresh), batch.documents)  # (B, T, D)
    return _loss(model, x, batch.ids[:, 1:], batch.real[:, 1:]), carry


def document_loss(model: ByDocument, batch: TextBatch) -> Loss:
    """Cross-entropy of every token given those before it in its window and its document."""
    x = model.read(batch.ids[:, :-1], batch.documents)  # (B, T, D), or all rows in one
    return _loss(model, x, batch.ids[:, 1:], batch.real[:, 1:])


def both_ways_loss(model: BothWays, batch: TextBatch) -> Loss:
    """Cross-entropy of every token given those before it, plus that of every token given those after it.

    What is reported is the mean of the two directions.
    """
    real = batch.real
    ahead, back = model.read(batch.ids, real)  # (B, T + 1, D)
    one = _loss(model, ahead[:, :-1], batch.ids[:, 1:], real[:, 1:])
    other = _loss(model, back[:, 1:], batch.ids[:, :-1], real[:, 1:])
    return Loss(one.total + other.total, (one.plain + other.plain) / 2, one.count)


def _loss(model: Any, x: Tensor, wanted: Tensor, meant: Tensor) -> Loss:
    """Cross-entropy of the tokens (B, T) that are meant."""
    targets = wanted.masked_fill(~meant, NONE).flatten()
    loss: Loss = model.tokens.loss(x.flatten(0, 1), targets, ignore=NONE)
    return loss


def _onward(model: Any, tokens: Tensor, state: Any, documents: Tensor | None) -> tuple[Tensor, Any]:
    """The last layer (B, T, D) and the next state; where a text has documents (B, T), 0 is that of the state."""
    found: tuple[Tensor, Any] = (
        model.features(tokens, state) if documents is None else model.features(tokens, state, documents=documents)
    )
    return found


def windows_loss(loss_of: LossOf, model: Any, text: EncodedText, device: torch.device, batch_tokens: int) -> float:
    """The mean loss a token over a text in windows, none of which sees the one before it."""
    losses = (loss_of(model, batch.to(device)) for batch in text.in_order(batch_tokens))
    return _mean(losses, text)


def lanes_loss(model: Any, text: EncodedText, device: torch.device, batch_tokens: int) -> float:
    """The mean loss a token over a text in lanes, each token given all before it in its lane."""
    lanes = Lanes(text, 0, min(batch_tokens, len(text) * text.context))  # a lane has at least one token

    def losses() -> Iterable[Loss]:
        carry = model.start(lanes.lanes, device)
        for position in range(lanes.count):
            loss, carry = onward_loss(model, lanes.at(position).to(device), carry)
            yield loss

    return _mean(losses(), text)


def sliding_loss(model: ByDocument, text: EncodedText, device: torch.device, stride: int, batch_tokens: int) -> float:
    """The mean loss a token over a text, each given at least `context - stride` before it in its document.

    Windows as long as the context overlap, and each predicts the tokens that the one before it did not reach.
    """

    def losses() -> Iterable[Loss]:
        for batch, new in text.sliding(stride, batch_tokens):
            there, meant = batch.to(device), new.to(device)
            x = model.read(there.ids[:, :-1], there.documents)  # (B, T, D), or all rows in one
            yield _loss(model, x, there.ids[:, 1:], meant)

    return _mean(losses(), text)


def text_loss(model: Any, text: EncodedText, device: torch.device, start: Any, stride: int = STRIDE) -> float:
    """The mean loss a token over a whole text, each given all before it in its document, `stride` tokens at a time.

    `start` is the state before its first token. The stride does not matter, except to a model with `same_length:
    false`, whose segments these are.
    """

    def losses() -> Iterable[Loss]:
        state = start
        for at in range(0, len(text), stride):
            ids = torch.from_numpy(text.ids[at : at + stride + 1].astype("int64")).to(device)  # (T + 1,)
            documents = text.documents(at, len(ids) - 1)  # (T,)
            documents = None if documents is None else documents[None].to(device)  # (1, T)
            x, state = _onward(model, ids[None, :-1], state, documents)  # (1, T, D)
            loss: Loss = model.tokens.loss(x[0], ids[1:])
            yield loss

    return _mean(losses(), text)


@torch.inference_mode()
def _mean(losses: Iterable[Loss], text: EncodedText) -> float:
    """The sum of losses over the tokens of a text."""
    return sum(loss.plain.item() for loss in losses) / len(text)


def bits_per_character(loss: float, text: EncodedText) -> float:
    """The same loss spread over characters instead of tokens, in bits."""
    return loss * len(text) / text.amounts.characters / math.log(2)


def bits_per_byte(loss: float, text: EncodedText) -> float:
    """The same loss spread over the bytes of the text in UTF-8, in bits."""
    return loss * len(text) / text.amounts.bytes / math.log(2)


def word_perplexity(loss: float, text: EncodedText) -> float:
    """e to the same loss spread over words and the ends of lines, as papers on WikiText count."""
    return exp(loss * len(text) / (text.amounts.words + text.amounts.lines))


def exp(loss: float) -> float:
    """The perplexity of a loss, e to it; at most what a float can hold."""
    return math.exp(min(loss, 700))
