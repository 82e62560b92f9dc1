"""How golden values are stored and compared: within rounding on any machine, bit for bit on request."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tolerance import SLACK, tolerance

EXACT = os.environ.get("HEEDFUL_GOLDEN") == "bits"  # on the machine that recorded them
MOST = 256  # numbers of an array that are stored
SMALLEST = 1 / 8  # numbers that are smaller may be differences of some of this size, or their parts


def packed(array: NDArray[Any]) -> dict[str, Any]:
    """An array as JSON: its values, or for large ones an evenly spaced subset, the maximum, and a hash."""
    flat = np.ascontiguousarray(array).reshape(-1)
    some = flat[:: -(-len(flat) // MOST) or 1]
    return {
        "dtype": array.dtype.name,
        "shape": list(array.shape),
        "values": some.tolist(),
        "largest": float(np.abs(flat.astype(np.float64)).max(initial=0.0)),
        "sha256": hashlib.sha256(flat.tobytes()).hexdigest(),
    }


def same_array(array: NDArray[Any], expected: dict[str, Any]) -> None:
    """Assert that an array equals the stored one; float16 and bytes may be rounded to a neighbour."""
    found = packed(array)
    assert (found["dtype"], found["shape"]) == (expected["dtype"], expected["shape"])
    if EXACT or found["dtype"] == "int32":
        assert found == expected
        return
    steps = {"float16": 4 * 2.0**-10 * expected["largest"], "uint8": 1.0}
    most = steps.get(found["dtype"], tolerance(max(expected["largest"], SMALLEST), dtype=torch.float32))
    assert found["values"] == pytest.approx(expected["values"], rel=0, abs=most, nan_ok=True)
    assert found["largest"] == pytest.approx(expected["largest"], rel=0, abs=most)


def same(found: Any, expected: Any, slack: float = SLACK) -> None:
    """Assert that two JSON values are the same: strings, integers and lengths equal, floats close.

    The tolerance is relative to the largest number under the same keys.
    """
    if EXACT:
        assert found == expected
        return
    actual_leaves, expected_leaves = dict(_leaves(found)), dict(_leaves(expected))
    assert actual_leaves.keys() == expected_leaves.keys()
    sizes: dict[str, float] = {}
    for path, value in expected_leaves.items():
        if isinstance(value, float):
            sizes[_names(path)] = max(abs(value), sizes.get(_names(path), SMALLEST))
    for path, value in expected_leaves.items():
        if isinstance(value, float):
            most = tolerance(sizes[_names(path)], slack, torch.float32)
            assert actual_leaves[path] == pytest.approx(value, rel=0, abs=most), path
        else:
            assert actual_leaves[path] == value, path


def _names(path: str) -> str:
    """A path without the indices of lists."""
    return "/".join(part for part in path.split("/") if not part.isdecimal())


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every string and number of a JSON value by its path, and the lengths of lists."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _leaves(part, f"{path}/{key}")
    elif isinstance(value, list):
        yield f"{path}/length", len(value)
        for number, part in enumerate(value):
            yield from _leaves(part, f"{path}/{number}")
    else:
        yield path, value
