"""A model whose reading is compiled, for training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Compiled:
    """A model's own method through torch.compile; the model itself stays as it is."""

    tokens: Any
    read: Callable[..., Any]


def compiled(model: Any, dynamic: bool) -> Compiled:
    """The same model, compiled: `dynamic` for batches of many shapes."""
    return Compiled(model.tokens, torch.compile(model.read, dynamic=dynamic))
