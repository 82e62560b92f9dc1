"""Convolutional text classifier (Kim, 2014).

Filters of several sizes slide over the word vectors; max pooling over time keeps the largest activation of each filter.

Differs: texts are zero-padded at both ends, so that each word is seen by every column of a filter.

B texts, T words, D width, K filters of all sizes, C classes.
"""

import torch
from torch import Tensor, nn

from heedful.blocks.layouts import Padded, real_first
from heedful.blocks.linear import Linear
from heedful.blocks.text_filters import Filters
from heedful.models.conv_classifier.config import ConvClassifierConfig


class ConvClassifier(nn.Module):
    """tokens (B, T) -> logits (B, C): a linear layer on the largest activation of each filter."""

    def __init__(self, config: ConvClassifierConfig) -> None:
        super().__init__()
        self.config = c = config
        assert c.vocab is not None and c.labels is not None, "both come from the training data"
        self.tokens = nn.Embedding(c.vocab, c.width)
        nn.init.uniform_(self.tokens.weight, -0.25, 0.25)
        self.tokens.requires_grad_(not c.freeze)
        self.filters = nn.ModuleList(Filters(c.width, c.filters, size) for size in c.sizes)
        self.dropout = nn.Dropout(c.dropout)
        self.head = Linear(len(c.sizes) * c.filters, len(c.labels))

    def forward(self, tokens: Tensor, segments: Tensor | None = None, layout: Padded | None = None) -> Tensor:
        real = torch.ones_like(tokens, dtype=torch.bool) if layout is None else layout.real  # (B, T)
        if layout is not None:  # move padding to the end, so that words are adjacent
            to = real_first(real)  # (B, T)
            tokens, real = (torch.zeros_like(part).scatter(1, to, part) for part in (tokens, real))
        x = self.tokens(tokens).mul(real[..., None]).mT  # (B, D, T)
        x = torch.cat([filters(x, real) for filters in self.filters], 1)  # (B, K)
        return self.head(self.dropout(x))  # (B, C)
