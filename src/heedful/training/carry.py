"""Carry: the state that a model keeps from one batch to the next, as in truncated backpropagation through time.

A loss is `loss(batch, carry) -> (Loss, carry)`. The carry of most models is None; otherwise it consists of tensors (in
tuples or dataclasses) with one row per lane of the batch: lane i continues the text of lane i in the previous batch.
Its structure never changes, and no gradient flows into the previous step. Process r of n has lanes r, r + n, r + 2n,
...; a checkpoint holds all lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from heedful.blocks.losses import Loss
from heedful.blocks.state import map_tensors, tensors
from heedful.errors import UserError
from heedful.training.distributed.team import Carry, LossOf, Team

Value = TypeVar("Value")


@dataclass(frozen=True)
class Stored(Generic[Value]):
    """A part of a carry that was not computed by the model, such as a replay buffer.

    It has no gradients, and what makes it refuses numbers that are not finite: no step detaches or checks it.
    """

    value: Value


def stateless(loss_of: Callable[[Any], Loss]) -> LossOf:
    """The loss of a model without a carry."""
    return lambda batch, carry: (loss_of(batch), carry)


def detach(carry: Carry) -> Carry:
    """The same carry without gradients."""
    return carry if isinstance(carry, Stored) else map_tensors(carry, Tensor.detach)


def propagate_nan(loss: Loss, carry: Carry) -> Loss:
    """The loss, or NaN if the carry is not finite, which would otherwise show only a step later."""
    checks = [(x * 0).sum() for x in _unchecked(carry) if x.is_floating_point()]
    if not checks:
        return loss
    zero_or_nan = torch.stack(checks).sum().to(loss.total.dtype)
    return replace(loss, total=loss.total + zero_or_nan, plain=loss.plain + zero_or_nan.detach())


def _unchecked(carry: Any) -> Iterator[Tensor]:
    """The tensors of a carry that are not known to be finite."""
    if isinstance(carry, Tensor):
        yield carry
    elif isinstance(carry, tuple):
        for part in carry:
            yield from _unchecked(part)
    elif is_dataclass(carry) and not isinstance(carry, Stored):
        for field in fields(carry):
            yield from _unchecked(getattr(carry, field.name))


def lane_count(carry: Carry) -> int:
    """The number of lanes of a carry; 0 for None."""
    return next((len(x) for x in tensors(carry)), 0)


def local_lanes(carry: Carry, team: Team) -> Carry:
    """The lanes of this process."""
    if 0 < (count := lane_count(carry)) < team.world:
        raise UserError(
            "more processes than lanes of the carry",
            where="train.batch_tokens",
            found=f"{count} lanes, {team.world} processes",
            todo="start fewer processes, or make train.batch_tokens larger",
        )
    return map_tensors(carry, lambda x: x[team.rank :: team.world])


def gather_lanes(carry: Carry, team: Team, count: int) -> dict[str, Tensor]:
    """All `count` lanes, as tensors by index, for a checkpoint; a collective call."""
    return {str(number): team.gather_rows(x, count) for number, x in enumerate(tensors(carry))}


def restore(first: Carry, saved: Mapping[str, Tensor]) -> Carry:
    """The carry of a checkpoint, with the structure of the first one."""
    expected = {str(number): len(x) for number, x in enumerate(tensors(first))}
    if (found := {name: len(x) for name, x in saved.items()}) != expected:
        raise UserError(
            "the saved carry does not fit the model",
            where="carry.safetensors",
            found=f"{len(found)} tensors of {sorted(set(found.values()))} lanes",
            expected=f"{len(expected)} tensors of {sorted(set(expected.values()))} lanes",
            todo="resume with the recipe that the run started with",
        )
    devices = [x.device for x in tensors(first)]
    in_order: Iterator[Tensor] = iter([saved[name].to(device) for name, device in zip(expected, devices, strict=True)])
    return map_tensors(first, lambda _: next(in_order))
