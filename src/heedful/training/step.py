"""An optimizer step in three parts: gradients of a micro-batch, their norm, the update; plain, or as device graphs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, replace
from typing import TypeVar

import torch
from torch import Tensor, nn

from heedful.blocks.losses import Loss
from heedful.data.batches import Batch, PackedBatch
from heedful.training.configs import TrainConfig
from heedful.training.distributed import Spread
from heedful.training.optim import clip
from heedful.training.shards import local

Result = TypeVar("Result")


def mixed(device: torch.device, half: torch.dtype | None) -> AbstractContextManager[object]:
    """Where matrix products run in half precision, if so."""
    return torch.autocast(device.type, dtype=half) if half else nullcontext()


class PlainStep:
    """Each part as it is."""

    def __init__(
        self, model: nn.Module, spread: Spread, optimizer: torch.optim.Optimizer, config: TrainConfig,
        device: torch.device, half: torch.dtype | None,
    ) -> None:  # fmt: skip
        self.weights = [weight for weight in model.parameters() if weight.requires_grad]
        self.spread, self.optimizer, self.config, self.device, self.half = spread, optimizer, config, device, half
        self.scale = torch.ones((), device=device)  # of the gradients, so that half precision holds small ones

    def gradients(self, batch: Batch, tokens: int | Tensor, last: bool = True) -> Loss:
        """Add a micro-batch's gradients, its loss divided by the tokens of the whole step."""
        with self.spread.sync(last):
            loss = self.loss(batch)
            (loss.total * (self.spread.share * self.scale) / tokens).backward()
        return replace(loss, total=loss.total.detach())

    def loss(self, batch: Batch) -> Loss:
        """A micro-batch's loss."""
        with mixed(self.device, self.half):
            return self.spread.loss_of(batch.to(self.device))

    def norm(self) -> Tensor:
        """The gradients' norm, before they are clipped."""
        if self.half is torch.float16:
            torch._foreach_div_([local(weight.grad) for weight in self.weights if weight.grad is not None], self.scale)
        return clip(self.weights, self.config.clip)

    def update(self, rate: float) -> None:
        """Move the weights, and forget the gradients."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.skip()

    def skip(self) -> None:
        """Forget the gradients."""
        self.optimizer.zero_grad()


class GraphedStep:
    """Each part captured once as a device graph and replayed: packed batches all have one shape.

    Captured work sees the same memory each time, so the gradients stay where they are: with one micro-batch a step they
    are written over, with more they are added up and set to zero by the update.
    """

    def __init__(self, plain: PlainStep, like: PackedBatch) -> None:
        self.plain, self.batch = plain, like.to(plain.device)
        self.tokens, self.rate = (torch.ones((), device=plain.device) for _ in range(2))
        self.waiting = _pinned(like)  # copies from pinned memory do not stop the host
        self.copied = torch.cuda.Event()
        self.adds = plain.config.accumulate > 1
        for group in plain.optimizer.param_groups:
            group["lr"], group["capturable"] = self.rate, True
        _warmed(lambda: plain.gradients(self.batch, self.tokens))
        self._empty()
        self.loss, self._gradients = _captured(lambda: plain.gradients(self.batch, self.tokens))
        self.size, self._norm = _captured(plain.norm)
        self._updated: torch.cuda.CUDAGraph | None = None  # captured at the first update, since it changes the weights
        self.skip()

    def gradients(self, batch: Batch, tokens: int, last: bool = True) -> Loss:
        assert isinstance(batch, PackedBatch)
        self.copied.synchronize()
        for name, waiting in self.waiting.items():
            getattr(self.batch, name).copy_(waiting.copy_(getattr(batch, name)), non_blocking=True)
        self.copied.record()
        self.tokens.fill_(tokens)
        self._gradients.replay()
        return self.loss

    def norm(self) -> Tensor:
        self._norm.replay()
        return self.size

    def update(self, rate: float) -> None:
        self.rate.fill_(rate)
        if self._updated is None:
            self._move()  # the first update runs plainly, which also makes the optimizer's state
            _, self._updated = _captured(self._move)  # capturing does not run it
        else:
            self._updated.replay()

    def skip(self) -> None:
        if self.adds:
            torch._foreach_zero_([weight.grad for weight in self.plain.weights if weight.grad is not None])

    def _move(self) -> None:
        self.plain.optimizer.step()
        self.skip()

    def _empty(self) -> None:
        for weight in self.plain.weights:
            weight.grad = torch.zeros_like(weight) if self.adds else None


def _pinned(batch: PackedBatch) -> dict[str, Tensor]:
    """Room on the host for each tensor of a batch, from which a device copies by itself."""
    parts = {field.name: getattr(batch, field.name) for field in fields(batch)}
    return {name: part.pin_memory() for name, part in parts.items() if isinstance(part, Tensor)}


def _warmed(run: Callable[[], object]) -> None:
    """Run a few times on a side stream: compiles, and lets libraries choose and allocate, before a capture."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)


def _captured(run: Callable[[], Result]) -> tuple[Result, torch.cuda.CUDAGraph]:
    """What a function gives, as buffers, and the graph that fills them again."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run()
    return result, graph
