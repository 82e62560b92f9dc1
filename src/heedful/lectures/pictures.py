"""Every figure and formula of the decks, and where Heedful computes it, from `pictures.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from heedful.lectures.claims import OPEN
from heedful.lectures.decks import decks, topics


class Item(NamedTuple):
    """A figure or a formula of a deck; exactly one of `at`, `open` and `why` is set."""

    deck: str
    kind: str  # formula or figure
    topic: str
    name: str
    at: Sequence[str] = ()  # figure NAME ..., view NAME, heedful ..., or FILE: SYMBOL
    open: str = ""  # a row of the claim sheet that is not built yet
    why: str = ""  # it cannot be computed
    note: str = ""

    @property
    def status(self) -> Literal["computed", "open", "not computable"]:
        """Whether Heedful computes it."""
        return "computed" if self.at else "open" if self.open else "not computable"


@cache
def _data() -> dict[str, Any]:
    with open(Path(__file__).with_suffix(".toml"), "rb") as file:
        return tomllib.load(file)


@cache
def items() -> tuple[Item, ...]:
    """All of them, deck by deck, formulas first."""
    return tuple(
        Item(deck, kind, **item)
        for deck, lists in _data().items()
        for kind, key in (("formula", "formulas"), ("figure", "pictures"))
        for item in lists[key]
    )


def words_only(deck: str) -> list[str]:
    """The topics of a deck without a figure or a formula."""
    names: list[str] = _data()[deck]["words"]
    return names


def page(note: str) -> Iterator[str]:
    """The list as Markdown: counts, then a table for each deck."""
    yield from (note, "", "# Figures and formulas of the decks", "")
    yield "Where each figure and each formula of the [lectures](../lectures.md) is computed. A page that builds up the"
    yield "one before it counts once, and so does a formula that a deck repeats; printed tables and listings count as"
    yield "figures. The list was made from the text of the decks: titles, captions and labels say what is drawn."
    yield ""
    yield "A command draws or prints; `view heads` is a [view of the explorer](../how-to/explorer-views.md); a file and"
    yield "a name are the code. Figures are drawn with Heedful's own models: other models give other numbers."
    yield from (
        "",
        "| deck | formulas | figures | computed | open | not computable |",
        "|---|---:|---:|---:|---:|---:|",
    )
    for deck in decks():
        own = [item for item in items() if item.deck == deck.name]
        yield f"| [{deck.lecturer}](#{_anchor(deck.lecturer)}) | {_counts(own)} |"
    yield f"| all | {_counts(items())} |"
    computed, unfinished = (sum(item.status == status for item in items()) for status in ("computed", "open"))
    possible = computed + unfinished
    figures = [item for item in items() if item.kind == "figure" and item.at]
    code = sum(all(": " in at for at in item.at) for item in figures)
    yield from ("", f"Of the {possible} that can be computed, {computed} are: {computed / possible:.0%}.")
    yield f"{len(figures) - code} of the {len(figures)} computed figures are drawn or printed by a command or a view;"
    yield f"the other {code} are diagrams and listings of something that runs, with its code."
    for deck in decks():
        yield from ("", f"## {deck.lecturer}", "", "| kind | topic | what | where |", "|---|---|---|---|")
        for item in items():
            if item.deck == deck.name:
                link = f"[{topics()[item.topic].title}]({deck.name}.md#{topics()[item.topic].anchor})"
                yield f"| {item.kind} | {link} | {item.name} | {_where(item)} |"
        titles = ", ".join(topics()[name].title for name in words_only(deck.name))
        yield from ("", f"In words only: {titles}.")


def _counts(own: Sequence[Item]) -> str:
    kinds = [sum(item.kind == kind for item in own) for kind in ("formula", "figure")]
    statuses = [sum(item.status == status for item in own) for status in ("computed", "open", "not computable")]
    return " | ".join(map(str, [*kinds, *statuses]))


def _where(item: Item) -> str:
    if item.at:
        found = ", ".join(map(_link, item.at))
    else:
        found = f"**open**: {OPEN[item.open]} ({item.open})" if item.open else f"not computable: {item.why}"
    return f"{found}; {item.note}" if item.note else found


def _link(at: str) -> str:
    file, colon, symbol = at.partition(": ")
    if colon:
        return f"[{file}](../../src/heedful/{file}) `{symbol}`"
    return f"`heedful {at}`" if at.startswith("figure ") else f"`{at}`"


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")
