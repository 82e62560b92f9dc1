"""Depth makes classes linearly separable: a linear classifier on each layer of a network (Alain and Bengio, 2017).

The network sees two handwritten digits and learns whether their sum is even. Of the pixels no linear classifier can say
it, since either parity of one digit goes with either answer; from layer to layer it becomes easier.

N pairs, D width.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, one_hot, pad

from heedful.config import Config
from heedful.data.embedded import Digits
from heedful.lectures import Progress, Table
from heedful.lectures.learning import learn, seeded
from heedful.models.autoencoder.layers import Dense
from heedful.models.autoencoder.network import Network
from heedful.plots.figures import curves
from heedful.plots.style import Figure, Style

PAIRS = 128  # in a step
RIDGE = 1e-2  # regularization of a probe


class Settings(Config):
    """What is trained."""

    layers: int = Field(3, ge=1, le=20, description="number of dense layers before the output")
    width: int = Field(64, ge=2, le=1024, description="width of each layer")
    steps: int = Field(800, ge=1, le=1_000_000, description="steps of training, of 128 pairs each")
    lr: float = Field(2e-3, gt=0, le=1, description="learning rate")
    probed: int = Field(4000, ge=100, le=100_000, description="pairs that each probe learns from, and is tested on")
    seed: int = Field(0, ge=0, lt=2**63, description="random seed of weights and pairs")


@dataclass(frozen=True)
class Accuracies:
    """The test accuracy of a probe on each layer, the pixels first: of the trained network and before training."""

    trained: list[float]
    untrained: list[float]

    def table(self) -> Table:
        rows = tuple((layer, *both) for layer, both in enumerate(zip(self.trained, self.untrained, strict=True)))
        return Table(("layer", "trained", "untrained"), rows)


class PairsOfDigits:
    """Random pairs of digits of a split, and whether their sum is even."""

    def __init__(self, split: Literal["train", "test"], seed: int) -> None:
        images = Digits().read(split)
        assert images.labels is not None  # digits have them
        self.pixels = torch.from_numpy(np.asarray(images.pixels, np.float32)).flatten(1)  # (N, 64)
        self.labels = torch.from_numpy(np.asarray(images.labels, np.int64))
        self.generator = torch.Generator().manual_seed(seed)

    def next(self, count: int) -> tuple[Tensor, Tensor]:
        """Pixels (N, 128) and 1 for an even sum, (N,)."""
        pairs = torch.randint(len(self.labels), (2, count), generator=self.generator)
        return torch.cat([self.pixels[pairs[0]], self.pixels[pairs[1]]], 1), 1 - self.labels[pairs].sum(0) % 2


def study(settings: Settings) -> Generator[Progress, None, Accuracies]:
    """Train the network, and a probe on each of its layers before and after."""
    hidden = [Dense(width=settings.width) for _ in range(settings.layers)]
    build = partial(Network.of, (128,), [*hidden, Dense(width=1, activation="linear")])
    model, pairs = seeded(build, settings.seed), PairsOfDigits("train", settings.seed)
    untrained = probe_layers(model, settings)
    yield Progress(0.0, "the network learns")
    for share in learn(model, partial(loss_of, model, pairs), settings.steps, settings.lr):
        yield Progress(0.9 * share, "the network learns")
    return Accuracies(probe_layers(model, settings), untrained)


def loss_of(model: Network, pairs: PairsOfDigits) -> Tensor:
    """The cross-entropy of the next pairs."""
    x, even = pairs.next(PAIRS)
    return binary_cross_entropy_with_logits(model(x)[:, 0], even.float())


def probe_layers(model: Network, settings: Settings) -> list[float]:
    """The accuracy of a probe on the pixels and on each hidden layer, on pairs of test digits."""
    learned = PairsOfDigits("train", settings.seed + 1).next(settings.probed)
    tested = PairsOfDigits("test", settings.seed + 1).next(settings.probed)
    layers = zip(layer_vectors(model, learned[0]), layer_vectors(model, tested[0]), strict=True)
    return [linear_probe(one, learned[1], other, tested[1]) for one, other in layers]


@torch.no_grad()
def layer_vectors(model: Network, x: Tensor) -> list[Tensor]:
    """The input (N, D), and the output of each layer but the last."""
    vectors = [x]
    for layer, activation in list(zip(model.layers, model.activations, strict=True))[:-1]:
        vectors.append(activation(layer(vectors[-1])))
    return vectors


def linear_probe(x: Tensor, labels: Tensor, tested: Tensor, expected: Tensor) -> float:
    """The accuracy on other vectors of a linear classifier, fitted to vectors (N, D) and labels (N,) by ridge.

    Vectors are standardized first, by the mean and deviation of those that it is fitted to.
    """
    mean, deviation = x.mean(0), x.std(0).clamp_min(1e-6)
    one, other = (pad(((each - mean) / deviation).double(), (0, 1), value=1.0) for each in (x, tested))
    targets = one_hot(labels, int(max(labels.max(), expected.max())) + 1).double()
    squares = one.mT @ one / len(one) + RIDGE * torch.eye(one.shape[1], dtype=torch.float64)
    weights = torch.linalg.solve(squares, one.mT @ targets / len(one))  # (D + 1, classes)
    return float(((other @ weights).argmax(1) == expected).double().mean())


def plot(found: Accuracies, style: Style = "light") -> Figure:
    """Accuracy by layer, before and after training."""
    layers = range(len(found.trained))
    return curves(
        {
            "trained": (layers, found.trained),
            "untrained": (layers, found.untrained),
            "guessing": ((0, layers[-1]), (0.5, 0.5)),
        },
        "A linear classifier on each layer: is the sum of two digits even?",
        "layer; 0 is the pixels",
        "accuracy on test digits",
        formats={"guessing": "C7--"},
        style=style,
    )
