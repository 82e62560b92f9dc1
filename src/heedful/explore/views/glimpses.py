"""The glimpses of a recurrent model of attention: where it looks, what it sees there, and what it then believes.

T glimpses, N classes, S side of the widest patch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from heedful.data.images.sources import Images, scale_pixels
from heedful.explore.album import SHOWN, Album, FileRequest, ImageRequest, finite, read_upload
from heedful.explore.once import OncePerModel
from heedful.explore.openings import Highlight, on_image
from heedful.explore.packets import pack
from heedful.explore.views import Call
from heedful.plots.autoencoder_plots import first_of_each
from heedful.plots.image_grid import Window, to_pixels
from heedful.tasks.image_classification.glimpses import GlimpseClassifier

if TYPE_CHECKING:
    from heedful.explore.subjects import Subject

TITLE = "Glimpses"
ABOUT = "Where a model looks in an image, glimpse by glimpse, and what it sees there."

TOP = 10  # classes with their probabilities


def fits(subject: Subject) -> bool:
    return subject.broken is None and isinstance(subject.predictor, GlimpseClassifier) and albums.of(subject).shown


class GlimpseAlbum(Album):
    """A classifier's test images, the first of each class to choose from."""

    def blank(self, pixels: NDArray[np.float32]) -> Images:
        return Images(pixels)

    @cached_property
    def order(self) -> list[int]:
        found: list[int] = first_of_each(self.images.labels, SHOWN, len(self.images)).tolist()
        return found


albums = OncePerModel(GlimpseAlbum)


def path(subject: Subject, request: ImageRequest) -> bytes:
    """The centre (T, 2) of each glimpse in pixels, what it sees (T, S, S), and the class probabilities (T, N) after it.

    The classes are those that are most probable in the end.
    """
    album = albums.of(subject)
    classifier: GlimpseClassifier = album.predictor
    with album.lock, torch.no_grad():
        x = album.inputs(request)
        seen = album.model.look(x)
        shares = finite(album.model.head(seen.states[0]).float()).softmax(-1).cpu()  # (T, N)
        views = classifier.views(scale_pixels(album.pixels(request)))  # (T, C, S, S)
        images, about, drawings = album.images, album.about(), album.drawings(request)
        index = album.index(request)
    numbers = shares[-1].topk(min(TOP, shares.shape[1])).indices
    names = classifier.labels
    labels = None if images.labels is None else [images.names[number] for number in images.labels[album.order]]
    return pack(
        {
            "image": index, "labels": [names[number] for number in numbers.tolist()], "classes": labels,
            "patch": album.model.config.patch, "scales": album.model.config.scales, **about,
        },
        path=classifier.pixels(seen.places[0]), probabilities=shares[:, numbers],
        views=to_pixels(views, Window(0.0, 1.0)),
        **drawings,
    )  # fmt: skip


def highlight(subject: Subject, image: int) -> Highlight | None:
    """The glimpse after which the class that is most probable in the end has gained most."""
    album = albums.of(subject)
    with album.lock, torch.no_grad():
        seen = album.model.look(album.inputs(ImageRequest(model=subject.name, image=image)))
        shares = finite(album.model.head(seen.states[0]).float()).softmax(-1).cpu()  # (T, N)
    best = int(shares[-1].argmax())
    rises = shares[1:, best] - shares[:-1, best]  # (T - 1,)
    if not len(rises):
        return None
    step = int(rises.argmax()) + 1
    why = (
        f"Because glimpse {step + 1} decides: it raises “{album.predictor.labels[best]}” from "
        f"{float(shares[step - 1, best]):.2f} to {float(shares[step, best]):.2f}."
    )
    return Highlight(float(rises[step - 1]), why)


def calls(subject: Subject, state: Mapping[str, Any]) -> Sequence[Call]:
    """The image of a state, and the others to choose from."""
    album = albums.of(subject)
    with album.lock:
        every = [album.asked(state, subject.name), *({"model": subject.name, "image": index} for index in album.order)]
    return [Call("glimpses", "path", each) for each in every]


CALLS = {
    "path": (ImageRequest, path), "read": (FileRequest, read_upload),
    "opening": on_image(lambda subject: albums.of(subject).order, highlight),
}  # fmt: skip
