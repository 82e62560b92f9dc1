"""The most probable token of each row and its log-probability, in one pass over the logits.

R rows, V vocabulary, S parts of a row that are reduced in parallel.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

PARTS, CHUNK = 32, 1024


@triton.jit
def _reduce_part(logits, maxima, indices, sums, V, part_length, S: tl.constexpr, C: tl.constexpr):
    """One part of a row: its maximum, the first index of it, and the sum of exp(logit - maximum)."""
    row, part, column = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.arange(0, C)
    maximum, index, total = float("-inf"), 0, 0.0
    for start in range(part * part_length, min(part * part_length + part_length, V), C):
        at = start + column
        value = tl.load(logits + row * V + at, mask=at < min(part * part_length + part_length, V), other=float("-inf"))
        largest, offset = tl.max(value, 0, return_indices=True)
        new_maximum = tl.maximum(maximum, largest)
        index = tl.where(largest > maximum, start + offset, index)
        total = total * tl.exp(maximum - new_maximum) + tl.sum(tl.exp(value - new_maximum), 0)
        maximum = new_maximum
    tl.store(maxima + row * S + part, maximum)
    tl.store(indices + row * S + part, index)
    tl.store(sums + row * S + part, total)


@triton.jit
def _combine_parts(maxima, indices, sums, tokens, log_probs, S: tl.constexpr):
    """All parts of a row: the first token with the largest logit, and its log-probability."""
    row, part = tl.program_id(0).to(tl.int64), tl.arange(0, S)
    maximum, total = tl.load(maxima + row * S + part), tl.load(sums + row * S + part)
    largest = tl.max(maximum, 0)
    index = tl.where(maximum == largest, tl.load(indices + row * S + part), 2147483647)
    tl.store(tokens + row, tl.min(index, 0).to(tl.int64))
    tl.store(log_probs + row, -tl.log(tl.sum(tl.where(total > 0, total * tl.exp(maximum - largest), 0.0), 0)))


def argmax_with_log_prob(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The token (R, 1) with the largest of the logits (R, V) in float32, and its log-probability (R, 1)."""
    logits = logits.contiguous()
    rows, vocab = logits.shape
    maxima, sums = (torch.empty(rows, PARTS, device=logits.device) for _ in range(2))
    indices = torch.empty(rows, PARTS, device=logits.device, dtype=torch.int32)
    tokens = torch.empty(rows, 1, device=logits.device, dtype=torch.long)
    logs = torch.empty(rows, 1, device=logits.device)
    part_length = triton.cdiv(triton.cdiv(vocab, PARTS), CHUNK) * CHUNK
    _reduce_part[(rows, PARTS)](logits, maxima, indices, sums, vocab, part_length, S=PARTS, C=CHUNK, num_warps=4)
    _combine_parts[(rows,)](maxima, indices, sums, tokens, logs, S=PARTS, num_warps=1)
    return tokens, logs
