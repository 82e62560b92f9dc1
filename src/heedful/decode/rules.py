"""Logits processors: rules that change the logits before a token is chosen.

A rule takes the logits (R, V) and the tokens so far, and returns the new logits, possibly in the same tensor. It must
not read values in Python, so that a search step can be captured as a CUDA graph.

R rows, V vocabulary, L length of the token buffer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from heedful.decode.settings import Generation


@dataclass(frozen=True)
class Generated:
    """The tokens of each row so far, columns begin ... end - 1 of (R, L): the prompt, then the generated ones."""

    tokens: Tensor
    begin: Tensor  # (R, 1)
    end: Tensor  # ()
    chosen: Tensor  # (R, 1) number of generated tokens

    @property
    def present(self) -> Tensor:
        """A mask of the columns that contain a token."""
        column = torch.arange(self.tokens.shape[1], device=self.tokens.device)  # (L,)
        return (column >= self.begin) & (column < self.end)  # (R, L)


class Rule(Protocol):
    """logits (R, V) and the tokens so far -> logits (R, V); equal rules compare equal."""

    def __call__(self, logits: Tensor, so_far: Generated, /) -> Tensor: ...


@dataclass(frozen=True)
class MinLength:
    """No end of sequence before `length` tokens are generated."""

    length: int
    eos: int

    def __call__(self, logits: Tensor, so_far: Generated) -> Tensor:
        logits[:, self.eos].masked_fill_((so_far.chosen < self.length)[:, 0], -math.inf)
        return logits


@dataclass(frozen=True)
class SuppressTokens:
    """These tokens are never generated."""

    tokens: tuple[int, ...]

    def __call__(self, logits: Tensor, so_far: Generated) -> Tensor:
        for token in self.tokens:
            logits[:, token] = -math.inf
        return logits


@dataclass(frozen=True)
class VocabLimit:
    """Only the first `count` ids are generated: some models have more embeddings than their tokenizer has tokens."""

    count: int

    def __call__(self, logits: Tensor, so_far: Generated) -> Tensor:
        logits[:, self.count :] = -math.inf
        return logits


@dataclass(frozen=True)
class ForcedPrefix:
    """The generated text starts with these tokens; they keep their probabilities."""

    tokens: tuple[int, ...]

    def __call__(self, logits: Tensor, so_far: Generated) -> Tensor:
        forced = torch.full_like(so_far.chosen, -1)  # (R, 1)
        for index, token in enumerate(self.tokens):
            forced = forced.masked_fill(so_far.chosen == index, token)
        others = torch.arange(logits.shape[1], device=logits.device) != forced  # (R, V)
        return logits.masked_fill(others & (forced >= 0), -math.inf)


@dataclass(frozen=True)
class ForcedEnd:
    """The last of `length` tokens is the end of the sequence, with a probability of 1."""

    length: int
    eos: int

    def __call__(self, logits: Tensor, so_far: Generated) -> Tensor:
        eos, last = torch.arange(logits.shape[1], device=logits.device) == self.eos, so_far.chosen == self.length - 1
        return logits.masked_fill(~eos & last, -math.inf).masked_fill(eos & last, 0.0)


@dataclass(frozen=True)
class Renormalize:
    """The probabilities of the tokens that are left sum to 1 again."""

    def __call__(self, logits: Tensor, so_far: Generated) -> Tensor:
        return logits.log_softmax(-1)


@dataclass(frozen=True)
class NoRepeatNgram:
    """No n-gram of `size` tokens occurs twice."""

    size: int

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"the size of an n-gram must be at least 1, got {self.size}")

    def __call__(self, logits: Tensor, so_far: Generated) -> Tensor:
        tokens, size, length = so_far.tokens, self.size, so_far.tokens.shape[1]
        if length < size:
            return logits
        ngrams = tokens.unfold(1, size, 1)  # (R, L - size + 1, size)
        first = torch.arange(length - size + 1, device=tokens.device)  # (L - size + 1,)
        last = (so_far.end - size + 1 + torch.arange(size - 1, device=tokens.device)).clamp(min=0)  # (size - 1,)
        recent = tokens.index_select(1, last)  # (R, size - 1)
        complete = (first >= so_far.begin) & (first + size <= so_far.end)  # (R, L - size + 1)
        enough = so_far.end - so_far.begin >= size - 1  # (R, 1)
        repeats = (ngrams[:, :, :-1] == recent[:, None]).all(-1) & complete & enough  # (R, L - size + 1)
        blocked = torch.zeros_like(logits, dtype=torch.int32).scatter_add_(1, ngrams[:, :, -1], repeats.int())  # (R, V)
        return logits.masked_fill(blocked > 0, -math.inf)


@dataclass(frozen=True)
class RepetitionPenalty:
    """Tokens that already occur become less probable (Keskar et al., 2019): a positive logit is divided by the penalty,
    a negative one is multiplied by it.
    """

    value: float

    def __post_init__(self) -> None:
        if self.value <= 0:
            raise ValueError(f"the repetition penalty must be above 0, got {self.value}; 1 changes nothing")

    def __call__(self, logits: Tensor, so_far: Generated) -> Tensor:
        present = so_far.present.int()  # (R, L)
        occurrences = torch.zeros_like(logits, dtype=torch.int32).scatter_add_(1, so_far.tokens, present)  # (R, V)
        penalized = torch.where(logits < 0, logits * self.value, logits / self.value)  # (R, V)
        return torch.where(occurrences > 0, penalized, logits)


@dataclass(frozen=True)
class Temperature:
    """Divide the logits by the temperature; higher is more random."""

    value: float

    def __post_init__(self) -> None:
        if self.value <= 0:
            raise ValueError(f"the temperature must be above 0, got {self.value}; decode greedily instead")

    def __call__(self, logits: Tensor, so_far: Generated) -> Tensor:
        return logits / self.value


@dataclass(frozen=True)
class TopK:
    """Only the `count` most probable tokens (Fan et al., 2018)."""

    count: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"top-k must be at least 1, got {self.count}")

    def __call__(self, logits: Tensor, so_far: Generated) -> Tensor:
        threshold = logits.topk(min(self.count, logits.shape[1]), -1).values[:, -1:]  # (R, 1)
        return logits.masked_fill(logits < threshold, -math.inf)


@dataclass(frozen=True)
class TopP:
    """Nucleus sampling (Holtzman et al., 2020): the smallest set of tokens with at least this total probability."""

    mass: float

    def __post_init__(self) -> None:
        if not 0 < self.mass <= 1:
            raise ValueError(f"top-p must be above 0 and at most 1, got {self.mass}")

    def __call__(self, logits: Tensor, so_far: Generated) -> Tensor:
        in_order, order = logits.sort(-1, descending=True)
        p = in_order.float().softmax(-1)
        outside = p.cumsum(-1) - p >= self.mass  # more probable tokens already have enough probability
        return logits.masked_fill(torch.zeros_like(outside).scatter(-1, order, outside), -math.inf)


def sampling_rules(settings: Generation) -> list[Rule]:
    """The rules of sampling: temperature, top-k and top-p, in this order."""
    rules: list[Rule] = [] if settings.temperature == 1 else [Temperature(settings.temperature)]
    rules += [] if settings.top_k is None else [TopK(settings.top_k)]
    rules += [] if settings.top_p is None else [TopP(settings.top_p)]
    return rules
