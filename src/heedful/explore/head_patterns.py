"""What each attention head of a model does over several texts: the name of its pattern, and what is unusual in a text.

A head has a named pattern if at least half of its weight is on that key: the token itself, the previous, the next or
the first token, or a delimiter (a special token or punctuation). Of several, the largest share counts. Any other head
is positional if its mean weights by distance in the other texts account for at least 70 % of its weight in a text, and
content otherwise. Special tokens and the first two tokens are left out as queries: there the keys of several patterns
are the same token.

L layers, H heads, T queries, S keys, O distances, P patterns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.explore.inspect import SLOTS, Attention, Token, Trace

NAMED = ("first token", "delimiter", "self", "previous token", "next token")  # the last three within one text
PATTERNS = (*NAMED, "positional", "content")
SHARE, EXPLAINED = 0.5, 0.7
NEAR = 3  # tokens between two words of a text that make a finding
FAR = 64  # tokens; longer texts are left out, and larger distances have no mean


class Means(NamedTuple):
    """The weights of each head in one text by the distance from query to key: sums (L, H, O), and how many (O)."""

    text: str
    sums: Tensor
    counts: Tensor


@dataclass(frozen=True)
class Profile:
    """One kind of attention over several texts: the pattern of each head, and its weights by distance."""

    patterns: tuple[tuple[str, ...], ...]  # by layer and head
    means: tuple[Means, ...]

    def expected(self, layer: int, queries: int, keys: int, text: str) -> Tensor:
        """The mean weight at the distance of each pair in texts other than this one, (H, T, S)."""
        return mean_by_distance(self.means, text)[layer][..., places_of(queries, keys)]


class Finding(NamedTuple):
    """The weight of a text that is furthest above its head's mean at that distance."""

    attention: Attention
    layer: int
    head: int
    query: int
    key: int
    weight: float
    mean: float

    @property
    def gain(self) -> float:
        return self.weight - self.mean


def profiles(traces: Sequence[tuple[str, Trace]]) -> dict[str, Profile]:
    """The profile of each kind of attention over texts and their traces."""
    found: dict[str, Profile] = {}
    short = [(text, trace) for text, trace in traces if max(map(len, trace.reading.sides.values())) <= FAR]
    for name in {one.name: None for _, trace in short for one in trace.attentions if is_by_token(one)}:
        each = [(text, trace, trace.attention(name)) for text, trace in short]
        rows = [counted(trace.reading.sides[one.queries]) for _, trace, one in each]
        stacks = [stacked(trace, one) for _, trace, one in each]
        means = tuple(means_of(text, all_, own) for (text, _, _), all_, own in zip(each, stacks, rows, strict=True))
        shares, overlaps, count = torch.zeros(()), torch.zeros(()), 0
        for (text, trace, one), weights, own in zip(each, stacks, rows, strict=True):
            keys = key_masks(one, trace.reading.sides[one.queries], trace.reading.sides[one.keys])  # (P, T, S)
            shares = shares + torch.einsum("lhts,pts->lhp", weights[:, :, own], keys[:, own])
            likely = mean_by_distance(means, text)[..., places_of(*weights.shape[2:])] * (weights > 0)  # (L, H, T, S)
            likely = likely / likely.sum(-1, keepdim=True).clamp_min(1e-12)
            overlaps = overlaps + torch.minimum(weights, likely)[:, :, own].sum((-1, -2))
            count += int(own.sum())
        found[name] = Profile(named(shares / max(count, 1), overlaps / max(count, 1)), means)
    return found


def is_by_token(attention: Attention) -> bool:
    """Whether every key is a token; those of a Linformer are mixtures."""
    return attention.keys != SLOTS


def stacked(trace: Trace, attention: Attention) -> Tensor:
    """The weights of all layers, (L, H, T, S)."""
    return torch.stack([trace.weights(attention, layer).float().cpu() for layer in range(len(attention.taps))])


def named(shares: Tensor, overlaps: Tensor) -> tuple[tuple[str, ...], ...]:
    """The pattern of each head from its shares (L, H, P) and from what distances explain (L, H)."""
    rest = torch.where(overlaps >= EXPLAINED, len(NAMED), len(NAMED) + 1)  # (L, H)
    best = torch.where(shares.amax(-1) >= SHARE, shares.argmax(-1), rest)  # (L, H)
    return tuple(tuple(PATTERNS[number] for number in layer) for layer in best.tolist())


def counted(queries: Sequence[Token]) -> Tensor:
    """Which queries count (T)."""
    return torch.tensor([place > 1 and one.part is not None for place, one in enumerate(queries)], dtype=torch.bool)


def key_masks(attention: Attention, queries: Sequence[Token], keys: Sequence[Token]) -> Tensor:
    """The keys of each named pattern, (P, T, S)."""
    T, S = len(queries), len(keys)
    away = torch.arange(S) - torch.arange(T)[:, None]  # (T, S)
    first = (torch.arange(S) == 0).expand(T, S)
    delimiters = torch.tensor([not is_word(one) for one in keys]).expand(T, S) & ~first
    own = (
        [away == step for step in (0, -1, 1)] if attention.queries == attention.keys else 3 * [torch.zeros_like(first)]
    )
    return torch.stack([first, delimiters, *own]).float()


def is_word(token: Token) -> bool:
    """Whether a token is part of a text, and not punctuation alone."""
    return token.part is not None and any(letter.isalnum() for letter in token.piece)


def places_of(queries: int, keys: int) -> Tensor:
    """The place of each pair's distance among all, (T, S); the last place is for those that are too far."""
    away = torch.arange(keys) - torch.arange(queries)[:, None]  # (T, S)
    return torch.where(away.abs() < FAR, away + FAR, 2 * FAR)


def means_of(text: str, weights: Tensor, rows: Tensor) -> Means:
    """The sums of the counted weights of one text by distance."""
    places = places_of(*weights.shape[2:])[rows].flatten()
    sums = weights.new_zeros(*weights.shape[:2], 2 * FAR + 1)  # (L, H, O)
    sums.index_add_(2, places, weights[:, :, rows].flatten(2))
    return Means(text, sums, torch.bincount(places, minlength=2 * FAR + 1).to(sums))


def mean_by_distance(means: Sequence[Means], text: str) -> Tensor:
    """The mean weight at each distance in texts other than this one, (L, H, O); zero where there is none."""
    others = [one for one in means if one.text != text] or list(means)
    sums, counts = (
        torch.stack(parts).sum(0) for parts in ([one.sums for one in others], [one.counts for one in others])
    )
    mean = sums / counts.clamp_min(1)  # (L, H, O)
    mean[..., 2 * FAR] = 0
    return mean


def finding(known: dict[str, Profile], trace: Trace, text: str) -> Finding | None:
    """The weight of one word on another that is furthest above its head's mean at that distance in other texts."""
    best: Finding | None = None
    for attention in (one for one in trace.attentions if is_by_token(one)):
        queries, keys = (trace.reading.sides[side] for side in (attention.queries, attention.keys))
        allowed = torch.tensor([is_word(one) for one in queries])[:, None] & torch.tensor(
            [is_word(one) for one in keys]
        )
        if attention.queries == attention.keys:
            allowed &= places_of(len(queries), len(keys)).sub(FAR).abs() >= NEAR  # (T, S)
        profile = known.get(attention.name)
        for layer in range(len(attention.taps)):
            weights = trace.weights(attention, layer).float().cpu()  # (H, T, S)
            usual = profile.expected(layer, len(queries), len(keys), text) if profile else torch.zeros_like(weights)
            gains = (weights - usual).nan_to_num(-1).masked_fill(~allowed, -1)  # (H, T, S)
            head, query, key = (int(one) for one in torch.unravel_index(gains.argmax(), gains.shape))
            if float(gains[head, query, key]) > (best.gain if best else 0):
                where = (head, query, key)
                best = Finding(attention, layer, *where, float(weights[where]), float(usual[where]))
    return best
