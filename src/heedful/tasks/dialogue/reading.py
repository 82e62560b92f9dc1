"""How a model reads a dialogue: utterance by utterance, or all earlier ones joined as one source.

B dialogues, U utterances, T tokens, R replies, N tokens of all replies, S source tokens, D width.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from heedful.blocks.layouts import Padded
from heedful.blocks.losses import Loss, confidence_penalty, projected_cross_entropy
from heedful.blocks.state import select
from heedful.data.dialogues.batches import DialogueBatch, DialogueBatches, EncodedDialogues
from heedful.data.pairs.batches import Batch, PairBatches
from heedful.data.tokenizers.tokenizer import TrainedTokenizer
from heedful.models.roles import Hierarchical, Role, Seq2Seq
from heedful.tasks.base import Batches
from heedful.tasks.translation.predictor import translation_loss

GROUPS, GROUP = 4, 32  # groups of replies that are computed together, at most; the replies of one, at least


class History(NamedTuple):
    """The ids of the utterances so far, each with its end token, and who says each and who replies."""

    utterances: list[list[int]]
    speakers: list[int]


class Reading(Protocol):
    """What differs between models that read dialogues."""

    def batches(self, encoded: EncodedDialogues, seed: int, tokens: int, packed: bool, even: bool) -> Batches:
        """The training batches."""

    def in_order(self, encoded: EncodedDialogues, tokens: int) -> Iterable[Any]:
        """Batches with every dialogue once, for evaluation."""

    def loss(self, model: Any, batch: Any, label_smoothing: float = 0.0, penalty: float = 0.0) -> Loss:
        """The cross-entropy of each reply given the utterances before it, with a confidence penalty."""

    def size(self, history: History) -> tuple[int, int]:
        """The number of sequences that a model reads at once of this history, and the longest of them."""

    def start(self, model: Any, histories: Sequence[History], device: torch.device) -> Any:
        """The state before the reply to each history."""


class ByUtterance:
    """A hierarchical model reads utterances side by side (B, U, T), and replies to all of them at once."""

    def __init__(self, context: int) -> None:
        self.context = context

    def batches(self, encoded: EncodedDialogues, seed: int, tokens: int, packed: bool, even: bool) -> DialogueBatches:
        """Batches of dialogues whose utterances have similar lengths."""
        return DialogueBatches(encoded, seed, tokens)

    def in_order(self, encoded: EncodedDialogues, tokens: int) -> Iterable[DialogueBatch]:
        """Batches with every dialogue once, for evaluation."""
        return encoded.in_order(tokens)

    def loss(
        self, model: Hierarchical, batch: DialogueBatch, label_smoothing: float = 0.0, penalty: float = 0.0
    ) -> Loss:
        """The cross-entropy of each utterance but the first, given those before it."""
        state = model.start(batch.utterances[:, :-1, 1:], batch.real[:, :-1, 1:], batch.speakers)
        replies, lengths = batch.utterances[:, 1:].flatten(0, 1), batch.lengths[:, 1:].flatten()
        order = lengths.argsort(descending=True, stable=True)[: int((lengths > 0).sum())]  # (R,)
        outputs, labels = list[Tensor](), list[Tensor]()
        for rows in order.split(max(GROUP, -(-len(order) // GROUPS))):  # of similar lengths: less is padding
            tokens = replies[rows][:, : max(2, int(lengths[rows[0]]))]
            x, _ = model.features(tokens[:, :-1], select(state, rows))  # (R, T, D)
            real = tokens[:, 1:] != TrainedTokenizer.pad  # (R, T)
            outputs.append(x[real])
            labels.append(tokens[:, 1:][real])
        x = torch.cat(outputs)  # (N, D)
        loss = projected_cross_entropy(x, model.tokens.weight, torch.cat(labels), label_smoothing)
        if penalty:  # which alone needs all logits at once
            every = torch.ones(len(x), dtype=torch.bool, device=x.device)  # (N,)
            loss = confidence_penalty(loss, model.tokens.logits(x), every, penalty)
        return replace(loss, total=loss.total + 0 * x.sum())  # a process without replies has gradients too: zeros

    def size(self, history: History) -> tuple[int, int]:
        """The utterances, and the longest of them."""
        return len(history.utterances), max(map(len, history.utterances))

    def start(self, model: Hierarchical, histories: Sequence[History], device: torch.device) -> Any:
        """The state before the reply to each history: that after its last utterance."""
        counts = [len(one.utterances) for one in histories]
        longest = max(self.size(one)[1] for one in histories)
        utterances = torch.full((len(histories), max(counts), longest), TrainedTokenizer.pad)  # (B, U, T)
        real, speakers = torch.zeros_like(utterances, dtype=torch.bool), torch.zeros(len(counts), max(counts) + 1)
        speakers = speakers.long()  # (B, U + 1)
        for row, history in enumerate(histories):
            speakers[row, : counts[row] + 1] = torch.tensor(history.speakers)
            for turn, ids in enumerate(history.utterances):
                utterances[row, turn, : len(ids)], real[row, turn, : len(ids)] = torch.tensor(ids), True
        state = model.start(utterances.to(device), real.to(device), speakers.to(device))
        last = torch.arange(len(counts)) * max(counts) + torch.tensor(counts) - 1  # (B,)
        return select(state, last.to(device))


class Joined:
    """A model that reads one source (B, S) reads all earlier utterances, an end token after each."""

    def __init__(self, context: int) -> None:
        self.context = context  # tokens of a source; earlier utterances are forgotten

    def batches(self, encoded: EncodedDialogues, seed: int, tokens: int, packed: bool, even: bool) -> PairBatches:
        """Batches of replies with their sources, of similar lengths."""
        return PairBatches(encoded.joined(self.context), seed, tokens, packed, even)

    def in_order(self, encoded: EncodedDialogues, tokens: int) -> Iterable[Batch]:
        """Batches with every reply once, for evaluation."""
        return encoded.joined(self.context).in_order(tokens)

    def loss(self, model: Seq2Seq, batch: Batch, label_smoothing: float = 0.0, penalty: float = 0.0) -> Loss:
        """The cross-entropy of each reply given its source."""
        return translation_loss(model, batch, label_smoothing, penalty)

    def source(self, history: History) -> list[int]:
        """The latest utterances that fit the context, end to end."""
        source = list[int]()
        for ids in reversed(history.utterances):
            if source and len(ids) + len(source) > self.context:
                break
            source = ids + source
        return source

    def size(self, history: History) -> tuple[int, int]:
        """One source, and its length."""
        return 1, len(self.source(history))

    def start(self, model: Seq2Seq, histories: Sequence[History], device: torch.device) -> Any:
        """The state once the sources are read."""
        sources = [self.source(one) for one in histories]
        lengths = torch.tensor([len(one) for one in sources])  # (B,)
        source = torch.full((len(sources), int(lengths.max())), TrainedTokenizer.pad)  # (B, S)
        for row, ids in enumerate(sources):
            source[row, : len(ids)] = torch.tensor(ids)
        real = torch.arange(source.shape[1]) < lengths[:, None]  # (B, S)
        return model.start(source.to(device), Padded(real.to(device), gaps=False))


def reading_of(config: Any) -> Reading:
    """How a model with these settings reads dialogues: its role says it."""
    readings: dict[Role, type[ByUtterance | Joined]] = {"hierarchical": ByUtterance, "seq2seq": Joined}
    return readings[config.role](config.context)


@torch.inference_mode()
def mean_loss(model: Any, reading: Reading, encoded: EncodedDialogues, device: torch.device, tokens: int) -> float:
    """The mean loss per token of all replies, without label smoothing."""
    total, count = 0.0, 0
    for batch in reading.in_order(encoded, tokens):
        loss = reading.loss(model, batch.to(device))
        total, count = total + loss.plain.item(), count + batch.tokens
    return total / count
