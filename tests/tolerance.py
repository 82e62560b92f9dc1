"""How far apart two computations of the same values may be: rounding errors in proportion to their size.

The order in which a sum is added depends on the CPU, the number of threads and the kernel, so that results differ by a
multiple of the machine epsilon of their precision, times the largest number compared.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

SLACK = 128  # epsilons: 1.5e-5 of the largest number in float32, 2.8e-14 in float64


def tolerance(expected: Any, slack: float = SLACK, dtype: torch.dtype | None = None) -> float:
    """The largest error that rounding explains: slack * epsilon * max |expected|.

    `dtype` is the precision that the numbers were computed in, where it is not the one they are stored in.
    """
    values = _tensor(expected)
    precision = dtype or _coarsest(values)
    finite = values[values.isfinite()].abs()
    return slack * torch.finfo(precision).eps * (float(finite.max()) if finite.numel() else 0.0)


def close(
    actual: Any, expected: Any, slack: float = SLACK, dtype: torch.dtype | None = None, of: Any = None, msg: str = ""
) -> None:
    """Assert that two computations of the same numbers, or tuples of tensors, differ by rounding alone.

    `of` are numbers of the size that was computed with, where it is not that of `expected`: a difference of large
    numbers is as inexact as they are.
    """
    if isinstance(actual, tuple | list) and any(isinstance(one, tuple | list | Tensor) for one in actual):
        for one, other in zip(actual, expected, strict=True):
            close(one, other, slack, dtype, of, msg)
        return
    mine, its = _tensor(actual), _tensor(expected)
    most = tolerance(its if of is None else of, slack, dtype or _coarsest(mine, its))
    torch.testing.assert_close(
        mine.double(), its.double(), rtol=0, atol=most, equal_nan=True, msg=lambda text: f"{msg}\n{text}".strip()
    )


def near(expected: Any, slack: float = SLACK, dtype: torch.dtype = torch.float32, of: Any = None) -> Any:
    """What compares equal to numbers that were computed as `expected` were, in float32 by default."""
    return pytest.approx(expected, rel=0, abs=tolerance(expected if of is None else of, slack, dtype), nan_ok=True)


def _tensor(values: Any) -> Tensor:
    return values.detach().cpu() if isinstance(values, Tensor) else torch.from_numpy(np.array(values))


def _coarsest(*values: Tensor) -> torch.dtype:
    """The coarsest precision among tensors, float32 where all are whole numbers."""
    floating = [one.dtype for one in values if one.is_floating_point()]
    return max(floating, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float32)
