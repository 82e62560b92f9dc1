"""Search steps as CUDA graphs, which launch hundreds of small kernels at once.

A step is captured once per set of shapes and replayed on fixed buffers; graphs that are unused for long are dropped. A
graph uses the addresses of the weights at capture: if the weights move, another one is captured.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from heedful.blocks.state import map_tensors, tensors

Advance = Callable[..., tuple[Any, ...]]


@dataclass(frozen=True)
class Captured:
    """A graph, the buffers that it reads and writes back, and its output buffer."""

    graph: torch.cuda.CUDAGraph
    inputs: Any
    seen: Any


class Graphs:
    """The graphs of one model's decoder; a copy starts without graphs."""

    def __init__(self, model: nn.Module, most: int = 24) -> None:
        self.model, self.most = model, most
        self.kept: OrderedDict[Hashable, Captured] = OrderedDict()
        self.current: Captured | None = None

    def __reduce__(self) -> tuple[type["Graphs"], tuple[nn.Module, int]]:
        return Graphs, (self.model, self.most)

    def load(self, name: Hashable, advance: Advance, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Select the graph for these inputs, and return its buffers, which now contain them.

        `advance(*inputs)` returns the next inputs and one more value, which `replay` returns.
        """
        key = (name, self._weights(), tuple((x.shape, x.dtype) for x in tensors(inputs)))
        if key not in self.kept:
            self.kept[key] = self.capture(advance, inputs)
            while len(self.kept) > self.most:
                self.kept.popitem(last=False)
        self.kept.move_to_end(key)
        return self.select(self.kept[key], inputs)

    def select(self, captured: Captured, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Select a graph, and return its buffers, which now contain these inputs; pinned ones are not waited for."""
        self.current = captured
        buffers: tuple[Any, ...] = captured.inputs
        for buffer, x in zip(tensors(buffers), tensors(inputs), strict=True):
            buffer.copy_(x, non_blocking=True)
        return buffers

    def run(self, name: Hashable, once: Callable[..., Any], inputs: tuple[Any, ...]) -> Any:
        """`once(*inputs)` as a separate graph; its results are buffers that the next run overwrites."""
        self.load(("once", name), lambda *parts: (*parts, once(*parts)), inputs)
        return self.replay()

    def replay(self) -> Any:
        """One step on the buffers; the result is valid until the next one."""
        assert self.current is not None
        self.current.graph.replay()
        return self.current.seen

    def _weights(self) -> tuple[tuple[int, torch.dtype], ...]:
        """Where the weights are. (`parameters()` also builds their names, which takes twice as long.)"""
        modules = self.model.modules()
        found = [w for module in modules for w in (*module._parameters.values(), *module._buffers.values())]
        return tuple((w.data_ptr(), w.dtype) for w in found if w is not None)

    @staticmethod
    def capture(advance: Advance, inputs: tuple[Any, ...]) -> Captured:
        """The graph of `advance`, which is computed, too."""
        buffers = map_tensors(inputs, Tensor.clone)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):  # warm-up: libraries allocate before the capture
                advance(*buffers)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            *after, seen = advance(*buffers)
            for buffer, x in zip(tensors(buffers), tensors(tuple(after)), strict=True):
                if buffer.data_ptr() != x.data_ptr():
                    buffer.copy_(x)
        return Captured(graph, buffers, seen)
