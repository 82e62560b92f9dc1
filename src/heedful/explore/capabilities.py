"""The capabilities of models and tokenizers that views need, as protocols: a view names no class of a model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor


def part_of(module: torch.nn.Module, name: str) -> Any:
    """The submodule or parameter of a name, or None.

    Runtime protocols see those only up to Python 3.11, since torch keeps them apart from attributes.
    """
    return dict(module.named_children()).get(name, dict(module.named_parameters(recurse=False)).get(name))


@runtime_checkable
class Encodes(Protocol):
    """An encoder that gives the vectors of each of its layers."""

    config: Any

    def layers(self, tokens: Tensor) -> Any: ...

    def pool(self, first: Tensor) -> Tensor: ...


@runtime_checkable
class Aligns(Protocol):
    """A model whose decoder attends to the source."""

    alignment: str  # the taps of this attention's weights


@runtime_checkable
class HasBlocks(Protocol):
    """An encoder whose blocks of tokens attend to some blocks."""

    config: Any

    def block_kinds(self, length: int, padded: int = 0) -> Tensor: ...


@runtime_checkable
class LogitLens(Protocol):
    """A model whose output layer can be applied to the output of any layer."""

    lens_taps: str | None  # the taps of these outputs


@runtime_checkable
class HasHeads(Protocol):
    """An attention with several heads."""

    heads: int


@runtime_checkable
class HasScore(Protocol):
    """An attention whose score function can be chosen."""

    score: Any


@runtime_checkable
class HasNormalize(Protocol):
    """An attention whose normalization can be chosen."""

    normalize: Any


@runtime_checkable
class HasPositions(Protocol):
    """The settings of a model with a choice of position encodings."""

    positions: str
    heads: int


@runtime_checkable
class HasDistances(Protocol):
    """The settings of a model whose attention depends on distances, of which larger ones can be clamped."""

    clamp: int | None
    context: int
    width: int


@runtime_checkable
class HasPieces(Protocol):
    """A tokenizer that gives the text of each token."""

    def pieces(self, ids: Iterable[int]) -> list[str]: ...


@runtime_checkable
class HasUnknown(Protocol):
    """A tokenizer with a token for unknown words."""

    unk: int
