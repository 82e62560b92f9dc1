"""Token embeddings that also give the logits.

B batch, T positions, D width, V vocabulary.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.blocks.linear import project


class Tied(nn.Module):
    """x = E[tokens] sqrt(D) coming in, logits = x E^T going out (Press and Wolf, 2017; Vaswani et al., 2017)."""

    def __init__(self, vocab: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(vocab, width) * width**-0.5)
        self.scale = math.sqrt(width)

    def forward(self, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self.weight) * self.scale  # (B, T, D)

    def logits(self, x: Tensor) -> Tensor:
        return project(x, self.weight)  # (B, T, V)
