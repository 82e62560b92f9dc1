"""The table of models; torch and the model's own file are imported when one is built."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from heedful.models.configs import TransformerConfig

if TYPE_CHECKING:
    from torch import nn

MODELS = {"transformer": ("heedful.models.transformer", "Transformer", TransformerConfig)}


def build(config: TransformerConfig) -> nn.Module:
    """Make the model that a config describes, its weights freshly drawn."""
    module, name, _ = MODELS[config.kind]
    model: nn.Module = getattr(importlib.import_module(module), name)(config)
    return model
