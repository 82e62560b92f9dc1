"""The alignment that attention learns when a network copies a string, and when it reverses it.

The order is not given: it is learned, because it makes the task easy.

S letters read, T letters written.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import torch
from pydantic import Field
from torch import Tensor

from heedful.blocks.taps import watch
from heedful.config import Config
from heedful.lectures import Progress, Table
from heedful.lectures.learning import learn
from heedful.lectures.strings import ATTENTION, LETTERS, Writer, writer
from heedful.plots.figures import heatmaps
from heedful.plots.style import Figure, Style

TASKS = {"copied": False, "reversed": True}


class Settings(Config):
    """What is trained."""

    longest: int = Field(12, ge=2, le=100, description="letters of the longest string in training")
    shown: int = Field(len(LETTERS), ge=2, le=len(LETTERS), description="letters of the string in the figure")
    width: int = Field(48, ge=2, le=1024, multiple_of=2, description="width of the nets")
    steps: int = Field(1500, ge=1, le=1_000_000, description="steps of training, of 32 strings each")
    lr: float = Field(5e-3, gt=0, le=1, description="learning rate")
    seed: int = Field(0, ge=0, lt=2**63, description="random seed of the weights and strings")


@dataclass(frozen=True)
class Map:
    """What was read, what was written for it, and the weight of each letter read for each one written (T, S)."""

    source: str
    target: str
    weights: Tensor


@dataclass(frozen=True)
class Maps:
    """One string, copied and reversed."""

    maps: dict[str, Map]

    def table(self) -> Table:
        """For each letter written, the source letter with the largest attention weight, and that weight."""
        columns = [name for task in self.maps for name in (task, "attends to", "weight")]
        rows = [
            [cell for one in self.maps.values() for cell in (one.target[t], *strongest(one, t))]
            for t in range(len(next(iter(self.maps.values())).target))
        ]
        return Table(("position", *columns), tuple((t, *row) for t, row in enumerate(rows, 1)))


def strongest(one: Map, t: int) -> tuple[str, float]:
    """The source letter that the letter written at t attends to most, and its weight."""
    s = int(one.weights[t].argmax())
    return f"{one.source[s]} at {s + 1}", float(one.weights[t, s])


@torch.no_grad()
def alignment(one: Writer, length: int) -> Map:
    """The attention weights of a string in which no letter occurs twice."""
    source = torch.randperm(len(LETTERS), generator=one.generator)[None, :length]
    target = one.target(source)
    with watch(one.net, one.net.alignment) as seen:
        logits = one.net.tokens.logits(one.net.read(source, target[:, :-1]))
    written = logits[0, :length, : len(LETTERS)].argmax(-1)
    weights = seen[one.net.alignment][0, 0, :length]
    return Map("".join(LETTERS[i] for i in source[0]), "".join(LETTERS[i] for i in written), weights)


def study(settings: Settings) -> Generator[Progress, None, Maps]:
    """Train a network for each task, and record its alignment."""
    maps = {}
    for number, (task, backwards) in enumerate(TASKS.items()):
        one = writer(ATTENTION, settings.width, backwards, settings.longest, settings.seed)
        for share in learn(one.net, one.loss, settings.steps, settings.lr):
            yield Progress((number + share) / len(TASKS), f"strings are {task}")
        maps[task] = alignment(one, settings.shown)
    return Maps(maps)


def plot(found: Maps, style: Style = "light") -> Figure:
    """A heat map for each task: rows are written, columns are read."""
    panels = {f"{one.source} {task}": (one.weights.numpy(), one.target, one.source) for task, one in found.maps.items()}
    return heatmaps(panels, style=style)
