"""Stochastic gradient descent with momentum (Polyak, 1964; Sutskever et al., 2013), in torch's fused kernel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from heedful.training.distributed.shards import local


class Momentum(torch.optim.Optimizer):
    """g += decay weight; velocity = momentum velocity + g; weight -= lr velocity, or lr (g + momentum velocity)."""

    def __init__(self, groups: Iterable[dict[str, Any]], lr: float, momentum: float, nesterov: bool) -> None:
        super().__init__(list(groups), {"lr": lr, "weight_decay": 0.0})
        self.momentum, self.nesterov = momentum, nesterov

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Move every weight that has a gradient."""
        for group in self.param_groups:
            self.move([weight for weight in group["params"] if weight.grad is not None], group["lr"])

    @torch.no_grad()
    def move(self, weights: Sequence[Tensor], rate: float | Tensor) -> None:
        """Move some weights, each of which has a gradient."""
        chosen = set(weights)
        for group in self.param_groups:
            own = [weight for weight in group["params"] if weight in chosen]
            if not own:
                continue
            torch._fused_sgd_(
                [local(weight) for weight in own],
                [local(weight.grad) for weight in own if weight.grad is not None],
                [local(self._velocity(weight)) for weight in own] if self.momentum else [],
                weight_decay=group["weight_decay"], momentum=self.momentum, lr=rate, dampening=0.0,
                nesterov=self.nesterov, maximize=False, is_first_step=False,
            )  # fmt: skip

    def _velocity(self, weight: Tensor) -> Tensor:
        state: dict[str, Tensor] = self.state[weight]
        if "velocity" not in state:
            state["velocity"] = torch.zeros_like(weight)
        return state["velocity"]
