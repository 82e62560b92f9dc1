"""Masks and biases: which keys a query may attend to, and what position adds to a score, as rules over (b, h, q, k).

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

    `diagonal` is set when the rule is exactly k <= q + diagonal, for kernels with a causal mode.
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
    """A mask for sequences packed end to end in one row: query t attends to keys lo[t] ... hi[t] - 1.

    For the backward pass, queries first[s] ... last[s] - 1 attend to key s. lo, hi (T,) and first, last (S,) are int32.
    """

    lo: Tensor
    hi: Tensor
    first: Tensor
    last: Tensor

    def dense(self) -> Tensor:
        keys = torch.arange(len(self.first), device=self.lo.device)  # (S,)
        return (keys >= self.lo[:, None]) & (keys < self.hi[:, None])  # (T, S)


@dataclass(frozen=True, eq=False)
class BlockDiagonal:
    """Each of the sequences packed in one row attends to itself: columns begin[n] ... end[n] - 1, int32 (N + 1,).

    None is longer than `longest`. The last one is empty: the unused columns start there.
    """

    begin: Tensor
    end: Tensor
    longest: int
    number: Tensor  # (T,) the sequence of each column, N for unused columns

    def dense(self) -> Tensor:
        same = self.number == self.number[:, None]  # (T, T)
        return same & (self.number < len(self.begin) - 1)  # (T, T)


@dataclass(frozen=True, eq=False)
class Bias:
    """What is added to a score: a rule over indices (b, h, q, k) -> float; rules are added with `+`.

    `whole` is the same rule for the indices of all queries and keys at once, where there is a faster way than indexing.
    """

    rule: Rule
    whole: Rule | None = None

    def __call__(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return self.rule(b, h, q, k)

    def dense(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        """The rule for the indices of all queries and keys."""
        return self.rule(b, h, q, k) if self.whole is None else self.whole(b, h, q, k)

    def __add__(self, other: "Bias") -> "Bias":
        return Bias(
            lambda b, h, q, k: self(b, h, q, k) + other(b, h, q, k),
            lambda b, h, q, k: self.dense(b, h, q, k) + other.dense(b, h, q, k),
        )


AnyMask = Mask | Ranges | BlockDiagonal | Tensor | None  # None: no mask


def causal(offset: int | Tensor = 0) -> Mask:
    """A query attends to keys up to its own position; `offset` is the position of query 0, after cached keys."""
    return Mask(lambda b, h, q, k: k <= q + offset, offset if isinstance(offset, int) else None)


def window(size: int, offset: int | Tensor = 0) -> Mask:
    """Local attention: keys at most `size` positions away."""
    return Mask(lambda b, h, q, k: (k - q - offset).abs() <= size)


def padding(lengths: Tensor) -> Mask:
    """Keys before each row's length; lengths (B,)."""
    return Mask(lambda b, h, q, k: k < lengths[b])


def real(keys: Tensor) -> Mask:
    """Keys that are not padding; keys (B, S) bool. Padding may be on the left, on the right, or in between."""
    return Mask(lambda b, h, q, k: keys[b, k])


def same(segments: Tensor, queries: Tensor | None = None) -> Mask:
    """Keys of the query's own segment; segments (B, S), and those of the queries (B, T) where they are not the same."""
    of_queries = segments if queries is None else queries
    return Mask(lambda b, h, q, k: segments[b, k] == of_queries[b, q])


def prefix(lengths: Tensor) -> Mask:
    """Every query attends to the first lengths[b] keys."""
    return Mask(lambda b, h, q, k: k < lengths[b])


def order(ranks: Tensor, queries: Tensor | None = None) -> Mask:
    """A query attends to the keys that come before it in a given order; ranks (B, S) is each position's rank.

    Where the queries are at other positions than the keys, `queries` (B, T) are their ranks.
    """
    of_queries = ranks if queries is None else queries
    return Mask(lambda b, h, q, k: ranks[b, k] < of_queries[b, q])


def alibi(heads: int, offset: int | Tensor = 0, at: Tensor | None = None) -> Bias:
    """Attention with linear biases (Press et al., 2022): a slope per head times the distance.

    Where padding may be between tokens, `at`, (S,) or (B, S), are their positions.
    """

    def position(b: Tensor, i: Tensor) -> Tensor:
        if at is None:
            return i
        return at[i] if at.dim() == 1 else at[b, i]

    def rule(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return -torch.exp2(-8.0 * (h + 1) / heads) * (position(b, q) + offset - position(b, k)).abs()

    return Bias(rule)


def dense(rule: Mask | Bias, queries: Tensor, keys: Tensor) -> Tensor:
    """The rule as a tensor that broadcasts to (B, H, T, S), for queries (B, H, T, K) and keys (B, H, S, K)."""
    b, h, q = (torch.arange(n, device=queries.device) for n in queries.shape[:3])
    k = torch.arange(keys.shape[2], device=queries.device)
    whole = rule.dense if isinstance(rule, Bias) else rule
    return whole(b[:, None, None, None], h[:, None, None], q[:, None], k)
