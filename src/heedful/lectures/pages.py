"""The documentation's pages about the lectures, from the same data as `heedful lectures`.

`python -m heedful.lectures.pages docs` writes them, and the claim sheet, below a folder.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from heedful.lectures.claims import Claim, render, sheet
from heedful.lectures.decks import Deck, Topic, decks, references, takeaways, topics
from heedful.lectures.pictures import page as pictures

NOTE = "<!-- Written by `python -m heedful.lectures.pages docs` from src/heedful/lectures/decks.toml. -->"


def pages() -> dict[str, str]:
    """The text of each page by its path below docs/."""
    decked = {f"lectures/{deck.name}.md": "\n".join(_deck(deck)) + "\n" for deck in decks()}
    lists = {
        "lectures/pictures.md": "\n".join(pictures(NOTE.replace("decks.toml", "pictures.toml"))) + "\n",
        "lectures/references.md": "\n".join(_references()) + "\n",
        "lectures/takeaways.md": "\n".join(_takeaways()) + "\n",
    }
    return {"claims.md": render(sheet())} | lists | {"lectures.md": "\n".join(_overview()) + "\n"} | decked


def _overview() -> Iterator[str]:
    yield from (NOTE, "", "# The lectures", "")
    yield "Heedful implements what five university decks on attention, the Transformer and BERT describe. Each page"
    yield "below goes through a deck topic by topic: what to type, what you see, the code, and the test that proves it."
    yield ""
    yield from ("```sh", "heedful lectures                 # the decks", "heedful lectures han             # one deck")
    yield from ("heedful lectures multi-head      # one topic", "heedful lectures beam search     # search")
    yield from ("heedful quiz                     # questions, half of them with computed answers", "```", "")
    yield "A command marked `# once` trains a model that other topics use too; `runs/demo` of `make demo` is the same"
    yield "model as `runs/numbers`. In a clone, `python -m pytest FILE --claim A11` runs the test of one claim."
    yield ""
    yield from ("| deck | lecturer | topics | with open parts |", "|---|---|---:|---:|")
    for deck in decks():
        unfinished = sum(bool(topics()[name].open) for name in deck.topics)
        link = f"[{deck.title}](lectures/{deck.name}.md)"
        yield f"| {link} | {deck.lecturer}, {deck.course} | {len(deck.topics)} | {unfinished} |"
    yield ""
    yield "The decks' [references](lectures/references.md) and [takeaways](lectures/takeaways.md) have their own pages."
    yield "So has the list of all their [figures and formulas](lectures/pictures.md), with where each is computed."
    left = [(topic, name) for topic in topics().values() for name in topic.open]
    yield "Every row of the decks that a test proves is in the [claim sheet](claims.md)" + (
        ". These do not run yet:" if left else ": all of them."
    )
    if left:
        yield ""
    yield from (f"- {name} ([{topic.title}](lectures/{topic.decks[0]}.md#{topic.anchor}))" for topic, name in left)


def _deck(deck: Deck) -> Iterator[str]:
    yield from (NOTE, "", f"# {deck.title}", "", f"{deck.lecturer}, {deck.course}. [All lectures](../lectures.md)", "")
    for number, name in enumerate(deck.topics, 1):
        yield f"{number}. [{topics()[name].title}](#{topics()[name].anchor})"
    for name in deck.topics:
        yield ""
        yield from _topic(topics()[name])


def _topic(topic: Topic) -> Iterator[str]:
    yield from (f"## {topic.title}", "", topic.summary)
    if topic.run:
        yield from ("", "```sh")
        for step in topic.steps:
            yield step.command if step.minutes is None else f"{step.command:<40} # once"
        yield "```"
    yield ""
    if topic.needs:
        yield f"- needs: {topic.needs}"
    if topic.shows:
        yield f"- shows: {topic.shows}"
    if topic.code:
        yield "- code: " + ", ".join(f"[{file}](../../src/heedful/{file})" for file in topic.code)
    for claim in topic.claims:
        yield f"- {claim.id}: {claim.statement}{_reading(claim)} ([{_file(claim)}](../../{claim.test}))"
    for claim in topic.errata:
        yield f"- erratum {claim.id}: {claim.statement}{_reading(claim)} ([{_file(claim)}](../../{claim.test}))"
    yield from (f"- **open**: {name}" for name in topic.open)


def _references() -> Iterator[str]:
    yield from (
        NOTE,
        "",
        "# References",
        "",
        "Tutorials that the [lectures](../lectures.md) point to, then papers.",
        "",
    )
    yield from ("| title | authors | year | where | in Heedful |", "|---|---|---|---|---|")
    for one in references():
        where = f"[{one.where}]({one.link})" if one.link and "https:" not in one.where else one.link or one.where
        files = ", ".join(f"[{file}](../../src/heedful/{file})" for file in one.code)
        yield f"| {one.title} | {one.authors} | {one.year or ''} | {where} | {files or 'cited only'} |"


def _takeaways() -> Iterator[str]:
    yield from (
        NOTE,
        "",
        "# Takeaways",
        "",
        "The closing bullets of the [lectures](../lectures.md), with something to run.",
    )
    for deck in decks():
        bullets = [one.record() for one in takeaways() if one.deck == deck.name]
        if bullets:
            yield from ("", f"## {deck.lecturer}", "")
        for one in bullets:
            tests = ", ".join(f"[{test.rpartition('/')[2]}](../../{test})" for test in one["tests"])
            yield f"- {one['text']} `{one['run']}` ({tests})"


def _reading(claim: Claim) -> str:
    return f" {claim.reading}" if claim.reading and not claim.reading.startswith("X") else ""


def _file(claim: Claim) -> str:
    return claim.test.rpartition("/")[2]


def write(folder: Path) -> None:
    """Write every page below a folder."""
    for name, text in pages().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
