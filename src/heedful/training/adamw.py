"""AdamW's update for some of the weights, while other threads update the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


@torch.no_grad()
def move(optimizer: torch.optim.AdamW, weights: Sequence[Tensor], rate: float) -> None:
    """Update some weights, each of which has a gradient, with the state of the optimizer."""
    chosen = set(weights)
    for group in optimizer.param_groups:
        own = [weight for weight in group["params"] if weight in chosen]
        if not own:
            continue
        states = [_state(optimizer, weight) for weight in own]
        steps = [state["step"] for state in states]
        torch._foreach_add_(steps, 1)
        torch._fused_adamw_(
            own, [weight.grad for weight in own], [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states], [], steps, lr=rate, beta1=group["betas"][0],
            beta2=group["betas"][1], weight_decay=group["weight_decay"], eps=group["eps"], amsgrad=False,
            maximize=False,
        )  # fmt: skip


def _state(optimizer: torch.optim.AdamW, weight: Tensor) -> dict[str, Any]:
    state: dict[str, Any] = optimizer.state[weight]
    if not state:
        state |= {"step": torch.zeros(()), "exp_avg": torch.zeros_like(weight), "exp_avg_sq": torch.zeros_like(weight)}
    return state
