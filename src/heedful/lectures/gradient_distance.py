"""How the gradient of a plain RNN vanishes or explodes with distance.

The matrix between two steps is orthogonal, times a number: all its singular values are that number. While states are
near zero, tanh passes every gradient on as it is, and over k steps its norm is the k-th power of the number. Large
inputs drive tanh to where it is flat: then less comes back, whatever the matrix.

T steps, H hidden width.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from heedful.blocks.recurrent import Elman
from heedful.config import Config
from heedful.lectures import Progress, Table
from heedful.lectures.learning import seeded
from heedful.plots.figures import curves
from heedful.plots.style import Figure, Style

SMALL, LARGE = 1e-9, 1.0  # sizes of inputs


class Settings(Config):
    """What is measured."""

    singular: tuple[Annotated[float, Field(gt=0, le=10)], ...] = Field(
        (0.8, 1.0, 1.25), min_length=1, max_length=5, description="singular values of the matrix, one for each line"
    )
    distance: int = Field(50, ge=1, le=500, description="steps that the gradient goes back")
    hidden: int = Field(32, ge=1, le=512, description="width of the net")
    seed: int = Field(0, ge=0, lt=2**63, description="random seed of the weights and inputs")


@dataclass(frozen=True)
class Norms:
    """The norm of dh_T / dh_{T-k} for k = 1, 2, ..., by singular value, for small and for large inputs."""

    small: dict[float, list[float]]
    large: dict[float, list[float]]

    def table(self) -> Table:
        names = [f"{value:g} {size}" for value in self.small for size in ("small", "large")]
        lines = [line for value in self.small for line in (self.small[value], self.large[value])]
        return Table(("distance", *names), tuple((k, *row) for k, row in enumerate(zip(*lines, strict=True), 1)))


def net(hidden: int, singular: float, seed: int) -> Elman:
    """A plain RNN whose matrix between two steps has this singular value only."""
    cell = seeded(lambda: Elman(hidden, hidden), seed).double()
    with torch.no_grad():
        rotation, _ = torch.linalg.qr(cell.h.weight)
        cell.h.weight.copy_(singular * rotation)
    return cell


def norms(cell: Elman, x: Tensor) -> list[float]:
    """The largest singular value of dh_T / dh_{T-k} for k = 1 ... T, inputs being (T, H)."""
    states = [torch.zeros(1, x.shape[1], dtype=x.dtype, requires_grad=True)]
    for step in x:
        states += cell(step[None], (states[-1],))
    every = torch.eye(x.shape[1], dtype=x.dtype)[:, None]
    jacobians = torch.autograd.grad(states[-1], states[:-1], every, is_grads_batched=True)
    return [float(torch.linalg.matrix_norm(jacobian[:, 0], 2)) for jacobian in reversed(jacobians)]


def study(settings: Settings) -> Generator[Progress, None, Norms]:
    """Measure, one singular value after another."""
    chance = torch.Generator().manual_seed(settings.seed)
    x = torch.randn(settings.distance, settings.hidden, dtype=torch.float64, generator=chance)
    small, large = dict[float, list[float]](), dict[float, list[float]]()
    for number, value in enumerate(settings.singular):
        yield Progress(number / len(settings.singular), f"singular value {value:g}")
        cell = net(settings.hidden, value, settings.seed)
        small[value], large[value] = norms(cell, SMALL * x), norms(cell, LARGE * x)
    return Norms(small, large)


def plot(found: Norms, style: Style = "light") -> Figure:
    """A colour for each singular value, dashed where inputs are large."""
    lines, formats = {}, {}
    for size, norms, dashes in (("small", found.small, "-"), ("large", found.large, "--")):
        for number, (value, line) in enumerate(norms.items()):
            name = f"{value:g}, {size} inputs"
            lines[name], formats[name] = (range(1, len(line) + 1), line), f"C{number}{dashes}"
    return curves(
        lines,
        "A plain RNN's gradient over k steps, by the singular values of its matrix",
        "distance k",
        "norm of dh(T) / dh(T-k)",
        log="y",
        formats=formats,
        style=style,
    )
