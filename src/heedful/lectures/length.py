"""How quality falls with the length of a sentence, without attention and with it.

Both nets learn to copy random strings, with the same width and number of steps. Without attention, all that the decoder
knows of the source is one vector, however long the source is.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from pydantic import Field

from heedful.config import Config
from heedful.lectures import Progress, Table
from heedful.lectures.learning import learn
from heedful.lectures.strings import ATTENTION, writer
from heedful.plots.figures import curves
from heedful.plots.style import Figure, Style

NETS = {"without attention": None, "with attention": ATTENTION}
TESTED = 500  # strings of each length


class Settings(Config):
    """What is trained."""

    longest: int = Field(20, ge=1, le=200, description="letters of the longest string in training")
    beyond: int = Field(30, ge=1, le=300, description="letters of the longest string in the test")
    width: int = Field(64, ge=2, le=1024, multiple_of=2, description="width of the nets")
    steps: int = Field(3000, ge=1, le=1_000_000, description="steps of training, of 32 strings each")
    lr: float = Field(3e-3, gt=0, le=1, description="learning rate")
    seed: int = Field(0, ge=0, lt=2**63, description="random seed of the weights and strings")


@dataclass(frozen=True)
class ByLength:
    """The share of strings copied without a mistake at each length, by net; and the longest in training."""

    longest: int
    lengths: tuple[int, ...]
    exact: dict[str, list[float]]

    def table(self) -> Table:
        return Table(("length", *self.exact), tuple(zip(self.lengths, *self.exact.values(), strict=True)))


def study(settings: Settings) -> Generator[Progress, None, ByLength]:
    """Train both nets, and test them at every length."""
    lengths = tuple(range(1, settings.beyond + 1))
    exact: dict[str, list[float]] = {}
    for number, (name, attention) in enumerate(NETS.items()):
        one = writer(attention, settings.width, False, settings.longest, settings.seed)
        for share in learn(one.net, one.loss, settings.steps, settings.lr):
            yield Progress((number + 0.9 * share) / len(NETS), f"a net {name} learns")
        exact[name] = []
        for length in lengths:
            exact[name].append(one.exact(TESTED, length))
            yield Progress((number + 0.9 + 0.1 * length / len(lengths)) / len(NETS), f"a net {name} is tested")
    return ByLength(settings.longest, lengths, exact)


def plot(found: ByLength, style: Style = "light") -> Figure:
    """A line for each net, and a mark where training ended."""
    return curves(
        {name: (found.lengths, exact) for name, exact in found.exact.items()},
        "Strings copied without a mistake, by length",
        "letters",
        "share of strings",
        marks={"longest in training": found.longest} if found.longest < found.lengths[-1] else {},
        style=style,
    )
