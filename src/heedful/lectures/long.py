"""How time and memory grow with the length of a text: one layer each of several kinds, and the exponents fitted to it.

Full attention scores all pairs: n^2 of time, and of memory where the weights are held, as in its definition; a fused
kernel holds a part of them at a time. A window, BigBird and Linformer score a fixed number of keys for each query, and
an LSTM takes n steps.

B batch, T positions, D width.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from heedful.blocks.attention import SelfAttention
from heedful.blocks.masks import window
from heedful.blocks.normalizers import softmax
from heedful.blocks.recurrent import Layer
from heedful.blocks.sparse import BlockSparse
from heedful.config import Config, FieldError
from heedful.errors import UserError
from heedful.lectures import Progress, Table
from heedful.lectures.counting import Counted
from heedful.lectures.learning import seeded
from heedful.models.bigbird.config import BigBirdConfig
from heedful.models.bigbird.model import sight
from heedful.models.linformer.model import Projection
from heedful.plots.figures import scale_axis
from heedful.plots.style import Figure, Style, drawing

LENGTHS = {
    "cpu": (1024, 1536, 2048, 3072, 4096, 6144, 8192),
    "cuda": (4096, 6144, 8192, 12_288, 16_384, 24_576, 32_768, 65_536),
}
# Student's t at 97.5 % by degrees of freedom: that times the standard error is half a 95 % interval.
STUDENT = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
Length = Annotated[int, Field(ge=64, le=1_048_576)]


class Settings(Config):
    """What is measured."""

    lengths: tuple[Length, ...] | None = Field(
        None, min_length=3, max_length=12, description="tokens; null: 1,024 to 8,192, on a GPU 4,096 to 65,536"
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: a GPU, if there is one")
    width: int = Field(64, ge=2, le=1024, multiple_of=2, description="width of the layers")
    heads: int = Field(1, ge=1, le=64, description="attention heads; they divide the width")
    window: int = Field(64, ge=1, le=65_536, description="keys on each side that a window reaches")
    slots: int = Field(128, ge=1, le=65_536, description="slots that Linformer projects keys and values to")
    backward: bool = Field(True, description="whether the backward pass is measured too")
    repeats: int = Field(3, ge=1, le=100, description="measurements, of which the fastest counts")

    @model_validator(mode="after")
    def _heads_divide_the_width(self) -> Self:
        if self.width % self.heads:
            raise FieldError(f"{self.heads} heads do not divide a width of {self.width}", "heads")
        return self


class Fit(NamedTuple):
    """cost = c n^exponent, fitted on logarithms by least squares; the exponent with a 95 % interval."""

    exponent: float
    low: float
    high: float

    @classmethod
    def of(cls, lengths: Sequence[int], costs: Sequence[float]) -> Fit:
        """Costs that are not a number are left out."""
        points = [(math.log(n), math.log(cost)) for n, cost in zip(lengths, costs, strict=True) if cost > 0]
        count = len(points)
        if count < 3:
            return cls(math.nan, math.nan, math.nan)
        x, y = (sum(each) / count for each in zip(*points, strict=True))
        spread = sum((a - x) ** 2 for a, _ in points)
        slope = sum((a - x) * (b - y) for a, b in points) / spread
        left = sum((b - y - slope * (a - x)) ** 2 for a, b in points)
        half = STUDENT[count - 3] * math.sqrt(left / (count - 2) / spread)
        return cls(slope, slope - half, slope + half)

    def __str__(self) -> str:
        return f"{self.exponent:.2f} ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True)
class Growth:
    """Seconds, bytes and, on a CPU, operations at each length, by kind of layer; NaN where memory was not enough."""

    lengths: tuple[int, ...]
    device: str
    backward: bool
    seconds: dict[str, list[float]]
    bytes: dict[str, list[float]]
    operations: dict[str, list[float]]

    def table(self) -> Table:
        costs = (self.seconds, self.bytes, self.operations)
        rows = []
        for name in self.seconds:
            times, held, work = (Fit.of(self.lengths, cost[name]) for cost in costs)
            rows.append((name, *times, self.seconds[name][-1], *held, self.bytes[name][-1] / 2**20, work.exponent))
        last = f"at {self.lengths[-1]:,}"
        columns = ("layer", "time n^", "time: low", "time: high", f"time: s {last}")
        return Table((*columns, "memory n^", "low", "high", f"MiB {last}", "operations n^"), tuple(rows))


# ------------------------------------------------------------------ layers (1, T, D) -> (1, T, D)
def held_weights(scores: Tensor, mask: Tensor | None) -> Tensor:
    """softmax, but not the one that a fused kernel computes."""
    return softmax(scores, mask)


def full(settings: Settings, length: int) -> nn.Module:
    """Attention by its definition."""
    return SelfAttention(settings.width, settings.heads, 0.0, normalize=held_weights)


def fused(settings: Settings, length: int) -> nn.Module:
    """The same in a fused kernel."""
    return SelfAttention(settings.width, settings.heads, 0.0)


class Sparse(nn.Module):
    """Attention to the blocks of a mask, whose lists are made for each input."""

    def __init__(self, settings: Settings, mask: Callable[[Tensor], BlockSparse]) -> None:
        super().__init__()
        self.attention, self.mask = SelfAttention(settings.width, settings.heads, 0.0), mask

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, self.mask(x))  # (B, T, D)


def near(settings: Settings, length: int) -> nn.Module:
    """A window."""
    rule = window(settings.window)
    return Sparse(settings, lambda x: BlockSparse.of(rule, 1, settings.heads, x.shape[1], device=x.device))


def bigbird(settings: Settings, length: int) -> nn.Module:
    """BigBird's window, global and random blocks."""
    config = BigBirdConfig(width=settings.width, heads=settings.heads, context=length, random_blocks=1)

    def mask(x: Tensor) -> BlockSparse:
        found = sight(config, torch.full((1,), x.shape[1], device=x.device), x.shape[1], watched=False).mask
        if not isinstance(found, BlockSparse):
            raise UserError(
                "BigBird attends to every token of a short text", where="lengths", found=str(x.shape[1]),
                expected=f"more than {config.dense_length:,} tokens",
            )  # fmt: skip
        return found

    return Sparse(settings, mask)


class Linformer(nn.Module):
    """Attention to slots that keys and values are projected to along the length."""

    def __init__(self, settings: Settings, length: int) -> None:
        super().__init__()
        self.attention = SelfAttention(settings.width, settings.heads, 0.0)
        self.projection = Projection(1, 1, settings.slots, length)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, past=lambda kv: self.projection(kv, None))  # (B, T, D)


def linformer(settings: Settings, length: int) -> nn.Module:
    return Linformer(settings, length)


class Lstm(nn.Module):
    """An LSTM over the text."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = Layer("lstm", width, width)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.layer(x)
        return y  # (B, T, D)


def lstm(settings: Settings, length: int) -> nn.Module:
    return Lstm(settings.width)


LAYERS: dict[str, Callable[[Settings, int], nn.Module]] = {
    "full attention": full,
    "full attention, fused": fused,
    "window": near,
    "BigBird": bigbird,
    "Linformer": linformer,
    "LSTM": lstm,
}


# ------------------------------------------------------------------ measuring
def passes(name: str, settings: Settings, length: int, device: str) -> Callable[[], None]:
    """A call that runs a layer over a text of this length, forwards and, if it is wanted, backwards."""
    layer = seeded(lambda: LAYERS[name](settings, length), 0).to(device)
    x = torch.randn(1, length, settings.width, generator=torch.Generator().manual_seed(0)).to(device)

    def run() -> None:
        with torch.set_grad_enabled(settings.backward):
            y = layer(x)
        if settings.backward:
            torch.autograd.grad(y.sum(), list(layer.parameters()))

    return run


def seconds(run: Callable[[], None], device: str) -> float:
    """The time of a call: of the processor, without that of other programs, or until a GPU is done."""
    if device == "cpu":
        begin = time.process_time()
        run()
        return time.process_time() - begin
    torch.cuda.synchronize()
    begin = time.perf_counter()
    run()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def captured(run: Callable[[], None]) -> Callable[[], None]:
    """A call as a CUDA graph: its time is that of the GPU, not of the host that starts its kernels."""
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def count(run: Callable[[], None], device: str) -> tuple[float, float]:
    """The most bytes that a call holds at a time, and its operations (on a CPU)."""
    if device == "cpu":
        with Counted() as counted:
            run()
        return counted.peak, counted.operations
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    return torch.cuda.max_memory_allocated() - before, math.nan


def study(settings: Settings) -> Generator[Progress, None, Growth]:
    """Measure, layer by layer, from short texts to long ones."""
    device = settings.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    elif device == "cuda" and not torch.cuda.is_available():
        raise UserError("there is no GPU", where="device", found="cuda", todo="write device=cpu")
    lengths = tuple(sorted(settings.lengths or LENGTHS[device]))
    spent, held, work = ({name: list[float]() for name in LAYERS} for _ in range(3))
    total, done = sum(lengths) * len(LAYERS), 0
    for name in LAYERS:
        for length in lengths:
            yield Progress(done / total, f"{name}, {length:,} tokens")
            done += length
            try:
                run = passes(name, settings, length, device)
                counted = count(run, device)
                if device == "cuda" and name != "LSTM":  # whose graph would have a node for each step
                    run = captured(run)
                time_taken = min(seconds(run, device) for _ in range(settings.repeats))
            except torch.OutOfMemoryError:
                counted, time_taken = (math.nan, math.nan), math.nan
            for kept, value in zip((held, work, spent), (*counted, time_taken), strict=True):
                kept[name].append(value)
    yield Progress(1.0, "done")
    return Growth(lengths, device, settings.backward, spent, held, work)


def plot(found: Growth, style: Style = "light") -> Figure:
    """Time and memory over length, a line for each kind of layer, with its exponents."""
    import numpy as np

    direction = "forward and backward" if found.backward else "forward"
    with drawing(style, 12.0, 5.4, f"What a layer costs over the length of a text: {direction}") as (figure, _):
        sides = (("seconds", found.seconds, 1.0), ("MiB at a time", found.bytes, 2.0**20))
        for axes, (name, costs, unit) in zip(figure.subplots(1, 2), sides, strict=True):
            lines = {layer: np.array(values) / unit for layer, values in costs.items()}
            for layer, values in lines.items():
                shown = Fit.of(found.lengths, costs[layer])
                axes.plot(found.lengths, values, marker="o", markersize=4, label=f"{layer}: n^{shown}")
            scale_axis(axes, "x", True, [np.array(found.lengths, dtype=np.float64)])
            scale_axis(axes, "y", True, list(lines.values()))
            axes.grid(axis="y")
            axes.set_xlabel("tokens: n")
            axes.set_ylabel(name)
            axes.legend(loc="upper left", fontsize="small")
            axes.margins(y=0.12)
    return figure
