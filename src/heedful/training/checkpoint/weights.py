"""Gathering a model's weights from all processes, and loading them from a file."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from heedful.errors import UserError
from heedful.training.distributed.shards import is_sharded, whole
from heedful.training.distributed.team import Team


def gather_weights(model: nn.Module, team: Team) -> dict[str, Tensor]:
    """The model's weights by name, gathered for the leader; a collective call."""
    return gather_tensors(model.state_dict(), team)


def gather_tensors(tensors: Mapping[str, Tensor], team: Team) -> dict[str, Tensor]:
    """Tensors by name, gathered for the leader; a collective call. Sharded tensors are moved to the CPU."""
    found = {}
    for name, value in tensors.items():
        tensor = whole(value.detach())  # one at a time, to save memory
        if team.leads:
            found[name] = tensor.cpu() if is_sharded(value) else tensor
    return found


def average(states: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of several sets of weights, computed in float64."""
    return {
        name: torch.stack([state[name].double() for state in states]).mean(0).to(states[0][name].dtype)
        for name in states[0]
    }


def fingerprint(model: nn.Module) -> str:
    """A hash of the weights."""
    return hash_tensors(model.state_dict())


def hash_tensors(tensors: Mapping[str, Tensor]) -> str:
    """A hash of the names and values of tensors."""
    digest = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        digest.update(f"{name} {_kind(value)}".encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def load_strictly(model: nn.Module, tensors: dict[str, Tensor], file: Path) -> None:
    """Load weights from a file into a model; all must fit."""
    require_fit(model, tensors, file)
    model.load_state_dict(tensors)


def require_fit(model: nn.Module, tensors: dict[str, Tensor], file: Path) -> None:
    """Refuse weights that are missing, unknown, or of another shape or type than the model's."""
    expected = {name: _kind(value) for name, value in model.state_dict().items()}
    given = {name: _kind(value) for name, value in tensors.items()}
    wrong = [f"{name}: not in the file" for name in expected.keys() - given.keys()]
    wrong += [f"{name}: not in the model" for name in given.keys() - expected.keys()]
    wrong += [
        f"{name}: {given[name]} in the file, {expected[name]} in the model"
        for name in expected.keys() & given.keys()
        if expected[name] != given[name]
    ]
    if wrong:
        more = f"\nand {len(wrong) - 10} more" if len(wrong) > 10 else ""
        raise UserError(
            "the weights do not fit the model",
            where=str(file),
            found="\n".join(sorted(wrong)[:10]) + more,
            expected=f"{len(expected)} tensors, each of its shape and type",
            todo="load them with the recipe or config they were made with",
        )


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
