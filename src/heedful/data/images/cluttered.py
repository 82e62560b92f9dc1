"""Images to search: a digit at a random place among pieces of others, and a target among drawn distractors.

Each image is a function of the seed, the split and its number; nothing has to be downloaded for scikit-learn's digits
and for drawn scenes.

N images, C channels, Y rows, X columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from heedful.config import Config, FieldError
from heedful.data.embedded import Digits, Embedded
from heedful.data.formats.sources import SPLITS, Split
from heedful.data.images.scenes import COLOURS, GROUNDS, MOST_OBJECTS, SHAPES, Scene, Thing, draw
from heedful.data.images.sources import IdxImages, Images
from heedful.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

TARGET = "red"  # the colour that is searched for
DISTRACTORS = tuple(colour for colour in COLOURS if colour != TARGET)

Pixels = Annotated[int, Field(ge=8, le=1024)]


class ClutteredImages(Config):
    """Images at random places of a larger one, with pieces of other images as clutter (Mnih et al., 2014)."""

    kind: Literal["cluttered"] = "cluttered"
    images: Annotated[Digits | IdxImages, Field(discriminator="kind")] = Field(
        Digits(), description="the images that are placed, such as MNIST's"
    )
    size: tuple[Pixels, Pixels] = Field((60, 60), description="rows and columns of the larger image")
    clutter: int = Field(4, ge=0, le=1000, description="pieces of other images in each; 0: none, only translated")
    piece: int = Field(8, ge=1, le=1024, description="rows and columns of a piece")
    copies: int = Field(1, ge=1, le=10_000, description="images that are made of each training image")
    seed: int = Field(0, ge=0, lt=2**63, description="random seed of places and pieces")

    @property
    def valid(self) -> object:
        """The validation images; None: there are none."""
        return self.images.valid

    @property
    def test(self) -> object:
        """The test images; None: there are none."""
        return self.images.test

    def problems(self, splits: Sequence[Split] = SPLITS) -> list[UserError]:
        """Problems with the files of the images."""
        return self.images.problems(splits)

    def read(self, split: Split) -> Images:
        """The images of a split, with the labels of those that were placed."""
        found = self.images.read(split)
        rows, columns = found.pixels.shape[2:]
        if rows > self.size[0] or columns > self.size[1]:
            raise UserError(
                "the images do not fit into the larger ones", where="data.size", found=str(list(self.size)),
                expected=f"at least {rows} x {columns}, as the images have",
            )  # fmt: skip
        if self.clutter and self.piece > min(rows, columns):
            raise UserError(
                "a piece is larger than an image", where="data.piece", found=str(self.piece),
                expected=f"at most {min(rows, columns)}", todo="write a smaller piece, or clutter: 0",
            )  # fmt: skip
        copies = self.copies if split == "train" else 1
        return place(found, copies, self.size, self.clutter, self.piece, self.seed, SPLITS.index(split))


def place(
    images: Images, copies: int, size: tuple[int, int], clutter: int, piece: int, seed: int, split: int
) -> Images:
    """Each image `copies` times at a random place of a larger one, and `clutter` pieces of random images in it."""
    import numpy as np

    from heedful.data.order import random_bits_at

    count = copies * len(images)
    keys = np.arange(count)
    rows, columns = images.pixels.shape[2:]

    def random(purpose: int, below: int) -> NDArray[np.int64]:
        return (random_bits_at(seed, split, purpose, keys) % np.uint64(below)).astype(np.int64)

    larger = np.zeros((count, images.pixels.shape[1], *size), images.pixels.dtype)
    numbers = keys % len(images)
    _paste(larger, images.pixels[numbers], random(0, size[0] - rows + 1), random(1, size[1] - columns + 1))
    for number in range(clutter):
        purpose = 2 + 5 * number
        others = random(purpose, len(images))
        top, left = random(purpose + 1, rows - piece + 1), random(purpose + 2, columns - piece + 1)
        cut = np.arange(piece)
        down, across = (top[:, None] + cut)[:, :, None], (left[:, None] + cut)[:, None]  # (N, piece, 1), (N, 1, piece)
        pieces = images.pixels.transpose(0, 2, 3, 1)[others[:, None, None], down, across].transpose(0, 3, 1, 2)
        _paste(larger, pieces, random(purpose + 3, size[0] - piece + 1), random(purpose + 4, size[1] - piece + 1))
    labels = None if images.labels is None else images.labels[numbers]
    return Images(larger, labels, images.names)


def _paste(
    larger: NDArray[np.generic], parts: NDArray[np.generic], top: NDArray[np.int64], left: NDArray[np.int64]
) -> None:
    """Put a part into each larger image; where there is something, the brighter pixel stays."""
    import numpy as np

    rows, columns = parts.shape[2:]
    for image, part, down, across in zip(larger, parts, top.tolist(), left.tolist(), strict=True):
        there = image[:, down : down + rows, across : across + columns]
        np.maximum(there, part, out=there)


class VisualSearch(Embedded):
    """Drawn scenes with one red shape among others, which need no download; the class is the shape of the red one.

    Its colour can be seen at a low resolution, its shape only near it: one has to look there.
    """

    kind: Literal["visual_search"] = "visual_search"
    train: int = Field(6_000, ge=1, le=10_000_000, description="scenes for training")
    valid: int = Field(500, ge=1, le=1_000_000, description="scenes for validation")
    test: int = Field(500, ge=1, le=1_000_000, description="scenes for the final score")
    size: tuple[Pixels, Pixels] = Field((20, 20), description="rows and columns of an image")
    distractors: int = Field(3, ge=0, le=MOST_OBJECTS - 1, description="shapes beside the red one")
    radius: int = Field(3, ge=2, le=100, description="size of a shape, from its centre, in pixels")
    seed: int = Field(0, ge=0, lt=2**63, description="random seed of the scenes")

    @model_validator(mode="after")
    def _shapes_fit(self) -> Self:
        least = (2 * self.radius + 1) * self._side
        if min(self.size) < least:
            raise FieldError(f"{self.distractors + 1} shapes need {least} rows and columns or more", "size")
        return self

    @property
    def _side(self) -> int:
        """The cells along one side of the grid that the shapes are in."""
        return next(side for side in range(1, MOST_OBJECTS) if side * side > self.distractors)

    def scenes(self, split: Split) -> list[tuple[Scene, int]]:
        """The scenes of a split, with the number of the target among their things."""
        sizes = {"train": self.train, "valid": self.valid, "test": self.test}
        begin = sum(sizes[name] for name in SPLITS[: SPLITS.index(split)])
        return [self._scene(number) for number in range(begin, begin + sizes[split])]

    def _scene(self, number: int) -> tuple[Scene, int]:
        """Shapes of one size in random cells of a grid, one of which is the target."""
        from heedful.data.order import random_bits

        bits = iter(random_bits(self.seed, number, 1, 64).tolist())
        side, count = self._side, self.distractors + 1
        high, wide = self.size[0] // side, self.size[1] // side
        radius = self.radius
        cells = [(row, column) for row in range(side) for column in range(side)]
        target = next(bits) % count
        things = []
        for place in range(count):
            row, column = cells.pop(next(bits) % len(cells))
            shape = SHAPES[next(bits) % len(SHAPES)]
            colour = TARGET if place == target else DISTRACTORS[next(bits) % len(DISTRACTORS)]
            down = row * high + radius + next(bits) % (high - 2 * radius)
            across = column * wide + radius + next(bits) % (wide - 2 * radius)
            things.append(Thing(shape, colour, "small", down, across, radius, COLOURS[colour]))
        ground = tuple(GROUNDS)[next(bits) % len(GROUNDS)]
        return Scene(*self.size, ground, tuple(things)), target

    def read(self, split: Split) -> Images:
        """The images of a split, with the shapes of their targets."""
        import numpy as np

        found = self.scenes(split)
        labels = np.array([SHAPES.index(one.things[target].shape) for one, target in found], np.int64)
        return Images(np.stack([draw(one) for one, _ in found]), labels, SHAPES)
