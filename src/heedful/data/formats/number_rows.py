"""Numeric tables as text, such as CSV: parsed by numpy, with errors that name line and column."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heedful.data.formats.sources import lines
from heedful.errors import UserError, shown

CHUNK = 1000  # lines
MAX_VALUE = float(np.finfo(np.float32).max)


class Line(NamedTuple):
    """A non-blank line and its number."""

    number: int
    text: str


class Rows(NamedTuple):
    """A numeric table (uint8 if all values fit) and its column names, if the file has them."""

    numbers: NDArray[Any]  # (N, D) uint8 or float32
    header: tuple[str, ...]


def read_rows(path: Path, separator: str, header: bool | None, longest: int) -> Rows:
    """Read the numbers of a file; with `header=None`, whether the first line is a header is detected."""
    rows = (Line(number, text) for number, text in enumerate(lines(path, longest), 1) if text.strip())
    first = next(rows, None)
    if first is None:
        raise UserError(
            "there are no numbers in this file", where=str(path), expected="the values of an image per line"
        )
    cells = tuple(cell.strip().strip('"') for cell in first.text.split(separator))
    has_header = _is_header(cells) if header is None else header
    rest = rows if has_header else chain([first], rows)
    parts = []
    while chunk := list(islice(rest, CHUNK)):
        parts.append(_parse(chunk, separator, len(cells), path))
    if not parts:
        raise UserError("there are no images", where=str(path), found="only a header", expected="lines of numbers")
    return Rows(np.concatenate(parts), cells if has_header else ())


def _is_header(cells: Iterable[str]) -> bool:
    """Whether a line is a header: it contains words, or is 0, 1, 2, ... as of an unnamed table."""
    cells = list(cells)
    words = any(cell[:1].isalpha() and cell.lower() not in {"nan", "inf", "infinity"} for cell in cells)
    return words or (len(cells) > 2 and cells == [str(number) for number in range(len(cells))])


def _parse(some: list[Line], separator: str, width: int, path: Path) -> NDArray[Any]:
    """Parse lines of `width` numbers each."""
    for kind in (np.uint8, np.float32):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # older versions of numpy truncate 5.7 to 5
                found = np.loadtxt([line.text for line in some], kind, comments=None, delimiter=separator, ndmin=2)
        except (ValueError, OverflowError, Warning):
            continue
        if found.shape == (len(some), width) and np.isfinite(found).all():
            return found
    raise next(_errors(some, separator, width, path))


def _errors(some: list[Line], separator: str, width: int, path: Path) -> Iterator[UserError]:
    """The errors in lines that cannot be parsed."""
    advice = f"columns are separated by one {shown(separator)} each; set data.separator to change it"
    for line in some:
        cells = line.text.split(separator)
        if len(cells) != width:
            yield UserError(
                "this line has a different number of columns", where=f"{path}:{line.number}",
                found=f"{len(cells):,} columns", expected=f"{width:,}, as in the first line", todo=advice,
            )  # fmt: skip
        for place, cell in enumerate(cells, 1):
            if not _is_number(cell):
                yield UserError(
                    "this is not a number", where=f"{path}:{line.number}, column {place}",
                    found=shown(cell) if cell.strip() else "nothing", expected="a number such as 128 or 0.5",
                    todo="if this line is a header, set data.header=true; " * (line.number == 1) + advice,
                )  # fmt: skip
    yield UserError(
        "these lines are not rows of numbers", where=f"{path}:{some[0].number}-{some[-1].number}",
        expected="numbers such as 128 or 0.5",
    )  # fmt: skip


def _is_number(cell: str) -> bool:
    try:
        return "_" not in cell and abs(float(cell)) <= MAX_VALUE  # False for NaN too
    except ValueError:
        return False
