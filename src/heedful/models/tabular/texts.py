"""How a text becomes one vector: a bag of words, recurrent layers, convolutions, or any encoder.

B texts, T tokens, D width of an embedding, H width of the states in both directions, E width of the vector.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from heedful.blocks.layouts import Padded
from heedful.blocks.recurrent import BidirectionalLayer, Stack
from heedful.blocks.text_filters import Filters
from heedful.models import build
from heedful.models.roles import EncoderConfig
from heedful.models.tabular import config as settings


def mean_over(x: Tensor, real: Tensor) -> Tensor:
    """The mean of the vectors (B, T, D) of real tokens."""
    return (x * real[..., None]).sum(1) / real.sum(1, keepdim=True).clamp(min=1)  # (B, D)


class MeanOfWords(nn.Module):
    """The mean of the tokens' embeddings."""

    def __init__(self, config: settings.MeanOfWords, vocab: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, config.width)

    def forward(self, ids: Tensor, real: Tensor) -> Tensor:
        return mean_over(self.tokens(ids), real)


class RecurrentWords(nn.Module):
    """The mean of the outputs of recurrent layers in both directions."""

    def __init__(self, config: settings.RecurrentWords, vocab: int) -> None:
        super().__init__()
        widths = [config.width] + [2 * config.hidden] * (config.layers - 1)
        self.tokens = nn.Embedding(vocab, config.width)
        self.layers = Stack([BidirectionalLayer(config.cell, width, config.hidden) for width in widths])

    def forward(self, ids: Tensor, real: Tensor) -> Tensor:
        x, _ = self.layers(self.tokens(ids), None, real, False)
        return mean_over(x, real)


class ConvolvedWords(nn.Module):
    """The largest activation of each filter over the tokens."""

    def __init__(self, config: settings.ConvolvedWords, vocab: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, config.width)
        self.filters = nn.ModuleList(Filters(config.width, config.filters, size) for size in config.sizes)

    def forward(self, ids: Tensor, real: Tensor) -> Tensor:
        x = self.tokens(ids).mul(real[..., None]).mT  # (B, D, T)
        parts = [filters(x, real) for filters in self.filters]
        return torch.cat(parts, 1)  # (B, E)


class EncodedText(nn.Module):
    """The vector of a text that an encoder gives to the heads of other tasks."""

    def __init__(self, config: EncoderConfig, vocab: int) -> None:
        super().__init__()
        self.encoder: Any = build(config.model_copy(update={"vocab": vocab}))

    def forward(self, ids: Tensor, real: Tensor) -> Tensor:
        layout = Padded(real, gaps=False)
        x: Tensor = self.encoder(ids, None, layout)
        return self.encoder.summarize(x, layout)  # (B, E)


MODULES: dict[str, Any] = {cls.__name__: cls for cls in (MeanOfWords, RecurrentWords, ConvolvedWords)}


def text_embedder(config: Any, vocab: int) -> tuple[nn.Module, int]:
    """The module that turns texts into vectors, and their width."""
    if isinstance(config, EncoderConfig):
        return EncodedText(config, vocab), config.width
    return MODULES[config.implementation](config, vocab), config.output
