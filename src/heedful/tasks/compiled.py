"""Models compiled with torch.compile, for training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Compiled:
    """The compiled `read` of a model; the model itself is unchanged."""

    tokens: Any
    read: Callable[..., Any]


@dataclass(frozen=True)
class CompiledSteps:
    """The compiled `features` of a model, for windows that continue from a state."""

    tokens: Any
    features: Callable[..., Any]


def compiled(model: Any, dynamic: bool) -> Compiled:
    """The same model, compiled: `dynamic` for batches of many shapes."""
    return Compiled(model.tokens, torch.compile(model.read, dynamic=dynamic))


def compiled_steps(model: Any) -> CompiledSteps:
    """The same model, compiled, for windows that continue from a state."""
    return CompiledSteps(model.tokens, torch.compile(model.features, dynamic=False))
