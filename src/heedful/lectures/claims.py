"""The claim sheet: what the lectures that Heedful implements say, row by row, and the test that proves each row here.

The lectures are five university decks on attention, the Transformer and BERT. Their statements are numbered by section;
the sheet lists the rows that a test proves on the shipped code, and says how many there are in all.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple


class Section(NamedTuple):
    """A part of the lectures and how many statements it makes."""

    letter: str
    title: str
    rows: int


class Claim(NamedTuple):
    """One proven statement, the file of its test, how a contradiction was read, and the test that sees it in a page."""

    id: str
    statement: str
    test: str
    reading: str = ""
    page: str = ""
    also: Sequence[str] = ()  # more files with tests of it


with open(Path(__file__).with_suffix(".toml"), "rb") as file:
    DATA = tomllib.load(file)
SECTIONS = tuple(Section(**section) for section in DATA["section"])
OPEN: dict[str, str] = DATA["open"]  # the names of the rows that no test proves yet, by id


def sheet() -> list[Claim]:
    """Every proven row, in the order of the sections."""
    return [Claim(**claim) for claim in DATA["claim"]]


def render(claims: Iterable[Claim]) -> str:
    """The sheet as Markdown: how much of each section is proven, then the rows themselves."""
    proven: dict[str, list[Claim]] = {section.letter: [] for section in SECTIONS}
    for claim in claims:
        proven[claim.id[0]].append(claim)
    total = sum(section.rows for section in SECTIONS)
    lines = [
        "# Claim sheet",
        "",
        "What the lectures that Heedful implements say, and which of it a test proves on the shipped code. Each test",
        'carries the ids of its rows, as in `@pytest.mark.claim("A11")`.',
        "",
        "| | section | proven | of |",
        "|---|---|---:|---:|",
        *(f"| {s.letter} | {s.title} | {len(proven[s.letter])} | {s.rows} |" for s in SECTIONS),
        f"| | all | {sum(map(len, proven.values()))} | {total} |",
    ]
    for section in SECTIONS:
        if rows := proven[section.letter]:
            lines += [
                "",
                f"## {section.letter}. {section.title}",
                "",
                "| id | claim | reading | test |",
                "|---|---|---|---|",
            ]
            lines += [f"| {c.id} | {c.statement} | {_reading(c)} | {_tests(c)} |" for c in rows]
    lines += ["", "## Open", "", "Rows that no test proves yet.", "", "| id | row |", "|---|---|"]
    lines += [f"| {row} | {name} |" for row, name in OPEN.items()]
    return "\n".join(lines) + "\n"


def _reading(claim: Claim) -> str:
    return f"see {claim.reading}" if claim.reading.startswith("X") else claim.reading


def _tests(claim: Claim) -> str:
    tests = ", ".join(map(_link, (claim.test, *claim.also)))
    return f"{tests}; in the page: {_link(claim.page)}" if claim.page else tests


def _link(test: str) -> str:
    return f"[{test.rpartition('/')[2]}](../{test})"
