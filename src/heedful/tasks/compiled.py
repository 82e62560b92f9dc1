"""Models compiled with torch.compile, for training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Compiled:
    """A compiled method of a model; the model itself is unchanged."""

    tokens: Any
    read: Callable[..., Any]


def compiled(model: Any, dynamic: bool) -> Compiled:
    """The same model, compiled: `dynamic` for batches of many shapes."""
    return Compiled(model.tokens, torch.compile(model.read, dynamic=dynamic))
