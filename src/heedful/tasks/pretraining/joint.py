"""Tokens for several masks of a text at once: independently, or one after the other by the chain rule.

N texts, G masks, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

from torch import Tensor

# The log-probabilities (N, G, V) of all tokens at the masks of texts of equal length.
LogProbs = Callable[[Sequence[Sequence[int]], Sequence[int]], Tensor]


def best_joint(
    log_probs: LogProbs, row: list[int], masks: Sequence[int], logs: Tensor, top: int
) -> list[tuple[int, ...]]:
    """The best tokens for all masks: independently, with log-probabilities (G, V), and in both orders of the masks."""
    alone = best_independent(logs, top)
    ahead, back = (beam_search(log_probs, row, order, top) for order in (masks, masks[::-1]))
    return list(dict.fromkeys([*alone, *ahead, *(words[::-1] for words in back)]))


def beam_search(log_probs: LogProbs, row: list[int], order: Sequence[int], top: int) -> list[tuple[int, ...]]:
    """The best tokens for all masks by a beam search with `top` beams, mask by mask."""
    beams: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    for place, mask in enumerate(order):
        rows = [fill_masks(row, order[:place], words) for _, words in beams]
        values, ids = log_probs(rows, [mask])[:, 0].topk(top)  # (N, top)
        longer = [
            (score + value, (*words, number))
            for (score, words), those, some in zip(beams, values.tolist(), ids.tolist(), strict=True)
            for value, number in zip(those, some, strict=True)
        ]
        beams = sorted(longer, reverse=True)[:top]
    return [words for _, words in beams]


def chain_log_prob(log_probs: LogProbs, row: list[int], order: Sequence[int], words: Sequence[int]) -> float:
    """The log-probability of tokens by the chain rule, filled in one after the other."""
    rows = [fill_masks(row, order[:place], words) for place in range(len(order))]
    logs = log_probs(rows, order)  # (G, G, V)
    return sum(float(logs[place, place, number]) for place, number in enumerate(words))


def best_independent(logs: Tensor, top: int) -> list[tuple[int, ...]]:
    """The most probable tokens for all masks if they were independent; logs (G, V)."""
    beams: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    for values, ids in zip(*(part.tolist() for part in logs.topk(top)), strict=True):
        longer = product(beams, zip(values, ids, strict=True))
        beams = sorted(((score + value, (*words, number)) for (score, words), (value, number) in longer), reverse=True)
        beams = beams[:top]
    return [words for _, words in beams]


def fill_masks(row: Sequence[int], masks: Sequence[int], words: Sequence[int]) -> list[int]:
    """A text with tokens in place of some masks."""
    found = list(row)
    for mask, number in zip(masks, words, strict=False):
        found[mask] = number
    return found
