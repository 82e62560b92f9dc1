"""RMSprop, with epsilon after the root or under it, which small gradients, as of a mean over many pixels, can feel.

Where gradients are near 1e-4, an epsilon of 1e-7 under the root makes steps three times shorter; after it, none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from heedful.training.distributed.shards import local

LATE = 1e6  # a step so late that Adam corrects nothing any more


class RootMeanSquare(torch.optim.Optimizer):
    """square = rho square + (1 - rho) g^2; weight -= lr g / (sqrt(square + under) + after).

    It is Adam without its average of gradients and without its corrections, so Adam's kernel does it in one go. What is
    kept as `square` has `under / rho` added to it: the step makes that `under`, and what is missing then is put back.
    """

    def __init__(
        self, named: Iterable[tuple[str, nn.Parameter]], lr: float, rho: float, under: float, after: float
    ) -> None:
        super().__init__(list(named), {"lr": lr})
        self.rho, self.under, self.after = rho, under, after
        self.rooms: dict[Tensor, tuple[Tensor, Tensor]] = {}  # where the kernel writes Adam's average, and the step

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Move every weight that has a gradient."""
        for group in self.param_groups:
            self.move([weight for weight in group["params"] if weight.grad is not None], group["lr"])

    @torch.no_grad()
    def move(self, weights: Sequence[Tensor], rate: float | Tensor) -> None:
        """Move some weights, each of which has a gradient."""
        squares = [local(self._square(weight)) for weight in weights]
        torch._fused_adam_(
            [local(weight) for weight in weights],
            [local(weight.grad) for weight in weights if weight.grad is not None],
            [self.rooms[weight][0] for weight in weights],
            squares,
            [],
            [self.rooms[weight][1] for weight in weights],
            lr=rate, beta1=0.0, beta2=self.rho, weight_decay=0.0, eps=self.after, amsgrad=False, maximize=False,
        )  # fmt: skip
        if self.under:
            torch._foreach_add_(squares, self.under / self.rho - self.under)

    def _square(self, weight: Tensor) -> Tensor:
        if weight not in self.rooms:
            own = local(weight)
            self.rooms[weight] = torch.zeros_like(own), torch.full((), LATE, device=own.device)
            self.state[weight].setdefault("square", torch.full_like(weight, self.under / self.rho))
        square: Tensor = self.state[weight]["square"]
        return square
