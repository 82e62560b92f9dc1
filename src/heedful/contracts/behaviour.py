"""Checks of a model as a function: finite numbers, the same output for the same input, nothing changed on the way."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn

from heedful.contracts.comparison import Cause, Comparison, Loaded, equal_rows
from heedful.contracts.report import Finding
from heedful.contracts.shrink import shrink, written
from heedful.contracts.subject import Subject, copied, distance
from heedful.contracts.trace import first_different, traced

SAME = 1e-5  # of the largest output: a copy of a module may add in another order


# ------------------------------------------------------------------ finite numbers
def check_finite(name: str, loaded: Loaded) -> Finding:
    """Finite weights, and no NaN in the output; infinite logits exclude a token."""
    about = "weights are finite, and no output is NaN"
    weights = [key for key, weight in loaded.module.named_parameters() if not bool(weight.isfinite().all())]
    if weights:
        return Finding(
            name, about, "failed", f"NaN or infinite weights: {', '.join(weights[:5])}",
            cause="training diverged, or the file is damaged",
            advice="go back to an earlier checkpoint; train with a smaller learning rate, or clip the gradient",
        )  # fmt: skip
    for subject in loaded.subjects:
        rows = next(equal_rows(subject))
        if not any(bool(one.isnan().any()) for one in subject.outputs(rows)):
            continue
        seen = traced(subject.module, partial(subject.outputs, rows))
        where = next((f" first in {key}" for key, output in seen if bool(output.isnan().any())), "")
        return Finding(
            name, about, "failed", f"the output is NaN,{where}" if where else "the output is NaN",
            smallest=written(rows), cause="0 / 0, inf - inf, a softmax over -inf alone, or a log or root below 0",
            advice="look at what goes in there; add eps, or clamp",
        )  # fmt: skip
    return Finding(name, about, "passed")


# ------------------------------------------------------------------ calls
def two_rows(subject: Subject) -> Iterator[list[Tensor]]:
    """Two rows of one length, and four long ones."""
    yield subject.rows([min(5, subject.longest)] * 2)
    yield subject.rows([subject.longest] * 4)


def calls(subject: Subject) -> Iterator[list[Tensor]]:
    """Rows of one length, and of two if they can be padded."""
    yield from two_rows(subject)
    if subject.sides:
        yield subject.rows([min(5, subject.longest), min(2, subject.longest)], seed=2)


def repeated_difference(subject: Subject, rows: list[Tensor]) -> float:
    """A call against the same call after others, and against the first call of a copy."""
    before = subject.outputs(rows)
    subject.outputs(subject.rows([min(7, subject.longest)] * 3, seed=5))
    subject.outputs(subject.rows([max(map(len, rows))] * len(rows), seed=6))  # the same shape, without padding
    worst = float(distance(subject.outputs(rows), before).max())
    worst = max(worst, float(distance(subject.outputs(rows), before).max()))
    fresh = None if subject.fresh is None else copied(subject.fresh)
    if fresh is None:
        return worst
    gap = float(distance(subject.of(fresh).outputs(rows), before).max())
    return max(worst, gap if gap > SAME else 0.0)


def left_training(module: nn.Module) -> Cause | None:
    """The cause for a module that evaluates in training mode."""
    for name, part in module.named_modules():
        if part.training:
            named = f"{name or 'the module'} ({type(part).__name__})"
            return Cause(
                f"after model.eval(), {named} is in training mode: forward calls train(), or train() is overridden",
                "leave the mode to the caller; an own train(mode) calls super().train(mode) and returns self",
            )
    return None


def repeated_cause(subject: Subject, rows: list[Tensor]) -> Cause:
    """Why calls affect each other."""
    if training := left_training(subject.module):
        return training
    buffers = {name: value.clone() for name, value in subject.module.named_buffers()}
    subject.outputs(subject.rows([min(7, subject.longest)] * 3, seed=7))
    moved = [name for name, value in subject.module.named_buffers() if not torch.equal(value, buffers[name])]
    if moved:
        return Cause(f"the buffer {moved[0]} changes in evaluation", "change it only if self.training")
    name = first_different(
        subject.module,
        lambda number: subject.outputs(rows),
        lambda number: subject.outputs(subject.rows([min(7, subject.longest)] * 3, seed=number)),
    )
    return Cause(
        f"a call leaves something behind that the next one reads{f'; {name} differs first' if name else ''}",
        "keep no tensors on self in forward, or key them by all that they depend on; if nothing is kept, a kernel "
        "is not deterministic",
    )


def seed_difference(subject: Subject, rows: list[Tensor]) -> float:
    """The same call with other random seeds."""
    first = subject.outputs(rows, seed=1)
    return max(float(distance(subject.outputs(rows, seed=seed), first).max()) for seed in (2, 3, 4))


def seed_cause(subject: Subject, rows: list[Tensor]) -> Cause:
    """Where random numbers are used in evaluation."""
    if training := left_training(subject.module):
        return training
    name = first_different(subject.module, lambda number: subject.outputs(rows, seed=number + 1))
    return Cause(
        f"random numbers are used in evaluation{f'; {name} differs first' if name else ''}",
        "pass training=self.training to F.dropout, or use nn.Dropout; break ties by order, not by noise",
    )


# ------------------------------------------------------------------ arguments
def check_inputs(name: str, loaded: Loaded) -> Finding:
    """What is passed to `forward` is the same after a call."""
    about = "a call changes none of the tensors that it is given"
    for subject in loaded.subjects:
        for rows in two_rows(subject):
            if not edited(subject, rows):
                continue
            least = shrink(rows, partial(edited, subject), False, subject.sequence)
            return Finding(
                name, about, "failed", f"forward changes {', '.join(edited(subject, least))}",
                smallest=f"{subject.name}: " * (len(loaded.subjects) > 1) + written(least),
                cause="an operation in place, such as x += y, x[...] = y, masked_fill_ or relu_, on an argument",
                advice="write x = x + y, masked_fill without _, or clone first",
            )  # fmt: skip
    return Finding(name, about, "passed")


def edited(subject: Subject, rows: list[Tensor]) -> list[str]:
    """The arguments that a call changes, where one position is padding if there can be some."""
    before = list[tuple[str, Tensor, Tensor]]()

    def record(module: nn.Module, positional: tuple[object, ...], named: dict[str, object]) -> None:
        for key, value in {**{f"argument {at}": one for at, one in enumerate(positional, 1)}, **named}.items():
            if isinstance(value, Tensor):
                before.append((key, value, value.clone()))

    hook = subject.module.register_forward_pre_hook(record, with_kwargs=True)
    try:
        inputs, real = subject.batch(rows)
        if real is not None and subject.sides and real.shape[1] > 1:
            real[:, -1 if "right" in subject.sides else 0] = False  # with a token where there is usually padding
        subject.read(inputs, real)
    finally:
        hook.remove()
    return list(dict.fromkeys(key for key, now, then in before if not torch.equal(now, then)))


FUNCTION_CHECKS = {
    "determinism": Comparison(
        "the same input gives the same, bit for bit, whatever was called before", repeated_difference, calls,
        repeated_cause, tolerance=0.0, ragged=True,
    ),
    "dropout": Comparison(
        "evaluation uses no random numbers", seed_difference, two_rows, seed_cause, tolerance=0.0
    ),
}  # fmt: skip
