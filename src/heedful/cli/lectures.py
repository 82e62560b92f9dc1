"""The command `lectures`: the decks, their topics, and what to type for each; needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

import heedful
from heedful.cli.output import json_line, say
from heedful.lectures.decks import Deck, Step, Topic, decks, find, matching, references, takeaways, topics

WIDE = 120  # columns of a file or a pipe
CARDS = 3  # topics that are shown in full
OTHERS = 6  # topics that are named below the one that was asked for


def lectures_command(words: Sequence[str], as_json: bool) -> None:
    """Print the decks, one deck, one topic, or the topics that match."""
    found = find(" ".join(words)) if words else None
    chosen = [topics()[name] for name in found.topics] if isinstance(found, Deck) else found
    if as_json:
        for record in [deck._asdict() for deck in decks()] if chosen is None else map(full_record, chosen):
            say(json_line(record))
        return
    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console.width = WIDE
    if chosen is None:
        overview(console)
    elif isinstance(found, Deck):
        console.print(Text(f"{found.title}: {found.lecturer}, {found.course}", "bold"))
        listing(console, chosen)
    elif len(chosen) > CARDS:
        console.print(Text(f"{len(chosen)} topics match", "bold"))
        listing(console, chosen, with_decks=True)
    else:
        for topic in chosen:
            card(console, topic)
            if topic.name == "references":
                print_references(console)
            if topic.name == "takeaways":
                print_takeaways(console)
        others = [topic.name for topic in matching(" ".join(words)) if topic not in chosen][:OTHERS]
        if others:
            console.print(Text(f"see also  {', '.join(others)}", "dim"))


def full_record(topic: Topic) -> dict[str, Any]:
    """A topic as JSON, with the list that it is about, if any."""
    record = topic.record()
    if topic.name == "references":
        record["references"] = [one.record() for one in references()]
    if topic.name == "takeaways":
        record["takeaways"] = [one.record() for one in takeaways()]
    return record


def overview(console: Console) -> None:
    """A line for each deck."""
    table = Table("deck", "title", "lecturer", "topics", "open", box=None, pad_edge=False, header_style="dim")
    for deck in decks():
        unfinished = sum(bool(topics()[name].open) for name in deck.topics)
        cells = (deck.name, deck.title, deck.lecturer, str(len(deck.topics)), str(unfinished))
        table.add_row(*(Text(cell, style) for cell, style in zip(cells, ("bold cyan", "", "", "", "dim"), strict=True)))
    console.print(table)
    console.print()
    for command, about in (
        ("heedful lectures han", "the topics of a deck, in the order of its pages"),
        ("heedful lectures multi-head", "a topic: what to type, what it shows, the code, the test"),
        ("heedful lectures beam search", "search titles, summaries, commands, files and ids"),
    ):
        console.print(Text(f"  {command:<30}", "cyan") + Text(about, "dim"))


def listing(console: Console, chosen: Sequence[Topic], with_decks: bool = False) -> None:
    """A line or two for each topic."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for topic in chosen:
        about = Text(topic.title)
        if topic.open:
            about.append(f"  open: {', '.join(topic.open)}", "yellow")
        table.add_row(Text(topic.name, "cyan"), about, Text(", ".join(topic.decks) if with_decks else "", "dim"))
    console.print(table)
    console.print(Text(f"\n`heedful lectures {chosen[0].name}` shows what to type for one", "dim"))


def card(console: Console, topic: Topic) -> None:
    """All about one topic."""
    console.print(Text(topic.title, "bold"), Text(f"({topic.name}; {', '.join(topic.decks)})", "dim"))
    console.print(Padding(Text(topic.summary), (0, 0, 0, 2)))
    rows: list[tuple[str, Text]] = []
    if topic.needs:
        rows.append(("needs", Text(topic.needs)))
    rows += [("type", _step(step)) for step in topic.steps]
    if topic.shows:
        rows.append(("shows", Text(topic.shows)))
    rows += [("code", Text(_path(file))) for file in topic.code]
    for claim in topic.claims:
        reading = f" {claim.reading}" if claim.reading and not claim.reading.startswith("X") else ""
        rows.append((claim.id, Text(claim.statement + reading)))
    rows += [(f"erratum {claim.id}", Text(f"{claim.statement} {claim.reading}")) for claim in topic.errata]
    files = dict.fromkeys(claim.test for claim in (*topic.claims, *topic.errata))
    for file in files:
        ids = [claim.id for claim in (*topic.claims, *topic.errata) if claim.test == file]
        rows.append(("test", Text(f"python -m pytest {file} --claim {','.join(ids)}", "cyan")))
    rows += [("open", Text(name, "yellow")) for name in topic.open]
    table = Table(box=None, pad_edge=False, show_header=False)
    before = ""
    for label, about in rows:
        table.add_row(Text("" if label == before else label, "dim"), about)
        before = label
    console.print(Padding(table, (0, 0, 1, 2)))


def print_references(console: Console) -> None:
    """The reference list, with the files of Heedful about each."""
    for one in references():
        year = f", {one.year}" if one.year else ""
        console.print(Text(one.title, "bold"), Text(f"{one.authors}{year}"))
        files = ", ".join(map(_path, one.code)) or "cited, not implemented"
        console.print(Padding(Text(one.link or one.where, "cyan") + Text(f"  {files}", "dim"), (0, 0, 1, 2)))


def print_takeaways(console: Console) -> None:
    """The closing bullets with a command for each."""
    for deck in decks():
        bullets = [one.record() for one in takeaways() if one.deck == deck.name]
        if bullets:
            console.print(Text(f"{deck.title}: {deck.lecturer}", "bold"))
        for one in bullets:
            console.print(Padding(Text(f"- {one['text']}"), (0, 0, 0, 2)))
            console.print(Padding(Text(one["run"], "cyan") + Text(f"  {', '.join(one['tests'])}", "dim"), (0, 0, 0, 4)))


def _step(step: Step) -> Text:
    """A command, with the time it takes if it trains a run."""
    if step.minutes is None:
        return Text(step.command, "bold cyan")
    time = f"{step.minutes * 60:.0f} seconds" if step.minutes < 1 else f"about {step.minutes:g} min"
    return Text(step.command, "bold cyan") + Text(f"  (once, {time})", "dim")


def _path(file: str) -> str:
    """The path of a file of the package, relative to the working directory if it is below it."""
    path = Path(heedful.__file__).parent / file
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
