"""Classes of which there are more or fewer examples: their weights in the loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heedful.data.batch import IGNORE_INDEX
from heedful.errors import UserError, shown


def class_weights(
    labels: NDArray[np.int64], names: Sequence[str], wanted: str | Mapping[str, float] | None
) -> list[float]:
    """The weight of each class, with a mean of 1 over these labels; empty where all are 1."""
    if wanted is None:
        return []
    known = labels[labels != IGNORE_INDEX]
    counts = np.bincount(known, minlength=len(names))  # (C,)
    each = 1 / np.maximum(counts, 1) if isinstance(wanted, str) else _given(wanted, names)  # (C,)
    return [float(value) for value in each * len(known) / (each @ counts)]


def weights_for(
    model: Any, labels: NDArray[np.int64], names: Sequence[str], wanted: str | Mapping[str, float] | None
) -> Tensor | None:
    """The weights of the classes (C,) on the model's device; None where all are 1."""
    found = class_weights(labels, names, wanted)
    return torch.tensor(found, device=next(model.parameters()).device) if found else None


def label_weights(
    model: Any, targets: NDArray[np.int64], names: Sequence[str], wanted: str | Mapping[str, float] | None
) -> Tensor | None:
    """The weights (C,) of the loss of texts that have a label, from targets (N, C); None where all are 1."""
    if wanted is None:
        return None
    having = targets.sum(0)  # (C,)
    balanced = np.maximum(len(targets) - having, 1) / np.maximum(having, 1)
    found = balanced if isinstance(wanted, str) else _given(wanted, names)
    return torch.tensor(found, dtype=torch.float32, device=next(model.parameters()).device)


def _given(wanted: Mapping[str, float], names: Sequence[str]) -> NDArray[np.float64]:
    """The weights that a recipe gives by name, others 1."""
    if unknown := [name for name in wanted if name not in names]:
        raise UserError(
            "there is no such class", where="task.class_weights", found=shown(unknown[0]),
            expected="a class of the training data: " + ", ".join(map(shown, names[:20])),
        )  # fmt: skip
    return np.array([wanted.get(name, 1.0) for name in names])
