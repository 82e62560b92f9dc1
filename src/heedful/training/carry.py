"""What a model takes along from one batch to the next, and from step to step.

A loss is `loss(batch, carry) -> (Loss, carry)`. The carry is None for a model that takes nothing along; for others it
is a plain value of tensors (tuples, dataclasses), the rows of each being the lanes of a batch: lane i of a batch
continues where lane i of the batch before ended. A carry always has as many tensors as the first one. No gradient goes
into the step before. Process r of n has lanes r, r + n, r + 2n, ...; a checkpoint holds all lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from heedful.blocks.losses import Loss
from heedful.blocks.state import map_tensors, tensors
from heedful.errors import UserError
from heedful.training.distributed.team import Carry, LossOf, Team


def stateless(loss_of: Callable[[Any], Loss]) -> LossOf:
    """The loss of a model that takes nothing along."""
    return lambda batch, carry: (loss_of(batch), carry)


def detached(carry: Carry) -> Carry:
    """The same values, into which no gradient goes."""
    return map_tensors(carry, Tensor.detach)


def checked(loss: Loss, carry: Carry) -> Loss:
    """The loss, or NaN where the carry after it is not finite: what it spoils would show only a step later."""
    doubt = [(x * 0).sum() for x in tensors(carry) if x.is_floating_point()]
    if not doubt:
        return loss
    spoilt = torch.stack(doubt).sum().to(loss.total.dtype)
    return replace(loss, total=loss.total + spoilt, plain=loss.plain + spoilt.detach())


def lane_count(carry: Carry) -> int:
    """How many lanes a carry has; 0, if it is None."""
    return next((len(x) for x in tensors(carry)), 0)


def own_lanes(carry: Carry, team: Team) -> Carry:
    """This process's lanes of all."""
    if 0 < (count := lane_count(carry)) < team.world:
        raise UserError(
            "there are more processes than lanes that continue from step to step",
            where="train.batch_tokens",
            found=f"{count} lanes, {team.world} processes",
            todo="start fewer processes, or make train.batch_tokens larger",
        )
    return map_tensors(carry, lambda x: x[team.rank :: team.world])


def saved_form(carry: Carry, team: Team, count: int) -> dict[str, Tensor]:
    """All `count` lanes as tensors by number; every process must call this, with its own lanes."""
    return {str(number): team.rows(x, count) for number, x in enumerate(tensors(carry))}


def restored(first: Carry, saved: Mapping[str, Tensor]) -> Carry:
    """The carry of a checkpoint, in the form that the first one had."""
    expected = {str(number): len(x) for number, x in enumerate(tensors(first))}
    if (found := {name: len(x) for name, x in saved.items()}) != expected:
        raise UserError(
            "what this run takes along from step to step does not fit the model",
            where="carry.safetensors",
            found=f"{len(found)} tensors of {sorted(set(found.values()))} lanes",
            expected=f"{len(expected)} tensors of {sorted(set(expected.values()))} lanes",
            todo="resume with the recipe that the run started with",
        )
    devices = [x.device for x in tensors(first)]
    in_order: Iterator[Tensor] = iter([saved[name].to(device) for name, device in zip(expected, devices, strict=True)])
    return map_tensors(first, lambda _: next(in_order))
