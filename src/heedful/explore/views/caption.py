"""An image and its caption: the words with what each attended to, soft beside hard attention, and the beam search.

W words, Y rows and X columns of the map.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from heedful.data.images.captions import CaptionedImages
from heedful.errors import UserError
from heedful.explore.album import (
    Album,
    FileRequest,
    HeadedImageRequest,
    ImageRequest,
    finite,
    longest_first,
    read_upload,
)
from heedful.explore.head_settings import heads_of, heads_set
from heedful.explore.once import OncePerModel
from heedful.explore.openings import Highlight, on_image
from heedful.explore.packets import not_finite, pack
from heedful.explore.views import Call
from heedful.explore.views.beam import build_tree, path_to
from heedful.tasks.captioning.predictor import Caption, ImageCaptioner, words_of

if TYPE_CHECKING:
    from heedful.explore.subjects import Subject

TITLE = "Caption"
ABOUT = "An image in words, and the region that each word attended to."

BEAMS, MOST_BEAMS = 3, 8
IMAGES = 4  # to choose the first picture from
KINDS = ("soft", "hard")


class CaptionRequest(HeadedImageRequest):
    """A model, an image, and the number of beams of the search."""

    beams: int = Field(BEAMS, ge=1, le=MOST_BEAMS)


def fits(subject: Subject) -> bool:
    return subject.broken is None and isinstance(subject.predictor, ImageCaptioner) and albums.of(subject).shown


class CaptionAlbum(Album):
    """A captioner's test images, that with the longest caption first, and the captioner with each kind of attention."""

    def blank(self, pixels: NDArray[np.float32]) -> CaptionedImages:
        return CaptionedImages(pixels, ((),) * len(pixels), ("",) * len(pixels))

    @cached_property
    def order(self) -> list[int]:
        return longest_first([texts[0] if texts else "" for texts in self.images.captions])

    @cached_property
    def kinds(self) -> dict[str, ImageCaptioner]:
        """The same captioner with soft and with hard attention; none, if it has another attention, or none at all."""
        try:
            found = {kind: self.predictor.attending(kind) for kind in KINDS}
        except UserError:
            return {}
        for one in found.values():
            one.graphs = None  # CUDA graphs cannot be captured while other threads use the device
        return found


albums = OncePerModel(CaptionAlbum)


# ------------------------------------------------------------------ answers
def captions(subject: Subject, request: CaptionRequest) -> bytes:
    """The captions of a beam search, best first, and the weights (W, Y, X) of the words of all captions.

    They come a second and a third time, for the same words with soft and with hard attention.
    """
    album = albums.of(subject)
    captioner: ImageCaptioner = album.predictor
    with album.lock:
        image, index, about, drawings = (
            album.pixels(request),
            album.index(request),
            album.about(),
            album.drawings(request),
        )
        found = captioner.search([image], request.beams, request.beams)[0]
        others = {}
        for kind, one in album.kinds.items():
            with heads_set(one.model, subject.kinds, request):
                others[kind] = [one.describe(image, each.ids) for each in found]
        references = album.images.captions[index] if index >= 0 else ()
    grid = captioner.grid if captioner.attends else (0, 0)
    return pack(
        {
            "image": index, "references": references, "grid": grid, "kinds": list(others), **about,
            "captions": [
                {
                    "text": one.text, "words": one.words, "probabilities": one.probabilities, "ids": one.ids,
                    "log": one.log_probability, "score": one.score, "complete": one.complete,
                    "logs": {kind: each[rank].log_probability for kind, each in others.items()},
                    "steps": last_steps(captioner, one),
                }
                for rank, one in enumerate(found)
            ],
        },
        maps=weights_of(found, grid),
        **{kind: weights_of(each, grid) for kind, each in others.items()},
        **drawings,
    )  # fmt: skip


def last_steps(captioner: ImageCaptioner, caption: Caption) -> list[int]:
    """The step of the search at which each word of a caption is complete."""
    spoken = caption.ids[:-1] if caption.complete else caption.ids
    return [places[-1] for _, places in words_of(captioner.words, spoken)]


def weights_of(captions: Sequence[Caption], grid: tuple[int, int]) -> Tensor:
    """The maps (W, Y, X) of the words of all captions, after each other."""
    if not all(np.isfinite(one.log_probability) for one in captions):
        raise not_finite()
    maps = [one.maps for one in captions if one.maps is not None]
    return finite(torch.cat(maps)) if maps else torch.zeros(0, *grid)


def search(subject: Subject, request: CaptionRequest) -> bytes:
    """The candidates of the search, step by step: the text so far, its log p, and whether it was kept."""
    album = albums.of(subject)
    captioner: ImageCaptioner = album.predictor
    with album.lock:
        steps = captioner.steps(album.pixels(request), request.beams, request.beams)
        nodes, _ = build_tree(steps, captioner.settings.length_penalty)
    if not nodes:
        raise not_finite()
    pairs = [(one.token, one.parent) for one in nodes]
    paths = [[nodes[place].token for place in path_to(pairs, number)] for number in range(len(nodes))]
    return pack(
        {"texts": [captioner.words.decode(ids) for ids in paths]},
        step=np.array([one.step for one in nodes], np.int32),
        fate=np.array([one.fate for one in nodes], np.uint8),
        log=np.array([one.log for one in nodes], np.float32),
    )  # fmt: skip


def highlight(subject: Subject, image: int) -> Highlight | None:
    """The last word of the best caption with a clear map, and its largest weight."""
    album = albums.of(subject)
    captioner: ImageCaptioner = album.predictor
    with album.lock:
        found = captioner.search([album.pixels(ImageRequest(model=subject.name, image=image))], BEAMS, BEAMS)[0][0]
    if found.maps is None or not len(found.maps):
        return None
    largest = found.maps.flatten(1).amax(1)  # (W,)
    step = int((largest >= largest.mean()).nonzero()[-1])  # the word that the page shows first: mostly a noun
    weight, regions = float(largest[step]), found.maps[0].numel()
    why = (
        f"Because “{found.words[step]}” looks at one place: of its weight, {weight:.2f} is on one of {regions} regions."
    )
    return Highlight(weight, why)


# ------------------------------------------------------------------ export
def calls(subject: Subject, state: Mapping[str, Any]) -> Sequence[Call]:
    """The image of a state with any number of beams that the page offers."""
    album = albums.of(subject)
    with album.lock:
        image = album.asked(state, subject.name) | heads_of(state)
    every = [{**image, "beams": beams} for beams in range(1, MOST_BEAMS + 1)]
    return [Call("caption", call, each) for each in every for call in ("captions", "search")]


CALLS = {
    "captions": (CaptionRequest, captions), "search": (CaptionRequest, search), "read": (FileRequest, read_upload),
    "opening": on_image(lambda subject: albums.of(subject).order[:IMAGES], highlight),
}  # fmt: skip
