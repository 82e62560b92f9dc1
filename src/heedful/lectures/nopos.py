"""Language models with each kind of positions, or none (Haviv et al., 2022), of the same size and budget.

They learn number words, letter by letter: "seven hundred twelve". A causal model without positions comes near
the others, since the number of tokens it attends to reveals the position: a linear probe reads it from the layers. One
layer alone sees a bag of past letters, which does not show how words are spelled.

B windows, T letters, D width.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from heedful.blocks.taps import watch
from heedful.config import Config
from heedful.data.embedded import NumberWords, spell
from heedful.lectures import Progress, Table
from heedful.lectures.learning import learn, seeded
from heedful.models.gpt.config import GptConfig, Positions
from heedful.models.gpt.model import Gpt
from heedful.models.sizes import block_parameters
from heedful.plots.figures import curves
from heedful.plots.style import Figure, Style

SCHEMES: tuple[Positions, ...] = ("learned", "sinusoid", "rotary", "alibi", "none")
BAG = "bag"  # none in one layer, which is as large as all layers of the others
HEADS = 4
WINDOWS = 16  # a step
TESTED = 400  # windows on which the loss is measured
PROBED = 200  # windows that a probe learns from, and as many that it is tried on
RIDGE = 1e-3  # regularization of a probe


class Settings(Config):
    """What is trained."""

    width: int = Field(48, ge=8, le=1024, multiple_of=8, description="width of the models")
    layers: int = Field(3, ge=2, le=24, description="number of blocks")
    context: int = Field(48, ge=4, le=1024, description="letters that are seen at once")
    steps: int = Field(500, ge=1, le=1_000_000, description="steps of training, of 16 windows each")
    lr: float = Field(4e-3, gt=0, le=1, description="learning rate")
    seed: int = Field(0, ge=0, lt=2**63, description="random seed of the weights and windows")


class Probed(NamedTuple):
    """The loss of one model, and the mean error in positions of a probe on each layer; layer 0 is the embedding."""

    loss: float
    wrong: list[float]


@dataclass(frozen=True)
class Schemes:
    """Each model by its positions; and the mean error of always predicting the middle."""

    nets: dict[str, Probed]
    baseline: float

    def table(self) -> Table:
        deep = max(len(probed.wrong) for probed in self.nets.values())
        rows: list[tuple[float | str, ...]] = [
            (name, probed.loss, *probed.wrong, *["-"] * (deep - len(probed.wrong)))
            for name, probed in self.nets.items()
        ]
        rows.append(("the middle", "-", *[self.baseline] * deep))
        return Table(("positions", "loss", *(f"wrong at layer {n}" for n in range(deep))), tuple(rows))


class Windows:
    """Random windows of the text of a split."""

    def __init__(self, ids: Tensor, context: int, seed: int) -> None:
        self.ids, self.context = ids, context
        self.generator = torch.Generator().manual_seed(seed)

    def next(self, count: int) -> Tensor:
        """Each with one letter more than the context."""
        begin = torch.randint(0, len(self.ids) - self.context, (count, 1), generator=self.generator)  # (B, 1)
        return self.ids[begin + torch.arange(self.context + 1)]  # (B, T + 1)


def letters_of(split: Literal["train", "valid"]) -> str:
    """Numbers in words, one after another."""
    return "".join(f"{words}\n" for words in spell(NumberWords().numbers(split), "en"))


def study(settings: Settings) -> Generator[Progress, None, Schemes]:
    """Train a model with each scheme, and one with a bag of letters, on the same windows."""
    texts = {"train": letters_of("train"), "valid": letters_of("valid")}
    letters = sorted(set(chain(*texts.values())))
    ids = {split: torch.tensor([letters.index(letter) for letter in text]) for split, text in texts.items()}
    nets: dict[str, Probed] = {}
    for name in (*SCHEMES, BAG):
        model = seeded(partial(Gpt, config_of(name, len(letters), settings)), settings.seed)
        windows = Windows(ids["train"], settings.context, settings.seed)
        for share in learn(model, partial(next_loss, model, windows), settings.steps, settings.lr):
            yield Progress((len(nets) + 0.95 * share) / (len(SCHEMES) + 1), f"a model with positions {name} learns")
        nets[name] = probe(model.eval(), ids, settings)
    return Schemes(nets, settings.context / 4)


def config_of(name: str, vocab: int, settings: Settings) -> GptConfig:
    """The model of that name; a bag of letters has one layer, as large as those of the others together."""
    width, layers, hidden = settings.width, settings.layers, 4 * settings.width
    if name == BAG:
        rest = layers * block_parameters(width, hidden) - block_parameters(width, 0)
        layers, hidden = 1, rest // (block_parameters(width, 1) - block_parameters(width, 0))
    return GptConfig(
        vocab=vocab,
        width=width,
        heads=HEADS,
        layers=layers,
        hidden=hidden,
        context=settings.context,
        positions=next((scheme for scheme in SCHEMES if scheme == name), "none"),
        dropout=0.0,
        attention_dropout=0.0,
    )


def loss_of(model: Gpt, windows: Tensor) -> Tensor:
    """The mean loss a letter, given those before it in its window."""
    x = model.read(windows[:, :-1])  # (B, T, D)
    return cross_entropy(model.tokens.logits(x).flatten(0, 1), windows[:, 1:].flatten())


def next_loss(model: Gpt, windows: Windows) -> Tensor:
    """The loss of the next windows."""
    return loss_of(model, windows.next(WINDOWS))


@torch.inference_mode()
def probe(model: Gpt, ids: dict[str, Tensor], settings: Settings) -> Probed:
    """The loss on held-out windows, and the error of a probe of positions on each layer."""
    loss = float(loss_of(model, Windows(ids["valid"], settings.context, 1).next(TESTED)))
    learned, tried = (
        layers_of(model, Windows(ids[split], settings.context, 2).next(PROBED)[:, :-1]) for split in ("train", "valid")
    )
    return Probed(loss, [probe_error(one, other) for one, other in zip(learned, tried, strict=True)])


def layers_of(model: Gpt, tokens: Tensor) -> list[Tensor]:
    """The vectors of each layer, that of the embedding first."""
    with watch(model, "blocks.*.output") as seen:
        model.read(tokens)
    embedded = model.embed(tokens, torch.arange(tokens.shape[1]))  # (B, T, D)
    return [embedded, *(seen[f"blocks.{layer}.output"] for layer in range(model.config.layers))]


def probe_error(learned: Tensor, tried: Tensor) -> float:
    """The mean error in positions of a linear probe on vectors (B, T, D) that it was not fitted to."""
    one, other = (torch.nn.functional.pad(x.double(), (0, 1), value=1.0).flatten(0, 1) for x in (learned, tried))
    places = torch.arange(learned.shape[1], dtype=torch.float64).repeat(len(learned))  # (B * T,)
    squares = one.mT @ one + RIDGE * torch.eye(one.shape[1], dtype=torch.float64)
    probe = torch.linalg.solve(squares, one.mT @ places)
    return float((other @ probe - places).abs().mean())


def plot(found: Schemes, style: Style = "light") -> Figure:
    """A line over the layers for each model, with its loss beside its name, and one for the baseline."""
    names = {name: f"{name}: loss {probed.loss:.3f}" for name, probed in found.nets.items()}
    lines = {names[name]: (range(len(probed.wrong)), probed.wrong) for name, probed in found.nets.items()}
    deep = max(len(probed.wrong) for probed in found.nets.values())
    return curves(
        {**lines, "always the middle": ((0, deep - 1), (found.baseline, found.baseline))},
        "How well a probe reads positions from a layer, by the kind of positions",
        "layer; 0 is the embedding",
        "mean error of a linear probe, in positions",
        formats={"always the middle": "C7--"},
        style=style,
    )
