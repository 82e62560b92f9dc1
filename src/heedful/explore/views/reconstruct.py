"""Reconstructions by an autoencoder: next to their originals, by changing a code, and by interpolation.

N images, C channels, Y rows, X columns, D dimensions of a code, M rows of a comparison.
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
from heedful.explore.packets import pack
from heedful.explore.views import Call, ModelRequest, require_index
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
    from heedful.explore.subjects import Subject
    from heedful.extras.estimators.pca import PCA

TITLE = "Reconstructions"
ABOUT = "Reconstructions of images by an autoencoder, and what the dimensions of its code encode."

PAGE = 10  # images side by side
SLIDERS, STOPS, STEPS = 32, 33, 61  # sliders, positions of a slider, steps of an interpolation
DRAWN = -1  # the index of the image that the user draws
LARGEST, BESIDE = 4096, 6  # pixels of a drawing; other models that are compared
PAGES, SMALL = 6, 4_000_000  # pages in a file; bytes of all sliders' images up to which it has them

AnyNumber = TypeVar("AnyNumber", int, float)
Number = Annotated[int, Field(ge=DRAWN, le=10_000_000)]


class DrawingRequest(ModelRequest):
    """A model, and the user's drawing: two hexadecimal digits per pixel, row by row."""

    drawn: str | None = Field(None, max_length=2 * LARGEST, pattern="^([0-9a-f]{2})+$")


class PageRequest(DrawingRequest):
    """A page of images, of all classes or of one, with some noise, by default that of the model's training."""

    page: int = Field(0, ge=0, le=10_000_000)
    label: int | None = Field(None, ge=0, le=100_000)
    noise: float | None = Field(None, ge=0, le=10)
    seed: int = Field(0, ge=0, lt=2**31)


class CodeRequest(DrawingRequest):
    """The code of one image."""

    image: Number


class SweepRequest(CodeRequest):
    """All slider positions of one dimension of a code, with others moved to positions from 0 to STOPS - 1."""

    unit: int = Field(ge=0, le=10_000_000)
    moved: tuple[tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0, lt=STOPS)]], ...] = Field(
        (), max_length=SLIDERS
    )


class InterpolationRequest(DrawingRequest):
    """The interpolation from one image to another."""

    first: Number
    last: Number


def fits(subject: Subject) -> bool:
    return subject.broken is None and isinstance(subject.predictor, ImageAutoencoder)


# ------------------------------------------------------------------ the images of a model
class Gallery:
    """A model's images and what is computed of all of them, each when it is first needed."""

    def __init__(self, subject: Subject) -> None:
        self.name, self.folder, self.lock = subject.name, subject.folder, subject.lock
        self.autoencoder: ImageAutoencoder = subject.predictor
        self.shape = self.autoencoder.canvas.image

    @cached_property
    def images(self) -> Images:
        """The test images of its run; where they cannot be read, the digits of the package."""
        try:
            return test_images(self.folder)
        except UserError as error:
            digits = Digits().read("test")
            if digits.pixels.shape[1:] == self.shape:
                return digits
            raise UserError(
                "the test images of this model cannot be read", found=error.message,
                todo="restore the files named in the recipe",
            ) from None  # fmt: skip

    @cached_property
    def window(self) -> Window:
        """The values that are drawn as black and white in all images."""
        return Window.of(self.images.pixels)

    @cached_property
    def order(self) -> NDArray[np.int64]:
        """The indices of the images in the order of the pages: the first of each class first."""
        return first_of_each(self.images.labels, len(self.images), len(self.images))

    @cached_property
    def pca(self) -> PCA | None:
        """As many principal components of the training images as a code has dimensions.

        None where computing them takes too long, or where they lose nothing.
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
        """The number of dimensions of a code."""
        return self.autoencoder.code_size

    @cached_property
    def codes(self) -> Floats:
        """The codes of the first test images, (N, D)."""
        return self.autoencoder.encode(self.images.pixels[:POINTS])

    @cached_property
    def bounds(self) -> tuple[Floats, Floats]:
        """The minimum and the maximum of each dimension of the codes, (D,) each."""
        return self.codes.min(0), self.codes.max(0)

    @cached_property
    def units(self) -> list[int]:
        """The dimensions that have sliders: all, or those of the largest variance."""
        most = np.argsort(-self.codes.std(0), kind="stable")[:SLIDERS]
        return sorted(most.tolist())

    def stops(self, unit: int) -> Floats:
        """The values of one dimension's slider."""
        low, high = (bound[unit] for bound in self.bounds)
        return np.linspace(low, high, STOPS, dtype=np.float32)

    def image(self, number: int, drawn: str | None) -> Floats:
        """An image (1, C, Y, X) by its index, or the drawing."""
        if number == DRAWN:
            return self.drawing(drawn)
        require_index("image", number, len(self.images))
        return scale_pixels(self.images.pixels[number : number + 1])

    def drawing(self, drawn: str | None) -> Floats:
        """The drawing as an image (1, C, Y, X)."""
        pixels = np.frombuffer(bytes.fromhex(drawn or ""), np.uint8)
        if self.shape[0] != 1 or len(pixels) != math.prod(self.shape):
            raise UserError(
                "the drawing does not fit this model", where="drawn", found=f"{len(pixels):,} pixels",
                expected=f"{math.prod(self.shape):,} in one channel",
            )  # fmt: skip
        shares: Floats = scale_pixels(pixels).reshape(1, *self.shape)
        return shares * np.float32(self.window.high - self.window.low) + np.float32(self.window.low)

    def pictures(self, images: NDArray[Any]) -> NDArray[np.uint8]:
        """Images as bytes, (N, Y, X) in grey or (N, Y, X, 3) in colour."""
        return to_pixels(images, self.window)


galleries: WeakKeyDictionary[Subject, Gallery] = WeakKeyDictionary()
_opening = Lock()


def gallery_of(subject: Subject) -> Gallery:
    """The images of an open model."""
    with _opening:
        return galleries.setdefault(subject, Gallery(subject))


# ------------------------------------------------------------------ comparison
def rows(subject: Subject, request: PageRequest) -> bytes:
    """A page of images and their reconstructions (M, N, Y, X), and the mean squared error of each (M, N)."""
    gallery = gallery_of(subject)
    with gallery.lock:
        numbers, pages = page_of(gallery, request)
        images = np.concatenate([gallery.image(number, request.drawn) for number in numbers])
        amount = gallery.autoencoder.noise.deviation if request.noise is None else request.noise
        given = noisy(gallery.autoencoder, images, amount, request.seed)
        columns = [*comparison(gallery, images, given, amount)]
    others = [other for other in subject.every.values() if other is not subject and fits(other)]
    for other in [each for each in others if gallery_of(each).shape == gallery.shape][:BESIDE]:
        with other.lock:
            columns.append(compared(other.name, other.predictor.reconstruct(given), images))
    found, labels = gallery.images, class_names(gallery.images)
    return pack(
        {
            "titles": [column.title for column in columns], "numbers": numbers, "pages": pages,
            "labels": None if labels is None else [labels[each] if each >= 0 else "" for each in numbers],
            "classes": found.names if found.labels is not None else [], "noise": amount,
            "learned": gallery.autoencoder.noise.deviation, "note": gallery.window.note, "image": gallery.shape,
            "width": gallery.width, "drawable": gallery.shape[0] == 1 and math.prod(gallery.shape) <= LARGEST,
        },
        pictures=np.stack([gallery.pictures(column.images) for column in columns]),
        errors=np.stack(
            [np.zeros(len(images)) if column.errors is None else column.errors for column in columns]
        ).astype(np.float32),
    )  # fmt: skip


def page_of(gallery: Gallery, request: PageRequest) -> tuple[list[int], int]:
    """The indices of the images of a page, the drawing first, and the number of pages."""
    every = gallery.order
    if request.label is not None and gallery.images.labels is not None:
        every = np.flatnonzero(gallery.images.labels == request.label)
    first = [DRAWN] if request.drawn else []
    some = every[request.page * PAGE : (request.page + 1) * PAGE].tolist()
    if not some:
        raise UserError("there are no more images", where="page", found=str(request.page + 1))
    return first + some, -(-len(every) // PAGE)


def noisy(autoencoder: ImageAutoencoder, images: Floats, amount: float, seed: int) -> Floats:
    """Images with noise of a standard deviation, of the model's kind."""
    if not amount:
        return images
    other = copy.copy(autoencoder)
    other.noise = replace(autoencoder.noise, deviation=amount)
    return other.noisy(images, seed)


def comparison(gallery: Gallery, images: Floats, given: Floats, amount: float) -> Iterator[Column]:
    """Images, the same with noise, and the reconstructions by PCA and by the model."""
    yield Column("input", images)
    if amount:
        yield compared("noisy", given, images)
    if gallery.pca is not None:
        yield left_by(gallery.pca, given, images)
    yield compared(gallery.name, gallery.autoencoder.reconstruct(given), images)


# ------------------------------------------------------------------ the code
def code(subject: Subject, request: CodeRequest) -> bytes:
    """The code of an image (D,), the range of each dimension, and the dimensions that have sliders."""
    gallery = gallery_of(subject)
    with gallery.lock:
        image = gallery.image(request.image, request.drawn)
        found, made = gallery.autoencoder.encode(image), gallery.autoencoder.reconstruct(image)
        low, high = gallery.bounds
        units = gallery.units
    return pack(
        {"units": units, "stops": STOPS, "error": _error(made, image)},
        code=found[0], low=low, high=high, pictures=gallery.pictures(np.concatenate([image, made])),
    )  # fmt: skip


def sweep(subject: Subject, request: SweepRequest) -> bytes:
    """The decoded images at every slider position of one dimension, and its values."""
    gallery = gallery_of(subject)
    with gallery.lock:
        require_index("unit", max(request.unit, *(unit for unit, _ in request.moved), 0), gallery.width, "dimension")
        image = gallery.image(request.image, request.drawn)
        codes = gallery.autoencoder.encode(image).repeat(STOPS, 0)  # (STOPS, D)
        for unit, stop in request.moved:
            codes[:, unit] = gallery.stops(unit)[stop]
        codes[:, request.unit] = gallery.stops(request.unit)
        made = gallery.autoencoder.decode(codes)
    errors = np.array([_error(one[None], image) for one in made], np.float32)
    return pack({}, pictures=gallery.pictures(made), values=codes[:, request.unit].copy(), errors=errors)


def _error(found: Floats, right: Floats) -> float:
    return float(np.square(found.astype(np.float64) - right).mean())


def walk(subject: Subject, request: InterpolationRequest) -> bytes:
    """The interpolation between two images in latent space, and in pixel space."""
    gallery = gallery_of(subject)
    with gallery.lock:
        first, last = (gallery.image(number, request.drawn) for number in (request.first, request.last))
        way = gallery.autoencoder.walk(first, last, STEPS)
    shares = np.linspace(0, 1, STEPS, dtype=np.float32)[:, None, None, None]
    return pack(
        {"steps": STEPS}, pictures=gallery.pictures(way), blend=gallery.pictures((1 - shares) * first + shares * last)
    )


# ------------------------------------------------------------------ export
def calls(subject: Subject, state: Mapping[str, Any]) -> Sequence[Call]:
    """The page of a state and the first pages, and the codes, sliders and interpolations of their images, if small."""
    gallery = gallery_of(subject)
    base = {"model": gallery.name, "drawn": state.get("drawn")}
    some = {"label": _number(state, "label", int), "noise": _number(state, "noise", float)}
    page = _number(state, "page", int) or 0

    def numbers(page: int) -> tuple[list[int], int]:
        with gallery.lock:
            return page_of(
                gallery, subjects.parse_request(PageRequest, json.dumps({**base, **some, "page": page}).encode())
            )

    near, pages = numbers(page)
    with gallery.lock:
        units = gallery.units
    image, last = (
        near[min(place, len(near) - 1)] if (given := _number(state, name, int)) is None else given
        for name, place in (("image", 0), ("last", 1))
    )
    others = {each: numbers(each)[0][:2] for each in range(min(pages, PAGES)) if each != page}
    small = math.prod(gallery.shape) * STOPS * len(units) * len(near) <= SMALL
    moved = {image, *(near if small else [])}
    every = [("rows", {**base, **some, "page": each}) for each in (page, *others)]
    every += [("code", {**base, "image": each}) for each in {image, *near, *(first for first, *_ in others.values())}]
    every += [("sweep", {**base, "image": each, "unit": unit, "moved": []}) for each in moved for unit in units]
    ways = {(first, to) for first in moved for to in (last, *near)} | {(two[0], two[-1]) for two in others.values()}
    every += [("walk", {**base, "first": first, "last": to}) for first, to in ways]
    return [Call("reconstruct", call, each) for call, each in every]


def _number(state: Mapping[str, Any], name: str, kind: type[AnyNumber]) -> AnyNumber | None:
    """A number of a state; None if it is missing or invalid."""
    try:
        return kind(state[name])
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


CALLS = {
    "rows": (PageRequest, rows), "code": (CodeRequest, code), "sweep": (SweepRequest, sweep),
    "walk": (InterpolationRequest, walk),
}  # fmt: skip
