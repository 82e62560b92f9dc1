"""What is not finite stops a run before the optimizer moves, and is named: the step, the samples, the first bad tensor.

The first bad tensor is found after the fact, by running the step's micro-batches again and looking at each module.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge
from torch.utils.hooks import RemovableHandle

from heedful.blocks.losses import Loss
from heedful.data.pairs.batches import Batch
from heedful.errors import UserError
from heedful.training.checkpoint.tensors import EXIT_NOT_FINITE
from heedful.training.distributed.shards import local

SHOWN = 8  # samples that a message names
LARGE = 1e6  # beyond this, the data are to blame: pixels are from 0 to 255

Place = tuple[Node, int]  # where a tensor was made: an operation of autograd's graph, and which of its results


def require_sound(model: nn.Module, step: int) -> None:
    """Refuse to evaluate or to save a model whose weights the last steps have made too large to be numbers."""
    if not torch.stack([local(weight).isfinite().all() for weight in model.parameters()]).all():
        raise UserError(
            f"a weight is not finite after step {step}",
            found=f"first bad tensor: {next(name for name, weight in model.named_parameters() if not sound(weight))}",
            todo="lower the learning rate or the clip",
            exit_code=EXIT_NOT_FINITE,
        )


class NotFiniteError(UserError):
    """The report on a step; `own` if what is bad was found in this process's own batches."""

    own: bool


def not_finite(
    model: nn.Module,
    step: int,
    batches: Sequence[Batch],
    losses: Sequence[float],
    rerun: Callable[[int], Loss],
    halved: bool = False,
) -> NotFiniteError:
    """Name the step, the samples and the first tensor that is not finite; nothing has been changed by this step.

    `batches` are the step's micro-batches, `losses` the sums that they gave, and `rerun` computes one of them again as
    in the step, with its graph; `halved` says that products are of 16 bits. The step's gradients stay in place.

    Every micro-batch is run again, forward and backward, whatever is found: processes that share their weights then
    meet in the same places. All of them must call this.
    """
    tokens = max(1, sum(batch.tokens for batch in batches))  # a process's share may be empty
    found = [first_bad(model, partial(rerun, index), tokens) for index in range(len(batches))]
    bad = [index for index, loss in enumerate(losses) if not math.isfinite(loss)]
    bad = bad or [index for index, name in enumerate(found) if name] or list(range(len(batches)))
    first = bad_weight(model) or next((found[index] for index in bad if found[index]), None) or left_bad(model, losses)
    samples = [str(number) for index in bad for number in batches[index].indices.tolist() if number >= 0]
    named = f"training samples {', '.join(samples[:SHOWN])}{' ...' if len(samples) > SHOWN else ''}"
    report = NotFiniteError(
        f"a number is not finite at step {step}, and the step was not taken",
        found=f"loss {sum(losses) / tokens}; first bad tensor: {first}",
        where=named if samples else None,
        todo=_advice(batches, halved),
        exit_code=EXIT_NOT_FINITE,
    )
    report.own = any(found) or not all(map(math.isfinite, losses))
    return report


def _advice(batches: Sequence[Batch], halved: bool) -> str:
    """What helps: data of a usual size, else smaller steps, or more bits where there are few."""
    values = [getattr(batch, part.name) for batch in batches if is_dataclass(batch) for part in fields(batch)]
    sizes = [float(x.abs().max()) for x in values if isinstance(x, Tensor) and x.is_floating_point() and x.numel()]
    if sizes and not max(sizes) <= LARGE:
        return f"scale the data: their numbers reach {max(sizes):.3g}"
    return "lower the learning rate or the clip" + ", or use precision: fp32" * halved


def sound(x: Tensor) -> bool:
    """Whether all of a tensor, or all that this process holds of it, is finite."""
    return bool(local(x).isfinite().all())


def bad_weight(model: nn.Module) -> str | None:
    """The first weight that is not finite, or buffer that has NaN or +infinity; a mask may hold -infinity."""
    for name, weight in model.named_parameters():
        if not sound(weight):
            return f"the weight {name}"
    for name, buffer in model.named_buffers():
        if buffer.is_floating_point() and not sound(local(buffer).clamp(min=0)):
            return f"the buffer {name}"
    return None


def left_bad(model: nn.Module, losses: Sequence[float]) -> str:
    """What the step itself left that is not finite, when running it again has not shown where that came from."""
    if not all(map(math.isfinite, losses)):
        return "the loss itself; running it again showed no other"
    for name, weight in reversed(list(model.named_parameters())):  # the last is likely nearest to the loss
        if weight.grad is not None and not sound(weight.grad):
            return f"the gradient of {name}; running it again showed no other"
    return "the norm of the gradients, each of which is finite"


def first_bad(model: nn.Module, run: Callable[[], Loss], tokens: int) -> str | None:
    """The first tensor that is not finite as a loss is computed and goes back, or None; the model stays as it is.

    First comes what modules take and give, then the loss, then the weights' gradients, each in the order of their
    making. NaN is never lawful. Infinity may be, as in the scores of masked attention: it is
    blamed only if it leads to NaN or to a loss that is not finite, without a finite input or output of a module in
    between, or if it meets a finite gradient and what comes of that is not. A run that does not fit into memory shows
    nothing.
    """
    # What is compiled runs as it is written, since compiled code does not call hooks.
    with torch.compiler.set_stance("force_eager"), witnessed(model) as seen, without_gradients(model):
        try:
            loss = run()
            (loss.total / tokens).backward()
        except torch.OutOfMemoryError:
            if torch.distributed.is_available() and torch.distributed.is_initialized():
                raise  # the others would wait for this process
            return None
    return bad_value(seen.values, loss) or bad_gradient(seen, loss)


# ------------------------------------------------------------------ running again
@dataclass(frozen=True)
class Value:
    """A tensor that a module took or gave: what to call it, what is wrong with it, and where it was made if known."""

    name: str
    nan: bool
    infinite: bool
    place: Place | None


@dataclass(frozen=True)
class Recorded:
    """What a run showed, in order."""

    values: list[Value] = field(default_factory=list)
    gradients: list[Place] = field(default_factory=list)  # where those that are not finite belong
    weights: list[str] = field(default_factory=list)  # whose gradients are not finite
    hooks: list[RemovableHandle] = field(default_factory=list)

    def take(self, name: str, given: object) -> None:
        """Note the tensors in what a module took or gave, and their gradients when they come."""
        for x in tensors(given):
            place = _place(x)
            self.values.append(Value(name, bool(local(x).isnan().any()), bool(local(x).isinf().any()), place))
            if place is not None:
                self.hooks.append(x.register_hook(partial(self.take_gradient, place)))

    def take_gradient(self, place: Place, gradient: Tensor) -> None:
        if not sound(gradient):
            self.gradients.append(place)

    def take_weight(self, name: str, place: Place, weight: Tensor) -> None:
        if weight.grad is not None and not sound(weight.grad):
            self.gradients.append(place)
            self.weights.append(name)


@contextmanager
def witnessed(model: nn.Module) -> Iterator[Recorded]:
    """What the modules take and give in here, and which gradients are not finite."""
    seen = Recorded()

    def watch(path: str, module: nn.Module) -> list[RemovableHandle]:
        called = path or "the model"

        def before(module: nn.Module, *given: object) -> None:
            seen.take(f"the input of {called}", given)

        def after(module: nn.Module, args: object, options: object, result: object) -> None:
            # Data has no place in the graph, along which an infinity could be traced from there to here.
            data = any(x.grad_fn is None and not sound(x) for x in tensors((args, options)))
            # Weights of which each process holds a shard are whole here.
            own = (name for name, weight in module.named_parameters(recurse=False) if not sound(weight))
            weight = next((f"the weight {'.'.join(filter(None, [path, name]))}" for name in own), None)
            seen.take(weight or f"the {'input' if data else 'output'} of {called}", result)

        return [
            module.register_forward_pre_hook(before, with_kwargs=True),
            module.register_forward_hook(after, with_kwargs=True),
        ]

    for path, module in model.named_modules():
        seen.hooks.extend(watch(path, module))
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            place = (get_gradient_edge(weight).node, 0)
            seen.hooks.append(weight.register_post_accumulate_grad_hook(partial(seen.take_weight, name, place)))
    try:
        yield seen
    finally:
        for hook in seen.hooks:
            hook.remove()


@contextmanager
def without_gradients(model: nn.Module) -> Iterator[None]:
    """The model without gradients in here, and with those that it had after."""
    kept = [(weight, weight.grad) for weight in model.parameters()]
    try:
        for weight, _ in kept:
            weight.grad = None
        yield
    finally:
        for weight, gradient in kept:
            weight.grad = gradient


def tensors(value: object) -> Iterator[Tensor]:
    """The tensors in a value, which may be nested, but for those of whole numbers."""
    if isinstance(value, Tensor):
        if value.is_floating_point():
            yield value
    elif isinstance(value, Mapping):
        yield from tensors(list(value.values()))
    elif isinstance(value, tuple | list):
        for part in value:
            yield from tensors(part)
    elif is_dataclass(value) and not isinstance(value, type):
        yield from tensors([getattr(value, part.name) for part in fields(value)])


# ------------------------------------------------------------------ whom to blame
def bad_value(values: Sequence[Value], loss: Loss) -> str | None:
    """The first tensor of the forward pass that is to blame for NaN or for a loss that is not finite."""
    lost = not (sound(loss.total) and sound(loss.plain))
    ends = [value.place for value in values if value.nan] + ([_place(loss.total)] if lost else [])
    causes = _upstream([end for end in ends if end is not None], _healthy(values))
    blamed = (value.name for value in values if value.nan or (value.infinite and value.place in causes))
    return next(blamed, "the loss itself" if lost else None)


def bad_gradient(seen: Recorded, loss: Loss) -> str | None:
    """The first gradient of a weight that is not finite, or the infinity that spoilt it though the loss is finite.

    Such an infinity stands beside the first bad gradient, between the same finite tensors.
    """
    if not seen.weights:
        return None
    healthy, beside = _healthy(seen.values), set[Place]()
    for end in {_place(loss.total), *healthy} - {seen.gradients[0]}:
        region = _upstream([end] if end else [], healthy)
        beside |= region if seen.gradients[0] in region else set()
    blamed = (value.name for value in seen.values if value.infinite and value.place in beside)
    return next(blamed, f"the gradient of {seen.weights[0]}")


def _place(x: Tensor) -> Place | None:
    return None if x.grad_fn is None else (x.grad_fn, x.output_nr)


def _healthy(values: Sequence[Value]) -> set[Place]:
    """Where finite tensors were made."""
    spoilt = {value.place for value in values if value.nan or value.infinite}
    return {value.place for value in values if value.place is not None} - spoilt


def _upstream(ends: Sequence[Place], healthy: set[Place]) -> set[Place]:
    """The ends and what they were made from, as far as the next healthy places."""
    seen, ahead = set(ends), list(ends)
    while ahead:
        for node, number in ahead.pop()[0].next_functions:
            if node is not None and (place := (node, number)) not in seen:
                seen.add(place)
                if place not in healthy:
                    ahead.append(place)
    return seen
