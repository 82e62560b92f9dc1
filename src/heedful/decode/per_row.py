"""Greedy search and sampling with settings of each row's own, in operations that a CUDA graph can capture.

Each row gives the token that `search.greedy` or `search.sample` gives for it with the same settings.

R rows, N slots that rows may have, L longest text, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from heedful.decode.rules import Generated, Rule
from heedful.decode.search import fused_argmax
from heedful.decode.settings import Sampling

Method = Literal["greedy", "sample", "filter"]  # what the rows of a step need: filter is sampling with top-k or top-p

Row = tuple[Sampling, int, int, int]  # settings, seed, how many tokens are chosen so far, and how many will be at most


def method_of(rows: Sequence[Sampling]) -> Method:
    """The least that these settings need together."""
    if all(row.temperature == 0 for row in rows):
        return "greedy"
    return "sample" if all(row.top_k is None and row.top_p is None for row in rows) else "filter"


@dataclass(frozen=True)
class RowSettings:
    """The settings of each slot, its random numbers, and how many of these are used."""

    numbers: Tensor  # (N, 4) temperature (0: greedy), top-k, top-p, and how many tokens are chosen so far
    uniform: Tensor  # (N, L)

    @classmethod
    def empty(cls, slots: int, longest: int, device: torch.device) -> RowSettings:
        """Slots without rows."""
        numbers = torch.tensor([0.0, 1.0, 0.0, 0.0], device=device)
        return cls(numbers.repeat(slots, 1), torch.zeros(slots, longest, device=device))

    @property
    def chosen(self) -> Tensor:
        """How many tokens are chosen so far (N,)."""
        return self.numbers[:, 3]

    def put(self, slots: Sequence[int], rows: Sequence[Row], vocab: int) -> None:
        """New rows in these slots."""
        where, numbers = torch.tensor(slots), torch.tensor(numbers_of(rows, vocab))
        self.numbers[upload(where, self.numbers.device)] = upload(numbers, self.numbers.device)
        self.draw(slots, rows)

    def draw(self, slots: Sequence[int], rows: Sequence[Row]) -> None:
        """The random numbers of new rows, as `search.sample` draws them."""
        if all(one.temperature == 0 for one, _, _, _ in rows):
            return
        uniform = torch.zeros(len(rows), max(limit for _, _, _, limit in rows))
        for row, (settings, seed, _, limit) in enumerate(rows):
            if settings.temperature > 0:
                uniform[row, :limit] = torch.rand(limit, generator=torch.Generator().manual_seed(seed))
        where = upload(torch.tensor(slots), self.uniform.device)
        self.uniform[where, : uniform.shape[1]] = upload(uniform, self.uniform.device)

    def next_token(
        self, logits: Tensor, slots: Tensor, method: Method, rules: Sequence[Rule] = ()
    ) -> tuple[Tensor, Tensor]:
        """The next token (R,) of the rows in these slots and its log-probability, from logits (R, V)."""
        logits = logits.float()
        allowed = logits
        if rules:
            so_far, allowed = _nothing(logits), logits.clone()
            for rule in rules:
                allowed = rule(allowed, so_far)
        if logits.is_cuda and not rules:
            best, best_log = (x[:, 0] for x in fused_argmax(logits))
        else:
            best = allowed.argmax(-1)
            best_log = logits.gather(-1, best[:, None])[:, 0] - logits.logsumexp(-1)
        if method == "greedy":
            return best, best_log
        temperature, top_k, top_p, chosen = self.numbers[slots].unbind(-1)  # (R,)
        scaled = allowed / torch.where(temperature > 0, temperature, 1.0)[:, None]  # (R, V)
        if method == "filter":
            scaled = filtered(scaled, top_k.long(), top_p)
        mass = scaled.double().softmax(-1).cumsum(-1)  # (R, V)
        chosen = chosen.long().clamp(max=self.uniform.shape[1] - 1)
        point = self.uniform[slots, chosen][:, None].double() * mass[:, -1:]  # (R, 1)
        sampled = torch.searchsorted(mass, point, right=True).clamp(max=logits.shape[1] - 1)[:, 0]
        token = torch.where(temperature > 0, sampled, best)  # (R,)
        # One sum over the vocabulary serves both, in a kernel whose bits do not depend on the number of rows.
        own, most = logits.gather(-1, torch.stack([token, best], -1)).unbind(-1)  # (R,)
        return token, best_log + (own - most)


def numbers_of(rows: Sequence[Row], vocab: int) -> list[tuple[float, float, float, float]]:
    """What `RowSettings.numbers` has for each row."""
    most = 2.0  # no probability exceeds it
    return [
        (float(one.temperature), min(one.top_k or vocab, vocab), most if one.top_p is None else one.top_p, used)
        for one, _, used, _ in rows
    ]


def filtered(logits: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """The logits (R, V) after top-k, then top-p (R,), as the rules of these names compute them."""
    in_order, order = logits.sort(-1, descending=True)  # (R, V)
    threshold = in_order.gather(1, top_k[:, None] - 1)  # (R, 1)
    p = in_order.masked_fill(in_order < threshold, -math.inf).softmax(-1)
    outside = p.cumsum(-1) - p >= top_p[:, None]
    outside = torch.zeros_like(outside).scatter(-1, order, outside)
    return logits.masked_fill((logits < threshold) | outside, -math.inf)


def pinned(values: Tensor, device: torch.device) -> Tensor:
    """Values that can be copied to a device while it computes."""
    return values.pin_memory() if device.type == "cuda" else values


def upload(values: Tensor, device: torch.device) -> Tensor:
    """Values on a device; a GPU continues to compute while they are copied."""
    return pinned(values, device).to(device, non_blocking=True)


def _nothing(logits: Tensor) -> Generated:
    """No tokens so far: these rules do not look at them."""
    none = torch.zeros(len(logits), 0, dtype=torch.long, device=logits.device)
    zero = none.new_zeros(len(logits), 1)
    return Generated(none, zero, zero[0, 0], zero)
