"""Graphs: functions of tensors that are written to files, with inputs to trace and to check them.

B rows, S columns, R rows of a decoder, H heads, K width of one head, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from heedful.blocks.attention import KV
from heedful.blocks.state import Cache, Memory, Ragged, WindowCache, map_tensors, tensors

Inputs = dict[str, Tensor]
Run = Callable[[Inputs], dict[str, Tensor]]
Draw = Callable[[int, int, torch.Generator], Inputs]  # rows, columns -> inputs by name
RECURRENT = torch.ops.aten.lstm.input, torch.ops.aten.gru.input


@dataclass(frozen=True)
class Graph:
    """A module whose arguments and results are tensors, their names, and inputs of other sizes."""

    name: str
    module: nn.Module
    outputs: tuple[str, ...]
    draw: Draw
    longest: int  # columns

    def inputs(self, rows: int, columns: int, seed: int = 0) -> Inputs:
        """Random inputs, contiguous, of at most as many columns as it reads."""
        drawn = self.draw(rows, min(columns, self.longest), torch.Generator().manual_seed(seed))
        return {name: value.contiguous() for name, value in drawn.items()}

    @torch.no_grad()
    def run(self, inputs: Inputs) -> dict[str, Tensor]:
        """Its results by their names."""
        found = self.module(*inputs.values())
        return dict(zip(self.outputs, found if isinstance(found, tuple) else (found,), strict=True))


class Function(nn.Module):
    """A function of a model and of tensors as a module."""

    def __init__(self, model: nn.Module, call: Callable[..., Any]) -> None:
        super().__init__()
        self.model, self.call = model, call

    def forward(self, *values: Tensor) -> Any:
        return self.call(self.model, *values)


def forget_kernels() -> None:
    """Let torch look for the kernels of recurrent layers again.

    It replaces them while it traces, but not those that it has found before, in an earlier export: these would write a
    layer for a single number of columns.
    """
    for operator in RECURRENT:
        operator._dispatch_cache.clear()


def named(state: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """The tensors of a state, in the order of `tensors`, with the fields that lead to them."""
    if isinstance(state, Tensor):
        yield path, state
    elif is_dataclass(state) and not isinstance(state, type):
        for field in fields(state):
            yield from named(getattr(state, field.name), f"{path}.{field.name}")
    elif isinstance(state, tuple):
        for name, part in {"k": state.k, "v": state.v}.items() if isinstance(state, KV) else enumerate(state):
            yield from named(part, f"{path}.{name}")


def restored(like: Any, values: Sequence[Tensor]) -> Any:
    """The state of the same form with other tensors."""
    rest = iter(values)
    return map_tensors(like, lambda _: next(rest))


def whole(state: Any, heads: int, width: int, context: int, rows: Tensor) -> Any:
    """A state before the first token whose tensors are all there, and whose form stays the same from step to step."""

    def change(part: Any) -> Any:
        if isinstance(part, Cache) and part.layers[0] is None:
            none = rows.new_zeros(rows.shape[0], heads, 0, width, dtype=torch.float32)  # (R, H, 0, K)
            return Cache((KV(none, none),) * len(part.layers), Ragged(torch.zeros_like(rows), context))
        if isinstance(part, Memory | WindowCache):
            return part.fill()
        if is_dataclass(part) and not isinstance(part, type):
            return replace(part, **{field.name: change(getattr(part, field.name)) for field in fields(part)})
        return part

    return change(state)


def decoder_graphs(
    start: Graph, model: nn.Module, begin: Callable[..., Any], vocab: int, longest: int, several: bool = False
) -> tuple[Graph, Graph]:
    """The graphs of a decoder: inputs -> state before the first token; tokens (R, T), state -> logits (R, V), state.

    `begin` takes the model and the inputs of `start`, and returns the first state. The logits are those after the last
    token; there is one token in a step, or there may be `several`.
    """
    with torch.no_grad():
        like = begin(model, *start.inputs(2, 5).values())
    names = [path for path, _ in named(like)]

    def first(m: nn.Module, *values: Tensor) -> tuple[Tensor, ...]:
        return tuple(tensors(begin(m, *values)))

    def step(m: nn.Module, chosen: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        logits, state = m(chosen, restored(like, values))  # (R, T, V)
        return logits[:, -1], *tensors(state)

    @torch.no_grad()
    def draw(rows: int, columns: int, random: torch.Generator) -> Inputs:
        """Tokens, and the state after one less than there are columns."""
        state = begin(model, *start.draw(rows, min(columns, start.longest), random).values())
        count = columns // 2 + 1 if several else 1
        chosen = torch.randint(vocab, (rows, columns - 1 + count), generator=random)  # (R, T)
        for token in chosen[:, count:].unbind(1):
            state = model(token[:, None], state)[1]
        return {"tokens": chosen[:, :count], **{f"state{path}": value for path, value in named(state)}}

    after = tuple(f"next{path}" for path in names)
    return (
        replace(start, module=Function(model, first), outputs=after),
        Graph("step", Function(model, step), ("logits", *after), draw, longest),
    )
