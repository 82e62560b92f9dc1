"""Rows that are held out of a table for validation and for the final score.

Rows of one unit stay together: those of one group, or else those with the same input. Which units are held out follows
from a hash of each and the seed, not from their order. So a row keeps its part if the table is sorted otherwise, and
if rows are appended, except for the few units at the border, since a share of more rows is more rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import groupby
from typing import Annotated

from pydantic import Field

from heedful.data.formats.sources import Split
from heedful.errors import UserError

Share = Annotated[float, Field(gt=0, lt=1)] | Annotated[int, Field(ge=1, le=1_000_000_000)]  # of all, or a number


def held_out(
    units: Sequence[str], classes: Sequence[str] | None, shares: Mapping[Split, Share], seed: int, one: str = "row"
) -> dict[Split, list[int]]:
    """The rows of each held-out split and of train, in order; each class has its share, as far as units allow.

    `one` is what a row is called in errors.
    """
    members: dict[str, list[int]] = {}
    for row, unit in enumerate(units):
        members.setdefault(unit, []).append(row)
    targets = {split: _count(share, len(units)) for split, share in shares.items()}
    if (total := sum(targets.values())) >= len(units) > 1:
        raise UserError(
            f"no {one} is left for training", where=f"data.{next(iter(shares))}",
            found=f"{total:,} of {len(units):,} {one}s are held out for {' and '.join(shares)}", todo="hold fewer out",
        )  # fmt: skip
    taken: dict[Split, list[str]] = {split: [] for split in shares}
    strata = _strata(members, classes)
    quotas = {split: _quotas([sum(len(members[unit]) for unit in some) for some in strata], target)
              for split, target in targets.items()}  # fmt: skip
    rests = list[list[str]]()  # of each class, what is left for training
    for place, stratum in enumerate(strata):
        rest = sorted(stratum, key=lambda unit: _hash(unit, seed))
        for split in shares:
            chosen = dict.fromkeys(_take(rest, members, quotas[split][place]))
            taken[split] += chosen
            rest = [unit for unit in rest if unit not in chosen]
        rests.append(rest)
    for split, some in taken.items():
        spare = [unit for rest in rests if len(rest) > 1 for unit in rest]
        if not some and spare:  # all units are larger than the share
            some.append(min(spare, key=lambda unit: (len(members[unit]), _hash(unit, seed))))
            rests = [[unit for unit in rest if unit not in some] for rest in rests]
        if not some:
            alone = f", of {len(strata):,} classes that have one each" if len(strata) > 1 else ""
            raise UserError(
                f"no {one} can be held out for {split}", where=f"data.{split}",
                found=f"{len(units):,} {one}s, {len(members):,} of them different or of different groups{alone}",
                expected=f"about {targets[split]:,} {one}s, and others that are left for training",
                todo=f"name a file or folder of other {one}s: data.{split}=NAME; or choose another share",
            )  # fmt: skip
    found = {split: sorted(row for unit in chosen for row in members[unit]) for split, chosen in taken.items()}
    away = {row for rows in found.values() for row in rows}
    return {"train": [row for row in range(len(units)) if row not in away], **found}


def _count(share: Share, rows: int) -> int:
    """The number of rows that a share is, at least one."""
    return share if isinstance(share, int) else max(1, round(share * rows))


def _strata(members: Mapping[str, Sequence[int]], classes: Sequence[str] | None) -> list[list[str]]:
    """The units of each class; a unit belongs to the class of most of its rows."""
    if classes is None:
        return [list(members)]
    usual = {unit: min(Counter(classes[row] for row in rows).items(), key=lambda one: (-one[1], one[0]))[0]
             for unit, rows in members.items()}  # fmt: skip
    ordered = sorted(members, key=lambda unit: usual[unit])
    return [list(some) for _, some in groupby(ordered, key=lambda unit: usual[unit])]


def _quotas(sizes: Sequence[int], target: int) -> list[int]:
    """Rows of each class that add up to the target, by largest remainder."""
    exact = [target * size / sum(sizes) for size in sizes]
    found = [int(one) for one in exact]
    by_rest = sorted(range(len(sizes)), key=lambda place: (found[place] - exact[place], place))
    for place in by_rest[: target - sum(found)]:
        found[place] += 1
    return found


def _take(units: Sequence[str], members: Mapping[str, Sequence[int]], quota: int) -> Iterator[str]:
    """Units in order until the quota of rows is met as closely as possible; one is always left."""
    taken, left = 0, len(units)
    for unit in units:
        size = len(members[unit])
        if taken >= quota or left < 2:
            return
        if taken + size - quota <= quota - taken:
            taken, left = taken + size, left - 1
            yield unit


def _hash(unit: str, seed: int) -> bytes:
    return blake2b(f"{seed}\0{unit}".encode(errors="surrogatepass"), digest_size=16).digest()
