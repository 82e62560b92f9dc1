"""NaN and infinity stop a run before the update; the error names the step, the samples and the first bad tensor.

The first bad tensor is found by running the step's micro-batches again with hooks on each module.
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

MAX_SAMPLES = 8  # named in an error
LARGE = 1e6  # larger inputs are probably the cause

Place = tuple[Node, int]  # where a tensor was computed: a node of autograd's graph, and the index of its output


def require_sound(model: nn.Module, step: int) -> None:
    """Refuse to evaluate or save a model with weights that are not finite."""
    if not torch.stack([local(weight).isfinite().all() for weight in model.parameters()]).all():
        raise UserError(
            f"a weight is not finite after step {step}",
            found=f"first bad tensor: {next(name for name, weight in model.named_parameters() if not sound(weight))}",
            todo="lower the learning rate or the clip",
            exit_code=EXIT_NOT_FINITE,
        )


class NotFiniteError(UserError):
    """A step that is not finite; `own`: the bad value is from this process's own batches."""

    own: bool


def not_finite(
    model: nn.Module,
    step: int,
    batches: Sequence[Batch],
    losses: Sequence[float],
    rerun: Callable[[int], Loss],
    halved: bool = False,
) -> NotFiniteError:
    """The error that names the step, the samples and the first tensor that is not finite; the weights are unchanged.

    `batches` are the step's micro-batches, `losses` their losses, and `rerun` computes one of them again, with its
    autograd graph; `halved`: matrix products are in half precision. The step's gradients are kept.

    Every micro-batch is run again, forward and backward, so that processes with sharded weights communicate in the same
    order. A collective call.
    """
    tokens = max(1, sum(batch.tokens for batch in batches))  # a process may have no samples
    found = [first_bad(model, partial(rerun, index), tokens) for index in range(len(batches))]
    bad = [index for index, loss in enumerate(losses) if not math.isfinite(loss)]
    bad = bad or [index for index, name in enumerate(found) if name] or list(range(len(batches)))
    first = bad_weight(model) or next((found[index] for index in bad if found[index]), None) or left_bad(model, losses)
    samples = [str(number) for index in bad for number in batches[index].indices.tolist() if number >= 0]
    named = f"training samples {', '.join(samples[:MAX_SAMPLES])}{' ...' if len(samples) > MAX_SAMPLES else ''}"
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
    """What may help: smaller inputs, a lower learning rate, or a higher precision."""
    values = [getattr(batch, part.name) for batch in batches if is_dataclass(batch) for part in fields(batch)]
    sizes = [float(x.abs().max()) for x in values if isinstance(x, Tensor) and x.is_floating_point() and x.numel()]
    if sizes and not max(sizes) <= LARGE:
        return f"scale the data: their numbers reach {max(sizes):.3g}"
    return "lower the learning rate or the clip" + ", or use precision: fp32" * halved


def sound(x: Tensor) -> bool:
    """Whether a tensor, or this process's shard of it, is finite."""
    return bool(local(x).isfinite().all())


def bad_weight(model: nn.Module) -> str | None:
    """The first weight that is not finite, or buffer with NaN or +infinity; masks may contain -infinity."""
    for name, weight in model.named_parameters():
        if not sound(weight):
            return f"the weight {name}"
    for name, buffer in model.named_buffers():
        if buffer.is_floating_point() and not sound(local(buffer).clamp(min=0)):
            return f"the buffer {name}"
    return None


def left_bad(model: nn.Module, losses: Sequence[float]) -> str:
    """The first bad gradient or loss of the step itself, if running it again did not show its origin."""
    if not all(map(math.isfinite, losses)):
        return "the loss itself; running it again showed no other"
    for name, weight in reversed(list(model.named_parameters())):  # the last is probably nearest to the loss
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
    # In eager mode, since compiled code does not call hooks.
    with torch.compiler.set_stance("force_eager"), record_values(model) as seen, without_gradients(model):
        try:
            loss = run()
            (loss.total / tokens).backward()
        except torch.OutOfMemoryError:
            if torch.distributed.is_available() and torch.distributed.is_initialized():
                raise  # otherwise other processes would wait for this one
            return None
    return bad_value(seen.values, loss) or bad_gradient(seen, loss)


# ------------------------------------------------------------------ running again
@dataclass(frozen=True)
class Value:
    """An input or output of a module: its name, what is wrong with it, and where it was computed, if known."""

    name: str
    nan: bool
    infinite: bool
    place: Place | None


@dataclass(frozen=True)
class RecordedValues:
    """The values of a run, in order."""

    values: list[Value] = field(default_factory=list)
    gradients: list[Place] = field(default_factory=list)  # places of gradients that are not finite
    weights: list[str] = field(default_factory=list)  # whose gradients are not finite
    hooks: list[RemovableHandle] = field(default_factory=list)

    def take(self, name: str, given: object) -> None:
        """Record the tensors of a module's inputs or outputs, and later their gradients."""
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
def record_values(model: nn.Module) -> Iterator[RecordedValues]:
    """Record inputs and outputs of all modules, and gradients that are not finite, within this context."""
    seen = RecordedValues()

    def watch(path: str, module: nn.Module) -> list[RemovableHandle]:
        called = path or "the model"

        def before(module: nn.Module, *given: object) -> None:
            seen.take(f"the input of {called}", given)

        def after(module: nn.Module, args: object, options: object, result: object) -> None:
            # Input data are not in the autograd graph, along which an infinity could be traced.
            data = any(x.grad_fn is None and not sound(x) for x in tensors((args, options)))
            # Sharded weights are gathered here.
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
    """Set the model's gradients aside within this context."""
    kept = [(weight, weight.grad) for weight in model.parameters()]
    try:
        for weight, _ in kept:
            weight.grad = None
        yield
    finally:
        for weight, gradient in kept:
            weight.grad = gradient


def tensors(value: object) -> Iterator[Tensor]:
    """The floating-point tensors in a nested value."""
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


# ------------------------------------------------------------------ finding the cause
def bad_value(values: Sequence[Value], loss: Loss) -> str | None:
    """The first tensor of the forward pass that causes NaN or a loss that is not finite."""
    lost = not (sound(loss.total) and sound(loss.plain))
    ends = [value.place for value in values if value.nan] + ([_place(loss.total)] if lost else [])
    causes = _upstream([end for end in ends if end is not None], _healthy(values))
    blamed = (value.name for value in values if value.nan or (value.infinite and value.place in causes))
    return next(blamed, "the loss itself" if lost else None)


def bad_gradient(seen: RecordedValues, loss: Loss) -> str | None:
    """The first bad gradient of a weight, or the infinity that caused it although the loss is finite.

    Such an infinity is next to the first bad gradient, between the same finite tensors.
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
    """The places where finite tensors were computed."""
    spoilt = {value.place for value in values if value.nan or value.infinite}
    return {value.place for value in values if value.place is not None} - spoilt


def _upstream(ends: Sequence[Place], healthy: set[Place]) -> set[Place]:
    """The ends and their predecessors in the graph, up to the next finite tensors."""
    seen, ahead = set(ends), list(ends)
    while ahead:
        for node, number in ahead.pop()[0].next_functions:
            if node is not None and (place := (node, number)) not in seen:
                seen.add(place)
                if place not in healthy:
                    ahead.append(place)
    return seen
