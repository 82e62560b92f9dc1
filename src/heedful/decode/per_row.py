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


def method_of(rows: Sequence[Sampling]) -> Method:
    """The least that these settings need together."""
    if all(row.temperature == 0 for row in rows):
        return "greedy"
    return "sample" if all(row.top_k is None and row.top_p is None for row in rows) else "filter"


@dataclass(frozen=True)
class RowSettings:
    """The settings of each slot, its random numbers, and how many of these are used."""

    temperature: Tensor  # (N,) 0: greedy
    top_k: Tensor  # (N,)
    top_p: Tensor  # (N,)
    uniform: Tensor  # (N, L)
    chosen: Tensor  # (N,) tokens chosen so far

    @classmethod
    def empty(cls, slots: int, longest: int, device: torch.device) -> RowSettings:
        """Slots without rows."""
        zeros = torch.zeros(slots, device=device)
        top_k = torch.ones(slots, dtype=torch.long, device=device)
        return cls(zeros, top_k, zeros.clone(), torch.zeros(slots, longest, device=device), zeros.long())

    def put(self, slots: Tensor, rows: Sequence[tuple[Sampling, int, int, int]], vocab: int) -> None:
        """New rows: the settings of each, its seed, how many tokens it has, and how many it will have at most."""
        every = [settings for settings, _, _, _ in rows]
        numbers = [
            [one.temperature for one in every],
            [min(one.top_k or vocab, vocab) for one in every],
            [2.0 if one.top_p is None else one.top_p for one in every],  # no probability exceeds 2
            [used for _, _, used, _ in rows],
        ]
        sent = upload(torch.tensor(numbers, dtype=torch.float64), slots.device)  # in one copy
        for into, values in zip((self.temperature, self.top_k, self.top_p, self.chosen), sent, strict=True):
            into[slots] = values.to(into.dtype)
        if any(one.temperature > 0 for one in every):
            uniform = torch.zeros(len(rows), max(limit for _, _, _, limit in rows))
            for row, (settings, seed, _, limit) in enumerate(rows):
                if settings.temperature > 0:  # as in `search.sample`
                    uniform[row, :limit] = torch.rand(limit, generator=torch.Generator().manual_seed(seed))
            self.uniform[slots, : uniform.shape[1]] = upload(uniform, slots.device)

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
        temperature = self.temperature[slots]
        scaled = allowed / torch.where(temperature > 0, temperature, 1.0)[:, None]  # (R, V)
        if method == "filter":
            scaled = self._filter(scaled, slots)
        mass = scaled.double().softmax(-1).cumsum(-1)  # (R, V)
        chosen = self.chosen[slots].clamp(max=self.uniform.shape[1] - 1)
        point = self.uniform[slots, chosen][:, None].double() * mass[:, -1:]  # (R, 1)
        sampled = torch.searchsorted(mass, point, right=True).clamp(max=logits.shape[1] - 1)[:, 0]
        token = torch.where(temperature > 0, sampled, best)  # (R,)
        # One sum over the vocabulary serves both, in a kernel whose bits do not depend on the number of rows.
        own, most = logits.gather(-1, torch.stack([token, best], -1)).unbind(-1)  # (R,)
        return token, best_log + (own - most)

    def _filter(self, logits: Tensor, slots: Tensor) -> Tensor:
        """The logits after top-k, then top-p, as the rules of these names compute them."""
        in_order, order = logits.sort(-1, descending=True)  # (R, V)
        threshold = in_order.gather(1, self.top_k[slots][:, None] - 1)  # (R, 1)
        p = in_order.masked_fill(in_order < threshold, -math.inf).softmax(-1)
        outside = p.cumsum(-1) - p >= self.top_p[slots][:, None]
        outside = torch.zeros_like(outside).scatter(-1, order, outside)
        return logits.masked_fill((logits < threshold) | outside, -math.inf)


def upload(values: Tensor, device: torch.device) -> Tensor:
    """Values on a device; a GPU continues to compute while they are copied."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values.to(device)


def _nothing(logits: Tensor) -> Generated:
    """No tokens so far: these rules do not look at them."""
    none = torch.zeros(len(logits), 0, dtype=torch.long, device=logits.device)
    zero = none.new_zeros(len(logits), 1)
    return Generated(none, zero, zero[0, 0], zero)
