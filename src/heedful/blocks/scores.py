"""How a query and a key are compared: the six scores of the lectures.

B batch, H heads, T queries, S keys, K width of one head.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.blocks.linear import Linear

Score = Callable[[Tensor, Tensor], Tensor]


def dot(q: Tensor, k: Tensor) -> Tensor:
    """q . k"""
    return q @ k.mT  # (B, H, T, S)


def scaled_dot(q: Tensor, k: Tensor) -> Tensor:
    """q . k / sqrt(K), so that unit-variance inputs give unit-variance scores (divided first: half floats overflow)."""
    return (q / math.sqrt(q.shape[-1])) @ k.mT  # (B, H, T, S)


def cosine(q: Tensor, k: Tensor) -> Tensor:
    """cos(q, k): blind to lengths."""
    return F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT  # (B, H, T, S)


class General(nn.Module):
    """q W k (Luong et al., 2015): queries and keys may differ in width."""

    def __init__(self, query_width: int, key_width: int) -> None:
        super().__init__()
        self.matrix = Linear(key_width, query_width, bias=False)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ self.matrix(k).mT  # (B, H, T, S)


class Additive(nn.Module):
    """v . tanh(W_q q + W_k k) (Bahdanau et al., 2015): one hidden layer on [k; q] with a single output."""

    def __init__(self, query_width: int, key_width: int, hidden: int) -> None:
        super().__init__()
        self.q = Linear(query_width, hidden, bias=False)
        self.k = Linear(key_width, hidden, bias=False)
        self.v = Linear(hidden, 1, bias=False)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        hidden = torch.tanh(self.q(q)[..., :, None, :] + self.k(k)[..., None, :, :])  # (B, H, T, S, hidden)
        return self.v(hidden).squeeze(-1)  # (B, H, T, S)


class Location(nn.Module):
    """(W q)_s: the weights depend on the query alone, not on what the keys hold; at most `longest` keys."""

    def __init__(self, query_width: int, longest: int) -> None:
        super().__init__()
        self.matrix = Linear(query_width, longest, bias=False)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        if k.shape[-2] > len(self.matrix.weight):
            raise ValueError(f"location attention was built for {len(self.matrix.weight)} keys, got {k.shape[-2]}")
        return self.matrix(q)[..., : k.shape[-2]]  # (B, H, T, S)
