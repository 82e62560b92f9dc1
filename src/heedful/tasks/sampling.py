"""Sequences that a model generates while it is trained, and the gradient of their rewards.

B inputs, K sequences of each, R = B * K rows, T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from heedful.blocks.state import regroup
from heedful.data.tokenizers.tokenizer import TrainedTokenizer
from heedful.decode.rules import SuppressTokens
from heedful.decode.search import Paths, beam, drain, greedy, sample

PAD, BOS, EOS = TrainedTokenizer.pad, TrainedTokenizer.bos, TrainedTokenizer.eos
RULES = (SuppressTokens((PAD, TrainedTokenizer.unk, BOS)),)


@contextmanager
def generating(model: nn.Module) -> Iterator[None]:
    """Without gradients and dropout; what autocast casts meanwhile is not used again where gradients are needed."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)
        torch.clear_autocast_cache()


def greedy_sequences(model: Any, state: Any, limit: Tensor, device: torch.device) -> Tensor:
    """The greedy sequence (B, T) from each row of the state, at most `limit` (B,) tokens, padded."""
    return padded(drain(greedy(model, state, begin(len(limit), device), limit, EOS, RULES)))[:, 0]


def sampled_sequences(model: Any, state: Any, limit: Tensor, device: torch.device, samples: int) -> Tensor:
    """Some sampled sequences (B, K, T) from each row of the state, padded; seeded by torch's generator."""
    rows = torch.arange(len(limit) * samples) // samples  # (R,)
    seeds = torch.randint(0, 2**62, (len(rows),)).tolist()
    state = regroup(state, rows.to(device))
    found = padded(drain(sample(model, state, begin(len(rows), device), limit[rows], EOS, seeds, RULES)))  # (R, 1, T)
    return found.unflatten(0, (-1, samples))[:, :, 0]  # (B, K, T)


def best_sequences(model: Any, state: Any, limit: Tensor, device: torch.device, beams: int) -> Tensor:
    """The sequences (B, K, T) of a beam search from each row of the state, padded; some may be empty."""
    return padded(drain(beam(model, state, begin(len(limit), device), limit, EOS, beams, beams, rules=RULES)))


def begin(rows: int, device: torch.device) -> Tensor:
    """The start token of each row (R, 1)."""
    return torch.full((rows, 1), BOS, device=device)


def padded(paths: Paths) -> Tensor:
    """The paths (B, K, T), as long as the longest, with padding after their ends."""
    tokens = paths.tokens[:, :, : max(1, int(paths.lengths.max()))]  # (B, K, T)
    return tokens.masked_fill(torch.arange(tokens.shape[2], device=tokens.device) >= paths.lengths[:, :, None], PAD)


def tokens_in(sequences: Tensor) -> list[list[int]]:
    """The tokens of each sequence (R, T), without padding."""
    return [[token for token in row if token != PAD] for row in sequences.tolist()]


def inputs_of(sequences: Tensor) -> Tensor:
    """What a decoder reads before each token of the sequences (R, T): the start token, and the tokens before."""
    return torch.cat([begin(len(sequences), sequences.device), sequences[:, :-1]], 1)  # (R, T)


def sequence_logs(logits: Tensor, sequences: Tensor) -> Tensor:
    """log p of each token of the sequences (R, T), from logits (R, T, V), as they are sampled: never a special token.

    Padding has log p = 0, and so have special tokens of a reference.
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    special = torch.tensor(RULES[0].tokens, device=logits.device)
    logs = wide.index_fill(-1, special, -torch.inf).log_softmax(-1)  # (R, T, V)
    return logs.gather(-1, sequences[:, :, None]).squeeze(-1).masked_fill(torch.isin(sequences, special), 0.0)  # (R, T)


def policy_gradient(logs: Tensor, advantage: Tensor) -> Tensor:
    """-sum advantage log p: its gradient is that of the expected reward, if the sequences are sampled (Williams, 1992).

    An advantage is a reward less a baseline, which may depend on all but the token itself: of a sequence (R, 1), or of
    each token (R, T).
    """
    return -(advantage.to(logs) * logs).sum()
