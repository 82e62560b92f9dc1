"""The loss around a minimum along two random directions with filter normalization (Li et al., 2018).

Weights that are larger make a net less sensitive to steps of one size, so that plain random directions cannot be
compared between nets. Here each filter of a direction, a row of a weight's first axis, has the norm of the same filter
of the net; weights with one axis, biases and norms, stay as they are.

A, B steps along the two directions.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Annotated, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from heedful.blocks.linear import Linear
from heedful.data.embedded import Digits
from heedful.lectures import Progress
from heedful.lectures.learning import learn, seeded
from heedful.plots.figures import brief
from heedful.plots.style import Figure, Style, drawing

Direction = dict[str, Tensor]


class Surface(NamedTuple):
    """Losses (A, B) at steps (A,) along one direction and (B,) along another; the net is at step 0 of both."""

    steps: NDArray[np.float64]
    losses: NDArray[np.float64]

    @property
    def rise(self) -> float:
        """By how much the loss rises on average, above that of the net: the sharpness of the minimum."""
        middle = len(self.steps) // 2
        return float((self.losses - self.losses[middle, middle]).mean())

    @property
    def roughness(self) -> float:
        """The share of points at which the surface is curved downwards along an axis: 0 for a convex one."""
        curved = [np.diff(self.losses, 2, axis)[(slice(None), slice(1, -1))[:: 1 - 2 * axis]] for axis in (0, 1)]
        return float((np.minimum(*curved) < 0).mean())


def filter_normalized(model: nn.Module, generator: torch.Generator) -> Direction:
    """A random direction in which each filter is as long as the same filter of the model."""
    found = {}
    for name, weight in model.named_parameters():
        if weight.dim() < 2:
            found[name] = torch.zeros_like(weight)
            continue
        random = torch.randn(weight.shape, generator=generator).to(weight)
        long, wanted = (x.detach().flatten(1).norm(dim=1) for x in (random, weight))  # (filters,)
        found[name] = random * (wanted / long).view(-1, *[1] * (weight.dim() - 1))
    return found


@torch.no_grad()
def loss_surface(
    model: nn.Module, loss: Callable[[], Tensor], steps: NDArray[np.float64], seed: int = 0
) -> Generator[float, None, Surface]:
    """The loss of any model around its weights, which are put back in the end; yields the share that is done."""
    generator = torch.Generator().manual_seed(seed)
    first, second = (filter_normalized(model, generator) for _ in range(2))
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    losses = np.zeros((len(steps), len(steps)))
    try:
        for i, a in enumerate(steps.tolist()):
            for j, b in enumerate(steps.tolist()):
                for name, weight in model.named_parameters():
                    weight.copy_(before[name] + a * first[name] + b * second[name])
                losses[i, j] = float(loss())
            yield (i + 1) / len(steps)
    finally:
        for name, weight in model.named_parameters():
            weight.copy_(before[name])
    return Surface(steps, losses)


# ------------------------------------------------------------------ with and without skip connections
class DeepNet(nn.Module):
    """Many dense layers; with skip connections h + f(h), without them f(h), f being ReLU(W h + b)."""

    def __init__(self, depth: int, width: int, skips: bool) -> None:
        super().__init__()
        self.skips = skips
        self.first, self.last = Linear(64, width), Linear(width, 10)
        layers = [Linear(width, width) for _ in range(depth)]
        self.layers = nn.ModuleList(layers)
        for layer in layers:
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if skips:
                layer.weight.data /= depth**0.5  # sums of many layers stay in range

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.first(x))
        for layer in self.layers:
            h = h + F.relu(layer(h)) if self.skips else F.relu(layer(h))
        return self.last(h)


def digits(count: int) -> tuple[Tensor, Tensor]:
    """The first digits as vectors (count, 64), and their classes."""
    images = Digits().read("train")
    assert images.labels is not None  # digits have them
    x = torch.from_numpy(images.vectors[:count].astype(np.float32))
    return x, torch.from_numpy(images.labels[:count].astype(np.int64))


def trained_surface(
    skips: bool, depth: int, width: int, training: int, steps: NDArray[np.float64], seed: int
) -> Generator[float, None, Surface]:
    """The surface of a net that was trained on digits."""
    x, labels = digits(1000)
    net = seeded(lambda: DeepNet(depth, width, skips), seed)
    generator = torch.Generator().manual_seed(seed)

    def batch() -> Tensor:
        rows = torch.randint(len(x), (128,), generator=generator)
        return F.cross_entropy(net(x[rows]), labels[rows])

    for share in learn(net, batch, training, 3e-3):
        yield share / 2
    surface = loss_surface(net, lambda: F.cross_entropy(net(x[:300]), labels[:300]), steps, seed)
    while True:
        try:
            yield 0.5 + next(surface) / 2
        except StopIteration as end:
            found: Surface = end.value
            return found


def residual_surfaces(
    *,
    depth: Annotated[int, Field(ge=1, le=200, description="layers of the nets")] = 24,
    width: Annotated[int, Field(ge=1, le=512, description="width of the nets")] = 32,
    training: Annotated[int, Field(ge=0, le=100_000, description="steps of training")] = 300,
    reach: Annotated[float, Field(gt=0, le=10, description="steps from -reach to reach")] = 1.0,
    points: Annotated[int, Field(ge=3, le=201, description="steps along each direction")] = 21,
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0,
    style: Style = "light",
) -> Generator[Progress, None, Figure]:
    """Two deep nets that differ in their skip connections alone, trained on digits; the height is the loss."""
    steps = np.linspace(-reach, reach, points)
    found = dict[str, Surface]()
    for number, (name, skips) in enumerate((("without skip connections", False), ("with skip connections", True))):
        surface = trained_surface(skips, depth, width, training, steps, seed)
        while name not in found:
            try:
                yield Progress((number + next(surface)) / 2, f"{depth} layers {name}")
            except StopIteration as end:
                found[name] = end.value
    return plot_surfaces(found, f"The loss around a minimum, {depth} layers, filter-normalized directions", style)


def plot_surfaces(surfaces: Mapping[str, Surface], title: str, style: Style = "light") -> Figure:
    """Surfaces side by side, of one scale; the height is the logarithm of the loss."""
    heights = {name: np.log10(np.maximum(one.losses, 1e-6)) for name, one in surfaces.items()}
    low, high = (bound([bound(height) for height in heights.values()]) for bound in (np.min, np.max))
    with drawing(style, 5.4 * len(surfaces), 5.2, title) as (figure, palette):
        for number, (name, one) in enumerate(surfaces.items(), 1):
            axes = figure.add_subplot(1, len(surfaces), number, projection="3d")
            a, b = np.meshgrid(one.steps, one.steps, indexing="ij")
            axes.plot_surface(
                a, b, heights[name], cmap=palette.sequential, vmin=low, vmax=high, linewidth=0.2,
                edgecolor=palette.paper, rstride=1, cstride=1, antialiased=True,
            )  # fmt: skip
            axes.set(zlim=(low, high), xlabel="direction 1", ylabel="direction 2", zlabel="log10 of the loss")
            axes.set_title(f"{name}:\nmean loss {brief(round(float(one.losses.mean()), 1))}", loc="center")
            ends = [float(one.steps[0]), 0.0, float(one.steps[-1])]
            axes.set(xticks=ends, yticks=ends)
            for axis in (axes.xaxis, axes.yaxis, axes.zaxis):
                axis.set_pane_color(palette.panel)
                axis.line.set_color(palette.quiet)
            axes.view_init(elev=32, azim=-60)
    return figure
