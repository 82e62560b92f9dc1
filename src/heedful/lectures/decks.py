"""Five university decks on attention, the Transformer and BERT, topic by topic: what to type, and what proves it.

`decks.toml` holds each topic once: a summary, the commands, what they show, the files of the code, and the ids of its
rows in the claim sheet. Tests, readings of misprints and what is still open come from the sheet.
"""

from __future__ import annotations

import difflib
import re
import shlex
import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from heedful.errors import UserError, shown
from heedful.lectures.claims import OPEN, Claim, sheet

FILLERS = ("a", "an", "and", "by", "for", "from", "how", "in", "is", "of", "on", "or", "the", "to", "vs", "what")


class Deck(NamedTuple):
    """A lecture, and the names of its topics in the order of its pages."""

    name: str
    title: str
    lecturer: str
    course: str
    topics: Sequence[str]


class Training(NamedTuple):
    """The command that trains a run, and how long it takes on two CPU cores."""

    train: str
    minutes: float


class Step(NamedTuple):
    """A command to type, and the minutes it takes if it trains a run that other topics read too."""

    command: str
    minutes: float | None = None


class Topic(NamedTuple):
    """A subject of one or more pages."""

    name: str
    title: str
    summary: str
    ids: Sequence[str]  # rows of the claim sheet
    run: Sequence[str] = ()  # commands
    shows: str = ""  # the result of the commands
    code: Sequence[str] = ()  # files below src/heedful
    needs: str = ""  # files of the user's that the commands read
    also: str = ""  # other names of it, to search for

    @property
    def view(self) -> str | None:
        """The explorer's view of it, which a command opens."""
        found = [re.search(r"--view (\S+)", command) for command in self.run]
        return next((match[1] for match in found if match), None)

    @property
    def anchor(self) -> str:
        """Of its section in the page of a deck."""
        return re.sub(r"[^\w\- ]", "", self.title.lower()).replace(" ", "-")

    @property
    def open(self) -> list[str]:
        """What does not run yet, by name."""
        return [OPEN[row] for row in self.ids if row in OPEN]

    @property
    def claims(self) -> list[Claim]:
        """Its proven rows."""
        return [_sheet()[row] for row in self.ids if row in _sheet() and not row.startswith("X")]

    @property
    def errata(self) -> list[Claim]:
        """The misprints and contradictions on its pages."""
        return [_sheet()[row] for row in self.ids if row.startswith("X")]

    @property
    def decks(self) -> list[str]:
        """The decks that it is part of."""
        return [deck.name for deck in decks() if self.name in deck.topics]

    @property
    def steps(self) -> list[Step]:
        """Its commands in order, and before the first one that reads a run of other topics, how to train that."""
        done = {name for command in self.run for name in _trained(command)}
        found = []
        for command in self.run:
            for name in re.findall(r"\bruns/([\w-]+)", command):
                if name in runs() and name not in done:
                    found.append(Step(*runs()[name]))
                    done.add(name)
            found.append(Step(command))
        return found

    def record(self) -> dict[str, Any]:
        """All of it as JSON."""
        return {
            **self._asdict(),
            "view": self.view,
            "decks": self.decks,
            "steps": [step._asdict() for step in self.steps],
            "claims": [_claim(claim) for claim in self.claims],
            "errata": [_claim(claim) for claim in self.errata],
            "open": self.open,
        }


class Takeaway(NamedTuple):
    """A closing bullet of a deck, and the topic that shows it."""

    deck: str
    text: str
    topic: str

    def record(self) -> dict[str, Any]:
        """All of it as JSON, with a command and the tests."""
        topic = topics()[self.topic]
        tests = list(dict.fromkeys(claim.test for claim in topic.claims))
        return {**self._asdict(), "run": topic.run[0], "tests": tests}


class Reference(NamedTuple):
    """A paper or a tutorial, and the topics and models that it is about."""

    title: str
    authors: str
    where: str  # arXiv id, DOI, venue or address
    topics: Sequence[str]
    year: int | None = None
    decks: Sequence[str] = ()  # those that cite it
    models: Sequence[str] = ()  # kinds of models in a recipe
    cited: bool = False  # cited only: Heedful does not implement it

    @property
    def link(self) -> str | None:
        """Its address, where there is one."""
        found = re.search(r"(arXiv|doi):(\S+)|(https:\S+)", self.where)
        if found is None:
            return None
        kind, name, address = found.groups()
        return address or (f"https://arxiv.org/abs/{name}" if kind == "arXiv" else f"https://doi.org/{name}")

    @property
    def code(self) -> list[str]:
        """The files of Heedful about it; none for what is only cited."""
        return [] if self.cited else list(dict.fromkeys(file for name in self.topics for file in topics()[name].code))

    def record(self) -> dict[str, Any]:
        """All of it as JSON."""
        return {**self._asdict(), "link": self.link, "code": self.code}


class Command(NamedTuple):
    """A command of a topic, with the words that a shell makes of it."""

    topic: str
    text: str
    words: Sequence[str]
    needs: str


@cache
def _data() -> dict[str, Any]:
    with open(Path(__file__).with_suffix(".toml"), "rb") as file:
        return tomllib.load(file)


@cache
def _sheet() -> dict[str, Claim]:
    return {claim.id: claim for claim in sheet()}


@cache
def decks() -> tuple[Deck, ...]:
    """The decks."""
    return tuple(Deck(**deck) for deck in _data()["deck"])


@cache
def topics() -> dict[str, Topic]:
    """Every topic by its name."""
    return {topic["name"]: Topic(**topic) for topic in _data()["topic"]}


@cache
def runs() -> dict[str, Training]:
    """The runs that commands of several topics read, by name."""
    return {name: Training(**run) for name, run in _data()["runs"].items()}


@cache
def takeaways() -> tuple[Takeaway, ...]:
    """The closing bullets, deck by deck."""
    return tuple(Takeaway(**takeaway) for takeaway in _data()["takeaway"])


@cache
def references() -> tuple[Reference, ...]:
    """Tutorials that the decks point to, then the papers behind models and topics."""
    with open(Path(__file__).with_name("references.toml"), "rb") as file:
        return tuple(Reference(**reference) for reference in tomllib.load(file)["reference"])


def commands() -> Iterator[Command]:
    """Every command of every topic, those that train shared runs first."""
    for name, run in runs().items():
        yield Command(name, run.train, shlex.split(run.train), "")
    for topic in topics().values():
        for command in topic.run:
            yield Command(topic.name, command, shlex.split(command), topic.needs)


def overview() -> dict[str, Any]:
    """Decks, topics, references and takeaways as JSON."""
    return {
        "decks": [deck._asdict() for deck in decks()],
        "topics": {name: topic.record() for name, topic in topics().items()},
        "references": [reference.record() for reference in references()],
        "takeaways": [takeaway.record() for takeaway in takeaways()],
    }


def find(query: str) -> Deck | list[Topic]:
    """The deck or the topic of a name, else the topics that match."""
    by_name = {deck.name: deck for deck in decks()}
    if query.lower() in by_name:
        return by_name[query.lower()]
    if query.lower() in topics():
        return [topics()[query.lower()]]
    found = matching(query)
    if not found:
        near = difflib.get_close_matches(query.lower(), [*by_name, *topics()], n=1)
        todo = f"did you mean {near[0]}?" if near else "`heedful lectures` lists the decks and their topics"
        raise UserError("no topic of the lectures matches", found=shown(query), todo=todo)
    return found


def matching(query: str) -> list[Topic]:
    """The topics that contain every word of a query, or as many of them as any topic does; closest titles first."""
    words = [word.strip(",.;:?!()\"'") for word in query.lower().split()]
    words = list(dict.fromkeys(_stem(word) for word in words if word not in ("", *FILLERS)))
    counts = {name: sum(_has(topic, word) for word in words) for name, topic in topics().items()}
    most = max(counts.values())
    found = [topic for name, topic in topics().items() if counts[name] == most] if most else []
    return sorted(found, key=lambda topic: -_closeness(topic, words))


def _stem(word: str) -> str:
    """A word without a plural's s."""
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def _spaced(text: str) -> str:
    return text.lower().replace("-", " ")


def _has(topic: Topic, word: str) -> bool:
    """Whether a word occurs in what is searched: titles, summaries, commands, files, ids and names of what is open."""
    if re.fullmatch(r"[a-z]\d+", word):
        return word.upper() in topic.ids
    texts = (topic.name, topic.title, topic.also, topic.summary, *topic.run, topic.shows, *topic.code, *topic.open)
    return any(_spaced(word) in _spaced(text) for text in texts)


def _closeness(topic: Topic, words: Sequence[str]) -> float:
    """How many of the letters of a topic's names the words are."""
    names = [_spaced(name) for name in (topic.name, topic.title, *topic.also.split(", "))]
    return max(sum(len(word) for word in words if _spaced(word) in name) / (len(name) or 1) for name in names)


def _trained(command: str) -> list[str]:
    """The run that a command trains, if any."""
    found = re.match(r"heedful train ([\w-]+)(?:.* --run runs/([\w-]+))?", command)
    return [found[2] or found[1]] if found else ["demo"] if command == "heedful demo" else []


def _claim(claim: Claim) -> dict[str, Any]:
    tests = [test for test in (claim.test, *claim.also, claim.page) if test]
    return {"id": claim.id, "statement": claim.statement, "reading": claim.reading, "tests": tests}
