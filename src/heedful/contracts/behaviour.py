"""Checks of a model as a function: the same input gives the same output, without dropout, in any precision."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from heedful.contracts.comparison import Cause, Comparison, Loaded, equal_rows, first_different
from heedful.contracts.report import Finding
from heedful.contracts.subject import RefusedError, Subject, distance

HALF = 0.15  # of the largest output: what bfloat16 explains, with 8 bits for each number
DOUBLE = 1e-3


def two_rows(subject: Subject) -> Iterator[list[Tensor]]:
    """Two rows of one length, and four long ones."""
    yield subject.rows([min(5, subject.longest)] * 2)
    yield subject.rows([subject.longest] * 4)


def repeated_difference(subject: Subject, rows: list[Tensor]) -> float:
    """A call against the same call after others."""
    before = subject.outputs(rows)
    subject.outputs(subject.rows([min(7, subject.longest)] * 3, seed=5))
    worst = float(distance(subject.outputs(rows), before).max())
    return max(worst, float(distance(subject.outputs(rows), before).max()))


def repeated_cause(subject: Subject, rows: list[Tensor]) -> Cause:
    """Why calls affect each other."""

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
        "keep no tensors on self in forward; return a state instead; if nothing is kept, a kernel is not deterministic",
    )


def seed_difference(subject: Subject, rows: list[Tensor]) -> float:
    """The same call with other random seeds."""
    first = subject.outputs(rows, seed=1)
    return max(float(distance(subject.outputs(rows, seed=seed), first).max()) for seed in (2, 3, 4))


def seed_cause(subject: Subject, rows: list[Tensor]) -> Cause:
    """Where random numbers are used in evaluation."""
    name = first_different(subject.module, lambda number: subject.outputs(rows, seed=number + 1))
    return Cause(
        f"random numbers are used in evaluation{f'; {name} differs first' if name else ''}",
        "pass training=self.training to F.dropout, or use nn.Dropout; break ties by order, not by noise",
    )


# ------------------------------------------------------------------ precision
def check_dtype(name: str, loaded: Loaded) -> Finding:
    """float32 stays float32, float64 gives the same, and bfloat16 something near."""
    about, worst = "float32 stays float32; bfloat16 is finite and near", 0.0
    for subject in loaded.subjects:
        rows = next(equal_rows(subject))
        try:
            full = subject.outputs(rows)
            if (failed := leaked_double(name, about, subject, full)) is not None:
                return failed
            with torch.enable_grad(), torch.autocast(subject.device.type, torch.bfloat16):  # as in training
                half = subject.outputs(rows)
        except RefusedError as error:
            return Finding(
                name, about, "failed", f"under torch.autocast, the model raised {error}",
                cause="tensors of two precisions meet",
                advice="make new tensors like x: torch.zeros(..., dtype=x.dtype)",
            )  # fmt: skip
        gap = float(distance(half, full).max())
        if gap == torch.inf or (subject.smooth and gap > HALF):
            return Finding(
                name, about, "failed", "bfloat16 (torch.autocast) differs from float32", gap, HALF,
                cause="numbers that 8 bits cannot hold: large sums, small differences, constants such as 1e38",
                advice="compute norms, softmax and large sums in float32",
            )  # fmt: skip
        worst = max(worst, gap if subject.smooth else 0.0)
        if (failed := other_precision(name, about, subject, rows, full)) is not None:
            return failed
    return Finding(name, about, "passed", difference=worst, tolerance=HALF)


def leaked_double(name: str, about: str, subject: Subject, outputs: list[Tensor]) -> Finding | None:
    """The finding for float64 in a model without any."""
    own = {weight.dtype for weight in subject.module.parameters() if weight.is_floating_point()}
    if torch.float64 in own or not own:
        return None
    seen = list[str]()

    def record(where: str, output: object) -> None:
        if isinstance(output, Tensor) and output.dtype == torch.float64:
            seen.append(where)

    hooks = [
        module.register_forward_hook(lambda m, i, output, where=where: record(where, output))
        for where, module in subject.module.named_modules()
        if where
    ]
    try:
        subject.outputs(next(equal_rows(subject)))
    finally:
        for hook in hooks:
            hook.remove()
    if not seen and all(one.dtype != torch.float64 for one in outputs):
        return None
    where = f"; first at {seen[0]}" if seen else ""
    return Finding(
        name, about, "failed", f"weights are float32, and {'a layer gives' if seen else 'the output is'} float64",
        cause=f"a float64 constant, of NumPy or torch.tensor(..., dtype=torch.float64), meets float32{where}",
        advice="write .to(x.dtype), or dtype=torch.float32 where it is made",
    )  # fmt: skip


def other_precision(name: str, about: str, subject: Subject, rows: list[Tensor], full: list[Tensor]) -> Finding | None:
    """The finding for a copy in float64 that does not compute the same; a copy that cannot be made is skipped."""
    double = converted(subject, torch.float64)
    if double is None:
        return None
    given = [row.double() if row.is_floating_point() else row for row in rows]
    try:
        found = double.outputs(given)
    except RefusedError as error:
        return Finding(
            name, about, "failed", f"as model.double(), the model raised {error}",
            cause="a tensor is made in float32 whatever the precision of the weights",
            advice="make new tensors like x: x.new_zeros(...), torch.arange(..., dtype=x.dtype)",
        )  # fmt: skip
    gap = float(distance(found, full).max())
    if subject.smooth and gap > DOUBLE:
        return Finding(
            name, about, "failed", "float64 (model.double()) differs from float32", gap, DOUBLE,
            cause="float32 is not exact enough somewhere, or a constant depends on the precision",
            advice="look for differences of large numbers, and for eps below 1e-7",
        )  # fmt: skip
    return None


def converted(subject: Subject, dtype: torch.dtype) -> Subject | None:
    """The subject with a copy of its module in another precision."""
    module = copied(subject.module)
    return None if module is None else subject.of(module.to(dtype))


def copied(module: nn.Module) -> nn.Module | None:
    """A copy; None where something in it cannot be copied, such as a tensor of a graph."""
    try:
        return copy.deepcopy(module)
    except (RuntimeError, TypeError, NotImplementedError):
        return None


FUNCTION_CHECKS = {
    "determinism": Comparison(
        "the same input gives the same, bit for bit, whatever was called before", repeated_difference, two_rows,
        repeated_cause, tolerance=0.0,
    ),
    "dropout": Comparison(
        "evaluation uses no random numbers", seed_difference, two_rows, seed_cause, tolerance=0.0
    ),
}  # fmt: skip
