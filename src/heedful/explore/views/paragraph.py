"""An image, a paragraph about it, and the region that each sentence came from.

S sentences, K regions of a sentence, R regions: the whole image, and then the boxes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from heedful.data.images.paragraphs import Box, DescribedImages, Paragraph
from heedful.data.images.sources import scale_pixels
from heedful.errors import UserError
from heedful.explore.album import DRAWN, Album, FileRequest, ImageRequest, finite, longest_first, read_upload
from heedful.explore.once import OncePerModel
from heedful.explore.packets import not_finite, pack
from heedful.explore.views import Call
from heedful.tasks.paragraphs.predictor import ImageDescriber

if TYPE_CHECKING:
    from heedful.explore.subjects import Subject

TITLE = "Paragraph"
ABOUT = "An image in several sentences, and the region that each of them came from."

MOST = 12  # boxes that the user draws
PARTS = 1000  # of a side, in which the page's address counts
QUARTERS: tuple[Box, ...] = ((0, 0, 0.5, 0.5), (0, 0.5, 0.5, 1), (0.5, 0, 1, 0.5), (0.5, 0.5, 1, 1))
Side = Annotated[float, Field(ge=0, le=1)]


class ParagraphRequest(ImageRequest):
    """A model, an image, and the user's boxes: top, left, bottom, right, as parts of its sides."""

    boxes: tuple[tuple[Side, Side, Side, Side], ...] = Field((), max_length=MOST)  # (): those of the data


def fits(subject: Subject) -> bool:
    return subject.broken is None and isinstance(subject.predictor, ImageDescriber) and albums.of(subject).shown


class ParagraphAlbum(Album):
    """A describer's test images, that with the longest paragraph first."""

    def blank(self, pixels: NDArray[np.float32]) -> DescribedImages:
        return DescribedImages(pixels, (Paragraph((), (), (), ()),) * len(pixels))

    @cached_property
    def order(self) -> list[int]:
        return longest_first([one.text for one in self.images.paragraphs])

    def boxes(self, request: ParagraphRequest) -> tuple[Box, ...]:
        """The boxes of a request; of an image without any, its quarters."""
        for number, (top, left, bottom, right) in enumerate(request.boxes):
            if not (top < bottom and left < right):
                raise UserError("this box is empty", where=f"boxes.{number}", expected="top < bottom and left < right")
        index = self.index(request)
        own: tuple[Box, ...] = () if index == DRAWN else self.images.paragraphs[index].boxes
        return request.boxes or own or QUARTERS


albums = OncePerModel(ParagraphAlbum)


def description(subject: Subject, request: ParagraphRequest) -> bytes:
    """The sentences, each with its regions and its weights (K, R), and the phrases of the boxes."""
    album = albums.of(subject)
    describer: ImageDescriber = album.predictor
    with album.lock:
        boxes, index, about, drawings = (
            album.boxes(request),
            album.index(request),
            album.about(),
            album.drawings(request),
        )
        pixels = torch.from_numpy(scale_pixels(album.pixels(request)))[None]
        found = describer.describe_pixels(pixels, [boxes])[0]
        references = () if index == DRAWN else album.images.paragraphs[index].sentences
    if not all(np.isfinite(one.log_probability) for one in found.sentences):
        raise not_finite()
    return pack(
        {
            "image": index, "references": references, "boxes": boxes, "phrases": found.phrases, **about,
            "complete": found.complete,
            "sentences": [
                {"text": one.text, "region": one.region, "regions": one.regions, "phrase": one.phrase,
                 "log": one.log_probability}
                for one in found.sentences
            ],
        },
        weights=finite(torch.from_numpy(np.stack([one.weights for one in found.sentences]))),  # (S, K, R)
        **drawings,
    )  # fmt: skip


def calls(subject: Subject, state: Mapping[str, Any]) -> Sequence[Call]:
    """The image of a state with its boxes, and with those of the data."""
    album = albums.of(subject)
    with album.lock:
        image = album.asked(state, subject.name)
    sides = [int(side) / PARTS for side in str(state.get("boxes") or "").split(",") if side]
    boxes = [sides[start : start + 4] for start in range(0, len(sides) - 3, 4)]
    every = [image, {**image, "boxes": boxes}] if boxes else [image]
    return [Call("paragraph", "description", each) for each in every]


CALLS = {"description": (ParagraphRequest, description), "read": (FileRequest, read_upload)}
