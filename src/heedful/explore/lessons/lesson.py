"""What a lesson is: a title, and steps of an address, sentences, something to do, and a question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import parse_qsl


class Query(NamedTuple):
    """A quantity with its arguments, and the line of the file that asks for it."""

    name: str
    given: Mapping[str, str]
    line: int


class Piece(NamedTuple):
    """A part of a sentence: plain, emphasized or code; of a computed part, `query` is its quantity."""

    kind: Literal["text", "em", "code", "value"]
    text: str
    query: Query | None = None


Sentences = Sequence[Piece]


class Question(NamedTuple):
    """What a step asks before it shows: the choices of a number, or those of a ranking."""

    prompt: str
    answer: Query
    choices: Sequence[float]  # empty for a ranking
    then: Mapping[str, str]  # the changes of the address that show the answer
    because: Sentences
    cover: bool  # the figure, until there is a guess


class Check(NamedTuple):
    """A comparison that the sentences of a step rest on, as it is written: two values and the sign between them."""

    text: str
    left: Query
    sign: str
    right: Query | float | str


class Step(NamedTuple):
    """One step: the state of the page, what to look at and to do there, and what it teaches."""

    title: str
    line: int
    state: Mapping[str, str]
    spot: str
    do: str
    until: Mapping[str, str]  # what the address contains once it is done
    question: Question | None
    checks: Sequence[Check]
    paragraphs: Sequence[Sentences]

    @property
    def view(self) -> str:
        return self.state["view"]


class Lesson(NamedTuple):
    """A lesson, by the name of its file."""

    name: str
    file: str
    title: str
    about: str
    topics: Sequence[str]  # of the lectures
    model: str  # which models it is for, and how to get one
    run: str  # a command that opens it, but for --lesson
    steps: Sequence[Step]
    shipped: bool = False

    @property
    def command(self) -> str:
        """The command that opens it: by its name, or by that of its file."""
        return f"{self.run} --lesson {self.name if self.shipped else Path(self.file).name}"

    def place(self, line: int) -> str:
        """A line of its file, as in an error; the page must not learn its folder."""
        return f"{Path(self.file).name}:{line}"

    @property
    def views(self) -> tuple[str, ...]:
        """The views that a model must have."""
        return tuple(dict.fromkeys(step.view for step in self.steps))

    def record(self) -> dict[str, Any]:
        """What lists show of it."""
        shown = {key: getattr(self, key) for key in ("name", "title", "about", "topics", "model", "command", "views")}
        return {**shown, "steps": len(self.steps), "given": any("text" in step.state for step in self.steps)}


def state_of(address: str) -> dict[str, str]:
    """The state in an address of the page, of which the part after # is enough."""
    return dict(parse_qsl(address.rpartition("#")[2], keep_blank_values=True))
