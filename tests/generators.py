"""Running generators to their end."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

Yielded = TypeVar("Yielded")
Returned = TypeVar("Returned")


def drain_generator(generator: Generator[Yielded, None, Returned]) -> tuple[list[Yielded], Returned]:
    """Everything a generator yields, and its return value."""
    items: list[Yielded] = []
    while True:
        try:
            items.append(next(generator))
        except StopIteration as end:
            return items, end.value


def return_value(generator: Generator[object, None, Returned]) -> Returned:
    """The return value of a generator."""
    return drain_generator(generator)[1]
