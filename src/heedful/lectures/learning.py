"""What the studies that train have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch import Tensor, nn

from heedful.training.optim import AdamW, Linear, clip, make_optimizer

Made = TypeVar("Made")


def seeded(make: Callable[[], Made], seed: int) -> Made:
    """A model whose initial weights depend on the seed alone, or several; the random state stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def learn(model: nn.Module, loss: Callable[[], Tensor], steps: int, lr: float) -> Iterator[float]:
    """Train on a loss that samples its own batches, with linear decay to zero; yields the share of steps done."""
    optimizer = make_optimizer(AdamW(lr=lr, weight_decay=0.0), model, torch.device("cpu"))
    schedule = Linear()
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = lr * schedule.factor(step, (step - 1) / steps)
        optimizer.zero_grad()
        loss().backward()
        clip(model.parameters(), 1.0)
        optimizer.step()
        yield step / steps
