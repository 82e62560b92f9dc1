"""What it costs to pre-train BERT: the work from the sizes of the model and its text, beside what was published."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import NamedTuple

from pydantic import Field

from heedful.config import Config
from heedful.lectures import Progress, Table
from heedful.models.bert.config import SIZES, BertConfig
from heedful.plots.figures import curves
from heedful.plots.style import Figure, Style

DAY = 86_400.0  # seconds
VOCAB = 30_522
STEPS, SEQUENCES = 1_000_000, 256  # as published: 90 % of the steps at 128 tokens, the rest at 512
TEXT = ((128, 0.9), (512, 0.1))
# Peak multiplications and additions per second and chip, as published by their makers, in half precision.
CHIPS = {"TPU v2": 45e12, "V100": 125e12, "RTX 2080 Ti": 107.6e12, "H200": 989.5e12}


class Claim(NamedTuple):
    """A published training: which model, on how many of which chips, and for how many days."""

    model: str
    chips: int
    chip: str
    days: float

    @property
    def work(self) -> float:
        """What the chips could have computed in that time at best."""
        return self.chips * CHIPS[self.chip] * self.days * DAY


# The paper counts 4 and 16 Cloud TPUs, which are 16 and 64 chips. "4 TPU pods", 256 chips, is another author's count,
# and the two trainings on GPUs are that author's estimates from it.
CLAIMS = (
    Claim("bert-base", 16, "TPU v2", 4),
    Claim("bert-large", 64, "TPU v2", 4),
    Claim("bert-large", 256, "TPU v2", 4),
    Claim("bert-large", 64, "V100", 5.3),
    Claim("bert-large", 4, "RTX 2080 Ti", 99),
)


class Settings(Config):
    """What is counted."""

    share: float = Field(0.35, gt=0, le=1, description="of a chip's best rate that training reaches")
    chips: int = Field(256, ge=1, le=100_000, description="the most chips in the figure")


@dataclass(frozen=True)
class Costs:
    """The work of each model, and the published trainings."""

    work: dict[str, float]
    share: float
    chips: int

    def table(self) -> Table:
        rows = [
            (c.model, c.chips, c.chip, c.days, self.work[c.model], c.work, self.work[c.model] / c.work, self.days(c))
            for c in CLAIMS
        ]
        columns = ("model", "chips", "of", "days", "work", "at best", "share used", f"days at {self.share:g}")
        return Table(columns, tuple(rows))

    def days(self, claim: Claim) -> float:
        """How long it would take at the share of the best rate that is reached."""
        return self.work[claim.model] / (claim.chips * CHIPS[claim.chip] * self.share * DAY)


def training_work(config: BertConfig, vocab: int, tokens: float, length: int, hidden: float = 0.15) -> float:
    """The multiplications and additions of training on a number of tokens in sequences of a length.

    Three times those of reading: 2 a weight and token, 4 a pair of places and unit of width in each block, and for each
    masked token the product with the whole vocabulary.
    """
    blocks = config.layers * (4 * config.width**2 + 2 * config.width * config.hidden)
    pairs = 2 * config.layers * config.width * length
    words = hidden * (config.width**2 + config.width * vocab)
    return 3 * 2 * tokens * (blocks + pairs + words)


def published_work(model: str) -> float:
    """The same for a published size, on the published text."""
    config = SIZES[model]

    return sum(training_work(config, VOCAB, STEPS * share * SEQUENCES * length, length) for length, share in TEXT)


def study(settings: Settings) -> Generator[Progress, None, Costs]:
    """Count."""
    yield Progress(0.0, "counting")
    work = {model: published_work(model) for model in dict.fromkeys(claim.model for claim in CLAIMS)}
    yield Progress(1.0, "counting")
    return Costs(work, settings.share, settings.chips)


def plot(found: Costs, style: Style = "light") -> Figure:
    """Days by number of chips for the large size, a line a kind of chip."""
    numbers = [2**power for power in range(found.chips.bit_length())]
    return curves(
        {chip: (numbers, [found.days(Claim("bert-large", number, chip, 0.0)) for number in numbers]) for chip in CHIPS},
        f"Days to pre-train BERT-large, at {found.share:.0%} of each chip's best rate",
        "chips",
        "days",
        log="xy",
        style=style,
    )
