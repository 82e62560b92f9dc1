"""An optimizer step in three parts: gradients, their norm, the update; eager, as CUDA graphs, or recorded for CPUs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, replace
from functools import partial
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from heedful.blocks.losses import Loss
from heedful.data.pairs.batches import Batch
from heedful.training import adamw
from heedful.training.carry import detach, propagate_nan
from heedful.training.configs import TrainConfig
from heedful.training.distributed.shards import local
from heedful.training.distributed.team import Carry, ParallelLoss
from heedful.training.optim import clip
from heedful.training.players import Player
from heedful.training.replay import CannotRecordError, Recording
from heedful.training.rmsprop import RootMeanSquare
from heedful.training.running_statistics import RunningStatistics
from heedful.training.sgd import Momentum
from heedful.training.thread_pool import ThreadPool

Result = TypeVar("Result")
CALLER_SHARE = 0.95  # samples of the calling thread, relative to an even split
NORM_CHUNK = 1 << 14  # values in one dot product of the norm; longer sums would lose precision
MAX_GRAPHS = 64  # batches of further shapes run eagerly


def autocast(device: torch.device, half: torch.dtype | None) -> AbstractContextManager[object]:
    """Mixed precision with this type of half precision; None: float32."""
    return torch.autocast(device.type, dtype=half) if half else nullcontext()


class PlainStep:
    """A step in eager mode."""

    uses_threads: ClassVar = False  # whether other threads compute while the calling one continues
    copies_ahead: ClassVar = False  # whether the next batch is copied to the device while a step is computed

    def __init__(
        self, model: nn.Module, spread: ParallelLoss, optimizer: torch.optim.Optimizer, config: TrainConfig,
        device: torch.device, half: torch.dtype | None, carry: Carry = None, players: Sequence[Player] = (),
    ) -> None:  # fmt: skip
        owned = {weight for player in players for weight in player.weights}
        self.weights = [weight for weight in model.parameters() if weight.requires_grad and weight not in owned]
        self.players = players  # parts of the model with optimizers of their own
        self.spread, self.optimizer, self.config, self.device, self.half = spread, optimizer, config, device, half
        self.scale = torch.ones((), device=device)  # loss scale, so that small gradients do not underflow in fp16
        self.scales = half is torch.float16 or spread.share != 1
        self.carry = carry  # what the model carries from the last micro-batch to the next
        self.statistics = RunningStatistics(model)
        self.move: Callable[[], object] = optimizer.step
        if device.type == "cpu" and isinstance(optimizer, torch.optim.AdamW):
            self.move = partial(adamw.step, optimizer)

    def gradients(self, batch: Batch, tokens: int | Tensor, last: bool = True) -> Loss:
        """Add the gradients of a micro-batch, with its loss divided by the tokens of the whole step."""
        with self.spread.sync(last):
            loss, carry = self.loss(batch, self.carry)
            total = loss.total * (self.spread.share * self.scale) if self.scales else loss.total
            (total / tokens).backward()
        self.carry = detach(carry)
        loss = propagate_nan(loss, self.carry)
        return replace(loss, total=loss.total.detach())

    def loss(self, batch: Batch, carry: Carry) -> tuple[Loss, Carry]:
        """The loss of a micro-batch, and the carry for the next one."""
        with autocast(self.device, self.half):
            return self.spread.loss_of(batch.to(self.device), carry)

    def norm(self) -> Tensor:
        """Clip the gradients; returns their norm before clipping."""
        if self.half is torch.float16:
            weights = [*self.weights, *(weight for player in self.players for weight in player.weights)]
            torch._foreach_div_([local(weight.grad) for weight in weights if weight.grad is not None], self.scale)
        norm = clip(self.weights, self.config.clip)
        return torch.stack([norm, *(player.clip() for player in self.players)]).norm() if self.players else norm

    def update(self, rate: float) -> None:
        """Update the weights, and reset the gradients."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.move()
        for player in self.players:
            player.update(rate / self.config.optimizer.lr)
        self.skip()

    def skip(self) -> None:
        """Reset the gradients without an update."""
        for weight in self.weights:
            weight.grad = None
        for player in self.players:
            player.optimizer.zero_grad()

    def start(self, batch: Batch, tokens: int) -> None:
        """Let other threads, or the copy to the device, start with the next micro-batch, if there are any."""

    def wait(self) -> None:
        """Wait until other threads have finished the update."""

    def close(self) -> None:
        """Release threads and memory."""


class GradientGraph:
    """The CUDA graph of the gradients for batches of one shape, with its input buffers and its loss.

    A batch passes through pinned memory into a second buffer on the device, in a stream of its own, so that the next
    one can be copied while a step is computed.
    """

    def __init__(self, plain: PlainStep, example: Batch, tokens: Tensor, pool: Any, warmup: int) -> None:
        self.batch, self.next = example.to(plain.device), example.to(plain.device)
        self.pinned = _pin(example)  # copies from pinned memory do not block the host
        self.side, self.arrived, self.taken = torch.cuda.Stream(), torch.cuda.Event(), torch.cuda.Event()
        gradients, statistics = [weight.grad for weight in plain.weights], plain.statistics.copy()
        for weight in plain.weights:
            weight.grad = None
        _warm_up(lambda: plain.gradients(self.batch, tokens), warmup)
        plain.statistics.restore(statistics)
        for weight, grad in zip(plain.weights, gradients, strict=True):
            weight.grad = grad
        self.loss, self.graph = _capture(lambda: plain.gradients(self.batch, tokens), pool)

    def copy(self, batch: Batch) -> None:
        """Begin to copy a batch to the device."""
        self.arrived.synchronize()  # pinned memory is free again
        with torch.cuda.stream(self.side):
            self.side.wait_event(self.taken)
            for name, pinned in self.pinned.items():
                getattr(self.next, name).copy_(pinned.copy_(getattr(batch, name)), non_blocking=True)
            self.arrived.record()

    def load(self) -> None:
        """Make the batch that was copied the input of the graph."""
        torch.cuda.current_stream().wait_event(self.arrived)
        for name in self.pinned:
            getattr(self.batch, name).copy_(getattr(self.next, name))
        self.taken.record()


class GraphedStep:
    """A step as CUDA graphs, which are captured once and replayed; one graph of the gradients per batch shape.

    Graphs use fixed memory, so the gradient buffers stay. Where each step is one batch and all have one shape, they are
    overwritten; otherwise they accumulate, and the update zeroes them. `same_shape`: all batches have the shape of
    `example`.
    """

    uses_threads: ClassVar = False
    copies_ahead: ClassVar = True

    def __init__(self, plain: PlainStep, example: Batch, same_shape: bool) -> None:
        self.plain = plain
        self.tokens, self.rate = (torch.ones((), device=plain.device) for _ in range(2))
        self.copied: Batch | None = None  # the batch that is on its way to the device
        self.accumulates = plain.config.accumulate > 1 or not same_shape
        self.pool = torch.cuda.graph_pool_handle()  # the graphs run one at a time, and share memory
        for group in plain.optimizer.param_groups:
            group["lr"], group["capturable"] = self.rate, True
        for weight in plain.weights:
            weight.grad = torch.zeros_like(weight) if self.accumulates else None
        self.graphs = {_shape(example): GradientGraph(plain, example, self.tokens, self.pool, warmup=3)}
        self._norm, self._norm_graph = _capture(plain.norm, self.pool)
        self._update_graph: torch.cuda.CUDAGraph | None = None  # captured at the first update, which it must not repeat
        self.skip()

    def gradients(self, batch: Batch, tokens: int, last: bool = True) -> Loss:
        self.tokens.fill_(tokens)
        shape = _shape(batch)
        if shape not in self.graphs:
            if len(self.graphs) == MAX_GRAPHS:
                return self.plain.gradients(batch, self.tokens)
            state = torch.cuda.get_rng_state(self.plain.device)
            self.graphs[shape] = GradientGraph(self.plain, batch, self.tokens, self.pool, warmup=1)
            torch.cuda.set_rng_state(state, self.plain.device)
        captured = self.graphs[shape]
        if self.copied is not batch:
            captured.copy(batch)
        self.copied = None
        captured.load()
        captured.graph.replay()
        return captured.loss

    def norm(self) -> Tensor:
        self._norm_graph.replay()
        return self._norm

    def update(self, rate: float) -> None:
        self.rate.fill_(rate)
        if self._update_graph is None:
            self._update()  # the first update runs eagerly, which also creates the optimizer's state
            _, self._update_graph = _capture(self._update, self.pool)  # capturing does not run it
        else:
            self._update_graph.replay()

    def skip(self) -> None:
        if self.accumulates:
            torch._foreach_zero_([weight.grad for weight in self.plain.weights if weight.grad is not None])

    def start(self, batch: Batch, tokens: int) -> None:
        """Copy the batch to the device; one of a new shape waits for its graph."""
        if self.copied is not batch and _shape(batch) in self.graphs:
            self.graphs[_shape(batch)].copy(batch)
            self.copied = batch

    def wait(self) -> None:
        """Nothing to wait for: reading the weights waits for the device."""

    def close(self) -> None:
        """Nothing to release: the graphs are freed with this object."""

    def _update(self) -> None:
        self.plain.optimizer.step()
        self.skip()


class RecordedStep:
    """A step on a CPU: the gradients are recorded once per batch shape and replayed, the samples split over threads.

    Threads that split the samples synchronize twice per step; torch's own threads synchronize at each operation, which
    costs a small model more than it gains. The other threads start with a batch while the calling one still reports the
    previous step, so it takes fewer samples. Raises `CannotRecordError` if an operation cannot be recorded.
    """

    uses_threads: ClassVar = True
    copies_ahead: ClassVar = False

    def __init__(self, plain: PlainStep, example: Batch) -> None:
        self.plain = plain
        self.threads = torch.get_num_threads()
        self.per_token = torch.ones(())  # the gradient of the loss per token
        self.results = [self.per_token, *plain.weights]  # loss and gradients have the shapes of these
        size = sum(map(Tensor.numel, self.results))
        self.sums = [torch.zeros(size) for _ in range(self.threads)]  # flat results of each thread
        self.pieces = [flat.chunk(self.threads) for flat in self.sums]
        self.loss, *gradients = views_like(self.results, self.sums[0])
        for weight, gradient in zip(plain.weights, gradients, strict=True):
            weight.grad = gradient
        self.started: tuple[Batch, list[Recording]] | None = None
        self.shares = balanced_groups(plain.weights, self.threads)
        self.names = [*_tensors(example)]
        self.shapes = {tuple(tensor.shape for tensor in self._tensors(example)): self._record(example)}
        self.pool = ThreadPool(self.threads)  # created last: a failed recording leaves no threads behind
        torch.set_num_threads(1)  # per operation, since the threads split the samples
        # Running averages of vanishing gradients become denormal numbers, which are 100 times as slow.
        torch.set_flush_denormal(True)

    def start(self, batch: Batch, tokens: int) -> None:
        """Let the other threads start with a batch."""
        tensors = self._tensors(batch)
        name = tuple(tensor.shape for tensor in tensors)
        if name not in self.shapes:
            self.shapes[name] = self._record(batch)
        recordings = self.shapes[name]
        self.per_token.fill_(1 / tokens)
        for recording, part in zip(recordings, self._parts(tensors), strict=True):
            for buffer, tensor in zip(recording.inputs, part, strict=True):
                if buffer is not None:
                    buffer.copy_(tensor)
        self.wait()
        self.pool.start([recording.run for recording in recordings[1:]])
        self.started = (batch, recordings)

    def gradients(self, batch: Batch, tokens: int, last: bool = True) -> Loss:
        if self.started is None or self.started[0] is not batch:
            self.start(batch, tokens)
        assert self.started is not None
        recordings, self.started = self.started[1], None
        recordings[0].run()
        self.wait()
        if len(recordings) > 1:
            adds = [partial(_add, pieces) for pieces in zip(*self.pieces[: len(recordings)], strict=True)]
            self.pool.start(adds[1:])
            adds[0]()
            self.wait()
        return Loss(self.loss, self.loss, torch.tensor(tokens))

    def close(self) -> None:
        """Stop the threads; their results are not needed any more."""
        self.pool.close()
        torch.set_num_threads(self.threads)
        torch.set_flush_denormal(False)

    def norm(self) -> Tensor:
        gradients, limit = self.sums[0][1:], self.plain.config.clip
        norm = torch.stack([some.dot(some) for some in gradients.split(NORM_CHUNK)]).sum().sqrt()
        if limit is not None and limit < norm < math.inf:
            gradients.mul_(limit / norm)
        return norm

    @torch.no_grad()
    def update(self, rate: float) -> None:
        optimizer = self.plain.optimizer
        for group in optimizer.param_groups:
            group["lr"] = rate
        assert isinstance(optimizer, torch.optim.AdamW | RootMeanSquare | Momentum)
        move = partial(adamw.move, optimizer) if isinstance(optimizer, torch.optim.AdamW) else optimizer.move
        first, *others = (partial(move, some, rate) for some in self.shares)
        self.pool.start(others)
        first()

    def wait(self) -> None:
        self.pool.finish()

    def skip(self) -> None:
        """Nothing to reset: the next gradients overwrite these."""

    def _tensors(self, batch: Batch) -> list[Tensor]:
        """The inputs of a recording."""
        return [*(getattr(batch, name) for name in self.names), self.per_token]

    def _parts(self, tensors: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
        """The tensors of each thread's samples; every thread gets the scalars."""
        sizes = samples_per_thread(max(len(part) for part in tensors if part.dim()), self.threads)
        split = [part.split(sizes) if part.dim() else [part] * len(sizes) for part in tensors]
        return list(zip(*split, strict=True))

    def _record(self, batch: Batch) -> list[Recording]:
        def step(*inputs: Tensor) -> tuple[Tensor, ...]:
            *tensors, per_token = inputs
            part: Any = dict(zip(self.names, tensors, strict=True))
            loss, _ = self.plain.loss(replace(batch, **part), None)
            if loss.parts:
                raise CannotRecordError("a loss with parts")
            gradients = torch.autograd.grad(loss.total, self.plain.weights, grad_outputs=per_token, allow_unused=True)
            if any(gradient is None for gradient in gradients):
                raise CannotRecordError("a weight that the loss does not depend on")
            return loss.plain, *gradients

        by_size: dict[int, Recording] = {}  # by the number of samples
        recordings = []
        for part, flat in zip(self._parts(self._tensors(batch)), self.sums, strict=False):
            recording = Recording(step, part, views_like(self.results, flat), by_size.get(len(part[0])))
            by_size.setdefault(len(part[0]), recording)
            recordings.append(recording)
        return recordings


def _add(pieces: Sequence[Tensor]) -> None:
    """Add the other tensors to the first."""
    for other in pieces[1:]:
        pieces[0].add_(other)


def views_like(like: Sequence[Tensor], flat: Tensor) -> list[Tensor]:
    """Consecutive views of a flat tensor with the shapes of `like`."""
    parts = flat.split([tensor.numel() for tensor in like])
    return [part.view(tensor.shape) for part, tensor in zip(parts, like, strict=True)]


def balanced_groups(tensors: Sequence[Tensor], parts: int) -> list[list[Tensor]]:
    """At most `parts` groups of tensors of about equal size, none of them empty."""
    shares: list[list[Tensor]] = [[] for _ in range(parts)]
    for tensor in sorted(tensors, key=Tensor.numel, reverse=True):
        min(shares, key=lambda share: sum(map(Tensor.numel, share))).append(tensor)
    return [share for share in shares if share]


def samples_per_thread(rows: int, threads: int) -> list[int]:
    """The number of samples of each thread: fewer for the first, at least one for each."""
    if min(rows, threads) == 1:
        return [rows]
    first = max(1, round(CALLER_SHARE * rows / threads))
    each, more = divmod(rows - first, threads - 1)
    return [first, *(size for number in range(threads - 1) if (size := each + (number < more)))]


AnyStep = PlainStep | GraphedStep | RecordedStep


def _tensors(batch: Batch) -> dict[str, Tensor]:
    """The tensors of a batch by name."""
    parts = {field.name: getattr(batch, field.name) for field in fields(batch)}
    return {name: part for name, part in parts.items() if isinstance(part, Tensor)}


def _shape(batch: Batch) -> tuple[object, ...]:
    """The shape of a batch: a graph can be reused for batches with the same."""
    parts = (getattr(batch, field.name) for field in fields(batch))
    return tuple(part.shape if isinstance(part, Tensor) else part for part in parts)


def _pin(batch: Batch) -> dict[str, Tensor]:
    """A pinned host buffer for each tensor of a batch."""
    return {name: part.pin_memory() for name, part in _tensors(batch).items()}


def _warm_up(run: Callable[[], object], times: int) -> None:
    """Run a few times on a side stream before a capture, so that libraries compile and allocate."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(times):
            run()
    torch.cuda.current_stream().wait_stream(side)


def _capture(run: Callable[[], Result], pool: Any) -> tuple[Result, torch.cuda.CUDAGraph]:
    """The results of a function, as buffers, and the CUDA graph that computes them again."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        result = run()
    return result, graph
