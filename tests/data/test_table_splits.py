"""Rows held out of a table: shares, classes, groups, and what does not move them."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from typing import Any

import pytest

from heedful.data.tables.splits import held_out
from heedful.errors import UserError

UNITS = [f"text {number}" for number in range(1000)]
CLASSES = ["a"] * 700 + ["b"] * 290 + ["c"] * 10


def random_table(seed: int) -> tuple[list[str], list[str] | None, dict[Any, float | int], int]:
    """Units of several rows, perhaps with classes, and shares of them."""
    random_ = random.Random(seed)
    rows = random_.randint(5, 300)
    units = [str(random_.randrange(random_.choice((3, 20, 1000)))) for _ in range(rows)]
    classes = [random_.choice("abcd") for _ in units] if random_.random() < 0.5 else None
    shares: dict[Any, float | int] = {"valid": random_.choice((0.1, 0.3, 1, 2))}
    if random_.random() < 0.5:
        shares["test"] = random_.choice((0.2, 1))
    return units, classes, shares, random_.randrange(10)


@pytest.mark.parametrize("seed", range(60))
def test_every_row_is_in_one_part_and_no_unit_in_two(seed: int) -> None:
    units, classes, shares, number = random_table(seed)
    if len(set(units)) < 4:
        with contextlib.suppress(UserError):
            held_out(units, classes, shares, number)
        return
    parts = held_out(units, classes, shares, number)
    assert sorted(row for rows in parts.values() for row in rows) == list(range(len(units)))
    assert all(rows == sorted(rows) and rows for rows in parts.values())
    seen = [{units[row] for row in rows} for rows in parts.values()]
    assert sum(map(len, seen)) == len(set().union(*seen))
    assert parts == held_out(units, classes, shares, number)


def test_shares_are_exact_and_classes_keep_theirs() -> None:
    parts = held_out(UNITS, CLASSES, {"valid": 0.1, "test": 0.2}, 0)
    assert {split: len(rows) for split, rows in parts.items()} == {"train": 700, "valid": 100, "test": 200}
    assert Counter(CLASSES[row] for row in parts["valid"]) == {"a": 70, "b": 29, "c": 1}
    assert Counter(CLASSES[row] for row in parts["test"]) == {"a": 140, "b": 58, "c": 2}
    assert len(held_out(UNITS, None, {"valid": 33}, 0)["valid"]) == 33


def test_largest_remainders_add_up_as_those_of_scikit_learn() -> None:
    from sklearn.model_selection import train_test_split

    classes = ["a"] * 50 + ["b"] * 30 + ["c"] * 23
    ours = Counter(classes[row] for row in held_out(UNITS[:103], classes, {"valid": 20}, 0)["valid"])
    theirs = Counter(train_test_split(classes, test_size=20, stratify=classes, random_state=0)[1])
    assert ours == theirs


def test_a_class_of_one_row_stays_in_training() -> None:
    parts = held_out(UNITS[:11], ["a"] * 10 + ["b"], {"valid": 5}, 0)
    assert 10 in parts["train"] and len(parts["valid"]) in (4, 5)


def test_the_order_of_rows_does_not_matter_and_the_seed_does() -> None:
    parts = held_out(UNITS, None, {"valid": 0.2}, 3)
    chosen = {UNITS[row] for row in parts["valid"]}
    shuffled = random.Random(0).sample(UNITS, len(UNITS))
    assert {shuffled[row] for row in held_out(shuffled, None, {"valid": 0.2}, 3)["valid"]} == chosen
    assert {UNITS[row] for row in held_out(UNITS, None, {"valid": 0.2}, 4)["valid"]} != chosen


def test_rows_keep_their_part_when_others_are_appended() -> None:
    """Of 200 held-out rows, those that move are the few at the border."""
    before = set(held_out(UNITS, None, {"valid": 0.2}, 0)["valid"])
    more = [*UNITS, *(f"new {number}" for number in range(100))]
    after = {row for row in held_out(more, None, {"valid": 0.2}, 0)["valid"] if row < 1000}
    assert len(before - after) <= 20 and len(after - before) <= 20
    assert min(len(before - after), len(after - before)) == 0  # the border moves to one side


def test_test_rows_do_not_change_the_validation_rows() -> None:
    alone = held_out(UNITS, CLASSES, {"valid": 0.1}, 0)["valid"]
    assert held_out(UNITS, CLASSES, {"valid": 0.1, "test": 0.3}, 0)["valid"] == alone


@pytest.mark.parametrize("units", [["a"], ["a"] * 50])
def test_what_cannot_be_divided_is_refused(units: list[str]) -> None:
    with pytest.raises(UserError, match="no row can be held out for valid") as error:
        held_out(units, None, {"valid": 0.1}, 0)
    assert "data.valid" in str(error.value)
