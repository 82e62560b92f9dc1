"""The sheet lists what is proven: no more, no less, and its page is up to date."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from heedful.claims import SECTIONS, render, sheet

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def marked() -> Iterator[tuple[str, str]]:
    """Every id that a test is marked with, and the file of the test."""
    for path in sorted([*HERE.glob("test_*.py"), *(ROOT / "tests" / "explore").glob("test_*.py")]):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                for mark in node.decorator_list:
                    if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.claim":
                        (argument,) = mark.args
                        assert isinstance(argument, ast.Constant)
                        yield str(argument.value), path.relative_to(ROOT).as_posix()


def test_the_sheet_has_exactly_the_marked_rows() -> None:
    places = {(claim.id, place) for claim in sheet() for place in (claim.test, claim.page) if place}
    assert places == set(marked())


def test_ids_are_unique_in_order_and_within_their_sections() -> None:
    rows = {section.letter: section.rows for section in SECTIONS}
    order = [(list(rows).index(claim.id[0]), int(claim.id[1:])) for claim in sheet()]
    assert order == sorted(set(order))
    assert all(1 <= number <= rows[list(rows)[letter]] for letter, number in order)


def test_a_reading_that_refers_to_another_row_finds_it() -> None:
    ids = {claim.id for claim in sheet()}
    for claim in sheet():
        assert not claim.reading.startswith("X") or claim.reading in ids


def test_the_page_is_up_to_date() -> None:
    page = ROOT / "docs" / "claims.md"
    assert page.read_text(encoding="utf-8") == render(sheet()), "write render(sheet()) to docs/claims.md"


def test_a_missing_row_shows_in_the_page() -> None:
    fewer = render(sheet()[1:])
    assert "| A1 |" not in fewer
    assert "| A | Attention | 17 | 18 |" in fewer
    with pytest.raises(KeyError):
        render([sheet()[0]._replace(id="Z1")])
