"""The tensors in what a module returns: a tensor, a tuple, a mapping or an object with fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass

import torch
from torch import Tensor

CHOSEN = ("logits", "last_hidden_state", "prediction_logits", "output", "out")
CACHES = ("past_key_values", "cache", "past", "state", "hidden")


def parts(output: object) -> dict[str, object]:
    """The parts of an output by name or index."""
    if isinstance(output, Mapping):
        return {str(name): value for name, value in output.items()}
    if isinstance(output, tuple) and "_fields" in vars(type(output)):
        return dict(zip(vars(type(output))["_fields"], output, strict=True))
    if isinstance(output, tuple | list):
        return {str(number): value for number, value in enumerate(output)}
    if is_dataclass(output) and not isinstance(output, type):
        return {field.name: vars(output)[field.name] for field in fields(output) if field.name in vars(output)}
    return {}


def pick(output: object, name: str | int | None = None) -> Tensor:
    """The output that is compared: the named one, else the logits, the last layer, or the first tensor of floats."""
    if isinstance(output, Tensor) and name is None:
        return output
    found = parts(output)
    if name is not None:
        value = found.get(str(name))
        if isinstance(value, Tensor):
            return value
        raise TypeError(
            f"there is no output {name!r} that is a tensor, only {', '.join(found) or type(output).__name__}"
        )
    for chosen in (*CHOSEN, *found):
        value = found.get(chosen)
        if isinstance(value, Tensor) and value.is_floating_point():
            return value
    raise TypeError(f"the output is a {type(output).__name__} without a tensor of floats; name it by output=")


def keep(output: object, name: str) -> object:
    """What the next call takes: the output of the same name, or the second of a pair."""
    found = parts(output)
    for chosen in (name, *CACHES):
        if chosen in found:
            return found[chosen]
    return found.get("1")


def tensors(output: object) -> Iterator[Tensor]:
    """All tensors of floats in an output."""
    if isinstance(output, Tensor):
        if output.is_floating_point():
            yield output
    else:
        for part in parts(output).values():
            yield from tensors(part)


def flat(output: object, rows: int, batch_first: bool) -> Tensor:
    """All outputs that have a vector for each row, in one (B, N)."""
    found = list[Tensor]()
    for one in tensors(output):
        moved = one if batch_first or one.dim() < 2 else one.transpose(0, 1)
        if moved.dim() and len(moved) == rows:
            found.append(moved.reshape(rows, -1).float())
    return torch.cat(found, 1)
