"""What an autoencoder makes of images: beside their originals, by the numbers of a code, and between two of them.

N images, C channels, Y rows, X columns, D numbers of a code, M ways of showing an image.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from heedful.data.embedded import Digits
from heedful.data.images.sources import Images, scale_pixels
from heedful.errors import UserError
from heedful.explore import subjects
from heedful.explore.capabilities import Reconstructs
from heedful.explore.packets import pack
from heedful.explore.views import Named, Request
from heedful.plots.autoencoder_plots import (
    POINTS,
    WORTH,
    class_names,
    compared,
    components,
    first_of_each,
    left_by,
    loses,
)
from heedful.plots.image_grid import Column, Window, to_pixels
from heedful.runs.images import test_images, training_vectors
from heedful.tasks.reconstruction.predictor import Floats, ImageAutoencoder

if TYPE_CHECKING:
    from heedful.explore.subjects import Explorer, Subject
    from heedful.extras.estimators.pca import PCA

TITLE = "Reconstructions"
ABOUT = "Reconstructions of images by an autoencoder, and what the dimensions of its code encode."

PAGE = 10  # images side by side
SLIDERS, STOPS, STEPS = 32, 33, 61  # numbers of a code that can be moved, places of each, steps of a walk
DRAWN = -1  # the number of the image that the reader draws
LARGEST, BESIDE = 4096, 6  # pixels of a drawing; other models that are shown
TURNED, SMALL = 6, 4_000_000  # pages of a file; bytes of all codes' pictures up to which it has them

AnyNumber = TypeVar("AnyNumber", int, float)
Number = Annotated[int, Field(ge=DRAWN, le=10_000_000)]


class Model(Named):
    """A model, and what the reader has drawn for it: two hexadecimal digits a pixel, row by row."""

    drawn: str | None = Field(None, max_length=2 * LARGEST, pattern="^([0-9a-f]{2})+$")


class Rows(Model):
    """A page of images, of all classes or of one, with so much noise; None: as much as the model learned to undo."""

    page: int = Field(0, ge=0, le=10_000_000)
    label: int | None = Field(None, ge=0, le=100_000)
    noise: float | None = Field(None, ge=0, le=10)
    seed: int = Field(0, ge=0, lt=2**31)


class Coded(Model):
    """The code of one image."""

    image: Number


class Sweep(Coded):
    """All places of one number of a code, others being moved already: each by its place from 0 to STOPS - 1."""

    unit: int = Field(ge=0, le=10_000_000)
    moved: tuple[tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0, lt=STOPS)]], ...] = Field(
        (), max_length=SLIDERS
    )


class Walk(Model):
    """The way from one image to another."""

    first: Number
    last: Number


def fits(subject: Subject) -> bool:
    return subject.broken is None and isinstance(subject.predictor, Reconstructs)


# ------------------------------------------------------------------ the images of a model
class Gallery:
    """A model's images, and what is known of all of them; each is found when it is needed first, and kept."""

    def __init__(self, subject: Subject) -> None:
        self.name, self.folder, self.lock = subject.name, subject.folder, subject.lock
        self.painter: ImageAutoencoder = subject.predictor
        self.shape = self.painter.canvas.image

    @cached_property
    def images(self) -> Images:
        """The test images of its run; where these cannot be read any more, the digits that come with us."""
        try:
            return test_images(self.folder)
        except UserError as error:
            digits = Digits().read("test")
            if digits.pixels.shape[1:] == self.shape:
                return digits
            raise UserError(
                "the images that this model was tested on cannot be read", found=error.message,
                todo="put the files back where the recipe says they are",
            ) from None  # fmt: skip

    @cached_property
    def window(self) -> Window:
        """Which numbers are black and white in all pictures."""
        return Window.of(self.images.pixels)

    @cached_property
    def order(self) -> NDArray[np.int64]:
        """The images' numbers in the order that they are shown in: the first of each class first."""
        return first_of_each(self.images.labels, len(self.images), len(self.images))

    @cached_property
    def pca(self) -> PCA | None:
        """As many principal components of the training images as a code has numbers.

        None where they take too long, or lose nothing: then they show the images once more.
        """
        try:
            known = training_vectors(self.folder)
        except UserError:
            known = Digits().read("train").vectors if self.images.pixels.shape[1:] == (1, 8, 8) else np.empty((0, 0))
        if not len(known) or known.shape[0] * known.shape[1] ** 2 > WORTH:
            return None
        found = components(known, self.width)
        return found if loses(found) else None

    @property
    def width(self) -> int:
        """How many numbers a code has."""
        return self.painter.code_size

    @cached_property
    def codes(self) -> Floats:
        """The codes of the test images, or of the first ones where there are very many, (N, D)."""
        return self.painter.encode(self.images.pixels[:POINTS])

    @cached_property
    def bounds(self) -> tuple[Floats, Floats]:
        """The least and the greatest that each number of a code becomes, (D,) each."""
        return self.codes.min(0), self.codes.max(0)

    @cached_property
    def units(self) -> list[int]:
        """The numbers of a code that can be moved: all, or those that differ most from image to image."""
        most = np.argsort(-self.codes.std(0), kind="stable")[:SLIDERS]
        return sorted(most.tolist())

    def places(self, unit: int) -> Floats:
        """The values that one number of a code can be moved to."""
        low, high = (bound[unit] for bound in self.bounds)
        return np.linspace(low, high, STOPS, dtype=np.float32)

    def image(self, number: int, drawn: str | None) -> Floats:
        """An image (1, C, Y, X) by its number, or what was drawn."""
        if number == DRAWN:
            return self.drawing(drawn)
        if number >= len(self.images):
            raise UserError(
                "there is no such image", where="image", found=str(number + 1), expected=f"1 to {len(self.images):,}"
            )
        return scale_pixels(self.images.pixels[number : number + 1])

    def drawing(self, drawn: str | None) -> Floats:
        """What was drawn, as the model reads it."""
        pixels = np.frombuffer(bytes.fromhex(drawn or ""), np.uint8)
        if self.shape[0] != 1 or len(pixels) != math.prod(self.shape):
            raise UserError(
                "this is not a drawing for this model", where="drawn", found=f"{len(pixels):,} pixels",
                expected=f"{math.prod(self.shape):,}, in one shade",
            )  # fmt: skip
        shares: Floats = scale_pixels(pixels).reshape(1, *self.shape)
        return shares * np.float32(self.window.high - self.window.low) + np.float32(self.window.low)

    def pictures(self, images: NDArray[Any]) -> NDArray[np.uint8]:
        """Images as they are painted, (N, Y, X) in grey or (N, Y, X, 3) in colours."""
        return to_pixels(images, self.window)


galleries: WeakKeyDictionary[Subject, Gallery] = WeakKeyDictionary()
_opening = Lock()


def gallery_of(explorer: Explorer, name: str) -> Gallery:
    """The images of a model that is open."""
    subject = explorer.subject(name)
    if not fits(subject):
        raise UserError("this model makes no images again", where="model")
    with _opening:
        return galleries.setdefault(subject, Gallery(subject))


# ------------------------------------------------------------------ beside each other
def rows(explorer: Explorer, asked: Rows) -> bytes:
    """Some images in every way that there is: pictures (M, N, Y, X), and how far each is from the original (M, N)."""
    gallery = gallery_of(explorer, asked.model)
    with gallery.lock:
        numbers, pages = chosen(gallery, asked)
        images = np.concatenate([gallery.image(number, asked.drawn) for number in numbers])
        amount = gallery.painter.noise.deviation if asked.noise is None else asked.noise
        given = noisy(gallery.painter, images, amount, asked.seed)
        columns = [*shown_by(gallery, images, given, amount)]
    others = [name for name, other in explorer.subjects.items() if name != asked.model and fits(other)]
    for name in [each for each in others if gallery_of(explorer, each).shape == gallery.shape][:BESIDE]:
        with explorer.subject(name).lock:
            columns.append(compared(name, explorer.subject(name).predictor.reconstruct(given), images))
    found, labels = gallery.images, class_names(gallery.images)
    return pack(
        {
            "titles": [column.title for column in columns], "numbers": numbers, "pages": pages,
            "labels": None if labels is None else [labels[each] if each >= 0 else "" for each in numbers],
            "classes": found.names if found.labels is not None else [], "noise": amount,
            "learned": gallery.painter.noise.deviation, "note": gallery.window.note, "image": gallery.shape,
            "width": gallery.width, "drawable": gallery.shape[0] == 1 and math.prod(gallery.shape) <= LARGEST,
        },
        pictures=np.stack([gallery.pictures(column.images) for column in columns]),
        errors=np.stack(
            [np.zeros(len(images)) if column.errors is None else column.errors for column in columns]
        ).astype(np.float32),
    )  # fmt: skip


def chosen(gallery: Gallery, asked: Rows) -> tuple[list[int], int]:
    """The numbers of the images of a page, what was drawn before all others, and how many pages there are."""
    every = gallery.order
    if asked.label is not None and gallery.images.labels is not None:
        every = np.flatnonzero(gallery.images.labels == asked.label)
    first = [DRAWN] if asked.drawn else []
    some = every[asked.page * PAGE : (asked.page + 1) * PAGE].tolist()
    if not some:
        raise UserError("there are no more images", where="page", found=str(asked.page + 1))
    return first + some, -(-len(every) // PAGE)


def noisy(painter: ImageAutoencoder, images: Floats, amount: float, seed: int) -> Floats:
    """Images with so much noise, as the model's own is made."""
    if not amount:
        return images
    other = copy.copy(painter)
    other.noise = replace(painter.noise, deviation=amount)
    return other.noisy(images, seed)


def shown_by(gallery: Gallery, images: Floats, given: Floats, amount: float) -> Iterator[Column]:
    """Images, what noise leaves of them, and what principal components and the model make of that."""
    yield Column("input", images)
    if amount:
        yield compared("noisy", given, images)
    if gallery.pca is not None:
        yield left_by(gallery.pca, given, images)
    yield compared(gallery.name, gallery.painter.reconstruct(given), images)


# ------------------------------------------------------------------ the code
def code(explorer: Explorer, asked: Coded) -> bytes:
    """The code of an image (D,), the bounds of each of its numbers, and which of them can be moved."""
    gallery = gallery_of(explorer, asked.model)
    with gallery.lock:
        image = gallery.image(asked.image, asked.drawn)
        found, made = gallery.painter.encode(image), gallery.painter.reconstruct(image)
        low, high = gallery.bounds
        units = gallery.units
    return pack(
        {"units": units, "stops": STOPS, "error": _error(made, image)},
        code=found[0], low=low, high=high, pictures=gallery.pictures(np.concatenate([image, made])),
    )  # fmt: skip


def sweep(explorer: Explorer, asked: Sweep) -> bytes:
    """What is decoded while one number of a code goes from its least to its greatest: pictures, and its values."""
    gallery = gallery_of(explorer, asked.model)
    with gallery.lock:
        if max(asked.unit, *(unit for unit, _ in asked.moved), 0) >= gallery.width:
            raise UserError("a code has no such number", where="unit", expected=f"below {gallery.width:,}")
        image = gallery.image(asked.image, asked.drawn)
        codes = gallery.painter.encode(image).repeat(STOPS, 0)  # (STOPS, D)
        for unit, stop in asked.moved:
            codes[:, unit] = gallery.places(unit)[stop]
        codes[:, asked.unit] = gallery.places(asked.unit)
        made = gallery.painter.decode(codes)
    errors = np.array([_error(one[None], image) for one in made], np.float32)
    return pack({}, pictures=gallery.pictures(made), values=codes[:, asked.unit].copy(), errors=errors)


def _error(found: Floats, right: Floats) -> float:
    return float(np.square(found.astype(np.float64) - right).mean())


def walk(explorer: Explorer, asked: Walk) -> bytes:
    """Images of the codes between two, and beside them the two images laid over each other in the same shares."""
    gallery = gallery_of(explorer, asked.model)
    with gallery.lock:
        first, last = (gallery.image(number, asked.drawn) for number in (asked.first, asked.last))
        way = gallery.painter.walk(first, last, STEPS)
    shares = np.linspace(0, 1, STEPS, dtype=np.float32)[:, None, None, None]
    return pack(
        {"steps": STEPS}, pictures=gallery.pictures(way), blend=gallery.pictures((1 - shares) * first + shares * last)
    )


# ------------------------------------------------------------------ a file
def wanted(explorer: Explorer, state: Mapping[str, Any]) -> Sequence[Request]:
    gallery = gallery_of(explorer, str(state.get("model")))
    base = {"model": gallery.name, "drawn": state.get("drawn")}
    some = {"label": _said(state, "label", int), "noise": _said(state, "noise", float)}
    page = _said(state, "page", int) or 0

    def numbers(page: int) -> tuple[list[int], int]:
        with gallery.lock:
            return chosen(gallery, subjects.asked(Rows, json.dumps({**base, **some, "page": page}).encode()))

    near, pages = numbers(page)
    with gallery.lock:
        units = gallery.units
    image, last = (
        near[min(place, len(near) - 1)] if (said := _said(state, name, int)) is None else said
        for name, place in (("image", 0), ("last", 1))
    )
    # A reader goes through the pages, looks at other images, and moves their codes, where the file stays small.
    others = {each: numbers(each)[0][:2] for each in range(min(pages, TURNED)) if each != page}
    small = math.prod(gallery.shape) * STOPS * len(units) * len(near) <= SMALL
    moved = {image, *(near if small else [])}
    asked = [("rows", {**base, **some, "page": each}) for each in (page, *others)]
    asked += [("code", {**base, "image": each}) for each in {image, *near, *(first for first, *_ in others.values())}]
    asked += [("sweep", {**base, "image": each, "unit": unit, "moved": []}) for each in moved for unit in units]
    ways = {(first, to) for first in moved for to in (last, *near)} | {(two[0], two[-1]) for two in others.values()}
    asked += [("walk", {**base, "first": first, "last": to}) for first, to in ways]
    return [Request("reconstruct", call, each) for call, each in asked]


def _said(state: Mapping[str, Any], name: str, kind: type[AnyNumber]) -> AnyNumber | None:
    """A number of a state; None where there is none."""
    try:
        return kind(state[name])
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


CALLS = {"rows": (Rows, rows), "code": (Coded, code), "sweep": (Sweep, sweep), "walk": (Walk, walk)}
