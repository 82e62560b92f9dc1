"""Language models: each token of a text from those before it, or from those on either side.

B batch, T tokens, D width, V vocabulary, L layers, N tokens of a text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from heedful.blocks.losses import Loss, projected_cross_entropy
from heedful.blocks.taps import watched
from heedful.data.text import Text
from heedful.data.tokenizers import SPECIAL, Tokenizer, several
from heedful.data.windows import EncodedText, TextBatch, encode_text, ids_text, text_ids
from heedful.decode.graphs import Graphs
from heedful.decode.rules import Never, Rule, Temperature, TopK, TopP
from heedful.decode.search import Paths, Search, beam, drain, greedy, sample

STRIDE = 2048  # tokens of a whole text that are read at a time
TOGETHER = 64  # prompts that are gone on from at a time
ENDLESS = -1  # an end that no token is: what is written goes on over the ends of lines


class Ahead(Protocol):
    """What a language model that reads ahead offers; see `models/rnn_lm.py`."""

    tokens: Any

    def read(self, tokens: Tensor, /) -> Tensor: ...


class BothWays(Protocol):
    """What a language model that reads in both directions offers; see `models/elmo.py`."""

    tokens: Any

    def read(self, tokens: Tensor, real: Tensor | None = None, /) -> tuple[Tensor, Tensor]: ...


LossOf = Callable[[Any, TextBatch], Loss]


def ahead_loss(model: Ahead, batch: TextBatch) -> Loss:
    """Cross-entropy of every token given those before it in its window."""
    x = model.read(batch.ids[:, :-1])  # (B, T, D)
    return projected_cross_entropy(
        x.flatten(0, 1), model.tokens.weight, batch.ids[:, 1:].flatten(), ignore=Tokenizer.pad
    )


def both_ways_loss(model: BothWays, batch: TextBatch) -> Loss:
    """Cross-entropy of every token given those before it, plus that of every token given those after it.

    What is reported is the mean of the two directions.
    """
    real = batch.real
    ahead, back = model.read(batch.ids, real)  # (B, T + 1, D)
    before = batch.ids[:, :-1].masked_fill(~real[:, 1:], Tokenizer.pad)  # (B, T)
    one, other = (
        projected_cross_entropy(x.flatten(0, 1), model.tokens.weight, wanted.flatten(), ignore=Tokenizer.pad)
        for x, wanted in ((ahead[:, :-1], batch.ids[:, 1:]), (back[:, 1:], before))
    )
    return Loss(one.total + other.total, (one.plain + other.plain) / 2, one.count)


@torch.inference_mode()
def windows_loss(loss_of: LossOf, model: Any, text: EncodedText, device: torch.device, batch_tokens: int) -> float:
    """The mean loss a token over a text in windows, none of which sees the one before it."""
    total = 0.0
    for batch in text.in_order(batch_tokens):
        total += loss_of(model, batch.to(device)).plain.item()
    return total / len(text)


@torch.inference_mode()
def text_loss(model: Any, text: EncodedText, device: torch.device, stride: int = STRIDE) -> float:
    """The mean loss a token over a whole text, each given all before it, whatever the stride it is read in."""
    ids = torch.from_numpy(text.ids).long().to(device)[None]  # (1, N + 1)
    state, total = model.start(1, device), 0.0
    for at in range(0, len(text), stride):
        end = min(at + stride, len(text))
        x, state = model.features(ids[:, at:end], state)  # (1, T, D)
        total += projected_cross_entropy(x[0], model.tokens.weight, ids[0, at + 1 : end + 1]).plain.item()
    return total / len(text)


def bits_per_character(loss: float, text: EncodedText) -> float:
    """The same loss spread over characters instead of tokens, in bits."""
    return loss * len(text) / text.characters / math.log(2)


@dataclass(frozen=True)
class Writing:
    """What was written after a prompt, the two together as one text, its log-probability and its token ids."""

    prompt: str
    added: str
    log_probability: float
    ids: list[int]

    @property
    def text(self) -> str:
        """The prompt and what follows it."""
        return self.prompt + self.added


@dataclass
class Writer:
    """A language model with its tokenizer, ready to go on with texts."""

    model: Any  # a module that is Ahead
    tokenizer: Tokenizer
    device: torch.device
    length: int = 200  # tokens that are written
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    notes: tuple[str, ...] = ()  # what whoever loads it should know
    graphs: Graphs | None = field(init=False)

    def __post_init__(self) -> None:
        self.model.to(self.device).eval()
        self.graphs = Graphs() if self.device.type == "cuda" else None

    def write(
        self,
        prompts: Sequence[str],
        length: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
        first: int = 0,
    ) -> list[Writing]:
        """Go on with each prompt by chance; prompt n of a seed gives the same, whatever else is in the batch.

        `first` is the number of the first prompt, for prompts that come in parts.
        """
        heat = self.temperature if temperature is None else temperature
        count, share = self.top_k if top_k is None else top_k, self.top_p if top_p is None else top_p
        rules: list[Rule] = [*self._rules(), Temperature(heat)]
        rules += [] if count is None else [TopK(count)]
        rules += [] if share is None else [TopP(share)]

        def begin(state: Any, prefix: Tensor, limit: Tensor, rows: range) -> Search:
            seeds = [(seed * 1_000_003 + first + row) % 2**63 for row in rows]
            return sample(self.model, state, prefix, limit, ENDLESS, seeds, rules, self._graphs())

        return [found[0] for found in self._run(prompts, length, begin)]

    def search(
        self, prompts: Sequence[str], beams: int = 1, top: int = 1, length: int | None = None
    ) -> list[list[Writing]]:
        """The `top` likeliest ways to go on that beam search finds, best first; with one beam, greedily."""
        if not 1 <= top <= beams:
            raise ValueError(f"{beams} beams cannot give {top} texts")

        def begin(state: Any, prefix: Tensor, limit: Tensor, rows: range) -> Search:
            if beams == 1:
                return greedy(self.model, state, prefix, limit, ENDLESS, self._rules(), self._graphs())
            return beam(
                self.model, state, prefix, limit, ENDLESS, beams, top, rules=self._rules(), graphs=self._graphs()
            )

        return self._run(prompts, length, begin)

    def loss(self, text: str) -> float:
        """The mean loss a token, in nats, of a whole text."""
        return text_loss(self.model, _encoded(text, self.tokenizer), self.device)

    def perplexity(self, text: str) -> float:
        """e to that loss: as if the model had so many tokens to choose from at each place."""
        return math.exp(self.loss(text))

    def bits_per_character(self, text: str) -> float:
        """The loss of a whole text over its characters, in bits."""
        return bits_per_character(self.loss(text), _encoded(text, self.tokenizer))

    def _rules(self) -> tuple[Rule, ...]:
        return (Never((Tokenizer.pad, Tokenizer.unk, Tokenizer.bos)),)

    def _graphs(self) -> Graphs | None:
        """Captured steps, unless somebody watches: a graph neither hears taps nor forgets what an edit did."""
        return None if watched(self.model) else self.graphs

    @torch.inference_mode()
    def _run(
        self, prompts: Sequence[str], length: int | None, begin: Callable[[Any, Tensor, Tensor, range], Search]
    ) -> list[list[Writing]]:
        wanted = self.length if length is None else length
        if wanted < 1:
            raise ValueError(f"at least one token is written, got {wanted}")
        found: list[list[Writing]] = []
        prompts = several(prompts)
        for start in range(0, len(prompts), TOGETHER):
            rows = range(start, min(start + TOGETHER, len(prompts)))
            ids = [text_ids(prompts[row], self.tokenizer) for row in rows]
            state, prefix = self._start(ids)
            limit = torch.full((len(rows),), wanted)  # (B,)
            paths = drain(begin(state, prefix, limit, rows))
            found += self._read([prompts[row] for row in rows], ids, paths)
        return found

    def _start(self, ids: list[list[int]]) -> tuple[Any, Tensor]:
        """The state before the last token of each prompt, and these tokens; a prompt begins like a new line."""
        given = [[Tokenizer.eos, *row] for row in ids]
        prefix = torch.tensor([row[-1:] for row in given], device=self.device)  # (B, 1)
        longest = max(map(len, given)) - 1
        if not longest:
            return self.model.start(len(given), self.device), prefix
        before = torch.full((len(given), longest), Tokenizer.pad)  # (B, T)
        for place, row in enumerate(given):
            before[place, : len(row) - 1] = torch.tensor(row[:-1], dtype=torch.long)
        lengths = torch.tensor([len(row) - 1 for row in given])  # (B,)
        real = torch.arange(longest) < lengths[:, None]  # (B, T)
        return self.model.features(before.to(self.device), None, real.to(self.device))[1], prefix

    def _read(self, prompts: list[str], given: list[list[int]], paths: Paths) -> list[list[Writing]]:
        parts = (paths.tokens.tolist(), paths.lengths.tolist(), paths.logs.tolist())
        return [
            [
                Writing(prompt, self._added(before, ids[:length]), log, ids[:length])
                for ids, length, log in zip(tokens, lengths, logs, strict=True)
            ]
            for prompt, before, tokens, lengths, logs in zip(prompts, given, *parts, strict=True)
        ]

    def _added(self, before: list[int], ids: list[int]) -> str:
        """What some ids add to a text: pieces read differently inside a word than at its beginning.

        What follows an unknown word joins on to it as to any other, but only known ones can be read.
        """
        before = [number if number != Tokenizer.unk else len(SPECIAL) for number in before]
        head, whole = ids_text(before, self.tokenizer), ids_text([*before, *ids], self.tokenizer)
        return whole[len(head) :] if whole.startswith(head) else ids_text(ids, self.tokenizer)


@dataclass
class TextReader:
    """A language model of both directions with its tokenizer: vectors of the tokens of texts, each in its sentence."""

    model: Any  # a module that is BothWays
    tokenizer: Tokenizer
    device: torch.device
    context: int
    notes: tuple[str, ...] = ()  # what whoever loads it should know

    def __post_init__(self) -> None:
        self.model.to(self.device).eval()

    @torch.inference_mode()
    def layers(self, texts: Sequence[str]) -> list[Tensor]:
        """The embedding and every layer (L + 1, T, 2 D) of each text's T tokens; `tokenizer.encode` names them."""
        rows = [[Tokenizer.eos, *text_ids(text, self.tokenizer), Tokenizer.eos] for text in several(texts)]
        if not rows:
            return []
        lengths = torch.tensor([len(row) for row in rows])  # (B,)
        real = torch.arange(int(lengths.max())) < lengths[:, None]  # (B, T + 2)
        ids = torch.full(real.shape, Tokenizer.pad)  # (B, T + 2)
        ids[real] = torch.tensor([number for row in rows for number in row])
        found = self.model.layers(ids.to(self.device), real.to(self.device))  # (B, L + 1, T + 2, 2 D)
        return [found[place, :, 1 : len(row) - 1] for place, row in enumerate(rows)]

    def loss(self, text: str) -> float:
        """The mean loss a token, in nats and of both directions, of a text in windows as in training."""
        encoded = _encoded(text, self.tokenizer, self.context)
        return windows_loss(both_ways_loss, self.model, encoded, self.device, STRIDE)

    def perplexity(self, text: str) -> float:
        """e to that loss."""
        return math.exp(self.loss(text))


def _encoded(text: str, tokenizer: Tokenizer, context: int = STRIDE) -> EncodedText:
    """A text, its last line given an end where it has none."""
    if not text:
        raise ValueError("an empty text has no perplexity")
    return encode_text(Text(text.removesuffix("\n").split("\n")), tokenizer, context)
