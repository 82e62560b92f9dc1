"""A word recalled over a distance, as in "I live in France, a beautiful country, and I know ...".

A key word comes first, then filler words that mean nothing, then the question, whose answer is the key. Each net is
trained from scratch for each distance, with the same width and number of steps.

B batch, T tokens, D width, K keys.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from heedful.blocks.attention import attend
from heedful.blocks.linear import Linear
from heedful.blocks.recurrent import LSTM, Layer
from heedful.config import Config
from heedful.lectures import Progress, Table
from heedful.lectures.cell_gradient import forget_with
from heedful.lectures.learning import learn, seeded
from heedful.plots.figures import curves
from heedful.plots.style import Figure, Style

KEYS, FILLERS = 8, 16
QUESTION = KEYS + FILLERS
BATCH, TESTED = 32, 1000  # sentences of a step, and of a test


class Settings(Config):
    """What is trained."""

    distances: tuple[Annotated[int, Field(ge=1, le=1000)], ...] = Field(
        (1, 2, 5, 10, 20, 50, 100, 200), min_length=1, max_length=40, description="numbers of filler words"
    )
    width: int = Field(64, ge=1, le=1024, description="width of the nets")
    bias: float = Field(1.0, ge=-20, le=20, description="bias of the LSTMs' forget gates before training")
    steps: int = Field(400, ge=1, le=100_000, description="steps of training, of 32 sentences each")
    lr: float = Field(5e-3, gt=0, le=1, description="learning rate")
    seed: int = Field(0, ge=0, lt=2**63, description="random seed of the weights and sentences")


@dataclass(frozen=True)
class Recalled:
    """The share of right answers at each distance, by net."""

    distances: tuple[int, ...]
    right: dict[str, list[float]]

    def table(self) -> Table:
        return Table(("distance", *self.right), tuple(zip(self.distances, *self.right.values(), strict=True)))


class LastState(nn.Module):
    """Tokens (B, T) -> logits of the answer (B, K), from the state after the question."""

    def __init__(self, kind: str, width: int) -> None:
        super().__init__()
        self.tokens, self.layer = nn.Embedding(QUESTION + 1, width), Layer(kind, width, width)
        self.out = Linear(width, KEYS)

    def forward(self, tokens: Tensor) -> Tensor:
        y, _ = self.layer(self.tokens(tokens))
        return self.out(y[:, -1])


class Attending(nn.Module):
    """The same from the state after the question, which also attends to all states."""

    def __init__(self, kind: str, width: int) -> None:
        super().__init__()
        self.tokens, self.layer = nn.Embedding(QUESTION + 1, width), Layer(kind, width, width)
        self.out = Linear(2 * width, KEYS)

    def forward(self, tokens: Tensor) -> Tensor:
        y, _ = self.layer(self.tokens(tokens))
        context = attend(y[:, None, -1:], y[:, None], y[:, None])
        return self.out(torch.cat([y[:, -1], context[:, 0, 0]], -1))


NETS: dict[str, tuple[Callable[[str, int], LastState | Attending], str]] = {
    "plain RNN": (LastState, "rnn"),
    "LSTM": (LastState, "lstm"),
    "LSTM with attention": (Attending, "lstm"),
}


@dataclass(frozen=True)
class Trial:
    """A net at a distance."""

    net: LastState | Attending
    distance: int
    generator: torch.Generator

    def sentences(self, count: int) -> tuple[Tensor, Tensor]:
        """Sentences (B, T), and the keys in them (B,)."""
        key = torch.randint(KEYS, (count, 1), generator=self.generator)
        fillers = torch.randint(KEYS, QUESTION, (count, self.distance), generator=self.generator)
        return torch.cat([key, fillers, torch.full_like(key, QUESTION)], 1), key[:, 0]

    def loss(self) -> Tensor:
        tokens, keys = self.sentences(BATCH)
        return F.cross_entropy(self.net(tokens), keys)

    @torch.no_grad()
    def right(self) -> float:
        """The share of right answers to fresh sentences."""
        tokens, keys = self.sentences(TESTED)
        return float((self.net(tokens).argmax(-1) == keys).float().mean())


def trial(name: str, distance: int, settings: Settings) -> Trial:
    """An untrained one."""
    make, kind = NETS[name]
    net = seeded(lambda: make(kind, settings.width), settings.seed)
    if isinstance(cell := net.layer.cell, LSTM):
        forget_with(cell, settings.bias)
    return Trial(net, distance, torch.Generator().manual_seed(settings.seed))


def cost(distance: int) -> int:
    """The approximate cost of a step, which grows with the distance."""
    return distance + 10


def study(settings: Settings) -> Generator[Progress, None, Recalled]:
    """Train and test every net at every distance."""
    right: dict[str, list[float]] = {name: [] for name in NETS}
    done, whole = 0, len(NETS) * sum(map(cost, settings.distances))
    for distance in settings.distances:
        for name in NETS:
            one = trial(name, distance, settings)
            for share in learn(one.net, one.loss, settings.steps, settings.lr):
                yield Progress((done + share * cost(distance)) / whole, f"{name} at distance {distance}")
            right[name].append(one.right())
            done += cost(distance)
    return Recalled(settings.distances, right)


def plot(found: Recalled, style: Style = "light") -> Figure:
    """A line for each net, and one for guessing."""
    lines = {name: (found.distances, right) for name, right in found.right.items()}
    lines["guessing"] = (found.distances, [1 / KEYS] * len(found.distances))
    return curves(
        lines,
        "A word recalled, by nets that were trained for each distance",
        "words between it and the question",
        "share of right answers",
        log="x",
        formats={"guessing": "C7--"},
        style=style,
    )
