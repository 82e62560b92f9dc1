"""An image in a classifier: its classes, the feature maps of a layer, the pixels that decide, and a ViT's attention.

N images, C channels, Y rows, X columns, F channels of a map, H heads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from heedful.data.images.sources import Images, scale_pixels
from heedful.errors import UserError
from heedful.explore.packets import not_finite, pack
from heedful.explore.views import Call, ModelRequest, index_of, require_index
from heedful.extras.vision.attention import attention_weights, over_image, rollout
from heedful.extras.vision.gradients import METHODS, RELU_METHODS, class_score, uses_relu
from heedful.extras.vision.layers import feature_maps, layer_names
from heedful.models.layer_graph import tap_fields
from heedful.plots.autoencoder_plots import first_of_each
from heedful.plots.image_grid import Window, shares, signed_pixels, to_pixels
from heedful.runs.images import test_images
from heedful.tasks.image_classification.predictor import ImageClassifier

if TYPE_CHECKING:
    from heedful.explore.subjects import Subject

TITLE = "Image"
ABOUT = "The class of an image, and how a model finds it: feature maps, decisive pixels, and attention."

SHOWN, TOP = 10, 10  # test images to choose from; classes with their probabilities
DRAWN = -1  # the index of the image that the user draws, or drops
LARGEST = 3 * 256 * 256  # values of such an image
SMALL = 12_288  # values of an image that can be drawn by hand, and is kept in the address
CHANNELS, SIDE = 48, 64  # channels of a layer that are shown; rows and columns of a map
Method = Literal["gradient", "gradient x input", "integrated gradients", "guided backprop", "deconvnet"]


class ImageRequest(ModelRequest):
    """A model and an image: a test image by its index, or two hexadecimal digits for each value (Y, X, C)."""

    image: int = Field(0, ge=DRAWN, le=10_000_000)
    drawn: str | None = Field(None, max_length=2 * LARGEST, pattern="^([0-9a-f]{2})+$")


class MapRequest(ImageRequest):
    """The feature map of a layer."""

    layer: int = Field(0, ge=0, le=10_000)


class PixelRequest(ImageRequest):
    """What in an image raises the logit of a class; by default of the most probable one."""

    method: Method = "gradient"
    label: int | None = Field(None, ge=0, le=1_000_000)


def fits(subject: Subject) -> bool:
    return subject.broken is None and isinstance(subject.predictor, ImageClassifier) and album_of(subject).shown


# ------------------------------------------------------------------ the images of a model
class Album:
    """A classifier's test images, and its layers."""

    def __init__(self, subject: Subject) -> None:
        self.folder, self.lock = subject.folder, subject.lock
        self.classifier: ImageClassifier = subject.predictor
        self.shape = self.classifier.canvas.image

    @property
    def shown(self) -> bool:
        """Whether the images have colours that a screen shows, and are small enough to be sent."""
        return self.shape[0] in (1, 3) and math.prod(self.shape) <= LARGEST

    @property
    def model(self) -> Any:
        return self.classifier.model

    @cached_property
    def images(self) -> Images:
        """The test images of its run; one black image where they cannot be read."""
        try:
            return test_images(self.folder)
        except UserError:
            return Images(np.zeros((1, *self.shape), np.float32))

    @cached_property
    def window(self) -> Window:
        """The values that are drawn as black and white in all images."""
        return Window.of(self.images.pixels[:1000])

    @cached_property
    def order(self) -> list[int]:
        """The indices of the test images to choose from: the first of each class."""
        found: list[int] = first_of_each(self.images.labels, SHOWN, len(self.images)).tolist()
        return found

    @cached_property
    def layers(self) -> list[str]:
        """The names of all layers that have a feature map."""
        return layer_names(self.model)

    @cached_property
    def methods(self) -> list[str]:
        """The methods that draw different pictures of this model."""
        relu = uses_relu(self.model, torch.zeros(1, *self.shape, device=self.classifier.device))
        return [name for name in METHODS if relu or name not in RELU_METHODS]

    def pixels(self, request: ImageRequest) -> NDArray[np.float32]:
        """The image (C, Y, X) of a request."""
        if request.image != DRAWN:
            require_index("image", request.image, len(self.images))
            return scale_pixels(self.images.pixels[request.image])
        channels, rows, columns = self.shape
        values = np.frombuffer(bytes.fromhex(request.drawn or ""), np.uint8)
        if len(values) != math.prod(self.shape):
            raise UserError(
                "this image does not fit the model", where="drawn", found=f"{len(values):,} values",
                expected=f"{rows} x {columns} pixels of {channels} channels",
            )  # fmt: skip
        parts = scale_pixels(values).reshape(rows, columns, channels).transpose(2, 0, 1)
        return parts * np.float32(self.window.high - self.window.low) + np.float32(self.window.low)

    def inputs(self, request: ImageRequest) -> Tensor:
        """The image as the model reads it (1, C, Y, X)."""
        return self.classifier.inputs([np.ascontiguousarray(self.pixels(request))]).to(self.classifier.device)


albums: WeakKeyDictionary[Subject, Album] = WeakKeyDictionary()
_opening = Lock()


def album_of(subject: Subject) -> Album:
    """The images of an open model."""
    with _opening:
        return albums.setdefault(subject, Album(subject))


# ------------------------------------------------------------------ answers
def classes(subject: Subject, request: ImageRequest) -> bytes:
    """The most probable classes of an image, and what can be chosen: images, layers and methods."""
    album = album_of(subject)
    with album.lock, torch.no_grad():
        pixels, images = album.pixels(request), album.images
        logits = album.model(album.inputs(request))[0].float().cpu()
        values, numbers = finite(logits).softmax(-1).topk(min(TOP, len(logits)))
        fields = tap_fields(album.model)
        layers = [
            {"name": name.removesuffix(".output"), "size": [len(fields[name].rows), len(fields[name].columns)],
             "sees": None if album.model.config.attends else fields[name].size}
            for name in album.layers
        ]  # fmt: skip
        methods, order = album.methods, album.order
    names = album.classifier.labels
    labels = None if images.labels is None else [images.names[number] for number in images.labels[order]]
    return pack(
        {
            "labels": [names[number] for number in numbers.tolist()], "numbers": numbers.tolist(), "images": order,
            "classes": labels, "layers": layers, "methods": methods, "shape": album.shape,
            "attends": album.model.config.attends, "drawable": math.prod(album.shape) <= SMALL,
            "crop": crop_share(album), "readable": len(images) > 1,
        },
        probabilities=values.float(),
        picture=to_pixels(pixels[None], album.window)[0],
        pictures=to_pixels(scale_pixels(images.pixels[order]), album.window),
    )  # fmt: skip


def crop_share(album: Album) -> float:
    """The share of the shorter side of an image that is kept in its centre; 0: the whole image is resized."""
    canvas = album.classifier.canvas
    return 0.0 if canvas.shorter is None else min(canvas.image[1:]) / canvas.shorter


def maps(subject: Subject, request: MapRequest) -> bytes:
    """The channels of a layer that vary most: their numbers, and maps (F, Y, X) scaled each to 0..255."""
    album = album_of(subject)
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
    album = album_of(subject)
    with album.lock:
        x = album.inputs(request)
        with torch.no_grad():
            logits = finite(album.model(x)[0])
        label = int(logits.argmax()) if request.label is None else request.label
        require_index("label", label, len(logits), "class")
        found = finite(METHODS[request.method](class_score(album.model, label), x)).float().cpu()
    picture = signed_pixels(found.numpy())[0]
    return pack({"label": album.classifier.labels[label], "largest": float(found.abs().max())}, picture=picture)


def attention(subject: Subject, request: MapRequest) -> bytes:
    """The attention over the image of each head of a layer (H, Y, X), of all heads, and the rollout (Y, X)."""
    album = album_of(subject)
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


def finite(values: Tensor) -> Tensor:
    """The values, if all are finite."""
    if not bool(values.isfinite().all()):
        raise not_finite()
    return values


# ------------------------------------------------------------------ export
def calls(subject: Subject, state: Mapping[str, Any]) -> Sequence[Call]:
    """The image of a state in all layers, by all methods, and in the attention of each layer."""
    album = album_of(subject)
    with album.lock:
        layers, methods, count = album.layers, album.methods, len(album.images)
        attended = album.model.config.layers if album.model.config.attends else 0
    drawn = state.get("drawn") if state.get("drawn") not in ("", "file") else None
    image: dict[str, Any] = {"model": subject.name, "image": index_of(state, "image", count)}
    if drawn is not None:
        image |= {"image": DRAWN, "drawn": drawn}
    every: list[tuple[str, dict[str, Any]]] = [("classes", image)]
    every += [("maps", {**image, "layer": number}) for number in range(len(layers))]
    every += [("pixels", {**image, "method": name}) for name in methods]
    every += [("attention", {**image, "layer": number}) for number in range(attended)]
    return [Call("image", call, each) for call, each in every]


CALLS = {
    "classes": (ImageRequest, classes), "maps": (MapRequest, maps), "pixels": (PixelRequest, pixels),
    "attention": (MapRequest, attention),
}  # fmt: skip
