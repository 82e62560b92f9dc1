"""Token embeddings that also compute the logits.

B batch, T positions, D width, V vocabulary.
"""

import math
from abc import abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.blocks.linear import linear
from heedful.blocks.losses import Loss, projected_cross_entropy


class Embedding(nn.Module):
    """x = s E[tokens], logits = x W^T + b; by default s = sqrt(D)."""

    weight: Tensor  # W (V, D)
    bias: Tensor | None  # b (V,)

    def __init__(self, width: int, scale: float | None = None) -> None:
        super().__init__()
        self.scale = math.sqrt(width) if scale is None else scale
        self.register_parameter("bias", None)

    @property
    @abstractmethod
    def table(self) -> Tensor:
        """The vectors of the input, E (V, D)."""

    def forward(self, tokens: Tensor) -> Tensor:
        x = F.embedding(tokens, self.table)  # (B, T, D)
        return x if self.scale == 1 else x * self.scale

    def logits(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)  # (B, T, V)

    def loss(self, x: Tensor, targets: Tensor, ignore: int = -100, smoothing: float = 0.0) -> Loss:
        """-sum log p(target) for x (N, D) and targets (N,)."""
        return projected_cross_entropy(x, self.weight, targets, smoothing, ignore, self.bias)


class TiedEmbedding(Embedding):
    """Input and output embedding with shared weights, W = E (Press and Wolf, 2017).

    By default E is initialized with standard deviation 1 / s (Vaswani et al., 2017).
    """

    def __init__(self, vocab: int, width: int, scale: float | None = None) -> None:
        super().__init__(width, scale)
        self.weight = nn.Parameter(torch.randn(vocab, width) * width**-0.5)

    @property
    def table(self) -> Tensor:
        return self.weight


class BiasedEmbedding(Embedding):
    """Shared weights, and a bias for each logit, as in Marian (Junczys-Dowmunt et al., 2018)."""

    def __init__(self, vocab: int, width: int, scale: float | None = None) -> None:
        super().__init__(width, scale)
        self.weight = nn.Parameter(torch.randn(vocab, width) * width**-0.5)
        self.bias = nn.Parameter(torch.zeros(vocab))

    @property
    def table(self) -> Tensor:
        return self.weight


class UntiedEmbedding(Embedding):
    """An output matrix of its own, as before weights were shared."""

    def __init__(self, vocab: int, width: int, scale: float | None = None) -> None:
        super().__init__(width, scale)
        self.weight = nn.Parameter(torch.randn(vocab, width) * width**-0.5)
        self.input = nn.Parameter(torch.randn(vocab, width) * width**-0.5)

    @property
    def table(self) -> Tensor:
        return self.input


class UntiedBiasedEmbedding(UntiedEmbedding):
    """An output matrix of its own, and a bias for each logit."""

    def __init__(self, vocab: int, width: int, scale: float | None = None) -> None:
        super().__init__(vocab, width, scale)
        self.bias = nn.Parameter(torch.zeros(vocab))


EMBEDDINGS: dict[str, type[TiedEmbedding | BiasedEmbedding | UntiedEmbedding]] = {
    "tied": TiedEmbedding,
    "biased": BiasedEmbedding,
    "untied": UntiedEmbedding,
    "untied_biased": UntiedBiasedEmbedding,
}
