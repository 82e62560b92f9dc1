"""Subjects of models of the library: texts, numbers, and the tokens of a decoder.

B rows, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from heedful.contracts.subject import Between, Call, Side, Step, Subject

LONGEST = 12
FILL = 1  # what is put into padding: any token
BOTH: tuple[Side, ...] = ("right", "left")


def fixed(count: int, vocab: int, rows: int, device: torch.device) -> Tensor:
    """The same few tokens (B, T) for every row."""
    return (torch.arange(count, device=device) * 3 % (vocab - 4) + 4).expand(rows, -1)


def ids(vocab: int) -> Callable[[int, torch.Generator], Tensor]:
    """Rows of random tokens, none of which is special."""
    return lambda length, random: torch.randint(min(4, vocab - 2), vocab, (length,), generator=random)


def whole(real: Tensor | None, tokens: Tensor) -> Tensor:
    """Which tokens are real: all, where nothing else is said."""
    return torch.ones_like(tokens, dtype=torch.bool) if real is None else real


def texts(
    name: str,
    module: nn.Module,
    config: Any,
    call: Call,
    *,
    aligned: bool = False,
    causal: bool | None = False,
    **more: Any,
) -> Subject:
    """A subject whose rows are texts."""
    longest = min(LONGEST, more.pop("context", None) or dict(config).get("context") or LONGEST)
    row, pad = ids(more.pop("vocab", None) or config.vocab), more.pop("pad", FILL)
    found = Subject(
        name, module, row, call, longest, True, aligned, BOTH, pad=pad, causal=causal, smooth=not config.hard
    )
    return replace(found, **more)


def numbers(name: str, module: nn.Module, shape: Sequence[int], call: Call, smooth: bool = True) -> Subject:
    """A subject whose rows are numbers, such as images."""

    def row(length: int, random: torch.Generator) -> Tensor:
        return torch.randn(*shape, generator=random)

    return Subject(name, module, row, call, 1, False, False, (), "rows have no positions", smooth=smooth)


def stepwise(begin: Callable[[Any, int], Any]) -> Step:
    """Steps of a model with a state: `begin` gives the first one for a number of rows."""

    def step(module: nn.Module, inputs: Tensor, sizes: Sequence[int], between: Between) -> Tensor:
        state, parts = begin(module, len(inputs)), []
        for chunk in inputs.split(list(sizes), 1):
            found, state = module(chunk, state)
            parts.append(found)
            between()
        return torch.cat(parts, 1)

    return step


def decoder(name: str, module: nn.Module, config: Any, begin: Callable[[Any, int], Any], vocab: int) -> Subject:
    """The tokens of a decoder, whose state before the first one is the same for all rows."""
    call: Call = lambda m, tokens, real: m(tokens, begin(m, len(tokens)))[0]  # noqa: E731
    return texts(
        name, module, config, call, aligned=True, causal=True, vocab=vocab, step=stepwise(begin), sides=(),
        unpadded="what is generated is not padded",
    )  # fmt: skip


def device_of(module: nn.Module) -> torch.device:
    """Where the weights are."""
    return next(module.parameters()).device
