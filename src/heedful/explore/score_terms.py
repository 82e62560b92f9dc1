"""The terms of a score: what each dimension of a query and a key adds to it.

T queries, S keys, K width of the terms.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from heedful.blocks.memory import MemoryAttention
from heedful.blocks.scores import Additive, General, Location, Weightless, cosine, dot, scaled_dot
from heedful.blocks.taps import watch
from heedful.explore.inspect import Trace


class ScoreTerms(NamedTuple):
    """The terms are v tanh(q + k) where there is a v, and q k otherwise; their sum is the score before any bias."""

    score: str
    q: Tensor  # (T, K)
    k: Tensor  # (S, K)
    v: Tensor | None = None  # (K,)


def score_terms(score: Any, q: Tensor, k: Tensor) -> ScoreTerms | None:
    """The terms of queries (T, H) and projected keys (S, K); None for a score that is no sum over dimensions."""
    match score:
        case Additive():
            return ScoreTerms("additive", score.q(q), k, score.v.weight[0])
        case General():
            return ScoreTerms("general", q, k)
        case Location():
            return ScoreTerms("location", q, k)
    compared = score.compare if isinstance(score, Weightless) else score
    if compared is dot:
        return ScoreTerms("dot", q, k)
    if compared is scaled_dot:
        return ScoreTerms("scaled_dot", q / math.sqrt(q.shape[-1]), k)
    return ScoreTerms("cosine", normalize(q, dim=-1), normalize(k, dim=-1)) if compared is cosine else None


@torch.inference_mode()
def decoder_terms(attention: MemoryAttention, trace: Trace) -> ScoreTerms | None:
    """The terms of a recurrent decoder's attention, from another run of the model."""
    asked: list[Tensor] = []
    keys: list[Tensor] = []

    def note(_: Any, given: tuple[Any, ...]) -> None:
        asked.append(given[0][0])  # (1, H) or (T, H)
        keys[:] = [given[1].kv.k[0, 0]]  # (S, K)

    handle = attention.register_forward_pre_hook(note)
    try:
        with watch(attention, "scores"):  # no fused kernel passes it by
            trace.reading.passes[-1].run()
    finally:
        handle.remove()
    return score_terms(attention.score, torch.cat(asked), keys[0])
