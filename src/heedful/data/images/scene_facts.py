"""Whether a sentence is true of a drawn scene, and which of its things it speaks of.

A sentence is true if all it says holds: it may leave things out. Where several things fit a name, one reading that
holds is enough.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations

from heedful.data.images.scenes import (
    COLOURS,
    COUNTED,
    GROUNDS,
    PLACES,
    SHAPES,
    SIZES,
    Scene,
    Thing,
    relation,
)

RELATIONS = ("to the left of", "to the right of", "above", "below")
Box = tuple[int, int, int, int]

# What captions and paragraphs of scenes are made of; the digits number the things.
FORMS = (
    "a SIZED0 PLACE",
    "a SIZED0 RELATION a SIZED1",
    "NAMED0 on a GROUND ground",
    "NAMED0 and NAMED1 on a GROUND ground",
    "NAMED0 and NAMED1 and NAMED2 on a GROUND ground",
    "PLACE is a SIZED0",
    "NAMED0",
    "NAMED0 with OTHER other shape",
    "NAMED0 with OTHERS other shapes",
    "there is SINGLE shape on GROUND, NAMED0",
    "there are SEVERAL shapes on GROUND, the LARGEST NAMED0",
    "the picture shows SINGLE shape on a GROUND ground",
    "the picture shows SEVERAL shapes on a GROUND ground",
    "there is a SIZED0 PLACE",
    "the PLAIN0 is RELATION the PLAIN1",
)


@dataclass(frozen=True)
class Description:
    """A thing as a sentence describes it."""

    colour: str
    shape: str
    size: str | None  # None: not said
    begin: int  # of its noun, in characters
    end: int

    def fits(self, thing: Thing) -> bool:
        """Whether it describes a thing."""
        return (thing.colour, thing.shape) == (self.colour, self.shape) and self.size in (None, thing.size)

    def __str__(self) -> str:
        return " ".join(filter(None, (self.size, self.colour, self.shape)))


@dataclass(frozen=True)
class Statement:
    """What a sentence says of a scene; None: nothing."""

    descriptions: tuple[Description, ...]
    count: int | None = None  # of all things
    ground: str | None = None
    place: str | None = None  # of the first one described
    relation: str | None = None  # of the first one to the second
    largest: bool = False  # whether the first one is said to be it

    def holds(self, scene: Scene, things: tuple[Thing, ...]) -> bool:
        """Whether it is true if it speaks of these things."""
        return (
            all(description.fits(thing) for description, thing in zip(self.descriptions, things, strict=True))
            and self.place in (None, things and scene.place(things[0]))
            and self.relation in (None, len(things) > 1 and relation(*things[:2]))
            and (not self.largest or things[0].radius == max(thing.radius for thing in scene.things))
        )


@dataclass(frozen=True)
class Mention:
    """A noun in a sentence, and the boxes that it may name: the thing's, or those of all that fit as well."""

    word: int  # its place among the words between blanks
    begin: int  # in characters
    end: int
    things: tuple[int, ...]  # their places in the scene
    boxes: tuple[Box, ...]


@dataclass(frozen=True)
class Verdict:
    """Whether a sentence is true of a scene, why not, and which things its nouns may speak of."""

    true: bool
    reason: str  # empty if it is true
    readings: tuple[tuple[int, ...], ...]  # the things described, in the sentence's order; of a false sentence none
    mentions: tuple[Mention, ...]


def parse(sentence: str) -> Statement | None:
    """What a sentence says; None: it is not worded like a caption or paragraph of a drawn scene."""
    matches = (pattern.fullmatch(sentence) for pattern in PATTERNS)
    return next((_statement(match) for match in matches if match), None)


def check(sentence: str, scene: Scene) -> Verdict:
    """Whether a sentence is true of a scene, and of which things it speaks."""
    statement = parse(sentence)
    if statement is None:
        return _false(f"not a sentence about a scene: {sentence!r}")
    if statement.count not in (None, len(scene.things)):
        return _false(f"says {statement.count}, the scene has {scene.counted}")
    if statement.ground not in (None, scene.ground):
        return _false(f"says {statement.ground}, the ground is {scene.ground}")
    places = range(len(scene.things))
    readings = tuple(
        reading
        for reading in permutations(places, len(statement.descriptions))
        if statement.holds(scene, tuple(scene.things[place] for place in reading))
    )
    if not readings:
        return _false(_why_not(statement, scene))
    return Verdict(True, "", readings, tuple(_mentions(sentence, statement, scene, readings)))


def split_sentences(paragraph: str) -> list[str]:
    """The sentences of a paragraph, each with its full stop."""
    return re.findall(r"[^.\s](?:[^.]*[^.\s])?\.?", paragraph)


def check_paragraph(paragraph: str, scene: Scene) -> list[Verdict]:
    """Whether each sentence of a paragraph is true."""
    return [check(sentence, scene) for sentence in split_sentences(paragraph)]


# ------------------------------------------------------------------ reading a sentence
def _one_of(name: str, options: tuple[str, ...]) -> str:
    return f"(?P<{name}>{'|'.join(sorted(options, key=len, reverse=True))})"


PARTS = {
    "PLACE": _one_of("place", PLACES),
    "RELATION": _one_of("relation", RELATIONS),
    "GROUND": _one_of("ground", tuple(GROUNDS)),
    "SINGLE": _one_of("count", COUNTED[1:2]),
    "SEVERAL": _one_of("count", COUNTED[2:]),
    "OTHERS": _one_of("others", COUNTED[2:]),
    "OTHER": _one_of("others", COUNTED[1:2]),
    "LARGEST": "(?P<largest>largest)",
}


def _pattern(form: str) -> re.Pattern[str]:
    for number in "012":
        plain = f"{_one_of(f'colour{number}', tuple(COLOURS))} {_one_of(f'shape{number}', SHAPES)}"
        form = form.replace(f"SIZED{number}", f"{_one_of(f'size{number}', SIZES)} {plain}")
        form = form.replace(f"NAMED{number}", f"(?:an (?=[aeiou])|a (?![aeiou])){plain}")
        form = form.replace(f"PLAIN{number}", plain)
    for part, pattern in PARTS.items():
        form = form.replace(part, pattern)
    form = form.replace(", ", r"\s*,\s+").replace(" ", r"\s+")
    return re.compile(rf"\s*{form}\s*\.?\s*", re.IGNORECASE)


PATTERNS = tuple(map(_pattern, FORMS))


def _statement(match: re.Match[str]) -> Statement:
    said = {name: " ".join(value.lower().split()) for name, value in match.groupdict().items()}
    descriptions = tuple(
        Description(said[f"colour{n}"], said[f"shape{n}"], said.get(f"size{n}"), *match.span(f"shape{n}"))
        for n in range(3)
        if f"shape{n}" in said
    )
    count = COUNTED.index(said["count"]) if "count" in said else None
    if "others" in said:
        count = len(descriptions) + COUNTED.index(said["others"])
    return Statement(
        descriptions, count, said.get("ground"), said.get("place"), said.get("relation"), "largest" in said
    )


# ------------------------------------------------------------------ the verdict
def _false(reason: str) -> Verdict:
    return Verdict(False, reason, (), ())


def _why_not(statement: Statement, scene: Scene) -> str:
    for description in statement.descriptions:
        if not any(map(description.fits, scene.things)):
            return f"there is no {description}"
    first = statement.descriptions[0]
    if statement.place is not None:
        found = " and ".join(scene.place(thing) for thing in scene.things if first.fits(thing))
        return f"says {statement.place}, the {first} is {found}"
    if statement.largest:
        return f"the {first} is not the largest"
    if statement.relation is not None:
        return f"no {first} is {statement.relation} a {statement.descriptions[1]}"
    return "there are fewer such things than it names"


def _mentions(
    sentence: str, statement: Statement, scene: Scene, readings: tuple[tuple[int, ...], ...]
) -> Iterator[Mention]:
    for number, description in enumerate(statement.descriptions):
        things = tuple(sorted({reading[number] for reading in readings}))
        word = len(sentence[: description.begin].split())
        boxes = tuple(scene.things[thing].box for thing in things)
        yield Mention(word, description.begin, description.end, things, boxes)
