"""The gradient along an LSTM's cell: a product of forget gates, with no matrix in it.

T steps, H hidden width.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import torch
from pydantic import Field
from torch import Tensor

from heedful.blocks.recurrent import LSTM, Elman
from heedful.blocks.taps import watch
from heedful.config import Config
from heedful.lectures import Progress, Table
from heedful.lectures.gradient_distance import norms
from heedful.lectures.learning import seeded
from heedful.plots.figures import curves
from heedful.plots.style import Figure, Style


class Settings(Config):
    """What is measured."""

    biases: tuple[float, ...] = Field(
        (0.0, 1.0, 3.0, 5.0), min_length=1, max_length=4, description="forget gates' bias"
    )
    distance: int = Field(50, ge=1, le=500, description="steps that the gradient goes back")
    hidden: int = Field(32, ge=1, le=512, description="width of the nets")
    seed: int = Field(0, ge=0, lt=2**63, description="random seed of the weights and inputs")


@dataclass(frozen=True)
class Gradients:
    """Norms over 1, 2, ... steps: of dC_T / dC_{T-k} by forget bias, and of a plain RNN's dh_T / dh_{T-k}."""

    cell: dict[float, list[float]]
    plain: list[float]

    def table(self) -> Table:
        columns = ("distance", *(f"LSTM, bias {bias:g}" for bias in self.cell), "plain RNN")
        rows = zip(*self.cell.values(), self.plain, strict=True)
        return Table(columns, tuple((k, *row) for k, row in enumerate(rows, 1)))


def forget_with(cell: LSTM, bias: float) -> LSTM:
    """The same cell with another bias of its forget gates."""
    assert cell.x.bias is not None
    cell.x.bias.data.chunk(4)[1].fill_(bias)
    return cell


def along_the_cell(cell: LSTM, x: Tensor) -> tuple[Tensor, Tensor]:
    """The diagonals of dC_T / dC_{T-k} for k = 1 ... T, (T, H): by the chain rule, and as products of forget gates.

    What goes through the hidden states is cut off.
    """
    h = torch.zeros(1, x.shape[1], dtype=x.dtype)
    cells = [torch.zeros_like(h, requires_grad=True)]
    with watch(cell, "forget") as seen:
        for step in x:
            h, c = cell(step[None], (h.detach(), cells[-1]))
            cells.append(c)
    found = torch.autograd.grad(cells[-1].sum(), cells[:-1])  # units of a cell do not meet: a sum keeps them apart
    return torch.cat(found[::-1]), torch.cat(seen.all["forget"][::-1]).cumprod(0)


def study(settings: Settings) -> Generator[Progress, None, Gradients]:
    """Measure, one bias after another, then a plain RNN on the same inputs."""
    generator = torch.Generator().manual_seed(settings.seed)
    x = torch.randn(settings.distance, settings.hidden, dtype=torch.float64, generator=generator)
    cell = dict[float, list[float]]()

    def fresh() -> LSTM:
        return LSTM(settings.hidden, settings.hidden)

    for number, bias in enumerate(settings.biases):
        yield Progress(number / (len(settings.biases) + 1), f"forget bias {bias:g}")
        diagonals, _ = along_the_cell(forget_with(seeded(fresh, settings.seed).double(), bias), x)
        cell[bias] = diagonals.amax(1).tolist()  # the norm of a diagonal matrix
    yield Progress(len(settings.biases) / (len(settings.biases) + 1), "plain RNN")
    return Gradients(cell, norms(seeded(lambda: Elman(settings.hidden, settings.hidden), settings.seed).double(), x))


def plot(found: Gradients, style: Style = "light") -> Figure:
    """A line for each bias, and a dashed one for the plain RNN."""
    k = range(1, len(found.plain) + 1)
    lines = {f"LSTM, bias {bias:g}": (k, line) for bias, line in found.cell.items()} | {"plain RNN": (k, found.plain)}
    return curves(
        lines,
        "The gradient along an LSTM's cell, by the bias of its forget gates",
        "distance k",
        "norm of the gradient over k steps",
        log="y",
        formats={"plain RNN": "C7--"},
        style=style,
    )
