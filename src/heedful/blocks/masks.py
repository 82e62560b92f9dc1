"""Masks and biases: which keys a query may attend to, and how position shifts a score, as rules over (b, h, q, k).

The rules have FlexAttention's signature, are combined with `&`, `|` and `+`, and become tensors where they are needed.

B batch, H heads, T queries, S keys, K width of one head.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Rule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Mask:
    """Which keys a query may attend to: a rule over indices (b, h, q, k) -> bool, with FlexAttention's signature.

    `diagonal` is set when the rule is k <= q + diagonal and nothing else: kernels that know triangles may use it.
    """

    rule: Rule
    diagonal: int | None = None

    def __call__(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return self.rule(b, h, q, k)

    def __and__(self, other: "Mask") -> "Mask":
        return Mask(lambda b, h, q, k: self(b, h, q, k) & other(b, h, q, k))

    def __or__(self, other: "Mask") -> "Mask":
        return Mask(lambda b, h, q, k: self(b, h, q, k) | other(b, h, q, k))


@dataclass(frozen=True, eq=False)
class Ranges:
    """The same for sequences packed end to end in one row: query t sees keys lo[t] ... hi[t] - 1.

    On the way back, key s is seen by queries first[s] ... last[s] - 1; lo, hi (T,) and first, last (S,) are int32.
    """

    lo: Tensor
    hi: Tensor
    first: Tensor
    last: Tensor

    def dense(self) -> Tensor:
        place = torch.arange(len(self.first), device=self.lo.device)  # (S,)
        return (place >= self.lo[:, None]) & (place < self.hi[:, None])  # (T, S)


@dataclass(frozen=True, eq=False)
class Together:
    """Sequences packed in one row, each of which attends to itself: columns begin[n] ... end[n] - 1, int32 (N + 1,).

    None is longer than `longest`. The last one is empty: there begins what is left over.
    """

    begin: Tensor
    end: Tensor
    longest: int
    number: Tensor  # (T,) the sequence of each column, N where it is left over

    def dense(self) -> Tensor:
        same = self.number == self.number[:, None]  # (T, T)
        return same & (self.number < len(self.begin) - 1)  # (T, T)


@dataclass(frozen=True, eq=False)
class Bias:
    """By how much a score is shifted: a rule over the same four indices -> float; rules add up with `+`."""

    rule: Rule

    def __call__(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return self.rule(b, h, q, k)

    def __add__(self, other: "Bias") -> "Bias":
        return Bias(lambda b, h, q, k: self(b, h, q, k) + other(b, h, q, k))


Visible = Mask | Ranges | Together | Tensor | None  # None: everything


def causal(offset: int | Tensor = 0) -> Mask:
    """A query attends to keys up to its own position; `offset` is that of query 0, when a cache holds earlier keys."""
    return Mask(lambda b, h, q, k: k <= q + offset, offset if isinstance(offset, int) else None)


def window(size: int, offset: int | Tensor = 0) -> Mask:
    """Local attention: keys at most `size` positions away."""
    return Mask(lambda b, h, q, k: (k - q - offset).abs() <= size)


def padding(lengths: Tensor) -> Mask:
    """Keys before each row's length; lengths (B,)."""
    return Mask(lambda b, h, q, k: k < lengths[b])


def real(keys: Tensor) -> Mask:
    """Keys that are marked; keys (B, S) bool. Padding may then stand on the left, on the right, or between."""
    return Mask(lambda b, h, q, k: keys[b, k])


def same(segments: Tensor) -> Mask:
    """Keys of the query's own segment; segments (B, S)."""
    return Mask(lambda b, h, q, k: segments[b, q] == segments[b, k])


def prefix(lengths: Tensor) -> Mask:
    """Every query attends to the first lengths[b] keys."""
    return Mask(lambda b, h, q, k: k < lengths[b])


def order(ranks: Tensor) -> Mask:
    """A query attends to the keys that come before it in a given order; ranks (B, S) is each position's rank."""
    return Mask(lambda b, h, q, k: ranks[b, k] < ranks[b, q])


def alibi(heads: int, offset: int | Tensor = 0, at: Tensor | None = None) -> Bias:
    """Attention with linear biases (Press et al., 2022): a slope a head times the distance.

    Where padding may stand between tokens, `at`, (S,) or (B, S), gives their positions.
    """

    def place(b: Tensor, i: Tensor) -> Tensor:
        if at is None:
            return i
        return at[i] if at.dim() == 1 else at[b, i]

    def rule(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return -torch.exp2(-8.0 * (h + 1) / heads) * (place(b, q) + offset - place(b, k)).abs()

    return Bias(rule)


def dense(rule: Mask | Bias, queries: Tensor, keys: Tensor) -> Tensor:
    """The rule as a tensor that broadcasts to (B, H, T, S), for queries (B, H, T, K) and keys (B, H, S, K)."""
    b, h, q = (torch.arange(n, device=queries.device) for n in queries.shape[:3])
    k = torch.arange(keys.shape[2], device=queries.device)
    return rule(b[:, None, None, None], h[:, None, None], q[:, None], k)
