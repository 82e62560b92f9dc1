"""AdamW's update on a CPU: of all weights, or of some of them while other threads update the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

ONE = torch.ones(())  # torch wraps the number 1 in a tensor for every weight


@torch.no_grad()
def step(optimizer: torch.optim.AdamW) -> None:
    """Update all weights, bit for bit as torch's own step does in foreach mode.

    A step of a tiny model takes less time than the hooks, the profiler's label and the sorting of weights around it.
    """
    for group in optimizer.param_groups:
        weights = [weight for weight in group["params"] if weight.grad is not None]
        if not weights:
            continue
        gradients, states = [weight.grad for weight in weights], [_state(optimizer, weight) for weight in weights]
        means, squares = [state["exp_avg"] for state in states], [state["exp_avg_sq"] for state in states]
        (first, second), rate, decay = group["betas"], group["lr"], group["weight_decay"]
        steps = [state["step"] for state in states]
        torch._foreach_add_(steps, ONE, alpha=1.0)
        if decay:
            torch._foreach_mul_(weights, 1 - rate * decay)
        torch._foreach_lerp_(means, gradients, 1 - first)
        torch._foreach_mul_(squares, second)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - second)
        counts = [count.item() for count in steps]
        roots = torch._foreach_sqrt(squares)
        torch._foreach_div_(roots, [(1 - second**count) ** 0.5 for count in counts])
        torch._foreach_add_(roots, group["eps"])
        torch._foreach_addcdiv_(weights, means, roots, [rate / (1 - first**count) * -1 for count in counts])


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
