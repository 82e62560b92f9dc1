"""Checks of precisions and devices: nothing is made in a fixed one."""

from __future__ import annotations

import re

import torch
from torch import Tensor, nn

from heedful.contracts.comparison import Loaded, equal_rows
from heedful.contracts.refusals import RefusedError
from heedful.contracts.report import Finding
from heedful.contracts.shrink import written
from heedful.contracts.subject import Side, Subject, copied, distance
from heedful.contracts.trace import traced

HALF = 0.15  # of the largest output: what bfloat16 explains, with 8 bits for each number
DOUBLE = 1e-3
LARGE = 1e4  # numbers in layers that come near the largest of float16
NO_KERNEL = re.compile(r"not implemented for|[Uu]nsupported|not supported")  # a kernel for a precision
DEVICES = re.compile(r"expected device|same device|two devices")


def check_dtype(name: str, loaded: Loaded) -> Finding:
    """float32 stays float32, float64 gives the same, bfloat16 something near, and nothing overflows in float16."""
    about, worst = "float32 stays float32; bfloat16 is near, float16 finite", 0.0
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
                name, about, "failed", f"under torch.autocast, the model {error}",
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
    """The finding for a copy in float64, bfloat16 or float16 that does not compute; one that cannot be made is skipped.

    A kernel that has no float64 raises there alone, while a tensor that is made in float32 meets bfloat16 too.
    """
    results = dict[torch.dtype, list[Tensor] | RefusedError]()
    for dtype in (torch.float64, torch.bfloat16):
        found = converted_outputs(subject, dtype, rows)
        if found is None:
            return None
        results[dtype] = found
    double, half = results[torch.float64], results[torch.bfloat16]
    if isinstance(half, RefusedError) and not NO_KERNEL.search(str(half)):
        cast, error = ("double", double) if isinstance(double, RefusedError) else ("bfloat16", half)
        return Finding(
            name, about, "failed", f"as model.{cast}(), the model {error}",
            cause="a tensor is made in float32 whatever the precision of the weights",
            advice="make new tensors like x: x.new_zeros(...), torch.arange(..., dtype=x.dtype), or cast them back to "
            "x.dtype",
        )  # fmt: skip
    gap = 0.0 if isinstance(double, RefusedError) else float(distance(double, full).max())
    if subject.smooth and gap > DOUBLE:
        return Finding(
            name, about, "failed", "float64 (model.double()) differs from float32", gap, DOUBLE,
            cause="float32 is not exact enough somewhere, or a constant depends on the precision",
            advice="look for differences of large numbers, and for eps below 1e-7",
        )  # fmt: skip
    return float16(name, about, subject)


def float16(name: str, about: str, subject: Subject) -> Finding | None:
    """The finding for a constant beyond float16, or an eps that is 0 there, with padding where there can be some.

    Large vectors overflow too, in models that are meant for bfloat16; where there are any, nothing is said.
    """
    sides: tuple[Side, ...] = subject.sides or ("right",)
    for side in sides:
        rows, seen = finite_rows(subject, side)
        if not rows or any(float(output.abs().max()) > LARGE for _, output in seen if output.numel()):
            continue
        found = converted_outputs(subject, torch.float16, rows, side)
        if found is None or (isinstance(found, RefusedError) and NO_KERNEL.search(str(found))):
            return None
        if isinstance(found, RefusedError) or any(bool(one.isnan().any()) for one in found):
            reason = f"the model {found}" if isinstance(found, RefusedError) else "the output is NaN"
            return Finding(
                name, about, "failed", f"as model.half(), {reason}", smallest=written(rows),
                cause="a constant that float16 does not hold: at most 65504, and an eps below 6e-8 is 0",
                advice="mask with torch.finfo(x.dtype).min, and once; eps=1e-5, or divide by a count of at least 1",
            )  # fmt: skip
    return None


def finite_rows(subject: Subject, side: Side) -> tuple[list[Tensor], list[tuple[str, Tensor]]]:
    """Rows on which float32 gives finite numbers, one of them empty if it can be, and what all modules return."""
    some = subject.rows([min(4, subject.longest)] * 2)
    for rows in ([some[0], some[1][:0]] if subject.sides and subject.empty else some, some):
        given = list[Tensor]()
        try:
            seen = traced(subject.module, lambda: given.extend(subject.outputs(rows, side)))  # noqa: B023
        except RefusedError:
            continue
        if all(bool(one.isfinite().all()) for one in given):
            return list(rows), seen
    return [], []


def converted_outputs(
    subject: Subject, dtype: torch.dtype, rows: list[Tensor], side: Side = "right"
) -> list[Tensor] | RefusedError | None:
    """The outputs of a copy in another precision, or its error; None if there is no copy."""
    module = copied(subject.module)
    if module is None:
        return None
    try:
        converted = subject.of(module.to(dtype))
        return converted.outputs([row.to(dtype) if row.is_floating_point() else row for row in rows], side)
    except RefusedError as error:
        return error


# ------------------------------------------------------------------ devices
def check_device(name: str, loaded: Loaded) -> Finding:
    """What a call makes is on the device of the weights: a copy computes shapes alone, on the device `meta`."""
    about = "what forward makes is on the device of its inputs"
    reasons = list[str]()
    module = copied(loaded.module)
    for subject in loaded.subjects if module is not None else ():
        assert module is not None
        rows = subject.rows([min(5, subject.longest)] * 2)
        hooks = [
            one.register_forward_pre_hook(same_device) for one in module.modules() if isinstance(one, nn.Embedding)
        ]
        try:
            subject.of(module.to("meta")).read(*subject.batch(rows))
        except RefusedError as error:
            if not DEVICES.search(str(error)):
                reasons.append("it reads the values of tensors, so that it cannot be tried without a second device")
                continue
            return Finding(
                name, about, "failed", f"with weights and inputs on another device, the model {error}",
                cause="torch.zeros, arange or tensor without device=, device=\"cpu\", or a table that is no buffer",
                advice="make new tensors like x: x.new_zeros(...), torch.arange(..., device=x.device); register_buffer",
            )  # fmt: skip
        finally:
            for hook in hooks:
                hook.remove()
    if module is None or not list(module.parameters()):
        reasons.append("the module cannot be copied" if module is None else "it has no weights")
    if reasons:
        return Finding(name, about, "not applicable", reasons[0])
    return Finding(name, about, "passed")


def same_device(module: nn.Module, given: tuple[object, ...]) -> None:
    """An error for indices on another device, which `meta` accepts and a GPU does not."""
    if given and isinstance(given[0], Tensor) and given[0].device != next(module.parameters()).device:
        raise RuntimeError("indices of an embedding are not on the expected device")
