"""The smallest input on which a check still fails, found by leaving things out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from torch import Tensor

MOST = 120  # inputs that are tried


def shrink(
    rows: Sequence[Tensor], fails: Callable[[list[Tensor]], object], ragged: bool, sequence: bool
) -> list[Tensor]:
    """Fewer rows, fewer positions and simpler tokens, as long as it fails; `ragged` rows need not be of one length."""
    best, tried = list(rows), 0
    shorter = True
    while shorter and tried < MOST:
        shorter = False
        for candidate in smaller(best, ragged, sequence):
            tried += 1
            if fails(candidate):
                best, shorter = candidate, True
                break
            if tried >= MOST:
                break
    return best


def smaller(rows: list[Tensor], ragged: bool, sequence: bool) -> Iterator[list[Tensor]]:
    """Inputs with one thing less, the largest steps first."""
    for at in range(len(rows)) if len(rows) > 1 else ():
        yield rows[:at] + rows[at + 1 :]
    if not sequence:
        return
    longest = max(map(len, rows))
    for part in (longest // 2, 1):
        if min(map(len, rows)) > part > 0:
            yield [row[part:] for row in rows]
            yield [row[:-part] for row in rows]
    if ragged:
        for at, row in enumerate(rows):
            for keep in (1, len(row) // 2, len(row) - 1):
                if 0 < keep < len(row):
                    yield [*rows[:at], row[:keep], *rows[at + 1 :]]
    for at, row in enumerate(rows):
        if not row.is_floating_point() and len(row) and bool((row != row[0]).any()):
            yield [*rows[:at], row[:1].expand_as(row), *rows[at + 1 :]]


def written(rows: Sequence[Tensor]) -> str:
    """Rows as a user reads them: token ids, or sizes."""
    if all(not row.is_floating_point() for row in rows):
        return ", ".join(str(row.tolist()) for row in rows)
    return ", ".join(f"random numbers {' x '.join(map(str, row.shape))}" for row in rows)
