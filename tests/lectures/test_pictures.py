"""The list of figures and formulas of the decks: it covers every topic, what it names exists, its counts are right."""

from __future__ import annotations

import ast
import re
import shlex
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main

import heedful
from heedful.cli.app import app
from heedful.explore.views import VIEWS
from heedful.lectures.claims import OPEN
from heedful.lectures.decks import decks
from heedful.lectures.pages import pages
from heedful.lectures.pictures import Item, items, words_only
from heedful.plots.gallery import EVERY, draw
from heedful.runs.recipe import load_recipe

SOURCE = Path(heedful.__file__).parent
PLACES = sorted({at for item in items() for at in item.at})


@cache
def symbols(file: str) -> set[str]:
    """The functions and classes of a file, and the methods of its classes as Class.method."""
    tree = ast.parse((SOURCE / file).read_text(encoding="utf-8"))
    defined = [node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    methods = {
        f"{node.name}.{inner.name}"
        for node in defined
        if isinstance(node, ast.ClassDef)
        for inner in node.body
        if isinstance(inner, ast.FunctionDef)
    }
    return {node.name for node in defined} | methods


@pytest.mark.parametrize("deck", decks(), ids=lambda deck: deck.name)
def test_every_topic_is_listed_or_has_words_only(deck: Any) -> None:
    listed = {item.topic for item in items() if item.deck == deck.name}
    assert listed.isdisjoint(words_only(deck.name))
    assert listed | set(words_only(deck.name)) == set(deck.topics)


def test_every_item_is_computed_or_open_or_says_why_not() -> None:
    assert [item for item in items() if [bool(item.at), bool(item.open), bool(item.why)].count(True) != 1] == []
    assert [item for item in items() if item.open and item.open not in OPEN] == [], "built by now: say where it lives"
    assert Counter((item.deck, item.kind, item.topic, item.name) for item in items()).most_common(1)[0][1] == 1


@pytest.mark.parametrize("at", PLACES)
def test_every_place_exists(at: str) -> None:
    file, colon, symbol = at.partition(": ")
    if colon:
        assert symbol in symbols(file)
        return
    first, *words = shlex.split(at)
    if first == "view":
        assert words[0] in VIEWS
    elif first == "figure":
        assert words[0] in EVERY
        draw(words[0], overrides=words[1:])  # checks the settings; nothing is drawn
    else:
        assert first == "heedful"
        command: Any = typer.main.get_command(app).commands[words[0]]  # type: ignore[attr-defined]
        given = command.make_context(words[0], words[1:]).params
        if "recipe" in given:
            load_recipe(given["recipe"])


def test_page_counts_its_rows() -> None:
    text = pages()["lectures/pictures.md"]
    printed = {
        title: list(map(int, numbers.split(" | ")))
        for title, numbers in re.findall(r"^\| (?:\[([^]]+)\]\([^)]*\)|(?:all)) \| ([\d |]+) \|$", text, re.MULTILINE)
    }
    total = [0] * 5
    for section in text.split("\n## ")[1:]:
        rows = re.findall(r"^\| (formula|figure) \|.*\| (.*) \|$", section, re.MULTILINE)
        where = [place for _, place in rows]
        opened = sum(place.startswith("**open**") for place in where)
        never = sum(place.startswith("not computable") for place in where)
        kinds = Counter(kind for kind, _ in rows)
        counted = [kinds["formula"], kinds["figure"], len(rows) - opened - never, opened, never]
        assert printed[section.partition("\n")[0]] == counted
        total = [one + more for one, more in zip(total, counted, strict=True)]
    assert printed[""] == total
    assert len(items()) == total[0] + total[1]


def test_statuses() -> None:
    assert Item("han", "figure", "pca", "x", at=["view map"]).status == "computed"
    assert Item("han", "figure", "pca", "x", open="I5").status == "open"
    assert Item("han", "figure", "pca", "x", why="a photograph").status == "not computable"
