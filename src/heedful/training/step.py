"""An optimizer step in three parts: gradients of a micro-batch, their norm, the update; plain, recorded or captured."""

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
from heedful.training.carry import checked, detached
from heedful.training.configs import TrainConfig
from heedful.training.distributed.shards import local
from heedful.training.distributed.team import Carry, Spread
from heedful.training.optim import clip
from heedful.training.replay import CannotRecordError, Recording
from heedful.training.rmsprop import RootMeanSquare
from heedful.training.thread_pool import ThreadPool

Result = TypeVar("Result")
FIRST_SHARE = 0.95  # of an even part of the samples, which the calling thread takes
SUMMED = 1 << 14  # squares that are added up one by one; many more would cost digits
MOST_SHAPES = 64  # that are captured; batches of rarer ones run plainly


def mixed(device: torch.device, half: torch.dtype | None) -> AbstractContextManager[object]:
    """Where matrix products run in half precision, if so."""
    return torch.autocast(device.type, dtype=half) if half else nullcontext()


class PlainStep:
    """Each part as it is."""

    helped: ClassVar = False  # whether other threads work while the calling one continues

    def __init__(
        self, model: nn.Module, spread: Spread, optimizer: torch.optim.Optimizer, config: TrainConfig,
        device: torch.device, half: torch.dtype | None, carry: Carry = None,
    ) -> None:  # fmt: skip
        self.weights = [weight for weight in model.parameters() if weight.requires_grad]
        self.spread, self.optimizer, self.config, self.device, self.half = spread, optimizer, config, device, half
        self.scale = torch.ones((), device=device)  # of the gradients, so that half precision holds small ones
        self.carry = carry  # what the last micro-batch left for the next

    def gradients(self, batch: Batch, tokens: int | Tensor, last: bool = True) -> Loss:
        """Add a micro-batch's gradients, its loss divided by the tokens of the whole step."""
        with self.spread.sync(last):
            loss, carry = self.loss(batch, self.carry)
            (loss.total * (self.spread.share * self.scale) / tokens).backward()
        self.carry = detached(carry)
        loss = checked(loss, self.carry)
        return replace(loss, total=loss.total.detach())

    def loss(self, batch: Batch, carry: Carry) -> tuple[Loss, Carry]:
        """A micro-batch's loss, and what it leaves for the next."""
        with mixed(self.device, self.half):
            return self.spread.loss_of(batch.to(self.device), carry)

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

    def begin(self, batch: Batch, tokens: int) -> None:
        """Where other threads help, let them start with the next micro-batch."""

    def settle(self) -> None:
        """Wait until the update is done, where other threads do it."""

    def close(self) -> None:
        """Release threads and memory."""


class Shape:
    """The gradients of batches of one shape, captured: the buffers that are read, and the loss that is left."""

    def __init__(self, plain: PlainStep, like: Batch, tokens: Tensor, pool: Any, warm: int) -> None:
        self.batch = like.to(plain.device)
        self.waiting = _pinned(like)  # copies from pinned memory do not stop the host
        kept = [weight.grad for weight in plain.weights]
        for weight in plain.weights:
            weight.grad = None
        _warmed(lambda: plain.gradients(self.batch, tokens), warm)
        for weight, grad in zip(plain.weights, kept, strict=True):
            weight.grad = grad
        self.loss, self.graph = _captured(lambda: plain.gradients(self.batch, tokens), pool)

    def load(self, batch: Batch) -> None:
        for name, waiting in self.waiting.items():
            getattr(self.batch, name).copy_(waiting.copy_(getattr(batch, name)), non_blocking=True)


class GraphedStep:
    """Each part captured once as a device graph and replayed, the gradients once for each shape that batches have.

    Captured work sees the same memory each time, so the gradients stay where they are: where each step is one batch of
    one shape they are written over, else they are added up and set to zero by the update. `alike` says whether all
    batches have the shape of the first.
    """

    helped: ClassVar = False

    def __init__(self, plain: PlainStep, like: Batch, alike: bool) -> None:
        self.plain = plain
        self.tokens, self.rate = (torch.ones((), device=plain.device) for _ in range(2))
        self.copied = torch.cuda.Event()
        self.adds = plain.config.accumulate > 1 or not alike
        self.pool = torch.cuda.graph_pool_handle()  # the graphs run one after the other, and share their memory
        for group in plain.optimizer.param_groups:
            group["lr"], group["capturable"] = self.rate, True
        for weight in plain.weights:
            weight.grad = torch.zeros_like(weight) if self.adds else None
        self.shapes = {_shape(like): Shape(plain, like, self.tokens, self.pool, warm=3)}
        self.size, self._norm = _captured(plain.norm, self.pool)
        self._updated: torch.cuda.CUDAGraph | None = None  # captured at the first update, since it changes the weights
        self.skip()

    def gradients(self, batch: Batch, tokens: int, last: bool = True) -> Loss:
        self.tokens.fill_(tokens)
        name = _shape(batch)
        if name not in self.shapes:
            if len(self.shapes) == MOST_SHAPES:
                return self.plain.gradients(batch, self.tokens)
            state = torch.cuda.get_rng_state(self.plain.device)
            self.shapes[name] = Shape(self.plain, batch, self.tokens, self.pool, warm=1)
            torch.cuda.set_rng_state(state, self.plain.device)
        shape = self.shapes[name]
        self.copied.synchronize()
        shape.load(batch)
        self.copied.record()
        shape.graph.replay()
        return shape.loss

    def norm(self) -> Tensor:
        self._norm.replay()
        return self.size

    def update(self, rate: float) -> None:
        self.rate.fill_(rate)
        if self._updated is None:
            self._move()  # the first update runs plainly, which also makes the optimizer's state
            _, self._updated = _captured(self._move, self.pool)  # capturing does not run it
        else:
            self._updated.replay()

    def skip(self) -> None:
        if self.adds:
            torch._foreach_zero_([weight.grad for weight in self.plain.weights if weight.grad is not None])

    def begin(self, batch: Batch, tokens: int) -> None:
        """The device does one step after the other."""

    def settle(self) -> None:
        """Reading the weights waits for the device."""

    def close(self) -> None:
        """The graphs go with their owner."""

    def _move(self) -> None:
        self.plain.optimizer.step()
        self.skip()


class RecordedStep:
    """The gradients of each shape of batches recorded once and run again, each thread taking some of the samples.

    Threads that share the samples of a batch meet twice a step; those that share every matrix meet at each operation,
    where a second one costs a small model more than it brings. The other threads start with a batch while the calling
    one still reports the step before, so it takes fewer. What cannot be recorded is a `CannotRecordError`.
    """

    helped: ClassVar = True

    def __init__(self, plain: PlainStep, like: Batch) -> None:
        self.plain = plain
        self.threads = torch.get_num_threads()
        self.share = torch.ones(())  # of the loss's gradient that a token has
        self.results = [self.share, *plain.weights]  # the loss and the gradients are like these
        size = sum(map(Tensor.numel, self.results))
        self.sums = [torch.zeros(size) for _ in range(self.threads)]  # those of each thread, one after the other
        self.pieces = [flat.chunk(self.threads) for flat in self.sums]
        self.loss, *gradients = laid_out(self.results, self.sums[0])
        for weight, gradient in zip(plain.weights, gradients, strict=True):
            weight.grad = gradient
        self.begun: tuple[Batch, list[Recording]] | None = None
        self.shares = evenly(plain.weights, self.threads)
        self.names = [*_tensors(like)]
        self.shapes = {tuple(tensor.shape for tensor in self._tensors(like)): self._recorded(like)}
        self.pool = ThreadPool(self.threads)  # so late that what cannot be recorded leaves no threads behind
        torch.set_num_threads(1)  # of each operation, since the threads share the samples
        # Averages of gradients that vanish fade through numbers below 1e-38, which take the CPU 100 times as long.
        torch.set_flush_denormal(True)

    def begin(self, batch: Batch, tokens: int) -> None:
        """Let the other threads begin with a batch."""
        tensors = self._tensors(batch)
        name = tuple(tensor.shape for tensor in tensors)
        if name not in self.shapes:
            self.shapes[name] = self._recorded(batch)
        recordings = self.shapes[name]
        self.share.fill_(1 / tokens)
        for recording, part in zip(recordings, self._parts(tensors), strict=True):
            for room, given in zip(recording.inputs, part, strict=True):
                if room is not None:
                    room.copy_(given)
        self.settle()
        self.pool.start([recording.run for recording in recordings[1:]])
        self.begun = (batch, recordings)

    def gradients(self, batch: Batch, tokens: int, last: bool = True) -> Loss:
        if self.begun is None or self.begun[0] is not batch:
            self.begin(batch, tokens)
        assert self.begun is not None
        recordings, self.begun = self.begun[1], None
        recordings[0].run()
        self.settle()
        if len(recordings) > 1:
            adds = [partial(_add, pieces) for pieces in zip(*self.pieces[: len(recordings)], strict=True)]
            self.pool.start(adds[1:])
            adds[0]()
            self.settle()
        return Loss(self.loss, self.loss, torch.tensor(tokens))

    def close(self) -> None:
        """Stop the threads; what they have started is not needed any more."""
        self.pool.close()
        torch.set_num_threads(self.threads)
        torch.set_flush_denormal(False)

    def norm(self) -> Tensor:
        gradients, limit = self.sums[0][1:], self.plain.config.clip
        norm = torch.stack([some.dot(some) for some in gradients.split(SUMMED)]).sum().sqrt()
        if limit is not None and limit < norm < math.inf:
            gradients.mul_(limit / norm)
        return norm

    @torch.no_grad()
    def update(self, rate: float) -> None:
        optimizer = self.plain.optimizer
        for group in optimizer.param_groups:
            group["lr"] = rate
        assert isinstance(optimizer, torch.optim.AdamW | RootMeanSquare)
        move = optimizer.move if isinstance(optimizer, RootMeanSquare) else partial(adamw.move, optimizer)
        first, *others = (partial(move, some, rate) for some in self.shares)
        self.pool.start(others)
        first()

    def settle(self) -> None:
        self.pool.finish()

    def skip(self) -> None:
        """The next gradients are written over these."""

    def _tensors(self, batch: Batch) -> list[Tensor]:
        """What a recording is given of a batch."""
        return [*(getattr(batch, name) for name in self.names), self.share]

    def _parts(self, tensors: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
        """The tensors of each thread's samples; what has no rows is given to all."""
        sizes = shared(max(len(part) for part in tensors if part.dim()), self.threads)
        split = [part.split(sizes) if part.dim() else [part] * len(sizes) for part in tensors]
        return list(zip(*split, strict=True))

    def _recorded(self, batch: Batch) -> list[Recording]:
        def step(*given: Tensor) -> tuple[Tensor, ...]:
            *tensors, share = given
            part: Any = dict(zip(self.names, tensors, strict=True))
            loss, _ = self.plain.loss(replace(batch, **part), None)
            gradients = torch.autograd.grad(loss.total, self.plain.weights, grad_outputs=share, allow_unused=True)
            if any(gradient is None for gradient in gradients):
                raise CannotRecordError("a weight that the loss does not feel")
            return loss.plain, *gradients

        found: dict[int, Recording] = {}  # by how many samples they take
        recordings = []
        for part, flat in zip(self._parts(self._tensors(batch)), self.sums, strict=False):
            recording = Recording(step, part, laid_out(self.results, flat), found.get(len(part[0])))
            found.setdefault(len(part[0]), recording)
            recordings.append(recording)
        return recordings


def _add(pieces: Sequence[Tensor]) -> None:
    """Add to the first what the others have."""
    for other in pieces[1:]:
        pieces[0].add_(other)


def laid_out(like: Sequence[Tensor], flat: Tensor) -> list[Tensor]:
    """Views of a flat tensor with these shapes, one after the other."""
    parts = flat.split([tensor.numel() for tensor in like])
    return [part.view(tensor.shape) for part, tensor in zip(parts, like, strict=True)]


def evenly(tensors: Sequence[Tensor], parts: int) -> list[list[Tensor]]:
    """Tensors in at most `parts` groups of about equal size, none of them empty."""
    shares: list[list[Tensor]] = [[] for _ in range(parts)]
    for tensor in sorted(tensors, key=Tensor.numel, reverse=True):
        min(shares, key=lambda share: sum(map(Tensor.numel, share))).append(tensor)
    return [share for share in shares if share]


def shared(rows: int, threads: int) -> list[int]:
    """The number of samples that each thread takes: the first fewer, every thread at least one."""
    if min(rows, threads) == 1:
        return [rows]
    first = max(1, round(FIRST_SHARE * rows / threads))
    each, more = divmod(rows - first, threads - 1)
    return [first, *(size for number in range(threads - 1) if (size := each + (number < more)))]


AnyStep = PlainStep | GraphedStep | RecordedStep


def _tensors(batch: Batch) -> dict[str, Tensor]:
    """The tensors of a batch by name."""
    parts = {field.name: getattr(batch, field.name) for field in fields(batch)}
    return {name: part for name, part in parts.items() if isinstance(part, Tensor)}


def _shape(batch: Batch) -> tuple[object, ...]:
    """What two batches must have in common to be treated alike."""
    parts = (getattr(batch, field.name) for field in fields(batch))
    return tuple(part.shape if isinstance(part, Tensor) else part for part in parts)


def _pinned(batch: Batch) -> dict[str, Tensor]:
    """Room on the host for each tensor of a batch, from which a device copies by itself."""
    return {name: part.pin_memory() for name, part in _tensors(batch).items()}


def _warmed(run: Callable[[], object], times: int) -> None:
    """Run a few times on a side stream: compiles, and lets libraries choose and allocate, before a capture."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(times):
            run()
    torch.cuda.current_stream().wait_stream(side)


def _captured(run: Callable[[], Result], pool: Any) -> tuple[Result, torch.cuda.CUDAGraph]:
    """What a function gives, as buffers, and the graph that fills them again."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        result = run()
    return result, graph
