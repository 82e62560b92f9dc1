"""An image in a classifier: its classes, the feature maps of a layer, the pixels that decide, and a ViT's attention.

N images, C channels, Y rows, X columns, F channels of a map, H heads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch.nn.functional import adaptive_avg_pool2d

from heedful.data.images.sources import Images, scale_pixels
from heedful.errors import UserError
from heedful.explore.album import SHOWN, Album, FileRequest, ImageRequest, finite, read_upload
from heedful.explore.once import OncePerModel
from heedful.explore.openings import Highlight, on_image, rivals
from heedful.explore.packets import pack
from heedful.explore.views import Call, index_of, require_index
from heedful.extras.vision.attention import attention_weights, over_image, rollout
from heedful.extras.vision.gradients import METHODS, RELU_METHODS, class_score, uses_relu
from heedful.extras.vision.layers import feature_maps, layer_names
from heedful.models.layer_graph import tap_fields
from heedful.models.roles import ImageEncoderConfig
from heedful.plots.autoencoder_plots import first_of_each
from heedful.plots.image_grid import shares, signed_pixels, to_pixels
from heedful.tasks.image_classification.predictor import ImageClassifier

if TYPE_CHECKING:
    from heedful.explore.subjects import Subject

TITLE = "Image"
ABOUT = "The class of an image, and how a model finds it: feature maps, decisive pixels, and attention."

TOP = 10  # classes with their probabilities
CHANNELS, SIDE = 48, 64  # channels of a layer that are shown; rows and columns of a map
SQUARES = 8  # rows and columns of the squares that can be covered, where the model has no patches
FILE = 2_000_000  # bytes of all covered images, up to which a file holds more than the chosen one
Method = Literal["gradient", "gradient x input", "integrated gradients", "guided backprop", "deconvnet"]


class MapRequest(ImageRequest):
    """The feature map of a layer."""

    layer: int = Field(0, ge=0, le=10_000)


class PixelRequest(ImageRequest):
    """What in an image raises the logit of a class; by default of the most probable one."""

    method: Method = "gradient"
    label: int | None = Field(None, ge=0, le=1_000_000)


class CoverRequest(ImageRequest):
    """An image without one of its squares, counted row by row."""

    square: int = Field(ge=0, le=100_000)


def fits(subject: Subject) -> bool:
    if subject.broken is not None or not isinstance(subject.predictor, ImageClassifier):
        return False
    return isinstance(subject.model.config, ImageEncoderConfig) and albums.of(subject).shown


# ------------------------------------------------------------------ the images of a model
class ClassAlbum(Album):
    """A classifier's test images, the first of each class to choose from, and its layers."""

    def blank(self, pixels: NDArray[np.float32]) -> Images:
        return Images(pixels)

    @property
    def stored(self) -> Any:
        """The images, which may be in files."""
        return self.images.stored

    @cached_property
    def order(self) -> list[int]:
        found: list[int] = first_of_each(self.images.labels, SHOWN, len(self.images)).tolist()
        return found

    @cached_property
    def layers(self) -> list[str]:
        """The names of all layers that have a feature map."""
        return layer_names(self.model)

    @cached_property
    def methods(self) -> list[str]:
        """The methods that draw different pictures of this model."""
        relu = uses_relu(self.model, torch.zeros(1, *self.shape, device=self.predictor.device))
        return [name for name in METHODS if relu or name not in RELU_METHODS]

    @cached_property
    def squares(self) -> tuple[int, int]:
        """Rows and columns of the squares that can be covered: a Vision Transformer's patches, or up to 8 x 8."""
        rows, columns = self.shape[1:]
        if not self.model.config.attends:
            return min(SQUARES, -(-rows // 2)), min(SQUARES, -(-columns // 2))
        rows, columns = self.model.map(torch.zeros(1, *self.shape, device=self.predictor.device)).shape[2:]
        return rows, columns

    def covered(self, pixels: NDArray[Any], square: int) -> NDArray[Any]:
        """The image (C, Y, X) with one square in its mean colour."""
        require_index("square", square, math.prod(self.squares))
        row, column = divmod(square, self.squares[1])
        y, x = (
            slice(place * side // count, (place + 1) * side // count)
            for place, side, count in zip((row, column), self.shape[1:], self.squares, strict=True)
        )
        found = pixels.copy()
        found[:, y, x] = pixels.mean((1, 2), keepdims=True)
        return found


albums = OncePerModel(ClassAlbum)


# ------------------------------------------------------------------ answers
def classes(subject: Subject, request: ImageRequest) -> bytes:
    """The most probable classes of an image, and what can be chosen: images, layers and methods."""
    album = albums.of(subject)
    with album.lock, torch.no_grad():
        images = album.images
        logits = album.model(album.inputs(request))[0].float().cpu()
        values, numbers = finite(logits).softmax(-1).topk(min(TOP, len(logits)))
        fields = tap_fields(album.model)
        layers = [
            {"name": name.removesuffix(".output"), "size": [len(fields[name].rows), len(fields[name].columns)],
             "sees": None if album.model.config.attends else fields[name].size}
            for name in album.layers
        ]  # fmt: skip
        methods, about, drawings = album.methods, album.about(), album.drawings(request)
        about["squares"] = album.squares
    names = album.predictor.labels
    labels = None if images.labels is None else [images.names[number] for number in images.labels[album.order]]
    return pack(
        {
            "labels": [names[number] for number in numbers.tolist()], "numbers": numbers.tolist(), "classes": labels,
            "layers": layers, "methods": methods, "attends": album.model.config.attends, **about,
        },
        probabilities=values.float(),
        **drawings,
    )  # fmt: skip


def covered(subject: Subject, request: CoverRequest) -> bytes:
    """An image with one square in its mean colour: its best class, and the shares of those of the whole image."""
    album = albums.of(subject)
    with album.lock, torch.no_grad():
        whole = album.model(album.inputs(request))[0].float().cpu()
        pixels = album.covered(scale_pixels(album.pixels(request)), request.square)
        logits = album.model(album.predictor.inputs([pixels]).to(album.predictor.device))[0].float().cpu()
    found, best = finite(logits).softmax(-1), int(logits.argmax())
    numbers = finite(whole).softmax(-1).topk(min(TOP, len(whole))).indices
    return pack(
        {"label": album.predictor.labels[best], "share": float(found[best])},
        probabilities=found[numbers], picture=to_pixels(pixels[None], album.window)[0],
    )  # fmt: skip


def maps(subject: Subject, request: MapRequest) -> bytes:
    """The channels of a layer that vary most: their numbers, and maps (F, Y, X) scaled each to 0..255."""
    album = albums.of(subject)
    with album.lock:
        require_index("layer", request.layer, len(album.layers))
        name = album.layers[request.layer]
        map = feature_maps(album.model, album.inputs(request), name)[name][0].float().cpu()  # (F, Y, X)
    most = finite(map).flatten(1).std(1).argsort(descending=True, stable=True)[:CHANNELS].sort().values
    rows, columns = (min(SIDE, side) for side in map.shape[1:])
    drawn = shares(adaptive_avg_pool2d(map[most], (rows, columns)).numpy())
    return pack({"channels": most.tolist(), "count": len(map)}, pictures=(drawn * 255 + 0.5).astype(np.uint8))


def pixels(subject: Subject, request: PixelRequest) -> bytes:
    """The picture (Y, X) or (Y, X, 3) of what raises the logit of a class, and what lowers it: grey is 0."""
    album = albums.of(subject)
    with album.lock:
        x = album.inputs(request)
        with torch.no_grad():
            logits = finite(album.model(x)[0])
        label = int(logits.argmax()) if request.label is None else request.label
        require_index("label", label, len(logits), "class")
        found = finite(METHODS[request.method](class_score(album.model, label), x)).float().cpu()
    picture = signed_pixels(found.numpy())[0]
    return pack({"label": album.predictor.labels[label], "largest": float(found.abs().max())}, picture=picture)


def attention(subject: Subject, request: MapRequest) -> bytes:
    """The attention over the image of each head of a layer (H, Y, X), of all heads, and the rollout (Y, X)."""
    album = albums.of(subject)
    if not album.model.config.attends:
        raise UserError("this model has no attention", where="model", expected="a Vision Transformer")
    with album.lock, torch.no_grad():
        x = album.inputs(request)
        grid = tuple(album.model.map(x).shape[2:])
        layers = attention_weights(album.model, x)
        require_index("layer", request.layer, len(layers))
        heads = over_image(layers[request.layer][0], grid)  # (H, Y, X)
        through = over_image(rollout(layers)[0], grid)  # (Y, X)
    return pack(
        {"layers": len(layers)}, heads=finite(heads).float(), mean=heads.mean(0).float(), rollout=through.float()
    )


def highlight(subject: Subject, image: int) -> Highlight | None:
    """How close the second most probable class is to the first."""
    album = albums.of(subject)
    with album.lock, torch.no_grad():
        logits = album.model(album.inputs(ImageRequest(model=subject.name, image=image)))[0].float().cpu()
    if len(logits) < 2:
        return None
    best = finite(logits).softmax(-1).topk(2)
    names = [album.predictor.labels[one] for one in best.indices.tolist()]
    return rivals("classes", *zip(names, best.values.tolist(), strict=True))


# ------------------------------------------------------------------ export
def calls(subject: Subject, state: Mapping[str, Any]) -> Sequence[Call]:
    """The image of a state in all layers, by all methods, and in the attention of each layer."""
    album = albums.of(subject)
    with album.lock, torch.no_grad():
        layers, methods, count = album.layers, album.methods, math.prod(album.squares)
        attended = album.model.config.layers if album.model.config.attends else 0
    image = album.asked(state, subject.name)
    every: list[tuple[str, dict[str, Any]]] = [("classes", image)]
    every += [("maps", {**image, "layer": number}) for number in range(len(layers))]
    every += [("pixels", {**image, "method": name}) for name in methods]
    every += [("attention", {**image, "layer": number}) for number in range(attended)]
    chosen = [index_of(state, "square", count)] if state.get("square") is not None else []
    squares = range(count) if count * math.prod(album.shape) <= FILE else chosen
    every += [("covered", {**image, "square": number}) for number in squares]
    return [Call("image", call, each) for call, each in every]


CALLS = {
    "classes": (ImageRequest, classes), "maps": (MapRequest, maps), "pixels": (PixelRequest, pixels),
    "attention": (MapRequest, attention), "covered": (CoverRequest, covered),
    "read": (FileRequest, read_upload), "opening": on_image(lambda subject: albums.of(subject).order, highlight),
}  # fmt: skip
