"""What the submodules of a model return during a call, to say where two calls begin to differ.

T positions of a row.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from heedful.contracts.outputs import tensors

APART = 1e-4  # of the largest value


def traced(module: nn.Module, run: Callable[[], object]) -> list[tuple[str, Tensor]]:
    """The first tensor that each submodule returns during `run`, inner ones before outer ones."""
    seen = list[tuple[str, Tensor]]()

    def record(name: str, output: object) -> None:
        found = next(tensors(output), None)
        if found is not None and not found.is_nested and found.layout == torch.strided:
            seen.append((name, found.detach().clone()))

    hooks = [
        one.register_forward_hook(lambda m, i, output, name=name: record(name, output))
        for name, one in module.named_modules()
        if name
    ]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return seen


def first_different(
    module: nn.Module, run: Callable[[int], object], before: Callable[[int], object] = lambda number: None
) -> str:
    """The innermost module whose output first differs between two runs, or nothing; `before` is called before each."""
    seen = list[list[tuple[str, Tensor]]]()
    for number in (0, 1):
        before(number)
        seen.append(traced(module, partial(run, number)))
    for (name, one), (_, two) in zip(*seen, strict=False):
        if one.shape != two.shape or not torch.equal(one, two):
            return f"{name} ({type(module.get_submodule(name)).__name__})"
    return ""


def apart(one: Tensor, two: Tensor) -> Tensor:
    """Where two tensors of one shape differ by more than rounding."""
    return ~((one - two).abs() <= APART * (float(two.abs().max()) if two.numel() else 0.0))


def first_reached(alone: list[tuple[str, Tensor]], padded: list[tuple[str, Tensor]], begin: int, length: int) -> str:
    """The first module that returns something else at the `length` real positions from `begin`, or nothing."""
    for (name, one), (other, wide) in zip(alone, padded, strict=False):
        if name != other or one.dim() != wide.dim():
            return ""
        inner = wide
        for dim in (dim for dim in range(one.dim()) if one.shape[dim] != wide.shape[dim]):
            if one.shape[dim] == length <= wide.shape[dim] - begin:
                inner = inner.narrow(dim, begin, length)
        if inner.shape == one.shape != wide.shape and bool(apart(inner, one).any()):
            return name
    return ""


def first_changed(alone: list[tuple[str, Tensor]], padded: list[tuple[str, Tensor]]) -> str:
    """The first module that returns something else of the same shape, in which positions are no longer seen."""
    for (name, one), (_, two) in zip(alone, padded, strict=False):
        if one.shape == two.shape and bool(apart(one, two).any()):
            return name
    return ""


def first_leaking(before: list[tuple[str, Tensor]], after: list[tuple[str, Tensor]], length: int) -> tuple[str, int]:
    """The first module that returns something else before the last of `length` positions, and how far before.

    The input was changed at the last position.
    """
    for (name, one), (_, two) in zip(before, after, strict=False):
        dims = [dim for dim in (1, one.dim() - 1) if 0 < dim < one.dim() and one.shape[dim] == length]
        if one.shape != two.shape or not dims:
            continue
        moved = apart(one, two).movedim(dims[0], 0).flatten(1).any(1)
        if bool(moved[:-1].any()):
            return name, length - 1 - int(moved.nonzero()[0])
    return "", 0
