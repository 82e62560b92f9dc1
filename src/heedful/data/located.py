"""Examples with the places where they stand, for errors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from heedful.data.formats.sources import Split


@dataclass(frozen=True)
class Placed:
    """Examples that stand somewhere, such as in a line of a file."""

    examples: Sequence[Any]
    places: Sequence[str]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.examples)


def located(examples: Iterable[Any], split: Split) -> Iterator[tuple[str, Any]]:
    """Each example with its place: that in its file, or its number among the user's own."""
    if isinstance(examples, Placed):
        yield from zip(examples.places, examples.examples, strict=True)
    else:
        yield from ((f"data.{split}[{number}]", example) for number, example in enumerate(examples))
