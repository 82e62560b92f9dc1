"""What a block does after its attention: heads side by side, output matrix, residual, norm, feed-forward, later blocks.

A recurrent decoder joins the context with its state instead, or reads it in its next step.

T queries, D width, F hidden width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from heedful.blocks.feedforward import FeedForward
from heedful.blocks.norms import PostNorm, PreNorm
from heedful.blocks.taps import watch
from heedful.explore.capabilities import part_of
from heedful.explore.inspect import Trace, concatenate_steps

ATTENTION, FEED = ("heads side by side", "output matrix"), ("hidden layer", "feed-forward")
NORM, ADD = ("residual", "norm"), ("sublayer", "residual")


class Stage(NamedTuple):
    """One step: its name, and its value for every query (T, D), or (T, F) in the hidden layer."""

    name: str
    value: Tensor


@dataclass(frozen=True)
class BlockSteps:
    """The steps after one attention, in their order."""

    stages: tuple[Stage, ...]

    @property
    def size(self) -> int:
        return sum(one.value.nbytes for one in self.stages)


class Event(NamedTuple):
    """A call of a submodule: its input and its output, (T, width), and what they are called."""

    module: nn.Module
    names: tuple[str, str]
    given: Tensor
    made: Tensor


def output_matrix(model: nn.Module, tap: str) -> nn.Module | None:
    """The output matrix of an attention in a block of add & norm, by the tap of its weights; None without one."""
    if tap.count(".") < 2 or not adds_of(block_of(model, tap)):
        return None
    found: nn.Module | None = part_of(model.get_submodule(tap.rpartition(".")[0]), "out")
    return found


def block_of(model: nn.Module, tap: str) -> nn.Module:
    """The block of an attention, by the tap of its weights."""
    return model.get_submodule(tap.rsplit(".", 2)[0])


def adds_of(block: nn.Module) -> list[nn.Module]:
    return [each for each in block.children() if isinstance(each, PostNorm | PreNorm)]


@torch.inference_mode()
def block_steps(model: nn.Module, trace: Trace, tap: str) -> BlockSteps:
    """The steps after an attention, from another run of the model; none if its block runs more or less than once."""
    block, out = block_of(model, tap), output_matrix(model, tap)
    stack, _, number = tap.rsplit(".", 2)[0].rpartition(".")
    blocks: dict[str, Tensor] = {}
    with recorded(block) as events:
        for one in trace.reading.passes:
            with watch(model, f"{stack}.*.output") as seen:
                one.run()
            blocks |= {name: concatenate_steps(parts) for name, parts in seen.all.items()}
    runs = [place for place, one in enumerate(events) if one.module is out]
    if out is None or len(runs) not in (1, len(blocks)):
        return BlockSteps(())
    run = int(number) if len(runs) > 1 else 0  # layers with the same weights run the same block again
    here, end = runs[run], len(events) if run == len(runs) - 1 else runs[run + 1]
    later = [Stage(f"block {at + 1}", blocks[f"{stack}.{at}.output"]) for at in range(int(number), len(blocks))]
    return BlockSteps((*stages_of(events[here:end]), *later))


@torch.inference_mode()
def decoder_steps(model: nn.Module, trace: Trace, tap: str) -> BlockSteps:
    """The steps after the attention of a recurrent decoder, from another run of the model."""
    decoder, context = model.get_submodule(tap.rsplit(".", 2)[0]), f"{tap.rpartition('.')[0]}.context"
    made: list[tuple[Tensor, Tensor]] = []
    out = part_of(decoder, "out")
    if out is None:
        return BlockSteps(())
    handle = out.register_forward_hook(lambda _, given, y: made.append((given[0][0], y[0])))
    try:
        with watch(model, context) as seen:
            trace.reading.passes[-1].run()
    finally:
        handle.remove()
    (given, y), c = made[-1], concatenate_steps(seen.all[context])  # (T, H) or (T, H + M), (T, E), (T, M)
    if given.shape[-1] > c.shape[-1] and torch.equal(given[:, -c.shape[-1] :], c):
        return BlockSteps((Stage("state and context", given), Stage("output matrix", y), Stage("tanh", y.tanh())))
    return BlockSteps((Stage("decoder state", given), Stage("output matrix", y)))


@contextmanager
def recorded(block: nn.Module) -> Iterator[list[Event]]:
    """The calls of a block's parts, in the order in which they end."""
    events: list[Event] = []

    def note(names: tuple[str, str]) -> Callable[[nn.Module, tuple[Any, ...], Tensor], None]:
        return lambda module, given, made: events.append(Event(module, names, given[0][0], made[0]))

    watched: list[tuple[nn.Module, tuple[str, str]]] = [(each, ADD) for each in adds_of(block)]
    watched += [(each.norm, NORM) for each in adds_of(block) if isinstance(each, PreNorm)]
    watched += [(each.down, FEED) for each in block.children() if isinstance(each, FeedForward)]
    outs = [part_of(each, "out") for each in block.children()]
    watched += [(each, ATTENTION) for each in outs if isinstance(each, nn.Module)]
    with ExitStack() as stack:
        for module, names in watched:
            stack.callback(module.register_forward_hook(note(names)).remove)
        yield events


def stages_of(events: Sequence[Event]) -> Iterator[Stage]:
    """The steps from the output matrix of an attention, the first event, to the end of its block."""
    inside = events[0]  # the last matrix of the current sublayer
    for event in events:
        if event.names == ADD:
            yield Stage("residual", event.given + inside.made)
            if isinstance(event.module, PostNorm):
                yield Stage("norm", event.made)
        elif event.names == NORM:
            yield Stage("norm", event.made)
        else:
            inside = event
            yield from (Stage(name, value) for name, value in zip(event.names, event[2:], strict=True))
