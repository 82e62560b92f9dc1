"""The images of an open model: the test images of its run, and those that the user draws or drops.

N images, C channels, Y rows, X columns.
"""

from __future__ import annotations

import math
from base64 import b64decode
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from heedful.data.images.image_files import decode_image, quiet
from heedful.data.images.image_spec import ImageSpec
from heedful.data.images.inputs import file_settings
from heedful.data.images.sources import scale_pixels
from heedful.errors import UserError
from heedful.explore.packets import not_finite, pack
from heedful.explore.views import HeadedRequest, ModelRequest, index_of, require_index
from heedful.plots.image_grid import Window, to_pixels
from heedful.runs.images import ImageSplit, test_split

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heedful.explore.subjects import Subject

SHOWN = 10  # test images to choose from
DRAWN = -1  # the index of the image that the user draws, or drops
LARGEST = 3 * 256 * 256  # values of such an image
LONGEST_FILE = 12 * 2**20 - 4096  # characters of an image file in base 64
SMALL = 12_288  # values of an image that can be drawn by hand, and is kept in the address


class ImageRequest(ModelRequest):
    """A model and an image: a test image by its index, or two hexadecimal digits for each value (Y, X, C)."""

    image: int | None = Field(None, ge=DRAWN, le=10_000_000)  # None: the first that is shown
    drawn: str | None = Field(None, max_length=2 * LARGEST, pattern="^([0-9a-f]{2})+$")


class HeadedImageRequest(ImageRequest, HeadedRequest):
    """The same, answered with some heads changed."""


class FileRequest(ModelRequest):
    """A model and the bytes of an image file, in base 64."""

    file: str = Field(max_length=LONGEST_FILE, pattern="^[A-Za-z0-9+/]*={0,2}$")


def read_upload(subject: Subject, request: FileRequest) -> bytes:
    """The pixels of an image file as the model reads them, as the `drawn` of an `ImageRequest` has them."""
    predictor: Any = subject.predictor
    try:
        contents = b64decode(request.file, validate=True)
    except ValueError:
        raise UserError("this is not base 64", where="file") from None
    with quiet():
        pixels = decode_image(contents, "this file", **file_settings(predictor.canvas))  # (C, Y, X)
    return pack({"drawn": pixels.transpose(1, 2, 0).tobytes().hex()})


class Album:
    """The test images of a model, those to choose from, and the pixels of a request."""

    def __init__(self, subject: Subject) -> None:
        self.folder, self.lock = subject.folder, subject.lock
        self.predictor: Any = subject.predictor
        self.canvas: ImageSpec = self.predictor.canvas
        self.shape = self.canvas.image

    @property
    def shown(self) -> bool:
        """Whether the images have colours that a screen shows, and are small enough to be sent."""
        return self.shape[0] in (1, 3) and math.prod(self.shape) <= LARGEST

    @property
    def model(self) -> Any:
        return self.predictor.model

    @cached_property
    def images(self) -> Any:
        """The test images of its run; a black one where they cannot be read."""
        try:
            return test_split(self.folder)
        except UserError:
            return self.blank(np.zeros((1, *self.shape), np.float32))

    def blank(self, pixels: NDArray[np.float32]) -> ImageSplit:
        """Images (N, C, Y, X) of which nothing is known."""
        raise NotImplementedError

    @property
    def stored(self) -> Any:
        """The images (N, C, Y, X), by number."""
        return self.images.pixels

    @cached_property
    def window(self) -> Window:
        """The values that are drawn as black and white in all images."""
        return Window.of(scale_pixels(self.stored[:1000]))

    @cached_property
    def order(self) -> list[int]:
        """The indices of the test images to choose from; the page opens on the first."""
        return list(range(min(SHOWN, len(self.images))))

    def index(self, request: ImageRequest) -> int:
        """The index of the image of a request."""
        found = self.order[0] if request.image is None else request.image
        if found != DRAWN:
            require_index("image", found, len(self.images))
        return found

    def pixels(self, request: ImageRequest) -> NDArray[Any]:
        """The image (C, Y, X) of a request: bytes, or floats in the range of the test images."""
        index = self.index(request)
        if index != DRAWN:
            stored: NDArray[Any] = self.stored[index]
            return np.ascontiguousarray(stored)
        channels, rows, columns = self.shape
        values = np.frombuffer(bytes.fromhex(request.drawn or ""), np.uint8)
        if len(values) != math.prod(self.shape):
            raise UserError(
                "this image does not fit the model", where="drawn", found=f"{len(values):,} values",
                expected=f"{rows} x {columns} pixels of {channels} channels",
            )  # fmt: skip
        parts = scale_pixels(values).reshape(rows, columns, channels).transpose(2, 0, 1)
        found = parts * np.float32(self.window.high - self.window.low) + np.float32(self.window.low)
        return np.ascontiguousarray(found)

    def inputs(self, request: ImageRequest) -> Tensor:
        """The image as the model reads it (1, C, Y, X)."""
        found: Tensor = self.predictor.inputs([scale_pixels(self.pixels(request))]).to(self.predictor.device)
        return found

    def about(self) -> dict[str, Any]:
        """What the page shows to choose an image by."""
        return {
            "images": self.order, "shape": self.shape,
            "drawable": math.prod(self.shape) <= SMALL, "readable": len(self.images) > 1,
        }  # fmt: skip

    def drawings(self, request: ImageRequest) -> dict[str, NDArray[np.uint8]]:
        """The image of a request (Y, X) or (Y, X, 3) as bytes, and those to choose from."""
        return {
            "picture": to_pixels(scale_pixels(self.pixels(request))[None], self.window)[0],
            "pictures": to_pixels(scale_pixels(self.stored[self.order]), self.window),
        }

    def asked(self, state: Mapping[str, Any], model: str) -> dict[str, Any]:
        """The model and the image of a page's state, as the settings of a call."""
        drawn = state.get("drawn")
        if drawn not in (None, "", "file"):
            return {"model": model, "image": DRAWN, "drawn": drawn}
        if state.get("image") is None:
            return {"model": model}
        return {"model": model, "image": index_of(state, "image", len(self.images))}


AnyAlbum = TypeVar("AnyAlbum", bound=Album)


def longest_first(texts: Sequence[str]) -> list[int]:
    """The indices of the first few texts, the one with the most words first, which says most of its image."""
    return sorted(range(min(SHOWN, len(texts))), key=lambda index: -len(texts[index].split()))


def finite(values: Tensor) -> Tensor:
    """The values, if all are finite."""
    if not bool(values.isfinite().all()):
        raise not_finite()
    return values
