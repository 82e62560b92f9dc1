"""The likeliest token of each row and its log-probability, in one pass over the logits.

R rows, V vocabulary, S parts that a row is cut into.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

PARTS, CHUNK = 32, 1024


@triton.jit
def _part(logits, peaks, places, masses, V, deep, S: tl.constexpr, C: tl.constexpr):
    """A part of a row: its largest logit, where that is first, and the sum of exp(logit - largest)."""
    row, part, column = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.arange(0, C)
    peak, place, mass = float("-inf"), 0, 0.0
    for start in range(part * deep, min(part * deep + deep, V), C):
        at = start + column
        value = tl.load(logits + row * V + at, mask=at < min(part * deep + deep, V), other=float("-inf"))
        top, where = tl.max(value, 0, return_indices=True)
        higher = tl.maximum(peak, top)
        place = tl.where(top > peak, start + where, place)
        mass = mass * tl.exp(peak - higher) + tl.sum(tl.exp(value - higher), 0)
        peak = higher
    tl.store(peaks + row * S + part, peak)
    tl.store(places + row * S + part, place)
    tl.store(masses + row * S + part, mass)


@triton.jit
def _whole(peaks, places, masses, tokens, logs, S: tl.constexpr):
    """Of all parts of a row: the token with the largest logit, the first of them, and its log-probability."""
    row, part = tl.program_id(0).to(tl.int64), tl.arange(0, S)
    peak, mass = tl.load(peaks + row * S + part), tl.load(masses + row * S + part)
    top = tl.max(peak, 0)
    place = tl.where(peak == top, tl.load(places + row * S + part), 2147483647)
    tl.store(tokens + row, tl.min(place, 0).to(tl.int64))
    tl.store(logs + row, -tl.log(tl.sum(tl.where(mass > 0, mass * tl.exp(peak - top), 0.0), 0)))


def likeliest(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The token (R, 1) with the largest of the logits (R, V) in float32, and its log-probability (R, 1)."""
    logits = logits.contiguous()
    rows, vocab = logits.shape
    peaks, masses = (torch.empty(rows, PARTS, device=logits.device) for _ in range(2))
    places = torch.empty(rows, PARTS, device=logits.device, dtype=torch.int32)
    tokens = torch.empty(rows, 1, device=logits.device, dtype=torch.long)
    logs = torch.empty(rows, 1, device=logits.device)
    deep = triton.cdiv(triton.cdiv(vocab, PARTS), CHUNK) * CHUNK
    _part[(rows, PARTS)](logits, peaks, places, masses, vocab, deep, S=PARTS, C=CHUNK, num_warps=4)
    _whole[(rows,)](peaks, places, masses, tokens, logs, S=PARTS, num_warps=1)
    return tokens, logs
