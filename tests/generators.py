"""Generators that return something."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

Told = TypeVar("Told")
Found = TypeVar("Found")


def drained(generator: Generator[Told, None, Found]) -> tuple[list[Told], Found]:
    """All that a generator yields, and what it returns."""
    told: list[Told] = []
    while True:
        try:
            told.append(next(generator))
        except StopIteration as end:
            return told, end.value


def returned(generator: Generator[object, None, Found]) -> Found:
    """What a generator returns."""
    return drained(generator)[1]
