"""Logits processors: rules that change the logits before a token is chosen.

A rule takes the logits (R, V) and the tokens so far, and returns the new logits, possibly in the same tensor. It must
not read values in Python, so that a search step can be captured as a CUDA graph.

R rows, V vocabulary, L room for tokens.
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
    """The tokens of each row so far, columns begin ... end - 1 of (R, L): the prompt, then those generated."""

    tokens: Tensor
    begin: Tensor  # (R, 1)
    end: Tensor  # ()
    chosen: Tensor  # (R, 1)

    @property
    def there(self) -> Tensor:
        """Which columns contain a token."""
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
class Banned:
    """These tokens are never generated."""

    banned: tuple[int, ...]

    def __call__(self, logits: Tensor, so_far: Generated) -> Tensor:
        for token in self.banned:
            logits[:, token] = -math.inf
        return logits


@dataclass(frozen=True)
class Below:
    """Only the first `count` ids are tokens: some models have more embeddings than their tokenizer has tokens."""

    count: int

    def __call__(self, logits: Tensor, so_far: Generated) -> Tensor:
        logits[:, self.count :] = -math.inf
        return logits


@dataclass(frozen=True)
class ForcedPrefix:
    """The first tokens that are generated are these; their probabilities stay."""

    tokens: tuple[int, ...]

    def __call__(self, logits: Tensor, so_far: Generated) -> Tensor:
        wanted = torch.full_like(so_far.chosen, -1)  # (R, 1)
        for place, token in enumerate(self.tokens):
            wanted = wanted.masked_fill(so_far.chosen == place, token)
        others = torch.arange(logits.shape[1], device=logits.device) != wanted  # (R, V)
        return logits.masked_fill(others & (wanted >= 0), -math.inf)


@dataclass(frozen=True)
class NoRepeat:
    """No n-gram of `size` tokens occurs twice."""

    size: int

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"a run that does not repeat has at least one token, got {self.size}")

    def __call__(self, logits: Tensor, so_far: Generated) -> Tensor:
        tokens, size, room = so_far.tokens, self.size, so_far.tokens.shape[1]
        if room < size:
            return logits
        runs = tokens.unfold(1, size, 1)  # (R, L - size + 1, size)
        first = torch.arange(room - size + 1, device=tokens.device)  # (L - size + 1,)
        last = (so_far.end - size + 1 + torch.arange(size - 1, device=tokens.device)).clamp(min=0)  # (size - 1,)
        recent = tokens.index_select(1, last)  # (R, size - 1)
        whole = (first >= so_far.begin) & (first + size <= so_far.end)  # (R, L - size + 1)
        enough = so_far.end - so_far.begin >= size - 1  # (R, 1)
        again = (runs[:, :, :-1] == recent[:, None]).all(-1) & whole & enough  # (R, L - size + 1)
        seen = torch.zeros_like(logits, dtype=torch.int32).scatter_add_(1, runs[:, :, -1], again.int())  # (R, V)
        return logits.masked_fill(seen > 0, -math.inf)


@dataclass(frozen=True)
class Penalty:
    """Tokens that occurred already are made less likely (Keskar et al., 2019): a positive logit is divided by the
    penalty, and a negative one multiplied with it.
    """

    value: float

    def __post_init__(self) -> None:
        if self.value <= 0:
            raise ValueError(f"the repetition penalty must be above 0, got {self.value}; 1 changes nothing")

    def __call__(self, logits: Tensor, so_far: Generated) -> Tensor:
        there = so_far.there.int()  # (R, L)
        seen = torch.zeros_like(logits, dtype=torch.int32).scatter_add_(1, so_far.tokens, there)  # (R, V)
        less = torch.where(logits < 0, logits * self.value, logits / self.value)  # (R, V)
        return torch.where(seen > 0, less, logits)


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
    """Only the `count` most likely tokens (Fan et al., 2018)."""

    count: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"top-k keeps at least one token, got {self.count}")

    def __call__(self, logits: Tensor, so_far: Generated) -> Tensor:
        least = logits.topk(min(self.count, logits.shape[1]), -1).values[:, -1:]  # (R, 1)
        return logits.masked_fill(logits < least, -math.inf)


@dataclass(frozen=True)
class TopP:
    """The fewest tokens that together hold this much probability (Holtzman et al., 2020)."""

    mass: float

    def __post_init__(self) -> None:
        if not 0 < self.mass <= 1:
            raise ValueError(f"top-p takes a mass above 0 and up to 1, got {self.mass}")

    def __call__(self, logits: Tensor, so_far: Generated) -> Tensor:
        ordered, places = logits.sort(-1, descending=True)
        p = ordered.float().softmax(-1)
        late = p.cumsum(-1) - p >= self.mass  # the tokens before it have enough probability
        return logits.masked_fill(torch.zeros_like(late).scatter(-1, places, late), -math.inf)


def sampling_rules(settings: Generation) -> list[Rule]:
    """The rules by which a token is sampled, in the usual order."""
    rules: list[Rule] = [] if settings.temperature == 1 else [Temperature(settings.temperature)]
    rules += [] if settings.top_k is None else [TopK(settings.top_k)]
    rules += [] if settings.top_p is None else [TopP(settings.top_p)]
    return rules
