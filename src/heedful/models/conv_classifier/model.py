"""Convolution over words (Kim, 2014): a class from the runs of words that filters find in a text.

Filters of several sizes slide over the word vectors; of each, only its largest answer in the whole text is kept.

Differs: what lies beyond a text's ends is zeros, so that each word is seen at every place of a filter.

B texts, T words, D width, F filters of one size, P places of such a filter, K filters of all sizes, C classes.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.blocks.layouts import Padded, real_first
from heedful.blocks.linear import Linear
from heedful.models.conv_classifier.config import ConvClassifierConfig


class Filters(nn.Module):
    """max over positions of relu(W * x + b), of filters of one size, where they cover a word."""

    def __init__(self, width: int, filters: int, size: int) -> None:
        super().__init__()
        self.size = size
        self.slide = nn.Conv1d(width, filters, size, padding=size - 1)

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        beyond = (self.size - 1, self.size - 1)
        seen = F.pad(real, beyond).unfold(1, self.size, 1).any(-1)  # (B, P)
        answers = F.relu(self.slide(x))  # (B, F, P)
        return (answers * seen[:, None]).amax(-1)  # (B, F)


class ConvClassifier(nn.Module):
    """tokens (B, T) -> logits (B, C): a linear layer on the largest answer of each filter."""

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

    def forward(
        self, tokens: Tensor, segments: Tensor | None = None, layout: Padded | None = None, first: Tensor | None = None
    ) -> Tensor:
        real = torch.ones_like(tokens, dtype=torch.bool) if layout is None else layout.real  # (B, T)
        if layout is not None:  # a filter sees words side by side, wherever there is padding
            to = real_first(real)  # (B, T)
            tokens, real = (torch.zeros_like(part).scatter(1, to, part) for part in (tokens, real))
        x = self.tokens(tokens).mul(real[..., None]).mT  # (B, D, T)
        x = torch.cat([filters(x, real) for filters in self.filters], 1)  # (B, K)
        return self.head(self.dropout(x))  # (B, C)
