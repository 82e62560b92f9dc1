"""Drawn scenes: coloured shapes on a plain ground, with their classes, captions and boxes; nothing to download.

A scene is a function of a seed and a number, and is drawn with integers alone: it has the same pixels everywhere.

Y rows, X columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from heedful.config import FieldError
from heedful.data.embedded import Embedded
from heedful.data.formats.sources import SPLITS, Split
from heedful.data.images.sources import Images

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SHAPES = ("circle", "square", "triangle", "cross")
COLOURS = {
    "red": (215, 45, 40), "green": (50, 160, 60), "blue": (45, 80, 210), "yellow": (235, 205, 40),
    "purple": (140, 60, 170), "orange": (240, 130, 30),
}  # fmt: skip
GROUNDS = {"black": (20, 20, 20), "white": (240, 240, 240), "grey": (125, 125, 125)}
SIZES = ("small", "medium", "large")
FINE = 4  # parts of a pixel's side, by which edges are smoothed
SHADE = 15  # by which a colour may differ from its own
MOST_OBJECTS = 9
FIRST = {"train": 0, "valid": 10_000_000, "test": 11_000_000}  # numbers of the first scenes of a split

Count = Annotated[int, Field(ge=1, le=MOST_OBJECTS)]
Pixels = Annotated[int, Field(ge=8, le=1024)]


@dataclass(frozen=True)
class Thing:
    """A shape in a scene: what it is, and where, in pixels."""

    shape: str
    colour: str
    size: str
    row: int  # of its centre
    column: int
    radius: int
    rgb: tuple[int, int, int]

    @property
    def name(self) -> str:
        """Its colour and shape, such as red circle."""
        return f"{self.colour} {self.shape}"

    @property
    def box(self) -> tuple[int, int, int, int]:
        """The first row and column that it may cover, and those after the last."""
        return (
            self.row - self.radius,
            self.column - self.radius,
            self.row + self.radius + 1,
            self.column + self.radius + 1,
        )


@dataclass(frozen=True)
class Scene:
    """Things that do not overlap on a ground, and what can be said of them."""

    rows: int
    columns: int
    ground: str
    things: tuple[Thing, ...]  # the largest first; of one size, in reading order

    def place(self, thing: Thing) -> str:
        """Where a thing is, such as "at the top left"."""
        down, across = 3 * thing.row // self.rows, 3 * thing.column // self.columns
        return PLACES[3 * down + across]

    @property
    def caption(self) -> str:
        """The two largest things, and how they lie to each other; of a single one, where it is."""
        first, *others = self.things
        if not others:
            return f"a {first.size} {first.name} {self.place(first)}"
        return f"a {first.size} {first.name} {relation(first, others[0])} a {others[0].size} {others[0].name}"

    @property
    def captions(self) -> tuple[str, ...]:
        """Five captions in other words."""
        first, *others = self.things
        names = " and ".join(with_article(thing.name) for thing in self.things[:3])
        more = f" with {COUNTED[len(others)]} other shape{'s' * (len(others) > 1)}" if others else ""
        largest = f"the largest {with_article(first.name)}" if others else with_article(first.name)
        return (
            self.caption,
            f"{names} on a {self.ground} ground",
            f"{self.place(first)} is a {first.size} {first.name}",
            f"{with_article(first.name)}{more}",
            f"there {'are' if others else 'is'} {self.counted} on {self.ground}, {largest}",
        )

    def phrase(self, thing: Thing) -> str:
        """A thing in a few words, such as "small red circle at the top left"."""
        return f"{thing.size} {thing.name} {self.place(thing)}"

    @property
    def sentences(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """A sentence for the whole, one for each thing, and one for each neighbour in size; with the things in each."""
        whole = f"The picture shows {self.counted} on a {self.ground} ground."
        each = [(f"There is a {self.phrase(thing)}.", (n,)) for n, thing in enumerate(self.things)]
        pairs = [
            (f"The {one.name} is {relation(one, other)} the {other.name}.", (n, n + 1))
            for n, (one, other) in enumerate(pairwise(self.things))
        ]
        return (whole, ()), *each, *pairs

    @property
    def paragraph(self) -> str:
        """All sentences."""
        return " ".join(sentence for sentence, _ in self.sentences)

    @property
    def counted(self) -> str:
        """The number of things in words."""
        return f"{COUNTED[len(self.things)]} shape{'s' * (len(self.things) > 1)}"


COUNTED = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
PLACES = (
    "at the top left", "at the top", "at the top right",
    "on the left", "in the centre", "on the right",
    "at the bottom left", "at the bottom", "at the bottom right",
)  # fmt: skip


def with_article(name: str) -> str:
    """A name with its indefinite article."""
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def relation(one: Thing, other: Thing) -> str:
    """How a thing lies to another, by the larger distance of their centres."""
    down, across = other.row - one.row, other.column - one.column
    if abs(across) >= abs(down):
        return "to the left of" if across > 0 else "to the right of"
    return "above" if down > 0 else "below"


# ------------------------------------------------------------------ random scenes
def scene(seed: int, number: int, rows: int, columns: int, objects: tuple[int, int]) -> Scene:
    """The scene of a number: its ground, and from `objects` least to most things in cells of a grid."""
    from heedful.data.order import random_bits

    bits = iter(random_bits(seed, number, 0, 256).tolist())
    pick = partial(_pick, bits)
    ground = pick(list(GROUNDS))
    count = pick(range(objects[0], objects[1] + 1))
    side = next(side for side in range(1, MOST_OBJECTS) if side * side >= count)
    cells = [(row, column) for row in range(side) for column in range(side)]
    things = dict[tuple[int, int], Thing]()
    for _ in range(count):
        row, column = cells.pop(pick(range(len(cells))))
        high, wide = rows // side, columns // side
        most = max(2, (min(high, wide) - 1) // 2)
        size = pick(SIZES)
        radius = max(2, most * (3 + 2 * SIZES.index(size)) // 8)  # 3/8, 5/8 and 7/8 of what fits
        colour = pick(list(COLOURS))
        red, green, blue = (min(255, max(0, part + pick(range(-SHADE, SHADE + 1)))) for part in COLOURS[colour])
        centre = [
            begin * length + radius + pick(range(max(1, length - 2 * radius)))
            for begin, length in ((row, high), (column, wide))
        ]
        things[row, column] = Thing(pick(SHAPES), colour, size, centre[0], centre[1], radius, (red, green, blue))
    order = sorted(things, key=lambda cell: (-things[cell].radius, cell))
    return Scene(rows, columns, ground, tuple(things[cell] for cell in order))


def _pick(bits: Iterator[int], options: Any) -> Any:
    return options[next(bits) % len(options)]


# ------------------------------------------------------------------ drawing
def draw(found: Scene) -> NDArray[np.uint8]:
    """The pixels (3, Y, X) of a scene; edges are smoothed."""
    import numpy as np

    image = np.empty((found.rows, found.columns, 3), np.int64)
    image[:] = GROUNDS[found.ground]
    for thing in found.things:
        top, left, bottom, right = thing.box
        part = image[top:bottom, left:right]
        share = _shares(thing.shape, thing.radius)[: part.shape[0], : part.shape[1]]
        whole = FINE * FINE
        part[:] = (share * np.array(thing.rgb) + (whole - share) * part + whole // 2) // whole
    return image.astype(np.uint8).transpose(2, 0, 1)


@cache
def _shares(shape: str, radius: int) -> NDArray[np.int64]:
    """Of how many parts of each pixel a shape covers, (Y, X, 1)."""
    import numpy as np

    fine, side = radius * FINE, 2 * radius + 1
    down, across = np.mgrid[-fine : fine + FINE, -fine : fine + FINE] - FINE // 2
    covered = INSIDE[shape](down, across, fine).astype(np.int64)
    return covered.reshape(side, FINE, side, FINE).sum((1, 3))[..., None]


def _circle(down: Any, across: Any, radius: int) -> Any:
    return down**2 + across**2 <= radius**2


def _square(down: Any, across: Any, radius: int) -> Any:
    return (abs(down) * 5 <= radius * 4) & (abs(across) * 5 <= radius * 4)


def _triangle(down: Any, across: Any, radius: int) -> Any:
    return (2 * abs(across) <= down + radius) & (down * 5 <= radius * 4)


def _cross(down: Any, across: Any, radius: int) -> Any:
    return (abs(down) * 3 <= radius) | (abs(across) * 3 <= radius)


INSIDE: dict[str, Callable[[Any, Any, int], Any]] = {
    "circle": _circle,
    "square": _square,
    "triangle": _triangle,
    "cross": _cross,
}


# ------------------------------------------------------------------ data
class Scenes(Embedded):
    """Drawn scenes of coloured shapes, which need no download; the class is that of the largest shape."""

    kind: Literal["scenes"] = "scenes"
    train: int = Field(3_000, ge=1, le=10_000_000, description="scenes for training")
    valid: int = Field(500, ge=1, le=1_000_000, description="scenes for validation")
    test: int = Field(500, ge=1, le=1_000_000, description="scenes for the final score")
    size: tuple[Pixels, Pixels] = Field((32, 32), description="rows and columns of an image")
    objects: tuple[Count, Count] = Field((1, 1), description="least and greatest number of shapes in a scene")
    label: Literal["both", "shape", "colour"] = Field("both", description="the class: both is colour and shape")
    seed: int = Field(0, ge=0, lt=2**63, description="random seed of the scenes")

    @model_validator(mode="after")
    def _check_objects(self) -> Scenes:
        if self.objects[0] > self.objects[1]:
            raise FieldError(f"write the smaller number first: {[*reversed(self.objects)]}", "objects")
        side = next(side for side in range(1, MOST_OBJECTS) if side * side >= self.objects[1])
        if min(self.size) < 8 * side:
            raise FieldError(f"{self.objects[1]} shapes need {8 * side} rows and columns or more", "size")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the classes."""
        both = tuple(f"{colour} {shape}" for colour in COLOURS for shape in SHAPES)
        return {"both": both, "shape": SHAPES, "colour": tuple(COLOURS)}[self.label]

    def scenes(self, split: Split) -> list[Scene]:
        """The scenes of a split, which captions and boxes can be asked of."""
        sizes = {"train": self.train, "valid": self.valid, "test": self.test}
        begin = sum(sizes[name] for name in SPLITS[: SPLITS.index(split)])
        return self.numbered(begin, sizes[split])

    def described(self, split: Split) -> list[Scene]:
        """The scenes of a split with captions or paragraphs: the same ones, whatever the sizes of the other splits.

        So a run that starts from another is not tested on scenes that the other one was trained on.
        """
        sizes = {"train": self.train, "valid": self.valid, "test": self.test}
        return self.numbered(FIRST[split], sizes[split])

    def numbered(self, begin: int, count: int) -> list[Scene]:
        """The scenes with the numbers from `begin` on."""
        return [scene(self.seed, number, *self.size, self.objects) for number in range(begin, begin + count)]

    def read(self, split: Split) -> Images:
        """The images of a split, with the class of the largest shape."""
        import numpy as np

        found = self.scenes(split)
        largest = [one.things[0] for one in found]
        values = {
            "both": [thing.name for thing in largest],
            "shape": [thing.shape for thing in largest],
            "colour": [thing.colour for thing in largest],
        }[self.label]
        labels = np.array([self.names.index(value) for value in values], np.int64)
        return Images(np.stack([draw(one) for one in found]), labels, self.names)
