"""Generated stories: people move between places, take objects along and leave them; nothing to download.

A story is a function of a seed and a number. Questions need one, two or three supporting facts, as the first three of
the bAbI tasks (Weston et al., 2015): where a person is, where an object is, and where it was before another place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple, TypeVar

from heedful.data.order import random_bits
from heedful.data.stories.story import Facts, Story, StoryQuestion

PEOPLE = ("Mary", "John", "Sandra", "Daniel")
PLACES = ("bathroom", "bedroom", "garden", "hallway", "kitchen", "office")
OBJECTS = ("apple", "football", "milk")
GO = ("moved to", "went to", "journeyed to", "travelled to", "went back to")
TAKE = ("took", "got", "grabbed", "picked up")
LEAVE = ("left", "dropped", "discarded", "put down")

T = TypeVar("T")


class Draws:
    """Random choices of one story."""

    def __init__(self, seed: int, number: int) -> None:
        self._key, self._bits, self._blocks = (seed, number), [0][:0], 0

    def one(self, options: Sequence[T]) -> T:
        """One of the options."""
        if not self._bits:
            self._bits = random_bits(*self._key, self._blocks, 64).tolist()
            self._blocks += 1
        return options[self._bits.pop() % len(options)]


class Visit(NamedTuple):
    """A place where an object came to, and the sentences that tell where it was before."""

    place: str
    supports: tuple[int, ...]  # the move to the place before, the taking, and the move here


@dataclass
class World:
    """Where everyone is, and what is known of each object, with the numbers of the sentences that tell it."""

    draws: Draws
    sentences: list[str] = field(default_factory=list)
    place: dict[str, str] = field(default_factory=dict)  # of a person
    moved: dict[str, int] = field(default_factory=dict)  # the last move of a person
    holder: dict[str, str] = field(default_factory=dict)  # of an object that is carried
    lies: dict[str, str] = field(default_factory=dict)  # the place of an object that was left
    handled: dict[str, tuple[int, int]] = field(default_factory=dict)  # the move and the taking or leaving of an object
    visits: dict[str, list[Visit]] = field(default_factory=dict)

    def move(self, person: str) -> None:
        """A person goes to another place, with what they carry."""
        to = self.draws.one([place for place in PLACES if place != self.place.get(person)])
        before = self.moved.get(person)
        self.moved[person], self.place[person] = len(self.sentences), to
        for thing in OBJECTS:
            if self.holder.get(thing) == person:
                taken = self.handled[thing][1]
                assert before is not None, "who carries something has moved before"
                self.visits[thing].append(Visit(to, tuple(sorted((before, taken, len(self.sentences))))))
        self.sentences.append(f"{person} {self.draws.one(GO)} the {to}.")

    def take(self, person: str, thing: str) -> None:
        """A person takes an object where they are."""
        self.holder[thing] = person
        self.handled[thing] = self.moved[person], len(self.sentences)
        self.visits.setdefault(thing, [Visit(self.place[person], ())])
        self.lies.pop(thing, None)
        self.sentences.append(f"{person} {self.draws.one(TAKE)} the {thing} there.")

    def leave(self, person: str, thing: str) -> None:
        """A person leaves an object where they are."""
        del self.holder[thing]
        self.lies[thing] = self.place[person]
        self.handled[thing] = self.moved[person], len(self.sentences)
        self.sentences.append(f"{person} {self.draws.one(LEAVE)} the {thing} there.")

    def go_on(self, facts: Facts) -> None:
        """The next sentence."""
        person = self.draws.one(PEOPLE)
        if facts == 1 or person not in self.place or self.draws.one((True, False)):
            return self.move(person)
        carried = [thing for thing in OBJECTS if self.holder.get(thing) == person]
        here = self.place[person]
        free = [thing for thing in OBJECTS if thing not in self.holder and self.lies.get(thing, here) == here]
        if not carried and not free:
            return self.move(person)
        thing = self.draws.one(carried + free)
        return self.leave(person, thing) if thing in carried else self.take(person, thing)

    def ask(self, facts: Facts) -> StoryQuestion | None:
        """A question that the sentences so far answer by this number of facts; None: there is none yet."""
        after = len(self.sentences)
        if facts == 1 and self.moved:
            person = self.draws.one([person for person in PEOPLE if person in self.moved])
            return StoryQuestion(f"Where is {person}?", self.place[person], after, (self.moved[person],))
        if facts == 2 and self.handled:
            thing = self.draws.one([thing for thing in OBJECTS if thing in self.handled])
            moved, handled = self.handled[thing]
            if (holder := self.holder.get(thing)) is not None:
                moved = self.moved[holder]
            place = self.place[holder] if holder else self.lies[thing]
            return StoryQuestion(f"Where is the {thing}?", place, after, tuple(sorted((moved, handled))))
        if facts == 3 and (options := self.befores()):
            thing, visit, before = self.draws.one(options)
            return StoryQuestion(f"Where was the {thing} before the {visit.place}?", before, after, visit.supports)
        return None

    def befores(self) -> list[tuple[str, Visit, str]]:
        """Each object with a place where it came to once, and the place before."""
        found = []
        for thing, visits in self.visits.items():
            places = [visit.place for visit in visits]
            for before, visit in pairwise(visits):
                if places.count(visit.place) == 1:
                    found.append((thing, visit, before.place))
        return found


def generate_story(seed: int, number: int, facts: Facts, questions: int, every: int) -> Story:
    """A story with questions, one after at least `every` sentences each."""
    world, asked = World(Draws(seed, number)), list[StoryQuestion]()
    while len(asked) < questions:
        for _ in range(every):
            world.go_on(facts)
        while (question := world.ask(facts)) is None:
            world.go_on(facts)
        asked.append(question)
    return Story(tuple(world.sentences), tuple(asked))
