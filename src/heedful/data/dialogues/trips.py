"""Dialogues that are generated: a traveller states facts, and later asks for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Literal, NamedTuple, TypeVar

from pydantic import Field

from heedful.data.dialogues.sources import Dialogue, Dialogues, number_speakers
from heedful.data.embedded import Embedded
from heedful.data.formats.sources import SPLITS, Split

Value = TypeVar("Value")
DRAWS = 64  # random numbers of a dialogue, more than it needs


class Fact(NamedTuple):
    """Something that a traveller states with one of several values, how the agent confirms it, and the question."""

    values: tuple[str, ...]
    stated: tuple[str, ...]
    confirmed: str
    asked: str


FACTS = (
    Fact(
        ("anna", "boris", "clara", "david", "emma", "felix"),
        ("my name is {} .", "i am {} ."), "hello {} .", "what is my name ?",
    ),
    Fact(
        ("athens", "berlin", "cairo", "lisbon", "oslo", "rome"),
        ("i want to go to {} .", "a ticket to {} , please ."), "{} is a good choice .", "where do i go ?",
    ),
    Fact(
        ("monday", "tuesday", "wednesday", "thursday", "friday", "sunday"),
        ("i leave on {} .", "it has to be on {} ."), "{} is possible .", "when do i leave ?",
    ),
    Fact(
        ("one", "two", "three", "four", "five", "six"),
        ("i need rooms : {} .", "we take {} , please ."), "{} of them are free .", "how many rooms are there ?",
    ),
)  # fmt: skip
SMALL_TALK = (
    ("is it cold there ?", "no , it is warm ."),
    ("can i pay by card ?", "yes , you can ."),
    ("is breakfast included ?", "yes , from seven on ."),
    ("do you like your work ?", "yes , very much ."),
)


class Trips(Embedded):
    """Booking a trip: a traveller states facts, which the agent confirms, and later asks for each of them.

    The splits are disjoint. The last utterance is the answer to a question, and cannot be guessed from the question.
    """

    kind: Literal["trips"] = "trips"
    train: int = Field(4_000, ge=1, le=8_000, description="dialogues for training")
    valid: int = Field(200, ge=1, le=1_000, description="dialogues for validation")
    test: int = Field(500, ge=1, le=2_000, description="dialogues for the final score")
    facts: int = Field(2, ge=2, le=len(FACTS), description="facts that the traveller states, one in a turn")
    seed: int = Field(0, ge=0, lt=2**63, description="random seed of the dialogues")

    def read(self, split: Split) -> Dialogues:
        """The dialogues of a split."""
        sizes = {"train": self.train, "valid": self.valid, "test": self.test}
        begin = sum(sizes[name] for name in SPLITS[: SPLITS.index(split)])
        found: dict[Dialogue, None] = {}
        for dialogue in self._dialogues():
            found[dialogue] = None  # those that occur twice count once
            if len(found) == begin + sizes[split]:
                break
        return Dialogues(list(found)[begin:], 0, 0)

    def _dialogues(self) -> Iterator[Dialogue]:
        """An endless sequence of random dialogues."""
        from heedful.data.order import random_bits

        for index in count():
            draws = iter(random_bits(self.seed, index, 0, DRAWS).tolist())
            said = list(converse(draws, self.facts))
            yield Dialogue(tuple(said), number_speakers([None] * len(said)))


def converse(draws: Iterator[int], facts: int) -> Iterator[str]:
    """The utterances of a dialogue, from random integers."""
    stated = [(fact, choose(draws, fact.values)) for fact in shuffled(draws, FACTS)[:facts]]
    for fact, value in stated:
        yield choose(draws, fact.stated).format(value)
        yield fact.confirmed.format(value)
    if next(draws) % 2:
        yield from choose(draws, SMALL_TALK)
    for fact, value in shuffled(draws, stated):
        yield fact.asked
        yield f"{value} ."


def choose(draws: Iterator[int], values: Sequence[Value]) -> Value:
    """One of the values."""
    return values[next(draws) % len(values)]


def shuffled(draws: Iterator[int], values: Sequence[Value]) -> list[Value]:
    """The values in a random order."""
    keys = [next(draws) for _ in values]
    return [values[place] for place in sorted(range(len(values)), key=keys.__getitem__)]
