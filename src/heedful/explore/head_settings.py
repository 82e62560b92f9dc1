"""Heads of an open model that are switched off, or whose weights are uniform, while an answer is computed.

H heads, T queries, S keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from heedful.blocks.taps import watch
from heedful.config import Config
from heedful.errors import UserError, shown
from heedful.explore.inspect import Attention

MOST = 5000  # heads

Index = Annotated[int, Field(ge=0, le=1000)]
Head = tuple[Index, Index, Index]


class HeadSettings(Config):
    """Changed heads, each by the indices of its kind of attention, its layer and itself."""

    off: tuple[Head, ...] = Field((), max_length=MOST)  # weights of zero
    uniform: tuple[Head, ...] = Field((), max_length=MOST)  # the same weight for every key that is not masked


def heads_by_tap(
    attentions: Sequence[Attention], heads: Sequence[tuple[int, int, int]], name: str = "off"
) -> dict[str, list[int]]:
    """The heads at each tap."""
    found: dict[str, list[int]] = {}
    for index, layer, head in heads:
        attention = attention_at(attentions, index)
        if layer >= len(attention.taps) or head >= attention.heads:
            which = f"layer {layer + 1}, head {head + 1}"
            raise UserError("this model has no such head", where=name, found=which, todo="restore all heads")
        found.setdefault(attention.taps[layer], []).append(head)
    return found


def attention_at(attentions: Sequence[Attention], index: int) -> Attention:
    """A kind of attention by its index."""
    if index >= len(attentions):
        raise UserError("this model has no such attention", where="look", found=str(index + 1))
    return attentions[index]


@contextmanager
def heads_set(model: nn.Module, attentions: Sequence[Attention], settings: HeadSettings) -> Iterator[None]:
    """Within the block, some heads of a model are changed; one that is off has no weights to be uniform."""
    off = heads_by_tap(attentions, settings.off)
    uniform = heads_by_tap(attentions, settings.uniform, "uniform")
    with made_uniform(model, uniform), ablated(model, off):
        yield


@contextmanager
def ablated(model: nn.Module, off: Mapping[str, Sequence[int]]) -> Iterator[None]:
    """Within the block, the attention weights of some heads are zeros, and so are their outputs."""

    def without(name: str, weights: Tensor) -> Tensor:
        return weights.index_fill(1, torch.tensor(off[name], device=weights.device), 0.0)

    with ExitStack() as stack:
        for name in off:
            stack.enter_context(watch(model, name, without, lambda name, blocks: blocks.without_heads(off[name])))
        yield


@contextmanager
def made_uniform(model: nn.Module, heads: Mapping[str, Sequence[int]]) -> Iterator[None]:
    """Within the block, some heads, by the taps of their weights, have equal scores, and so equal weights."""
    by_scores = {f"{name.rpartition('.')[0]}.scores": some for name, some in heads.items()}

    def equal(name: str, scores: Tensor) -> Tensor:
        some = torch.zeros(scores.shape[1], dtype=torch.bool, device=scores.device)  # (H,)
        some[by_scores[name]] = True
        masked = scores == -torch.inf  # (B, H, T, S)
        return scores.masked_fill(some[:, None, None] & ~masked, 0.0)

    with ExitStack() as stack:
        for name in by_scores:
            stack.enter_context(watch(model, name, equal, lambda name, blocks: blocks.without_heads(by_scores[name])))
        yield


def parse_heads(text: str, name: str = "off") -> tuple[tuple[int, ...], ...]:
    """Heads as in the page's address: 0.1.3,2.0.1."""
    try:
        found = sorted(tuple(map(int, one.split("."))) for one in text.split(",") if one)
        if all(len(one) == 3 for one in found):
            return tuple(found)
    except ValueError:
        pass
    raise UserError("invalid heads", where=name, found=shown(text), expected="numbers such as 0.1.3,2.0.1")


def heads_of(state: Mapping[str, Any]) -> dict[str, tuple[tuple[int, ...], ...]]:
    """The changed heads of a page's state, as the settings of a call; none of what is not changed."""
    each = {name: parse_heads(str(state.get(name) or ""), name) for name in ("off", "uniform")}
    return {name: heads for name, heads in each.items() if heads}
