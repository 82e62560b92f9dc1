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

MAX_LISTED = 4  # weights named in a note


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


def load_part(
    part: nn.Module, tensors: Mapping[str, Tensor], folder: str, may_miss: tuple[str, ...] = (), name: str = "encoder"
) -> list[str]:
    """Copy the weights of a folder into a model or a part of it, and note unused and randomly initialized ones."""
    needed = part.state_dict()
    missing = [name for name in needed if name not in tensors]
    random = [name for name in missing if name.startswith(("pooler.", "last.", *may_miss))]
    problems = [f"{name}: not in the folder" for name in missing if name not in random]
    problems += [
        f"{name}: {tuple(tensors[name].shape)} in the folder, {tuple(value.shape)} in the model"
        for name, value in needed.items()
        if name in tensors and tensors[name].shape != value.shape
    ]
    if problems:
        more = f"\nand {len(problems) - 10} more" if len(problems) > 10 else ""
        raise UserError(
            f"the {'model' if may_miss else name} in this folder differs from "
            f"{'model' if may_miss else f'model.{name}'} in the recipe", where=folder,
            found="\n".join(sorted(problems)[:10]) + more,
            todo="use the model settings of that folder" if may_miss
            else f"leave out model.{name}, to use the {name} of the folder",
        )  # fmt: skip
    with torch.no_grad():
        for name, value in needed.items():
            if name in tensors:
                value.copy_(tensors[name])
    notes = []
    if unused := [name for name in tensors if name not in needed]:
        notes.append(f"unused weights of {folder}: {listing(unused)}")
    if random:
        parts = " and ".join(sorted({"pooler" if name.startswith("pooler.") else "last layer" for name in random}))
        why = "has other classes" if may_miss else f"has no {parts}"
        notes.append(f"{folder} {why}: {listing(random)} are randomly initialized")
    return notes


def listing(names: Sequence[str]) -> str:
    """The first names, and the number of the others."""
    return ", ".join(names[:MAX_LISTED]) + (f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else "")
