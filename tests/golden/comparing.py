"""How golden numbers are stored and compared: near each other on any machine, bit for bit where that is asked for."""

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
    """An array as JSON: its numbers, or where they are many some from its whole length, the largest, and a hash."""
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
    """Assert that an array is the one that was stored; halves and bytes may be rounded to a neighbour."""
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
    """Assert that what JSON says is the same: words, whole numbers and lengths are equal, other numbers near.

    How near is relative to the largest number that stands under the same names.
    """
    if EXACT:
        assert found == expected
        return
    mine, its = dict(_leaves(found)), dict(_leaves(expected))
    assert mine.keys() == its.keys()
    sizes: dict[str, float] = {}
    for place, value in its.items():
        if isinstance(value, float):
            sizes[_names(place)] = max(abs(value), sizes.get(_names(place), SMALLEST))
    for place, value in its.items():
        if isinstance(value, float):
            most = tolerance(sizes[_names(place)], slack, torch.float32)
            assert mine[place] == pytest.approx(value, rel=0, abs=most), place
        else:
            assert mine[place] == value, place


def _names(place: str) -> str:
    """A place without the numbers of lists."""
    return "/".join(part for part in place.split("/") if not part.isdecimal())


def _leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Every word and number of what JSON says, by its place, and how long lists are."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _leaves(part, f"{place}/{key}")
    elif isinstance(value, list):
        yield f"{place}/length", len(value)
        for number, part in enumerate(value):
            yield from _leaves(part, f"{place}/{number}")
    else:
        yield place, value
