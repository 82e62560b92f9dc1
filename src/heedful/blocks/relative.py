"""Relative positions (Dai et al., 2019): a score depends on how far a key is from a query, not on where both are.

    score(i, j) = ((q_i + u) . k_j + (q_i + v) . r_{i-j}) / sqrt(K)

The first term is the scaled dot product of q + u with the keys. The second, the distance term, is a bias rule:

    r = split(W_r distance_sinusoids(distances(T, S, offset, device), D))
    attend(q + u, k, values, mask, relative_bias(q + v, r))

B batch, H heads, T queries, S keys, P = S + T - 1 distances, D width, K width of one head.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.blocks.masks import Bias


def distances(
    queries: int, keys: int, offset: int, device: torch.device | None = None, clamp: int | None = None
) -> Tensor:
    """All distances i - j of T queries and S keys, from the largest to the smallest; negative for later keys.

    Query 0 is at the position of key `offset`. Distances beyond `clamp`, in either direction, become `clamp`.
    """
    found = torch.arange(offset + queries - 1, offset - keys, -1, device=device)  # (P,)
    return found if clamp is None else found.clamp(-clamp, clamp)


def distance_sinusoids(distances: Tensor, width: int) -> Tensor:
    """[sin(d / 10000^(2j/D)); cos(d / 10000^(2j/D))] for distances d (P,): sines on the left, cosines on the right."""
    if width % 2:
        raise ValueError(f"sinusoids come in pairs: the width must be even, got {width}")
    rate = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64, device=distances.device) / width)
    angle = distances[:, None] * rate
    return torch.cat([angle.sin(), angle.cos()], -1)  # (P, D)


def relative_bias(q: Tensor, r: Tensor) -> Bias:
    """q_i . r_{i-j} / sqrt(K), for queries (B, H, T, K), to which v is added, and distance keys (H, P, K).

    The distance keys are in the order of `distances`, so that key s is r[T - 1 - t + s] for query t. All products of
    queries and distances are computed once; the bias is a view of them, in which row t starts T - 1 - t further right.
    """
    queries, count = q.shape[2], r.shape[-2]
    terms = ((q / math.sqrt(q.shape[-1])) @ r.mT).contiguous()  # (B, H, T, P)
    batch, head, row, _ = terms.stride()
    view = terms.as_strided((*terms.shape[:3], count - queries + 1), (batch, head, row - 1, 1), queries - 1)
    return Bias(lambda b, h, q, k: terms[b, h, q, queries - 1 - q + k], lambda b, h, q, k: view)


def gathered_bias(q: Tensor, r: Tensor, index: Tensor) -> Bias:
    """The same for queries at any positions: index (B, 1, T, S) is the distance key of each pair."""
    terms = (q / math.sqrt(q.shape[-1])) @ r.mT  # (B, H, T, P)

    def whole(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return terms.gather(-1, index.expand(*terms.shape[:3], -1))  # (B, H, T, S)

    return Bias(lambda b, h, q, k: terms[b, h, q, index[b, 0, q, k]], whole)


def segment_bias(distance: Bias, q: Tensor, segments: Tensor, same: Tensor) -> Bias:
    """The distance term, plus q_i . (e_same - e_other) / sqrt(K) where a key is in the query's own segment.

    Queries (B, H, T, K), to which s is added; segments (2, H, K) are e_same and e_other; same (B, 1, T, S). Published
    is q_i . e_same or q_i . e_other: the same weights, since what all scores of a query share does not change them.
    """
    same_less_other = (segments[0] - segments[1])[:, :, None]  # (H, K, 1)
    term = (q / math.sqrt(q.shape[-1])) @ same_less_other.to(q.dtype)  # (B, H, T, 1)

    def whole(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        found = distance.dense(b, h, q, k)  # (B, H, T, S)
        return torch.addcmul(found, same.to(found.dtype), term.to(found.dtype))  # (B, H, T, S)

    return Bias(lambda b, h, q, k: distance(b, h, q, k) + torch.where(same[b, 0, q, k], term[b, h, q, 0], 0.0), whole)


@dataclass(frozen=True)
class RankedPairs:
    """Distances, masks and segments of the queries of all streams and of the keys as int32, which a kernel compares.

    Key s has the distance key base + s of a query. A query attends to the keys whose ranks are below its limit. In the
    first stream, the base falls by one from query to query, to 0.
    """

    sizes: tuple[int, ...]  # T of each stream, Q in all
    base: Tensor  # (B, Q)
    limit: Tensor  # (B, Q)
    segment: Tensor  # (B, Q)
    ranks: Tensor  # (B, S)
    segments: Tensor  # (B, S)


def relative_attention(
    q: tuple[Tensor, Tensor, Tensor],
    k: Tensor,
    v: Tensor,
    r: Tensor,
    segments: Tensor,
    pairs: RankedPairs,
    dropout: float,
) -> Tensor:
    """Attention with the terms of distance and segment in a Triton kernel; the same values as `attend` with biases.

    q are the queries (B, H, Q, K) for contents, distances and segments: each with its own vector added.
    """
    from heedful.blocks.kernels import relative  # needs Triton, which comes with torch's GPU builds only

    content, distance, segment = q
    same = (segment * (segments[0] - segments[1])[:, None].to(segment.dtype)).sum(-1).contiguous()  # (B, H, Q)
    first, *others = distance.split(list(pairs.sizes), 2)
    terms = [consecutive_terms(first, r, k.shape[2]), *(distance_terms(other, r) for other in others)]
    rules = (pairs.base, pairs.segment, pairs.segments, pairs.limit, pairs.ranks)
    return relative.attend(content, k, v, same, terms, *rules, dropout)  # (B, H, Q, K)


def distance_terms(q: Tensor, r: Tensor) -> Tensor:
    """The products of queries (B, H, T, K) and distances as the kernel reads them: one group and class."""
    r = F.pad(r, (0, 0, 0, -r.shape[1] % 16))  # (H, P, K) products of even sizes are faster
    return (q.transpose(0, 1).flatten(1, 2) @ r.mT)[None, None]  # (1, 1, H, B * T, P)


def consecutive_terms(q: Tensor, r: Tensor, keys: int) -> Tensor:
    """The same for queries at consecutive positions, by groups and classes if their number is a multiple of 8."""
    queries = q.shape[2]
    if queries % 8:
        return distance_terms(q, r)
    group = next((size for size in range(128, 63, -8) if queries % size == 0), queries)  # G
    width = group + keys + -(group + keys) % 16  # P
    r = F.pad(r, (0, 0, 8, width + queries - group - r.shape[1]))
    classes = torch.stack([r[:, 7 - c : 7 - c + queries - group + width] for c in range(8)])  # (8, H, T - G + P, K)
    starts = range(queries - group, -1, -group)
    groups = torch.stack([classes[:, :, start : start + width] for start in starts])  # (T / G, 8, H, P, K)
    rows = q.unflatten(2, (len(groups), -1, 8)).permute(2, 4, 1, 0, 3, 5).flatten(3, 4)  # (T / G, 8, H, B * G / 8, K)
    return rows @ groups.mT  # (T / G, 8, H, B * G / 8, P)
