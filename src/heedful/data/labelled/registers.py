"""A small language in two registers, plain and courtly: its grammar, both ways, and non-parallel sentences.

plain    tomorrow the old king will sell a boat in the market
courtly  yon king so old some boat within market sell shall tomorrow

The registers share their content words, and differ in function words and in word order. Each meaning has one sentence
in each register, so that style, content and meaning of a sentence are decided exactly.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from pydantic import Field

from heedful.data.embedded import Embedded
from heedful.data.formats.sources import SPLITS, Split
from heedful.data.formats.tables import Item, Items


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


PEOPLE = _words("king queen baker miller farmer sailor hunter doctor poet child fox wolf crow horse cat dog")
THINGS = _words("boat lamp ring coat chair table bell sword book letter apple cheese wagon ladder basket kettle")
VERBS = _words("buy sell find lose carry paint hide break wash steal mend borrow")
QUALITIES = _words("old young red green small great quiet clever poor rich cold bright")
PLACES = _words("market forest village garden harbour valley kitchen castle")
PAST, FUTURE = _words("yesterday earlier once"), _words("tomorrow soon later")
CONTENT = frozenset((*PEOPLE, *THINGS, *VERBS, *QUALITIES, *PLACES, *PAST, *FUTURE))
Register = Literal["plain", "courtly"]
REGISTERS: tuple[Register, ...] = ("plain", "courtly")


class Noun(NamedTuple):
    """A noun with its quality, if it has one, and whether it is definite."""

    word: str
    quality: str | None
    definite: bool


class Meaning(NamedTuple):
    """What a sentence says, in either register."""

    subject: Noun
    verb: str
    object: Noun
    place: str | None
    time: str | None
    past: bool

    @classmethod
    def draw(cls, rng: random.Random) -> Meaning:
        """A random meaning; subjects are more often definite than objects."""
        past = rng.random() < 0.5

        def maybe(words: Sequence[str]) -> str | None:
            return rng.choice(words) if rng.random() < 0.5 else None

        subject = Noun(rng.choice(PEOPLE), maybe(QUALITIES), rng.random() < 0.8)
        thing = Noun(rng.choice(THINGS), maybe(QUALITIES), rng.random() < 0.3)
        return cls(subject, rng.choice(VERBS), thing, maybe(PLACES), maybe(PAST if past else FUTURE), past)

    def sentence(self, register: Register) -> str:
        """The one sentence with this meaning in a register."""
        return " ".join(_plain(self) if register == "plain" else _courtly(self))


def _plain(m: Meaning) -> Iterator[str]:
    """(time) subject (did | will) verb object (in the place), qualities before nouns."""
    yield from [m.time] if m.time else []
    for noun in (m.subject, m.object):
        yield from ["the" if noun.definite else "a", *([noun.quality] if noun.quality else []), noun.word]
        if noun is m.subject:
            yield from ["did" if m.past else "will", m.verb]
    yield from ["in", "the", m.place] if m.place else []


def _courtly(m: Meaning) -> Iterator[str]:
    """subject object (within place) verb (hath | shall) (time), qualities after nouns."""
    for noun in (m.subject, m.object):
        yield from ["yon" if noun.definite else "some", noun.word, *(["so", noun.quality] if noun.quality else [])]
    yield from ["within", m.place] if m.place else []
    yield from [m.verb, "hath" if m.past else "shall"]
    yield from [m.time] if m.time else []


def _any(name: str, words: Sequence[str]) -> str:
    return f"(?P<{name}>{'|'.join(words)})"


def _either(role: str, words: Sequence[str], noun: str) -> str:
    """A noun phrase, as a regular expression: `noun` has places for the article, the quality and the noun."""
    return noun.format(role, _any(f"{role}_quality", QUALITIES), _any(role, words))


TIME, VERB, PLACE = _any("time", [*PAST, *FUTURE]), _any("verb", VERBS), _any("place", PLACES)
_PLAIN_NOUN, _COURTLY_NOUN = "(?P<{0}_article>the|a) (?:{1} )?{2}", "(?P<{0}_article>yon|some) {2}(?: so {1})?"
GRAMMAR: dict[Register, re.Pattern[str]] = {
    "plain": re.compile(
        f"(?:{TIME} )?{_either('subject', PEOPLE, _PLAIN_NOUN)} (?P<tense>did|will) {VERB} "
        f"{_either('object', THINGS, _PLAIN_NOUN)}(?: in the {PLACE})?"
    ),
    "courtly": re.compile(
        f"{_either('subject', PEOPLE, _COURTLY_NOUN)} {_either('object', THINGS, _COURTLY_NOUN)}"
        f"(?: within {PLACE})? {VERB} (?P<tense>hath|shall)(?: {TIME})?"
    ),
}


def parse(text: str, register: Register) -> Meaning | None:
    """The meaning of a sentence in a register; None: it is no sentence of that register."""
    found = GRAMMAR[register].fullmatch(text)
    if found is None:
        return None
    subject, thing = (
        Noun(found[role], found[f"{role}_quality"], found[f"{role}_article"] in ("the", "yon"))
        for role in ("subject", "object")
    )
    past = found["tense"] in ("did", "hath")
    return Meaning(subject, found["verb"], thing, found["place"], found["time"], past)


class Registers(Embedded):
    """Sentences of a small language in two registers, plain and courtly, which are the labels.

    They are not parallel: no meaning occurs twice, neither in both registers nor in two splits.
    """

    kind: Literal["registers"] = "registers"
    train: int = Field(8_000, ge=2, le=1_000_000, description="sentences for training, half of them in each register")
    valid: int = Field(200, ge=2, le=100_000, description="sentences for validation")
    test: int = Field(600, ge=2, le=100_000, description="sentences for the final score")
    seed: int = Field(0, ge=0, lt=2**63, description="random seed of the sentences")

    def read(self, split: Split) -> Items:
        """The sentences of a split, the registers in turn."""
        sizes = {"train": self.train, "valid": self.valid, "test": self.test}
        begin = sum(sizes[name] for name in SPLITS[: SPLITS.index(split)])
        registers = [REGISTERS[number % 2] for number in range(sizes[split])]
        found = zip(self._meanings(begin + sizes[split])[begin:], registers, strict=True)
        return Items([Item(meaning.sentence(register), None, register, "data") for meaning, register in found], 0)

    def _meanings(self, count: int) -> list[Meaning]:
        """The first of all meanings, each of which is another."""
        rng, found = random.Random(self.seed), dict[Meaning, None]()
        while len(found) < count:
            found[Meaning.draw(rng)] = None
        return list(found)
