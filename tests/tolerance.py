"""How far apart two computations of the same numbers may be: rounding errors in proportion to the numbers' size.

The order in which a sum is added depends on the CPU, the number of threads and the kernel, so that results differ by a
multiple of the machine epsilon of their precision, times the largest number compared.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

SLACK = 128  # epsilons: 1.5e-5 of the largest number in float32, 2.8e-14 in float64


def tolerance(expected: Any, slack: float = SLACK, dtype: torch.dtype | None = None) -> float:
    """The largest error that rounding explains: slack * epsilon * max |expected|, at least for numbers of size 1e-3.

    `dtype` is the precision that the numbers were computed in, where it is not the precision they are stored in.
    """
    values = _tensor(expected)
    precision = dtype or (values.dtype if values.is_floating_point() else torch.float32)
    finite = values[values.isfinite()].abs()
    size = float(finite.max()) if finite.numel() else 0.0
    return slack * torch.finfo(precision).eps * max(size, 1e-3)


def close(
    actual: Any, expected: Any, slack: float = SLACK, dtype: torch.dtype | None = None, *, of: Any = None, msg: str = ""
) -> None:
    """Assert that two computations of the same numbers differ by rounding alone.

    `of` gives the size where it is not that of `expected`: differences of large numbers are as inexact as those.
    """
    mine, its = _tensor(actual), _tensor(expected)
    precision = dtype or _coarser(mine, its)
    most = tolerance(its if of is None else of, slack, precision)
    torch.testing.assert_close(
        mine.double(),
        its.double(),
        rtol=0,
        atol=most,
        equal_nan=True,
        msg=(lambda text: f"{msg}: {text}") if msg else None,
    )


def _tensor(values: Any) -> Tensor:
    if isinstance(values, Tensor):
        return values.detach().cpu()
    array = np.asarray(values)
    return torch.from_numpy(array.astype(np.float64) if array.dtype == object else np.ascontiguousarray(array))


def _coarser(one: Tensor, other: Tensor) -> torch.dtype:
    """The coarser of two precisions; Python's numbers are float64."""
    floating = [values.dtype for values in (one, other) if values.is_floating_point()]
    return max(floating, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float32)
