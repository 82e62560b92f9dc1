"""Models compiled with torch.compile, for training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class CompiledModel:
    """The embedding of a model and its compiled `read`; the model itself is unchanged."""

    tokens: Any
    read: Callable[..., Any]


@dataclass(frozen=True)
class CompiledSteps:
    """The embedding of a model and its compiled `features`, for windows that continue from a state."""

    tokens: Any
    features: Callable[..., Any]


def compile_model(model: Any, dynamic: bool) -> CompiledModel:
    """A model whose `read` is compiled; `dynamic` for batches of many shapes."""
    return CompiledModel(model.tokens, torch.compile(model.read, dynamic=dynamic))


def compile_steps(model: Any) -> CompiledSteps:
    """A model whose `features` is compiled, for windows that continue from a state."""
    return CompiledSteps(model.tokens, torch.compile(model.features, dynamic=False))
