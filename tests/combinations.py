"""Combinations of settings: `make test` runs enough of them that every two values meet, `make test-all` runs all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations, product
from typing import Any

import pytest


def pairs_first(*choices: Iterable[Any]) -> list[Any]:
    """All combinations of one value from each list, as parameters of a test; those not needed for pairs are slow."""
    lists = [list(values) for values in choices]
    needed = set(covering([len(values) for values in lists]))
    rows = product(*(range(len(values)) for values in lists))
    return [
        pytest.param(*values, marks=() if row in needed else pytest.mark.slow)
        for values, row in zip(product(*lists), rows, strict=True)
    ]


def covering(sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """Few rows of indices below these sizes in which every two indices of two columns meet: the greedy choice."""
    numbers: dict[tuple[int, int, int, int], int] = {}
    rows = list(product(*map(range, sizes)))
    pairs = []  # of each row, as the bits of a number
    for row in rows:
        met = ((a, row[a], b, row[b]) for a, b in combinations(range(len(sizes)), 2))
        pairs.append(sum(1 << numbers.setdefault(pair, len(numbers)) for pair in met))
    missing, chosen = (1 << len(numbers)) - 1, []
    while missing:
        best = max(range(len(rows)), key=lambda row: (pairs[row] & missing).bit_count())
        missing &= ~pairs[best]
        chosen.append(rows[best])
    return chosen
