"""Rules that change the logits before a token is chosen.

A rule takes the logits (R, V), the tokens chosen so far (R, L) and how many of those are valid (a 0-d tensor), and
gives the logits to choose by, which may be the same tensor written over. It must not ask for values in Python, so that
a search step can be captured as a device graph.

R rows, V vocabulary, L room for tokens.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Rule(Protocol):
    """logits (R, V), tokens (R, L), chosen () -> logits (R, V); equal rules compare equal."""

    def __call__(self, logits: Tensor, tokens: Tensor, chosen: Tensor, /) -> Tensor: ...


@dataclass(frozen=True)
class AtLeast:
    """No end before `length` tokens."""

    length: int
    eos: int

    def __call__(self, logits: Tensor, tokens: Tensor, chosen: Tensor) -> Tensor:
        logits[:, self.eos].masked_fill_(chosen < self.length, -math.inf)
        return logits


@dataclass(frozen=True)
class Never:
    """These tokens are not chosen."""

    banned: tuple[int, ...]

    def __call__(self, logits: Tensor, tokens: Tensor, chosen: Tensor) -> Tensor:
        for token in self.banned:
            logits[:, token] = -math.inf
        return logits


@dataclass(frozen=True)
class NoRepeat:
    """No run of `size` tokens occurs twice."""

    size: int

    def __call__(self, logits: Tensor, tokens: Tensor, chosen: Tensor) -> Tensor:
        size, room = self.size, tokens.shape[1]
        if room < size:
            return logits
        runs = tokens.unfold(1, size, 1)  # (R, L - size + 1, size)
        ends = torch.arange(size - 1, room, device=tokens.device)  # (L - size + 1,)
        last = (chosen - size + 1 + torch.arange(size - 1, device=tokens.device)).clamp(min=0)  # (size - 1,)
        recent = tokens.index_select(1, last)  # (R, size - 1)
        again = (runs[:, :, :-1] == recent[:, None]).all(-1) & (ends < chosen) & (chosen >= size - 1)
        seen = torch.zeros_like(logits, dtype=torch.int32).scatter_add_(1, runs[:, :, -1], again.int())  # (R, V)
        return logits.masked_fill(seen > 0, -math.inf)


@dataclass(frozen=True)
class Temperature:
    """Divide the logits: above 1 is bolder, below 1 is safer."""

    value: float

    def __post_init__(self) -> None:
        if self.value <= 0:
            raise ValueError(f"the temperature must be above 0, got {self.value}; decode greedily for no chance at all")

    def __call__(self, logits: Tensor, tokens: Tensor, chosen: Tensor) -> Tensor:
        return logits / self.value


@dataclass(frozen=True)
class TopK:
    """Only the `count` most likely tokens (Fan et al., 2018)."""

    count: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"top-k keeps at least one token, got {self.count}")

    def __call__(self, logits: Tensor, tokens: Tensor, chosen: Tensor) -> Tensor:
        least = logits.topk(min(self.count, logits.shape[1]), -1).values[:, -1:]  # (R, 1)
        return logits.masked_fill(logits < least, -math.inf)


@dataclass(frozen=True)
class TopP:
    """The fewest tokens that together hold this much probability (Holtzman et al., 2020)."""

    mass: float

    def __post_init__(self) -> None:
        if not 0 < self.mass <= 1:
            raise ValueError(f"top-p takes a mass above 0 and up to 1, got {self.mass}")

    def __call__(self, logits: Tensor, tokens: Tensor, chosen: Tensor) -> Tensor:
        ordered, places = logits.sort(-1, descending=True)
        p = ordered.float().softmax(-1)
        late = p.cumsum(-1) - p >= self.mass  # the mass before such a token is enough already
        return logits.masked_fill(torch.zeros_like(late).scatter(-1, places, late), -math.inf)
