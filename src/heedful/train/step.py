"""One micro-batch, forward and backward: plain, or captured once as a device graph and replayed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, replace

import torch
from torch import Tensor, nn

from heedful.blocks.losses import Loss
from heedful.data.batches import Batch, PackedBatch

LossOf = Callable[[Batch], Loss]


def mixed(device: torch.device, bf16: bool) -> AbstractContextManager[object]:
    """Where matrix products run in bfloat16, if so."""
    return torch.autocast(device.type, dtype=torch.bfloat16) if bf16 else nullcontext()


class PlainStep:
    """loss.backward(), with the loss divided by the number of tokens of the whole step."""

    def __init__(self, loss_of: LossOf, device: torch.device, bf16: bool) -> None:
        self.loss_of, self.device, self.bf16 = loss_of, device, bf16

    def __call__(self, batch: Batch, tokens: int) -> Loss:
        with mixed(self.device, self.bf16):
            loss = self.loss_of(batch.to(self.device))
        (loss.total / tokens).backward()  # type: ignore[no-untyped-call]
        return replace(loss, total=loss.total.detach())


class GraphedStep:
    """The same as one device graph: packed batches all have one shape, so that a single capture serves the whole run.

    Gradients are added to buffers that live as long as this object; zero them in place, never set them to None.
    """

    def __init__(self, model: nn.Module, loss_of: LossOf, device: torch.device, bf16: bool, like: PackedBatch) -> None:
        self.loss_of, self.device, self.bf16 = loss_of, device, bf16
        self.batch = like.to(device)
        self.tokens = torch.ones((), device=device)
        for weight in model.parameters():
            weight.grad = torch.zeros_like(weight)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):  # compiles, and lets libraries choose and allocate, before the capture
                self._run()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.loss = self._run()
        for weight in model.parameters():
            assert weight.grad is not None
            weight.grad.zero_()

    def __call__(self, batch: Batch, tokens: int) -> Loss:
        assert isinstance(batch, PackedBatch)
        for name in _tensors(batch):
            getattr(self.batch, name).copy_(getattr(batch, name), non_blocking=True)
        self.tokens.fill_(tokens)
        self.graph.replay()
        return self.loss

    def _run(self) -> Loss:
        with mixed(self.device, self.bf16):
            loss = self.loss_of(self.batch)
        (loss.total / self.tokens).backward()  # type: ignore[no-untyped-call]
        return replace(loss, total=loss.total.detach())


def _tensors(batch: PackedBatch) -> list[str]:
    return [field.name for field in fields(batch) if isinstance(getattr(batch, field.name), Tensor)]
