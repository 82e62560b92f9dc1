"""Recurrent text classifier: a bidirectional LSTM, GRU or plain RNN, and a linear layer on its final states.

B texts, T words, D width of a word vector, H hidden width, both directions together, C classes.
"""

import torch
from torch import Tensor, nn

from heedful.blocks.layouts import Padded
from heedful.blocks.linear import Linear
from heedful.blocks.recurrent import CELLS, BidirectionalLayer, Layer, Stack
from heedful.models.rnn_classifier.config import RnnClassifierConfig


class RnnClassifier(nn.Module):
    """tokens (B, T) -> logits (B, C): a linear layer on the final states, or on the mean or maximum of all."""

    def __init__(self, config: RnnClassifierConfig) -> None:
        super().__init__()
        self.config = c = config
        assert c.vocab is not None and c.labels is not None, "both come from the training data"
        self.tokens = nn.Embedding(c.vocab, c.width)
        nn.init.uniform_(self.tokens.weight, -0.25, 0.25)
        self.tokens.requires_grad_(not c.freeze)
        layer = BidirectionalLayer if c.directions == "both" else Layer
        widths = [c.width] + [c.hidden] * (c.layers - 1)
        self.stack = Stack([layer(c.cell, width, c.each) for width in widths], c.dropout)
        self.dropout = nn.Dropout(c.dropout)
        self.head = Linear(c.hidden, len(c.labels))

    def forward(self, tokens: Tensor, segments: Tensor | None = None, layout: Padded | None = None) -> Tensor:
        real = torch.ones_like(tokens, dtype=torch.bool) if layout is None else layout.real  # (B, T)
        x, states = self.stack(self.tokens(tokens), None, real)  # (B, T, H)
        match self.config.pool:
            case "last":
                x = torch.cat(states[-1][:: CELLS[self.config.cell].parts], -1)  # (B, H)
            case "mean":
                x = x.sum(1) / real.sum(1, keepdim=True).clamp(min=1)  # (B, H)
            case "max":
                x = x.masked_fill(~real[:, :, None], -1.0).amax(1)  # (B, H)
        return self.head(self.dropout(x))  # (B, C)
