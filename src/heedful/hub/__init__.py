"""Import and export: Hugging Face folders, TensorFlow checkpoints, sentence-transformers folders."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__all__ = ["Pretrained", "pretrained", "write"]

if TYPE_CHECKING:
    from heedful.hub.loading import Pretrained, pretrained
    from heedful.hub.writing import write

_MODULES = {"Pretrained": "heedful.hub.loading", "pretrained": "heedful.hub.loading", "write": "heedful.hub.writing"}


def __getattr__(name: str) -> object:
    """Public names are imported on first use, so that settings can be read without torch."""
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'heedful.hub' has no attribute {name!r}")
