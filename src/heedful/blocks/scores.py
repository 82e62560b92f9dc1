"""How a query and a key are compared: the six scores of the lectures.

A score with weights projects the keys once, in `project_keys`; `compare` then takes queries and projected keys.

B batch, H heads, T queries, S keys, K width of one head, M width of a key.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.blocks.linear import Linear

Score = Callable[[Tensor, Tensor], Tensor]
ROOM = 1 << 25  # values that the hidden layer of the additive score may hold at once


def dot(q: Tensor, k: Tensor) -> Tensor:
    """q . k"""
    return q @ k.mT  # (B, H, T, S)


def scaled_dot(q: Tensor, k: Tensor) -> Tensor:
    """q . k / sqrt(K): unit-variance inputs give unit-variance scores; divided first, against overflow in fp16."""
    return (q / math.sqrt(q.shape[-1])) @ k.mT  # (B, H, T, S)


@dataclass(frozen=True)
class DepthScaledDot:
    """q . k / (n sqrt(K)) in block n, counted from 1 (Karamcheti et al., 2021)."""

    block: int

    def __call__(self, q: Tensor, k: Tensor) -> Tensor:
        return scaled_dot(q / self.block, k)  # (B, H, T, S)


def cosine(q: Tensor, k: Tensor) -> Tensor:
    """cos(q, k): independent of the vectors' lengths."""
    return F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT  # (B, H, T, S)


class Weightless(nn.Module):
    """A score without weights, such as `dot`, with the interface of those that have weights."""

    def __init__(self, score: Score) -> None:
        super().__init__()
        self.compare = score

    def project_keys(self, k: Tensor, at: Tensor) -> Tensor:
        return k


class General(nn.Module):
    """q W k (Luong et al., 2015): queries and keys may differ in width."""

    def __init__(self, query_width: int, key_width: int) -> None:
        super().__init__()
        self.matrix = Linear(key_width, query_width, bias=False)

    def project_keys(self, k: Tensor, at: Tensor | None = None) -> Tensor:
        return self.matrix(k)

    def compare(self, q: Tensor, k: Tensor) -> Tensor:
        return dot(q, k)  # (B, H, T, S)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return self.compare(q, self.project_keys(k))  # (B, H, T, S)


class Additive(nn.Module):
    """v . tanh(W_q q + W_k k) (Bahdanau et al., 2015): one hidden layer on [k; q] with a single output."""

    def __init__(self, query_width: int, key_width: int, hidden: int) -> None:
        super().__init__()
        self.q = Linear(query_width, hidden, bias=False)
        self.k = Linear(key_width, hidden, bias=False)
        self.v = Linear(hidden, 1, bias=False)

    def project_keys(self, k: Tensor, at: Tensor | None = None) -> Tensor:
        return self.k(k)

    def compare(self, q: Tensor, k: Tensor) -> Tensor:
        q = self.q(q)
        v = self.v.weight[0].to(q.dtype)
        if torch.compiler.is_exporting() or (q.numel() * k.shape[-2] <= ROOM and not torch.is_grad_enabled()):
            return torch.tanh(q[..., :, None, :] + k[..., None, :, :]) @ v  # (B, H, T, S)
        scores: Tensor = _Additive.apply(q, k.to(q.dtype), v)
        return scores  # (B, H, T, S)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return self.compare(q, self.project_keys(k))  # (B, H, T, S)


class _Additive(torch.autograd.Function):
    """v . tanh(q + k) in blocks of queries and keys, so that the hidden layer (B, H, T, S, K) is never stored whole.

    Backward recomputes it block by block.
    """

    apply: ClassVar[Callable[..., Tensor]]  # inherited, where it has no type

    @staticmethod
    def pieces(q: Tensor, k: Tensor) -> list[tuple[slice, slice]]:
        """Slices of queries and of keys that together cover all pairs."""
        (queries, keys), one = (q.shape[-2], k.shape[-2]), q.numel() // max(q.shape[-2], 1)
        wide = max(1, min(keys, ROOM // max(one, 1)))
        high = max(1, min(queries, ROOM // max(one * wide, 1)))
        rows, columns = range(0, queries, high), range(0, keys, wide)
        return [(slice(row, row + high), slice(column, column + wide)) for row in rows for column in columns]

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        ctx.save_for_backward(q, k, v)
        scores = q.new_empty(*q.shape[:-1], k.shape[-2])  # (B, H, T, S)
        for row, column in _Additive.pieces(q, k):
            scores[..., row, column] = torch.tanh(q[..., row, None, :] + k[..., None, column, :]) @ v
        return scores

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = ctx.saved_tensors
        grad_q, grad_k, grad_v = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for row, column in _Additive.pieces(q, k):
            hidden, part = torch.tanh(q[..., row, None, :] + k[..., None, column, :]), grad[..., row, column]
            grad_v += part.flatten() @ hidden.flatten(0, -2)
            inner = part[..., None] * (v * (1 - hidden * hidden))
            grad_q[..., row, :] += inner.sum(-2)
            grad_k[..., column, :] += inner.sum(-3)
        return grad_q, grad_k, grad_v


class Location(nn.Module):
    """(W q)_s (Luong et al., 2015): depends on the query and the key's position alone; at most `longest` keys."""

    def __init__(self, query_width: int, longest: int) -> None:
        super().__init__()
        self.matrix = Linear(query_width, longest, bias=False)

    def project_keys(self, k: Tensor, at: Tensor) -> Tensor:
        """The rows of W at the positions of the keys (B, S, M), which need not be their indices."""
        return self.matrix.weight[at].expand(*k.shape[:2], -1)

    def compare(self, q: Tensor, k: Tensor) -> Tensor:
        return dot(q, k)  # (B, H, T, S)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        if k.shape[-2] > len(self.matrix.weight):
            raise ValueError(f"location attention was built for {len(self.matrix.weight)} keys, got {k.shape[-2]}")
        return self.matrix(q)[..., : k.shape[-2]]  # (B, H, T, S)


def with_key_projection(score: Score) -> Weightless | General | Additive | Location:
    """The score as a module with `project_keys` and `compare`."""
    return score if isinstance(score, General | Additive | Location) else Weightless(score)


# By name; each entry builds a score for queries and keys of these widths, and at most `longest` keys.
SCORES: dict[str, Callable[[int, int, int], Score]] = {
    "scaled_dot": lambda query_width, key_width, longest: scaled_dot,
    "dot": lambda query_width, key_width, longest: dot,
    "cosine": lambda query_width, key_width, longest: cosine,
    "general": lambda query_width, key_width, longest: General(query_width, key_width),
    "additive": lambda query_width, key_width, longest: Additive(query_width, key_width, query_width),
    "location": lambda query_width, key_width, longest: Location(query_width, longest),
}


def head_score(name: str, width: int) -> Score:
    """The score of that name for attention heads of this width; the heads share its weights."""
    return SCORES[name](width, width, 0)
