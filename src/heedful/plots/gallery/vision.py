"""What image models have learned: filters, feature maps, receptive fields, gradients, occlusion, attention, probes.

N images, C channels, Y rows, X columns, F channels of a map.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from heedful.data.images.sources import scale_pixels
from heedful.errors import UserError
from heedful.extras.vision.attention import attention_weights, over_image, rollout
from heedful.extras.vision.gradients import (
    METHODS,
    RELU_METHODS,
    channel_score,
    class_score,
    deconvnet,
    gradient,
    saliency,
    uses_relu,
)
from heedful.extras.vision.layers import Patch, feature_maps, first_filters, require_layer, top_patches
from heedful.extras.vision.occlusion import occlusion
from heedful.extras.vision.probes import nearest_neighbours, probe_layers
from heedful.lectures import Progress
from heedful.lectures.learning import seeded
from heedful.models import build
from heedful.models.layer_graph import tap_fields
from heedful.models.vgg.config import VggConfig
from heedful.models.vit.config import VitConfig
from heedful.plots.figures import curves
from heedful.plots.gallery.image_nets import Opened, opened
from heedful.plots.image_grid import Window, picture_grid, shares, signed_pixels, to_pixels
from heedful.plots.style import Figure, Style

CONVNET = VggConfig(depths=(1, 1, 1), filters=(16, 32, 64), norm="batch", grid=1, hidden=64, dropout=0.0)
TRANSFORMER = VitConfig(patch=4, width=48, heads=3, layers=3, hidden=96)
SEARCHED = 2000  # images of a split that probes and neighbours are found in

Model = Annotated[
    str | None, Field(description="a run or a model folder of an image classifier; null: a small one, trained at once")
]
Files = Annotated[
    tuple[Annotated[str, Field(min_length=1, max_length=4096)], ...],
    Field(max_length=64, description="image files to look at; none: test images"),
]
Count = Annotated[int, Field(ge=1, le=32, description="images that are drawn")]
Channels = Annotated[int, Field(ge=1, le=64, description="channels of a layer that are drawn")]
LayerName = Annotated[str | None, Field(description="layer, by the name of its tap; null: the last one")]
Steps = Annotated[int, Field(ge=1, le=100_000, description="training steps of the small model")]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Drawing = Generator[Progress, None, Figure]


def filters(
    *,
    model: Model = None,
    across: Annotated[int, Field(ge=1, le=64, description="filters in a row")] = 16,
    steps: Steps = 150,
    seed: Seed = 0,
    style: Style = "light",
) -> Drawing:
    """The filters of the first convolution; grey is 0."""
    found = yield from opened(model, (), CONVNET, steps, seed)
    pictures = signed_pixels(first_filters(found.model).float().cpu().numpy())[:256]
    rows = [("", pictures[start : start + across]) for start in range(0, len(pictures), across)]
    return picture_grid(rows, f"Filters of the first convolution: {found.source}", style=style, apart=1.08)


def feature_map_rows(
    *,
    model: Model = None,
    images: Files = (),
    channels: Channels = 10,
    steps: Steps = 150,
    seed: Seed = 0,
    style: Style = "light",
) -> Drawing:
    """One image, and some channels of the feature map of each layer."""
    found = (yield from opened(model, images, CONVNET, steps, seed)).some(1)
    rows: list[tuple[str, Any]] = [("image", pictures_of(found))]
    for name, map in feature_maps(found.model, found.inputs()).items():
        most = map[0].flatten(1).std(1).argsort(descending=True, stable=True)[:channels].sort().values
        rows.append(
            (f"{short_name(name)}, {map.shape[2]} x {map.shape[3]}", list(shares(map[0, most].float().cpu().numpy())))
        )
    title = f"Feature maps, the channels that vary most: {found.source}"
    return picture_grid(rows, title, style=style)


def receptive_field(
    *,
    model: Model = None,
    images: Files = (),
    steps: Steps = 150,
    seed: Seed = 0,
    style: Style = "light",
) -> Drawing:
    """The pixels that one unit of each layer sees, and the gradient of its value by them."""
    found = (yield from opened(model, images, CONVNET, steps, seed)).some(1)
    if found.model.config.attends:
        raise UserError(
            "each token sees the whole image", where="model", found=str(model), expected="a ConvNet",
            todo="draw its attention: heedful figure vit-attention",
        )  # fmt: skip
    x, fields = found.inputs(), tap_fields(found.model)
    seen, slopes, heads = [], [], []
    for name, map in feature_maps(found.model, x).items():
        field, place = fields[name], (map.shape[2] // 2, map.shape[3] // 2)
        dark = (0.25 * scaled(found)[0]).astype(np.float32)  # (C, Y, X)
        down, across = field.rows[place[0]], field.columns[place[1]]
        inside = (slice(None), slice(down.start, down.stop), slice(across.start, across.stop))
        dark[inside] = scaled(found)[0][inside]
        every = sum(gradient(channel_score(found.model, name, one, place), x).abs() for one in range(map.shape[1]))
        seen.append(to_pixels(dark[None], Window(0.0, 1.0))[0])
        slopes.append(shares(saliency(torch.as_tensor(every)).float().cpu().numpy())[0] ** 0.5)
        heads.append(f"{short_name(name)}\n{len(down)} x {len(across)}")
    title = f"What the unit in the middle of each layer sees: {found.source}"
    return picture_grid([("its field", seen), ("gradient", slopes)], title, heads, style)


def top_patch_rows(
    *,
    model: Model = None,
    layer: LayerName = None,
    channels: Channels = 6,
    count: Count = 8,
    steps: Steps = 150,
    seed: Seed = 0,
    style: Style = "light",
) -> Drawing:
    """The patches that activate channels most, and what the deconvnet finds in each (Zeiler and Fergus, 2014)."""
    found = yield from opened(model, (), CONVNET, steps, seed)
    name = require_layer(found.model, layer)
    x = found.inputs()
    yield Progress(0.85, f"looking for patches in {len(x):,} images")
    every = top_patches(found.model, x, name, count)
    chosen = sorted(range(len(every)), key=lambda channel: -every[channel][0].value)[:channels]
    rows: list[tuple[str, Any]] = []
    for channel in sorted(chosen):
        patches = every[channel]
        images = torch.stack([x[patch.image] for patch in patches])
        back = deconvnet(channel_score(found.model, name, channel), images).float().cpu().numpy()
        pixels = scaled(found)
        plain = [to_pixels(patch_of(pixels[patch.image], patch), Window(0.0, 1.0))[0] for patch in patches]
        projected = [signed_pixels(patch_of(one, patch))[0] for one, patch in zip(back, patches, strict=True)]
        rows += [(f"channel {channel + 1}", plain), ("", projected)]
    title = f"Patches that activate channels of {short_name(name)} most, and their deconvnet: {found.source}"
    return picture_grid(rows, title, style=style, apart=1.08)


def saliency_rows(
    *,
    model: Model = None,
    images: Files = (),
    count: Count = 5,
    steps: Steps = 150,
    seed: Seed = 0,
    style: Style = "light",
) -> Drawing:
    """Which pixels raise the logit of the predicted class, and which lower it, by five methods; grey is 0."""
    found = (yield from opened(model, images, CONVNET, steps, seed)).some(count)
    x = found.inputs()
    with torch.no_grad():
        classes = found.model(x).argmax(1)
    score = class_score(found.model, classes)
    methods = [name for name in METHODS if uses_relu(found.model, x[:1]) or name not in RELU_METHODS]
    rows: list[tuple[str, Any]] = [("image", pictures_of(found))]
    for number, name in enumerate(methods):
        yield Progress(0.8 + 0.2 * number / len(methods), name)
        rows.append((name, signed_pixels(METHODS[name](score, x).float().cpu().numpy())))
    heads = found.names(classes)
    return picture_grid(
        rows, f"Pixels that raise the logit of the predicted class, and that lower it: {found.source}", heads, style
    )


def occlusion_rows(
    *,
    model: Model = None,
    images: Files = (),
    count: Count = 6,
    size: Annotated[int, Field(ge=1, le=1024, description="rows and columns of the cover, in pixels")] = 3,
    stride: Annotated[int, Field(ge=1, le=1024, description="pixels between two places of the cover")] = 1,
    steps: Steps = 150,
    seed: Seed = 0,
    style: Style = "light",
) -> Drawing:
    """How much the logit of the predicted class falls where a part of the image is covered."""
    found = (yield from opened(model, images, CONVNET, steps, seed)).some(count)
    x = found.inputs()
    with torch.no_grad():
        classes = found.model(x).argmax(1)
    falls, heads = [], []
    for number, (image, name) in enumerate(zip(x, found.names(classes), strict=True)):
        yield Progress(0.8 + 0.2 * number / len(x), "covering parts of an image")
        fall = occlusion(class_score(found.model, int(classes[number])), image, size, stride)
        falls.append(shares(fall.clamp_min(0)[None].float().cpu().numpy())[0])
        heads.append(f"{name}\n{float(fall.max()):.3g}")
    title = f"The largest fall of the logit where {size} x {size} pixels are covered: {found.source}"
    return picture_grid([("image", pictures_of(found)), ("fall", falls)], title, heads, style)


def vit_attention(
    *,
    model: Model = None,
    images: Files = (),
    count: Count = 6,
    residual: Annotated[float, Field(ge=0, lt=1, description="share of the residual path in the rollout")] = 0.5,
    steps: Steps = 300,
    seed: Seed = 0,
    style: Style = "light",
) -> Drawing:
    """What a Vision Transformer attends to in an image: by layer, and through all of them (attention rollout)."""
    found = (yield from opened(model, images, TRANSFORMER, steps, seed)).some(count)
    if not found.model.config.attends:
        raise UserError("this model has no attention", where="model", found=str(model), expected="a Vision Transformer")
    x = found.inputs()
    with torch.no_grad():
        classes, grid = found.model(x).argmax(1), tuple(found.model.map(x).shape[2:])
    layers = attention_weights(found.model, x)
    rows: list[tuple[str, Any]] = [("image", pictures_of(found))]
    for number, weights in enumerate(layers, 1):
        rows.append((f"layer {number}", list(shares(array(over_image(weights.mean(1), grid))))))
    rows.append(("rollout", list(shares(array(over_image(rollout(layers, residual), grid))))))
    title = f"Attention over the image, mean of the heads, and rollout: {found.source}"
    return picture_grid(rows, title, found.names(classes), style)


def neighbours(
    *,
    model: Model = None,
    images: Files = (),
    count: Count = 5,
    nearest: Annotated[int, Field(ge=1, le=32, description="neighbours of each image")] = 8,
    steps: Steps = 150,
    seed: Seed = 0,
    style: Style = "light",
) -> Drawing:
    """Images, and the training images whose features are most similar."""
    found = (yield from opened(model, images, CONVNET, steps, seed)).some(count)
    known = found.known().first(SEARCHED)
    yield Progress(0.9, f"comparing with {len(known.images):,} training images")
    with torch.no_grad():
        asked = found.model.features(found.inputs())
        every = torch.cat([found.model.features(some) for some in known.inputs().split(256)])
    numbers, pixels = nearest_neighbours(asked, every, nearest).cpu().numpy(), pictures_of(known)
    rows = [(f"image {row + 1}", [image, *pixels[numbers[row]]]) for row, image in enumerate(pictures_of(found))]
    heads = ["image", *(str(rank) for rank in range(1, numbers.shape[1] + 1))]
    title = f"The training images with the most similar features: {found.source}"
    return picture_grid(rows, title, heads, style, apart=1.08)


def image_probes(*, model: Model = None, steps: Steps = 150, seed: Seed = 0, style: Style = "light") -> Drawing:
    """The accuracy of a linear classifier on each layer, of the model and of the same with random weights."""
    found = yield from opened(model, (), CONVNET, steps, seed)
    known, tested = (labelled(one.first(SEARCHED)) for one in (found.known(), found))
    yield Progress(0.85, "fitting linear classifiers")
    random: Any = seeded(lambda: build(found.model.config), seed).to(found.predictor.device)
    lines = {"trained": probe_layers(found.model, known, tested), "untrained": probe_layers(random, known, tested)}
    layers = range(len(lines["trained"]))
    return curves(
        {name: (layers, list(accuracies.values())) for name, accuracies in lines.items()},
        f"A linear classifier on each layer: {found.source}",
        "layer; 0 is the pixels, the last the features",
        "accuracy on test images",
        style=style,
    )


# ------------------------------------------------------------------ parts
def scaled(found: Opened) -> NDArray[np.float32]:
    """The pixels (N, C, Y, X) of the images, from 0 to 1."""
    return scale_pixels(found.images.pixels)


def pictures_of(found: Opened) -> NDArray[np.uint8]:
    """The images as pixels."""
    pixels = scaled(found)
    return to_pixels(pixels, Window.of(pixels))


def patch_of(image: NDArray[Any], patch: Patch) -> NDArray[Any]:
    """The part (1, C, Y, X) of an image (C, Y, X) that a unit sees; black, where it sees padding alone."""
    part = image[None, :, patch.rows.start : patch.rows.stop, patch.columns.start : patch.columns.stop]
    return part if part.size else np.zeros((1, len(image), 1, 1), image.dtype)


def labelled(found: Opened) -> tuple[Tensor, Tensor]:
    """The images as the model reads them, and their classes by number."""
    if found.images.labels is None:
        raise UserError("these images have no classes", where="model", expected="a run with labelled images")
    return found.inputs(), torch.from_numpy(found.images.labels).to(found.predictor.device)


def short_name(layer: str) -> str:
    """The name of a layer without that of its tap."""
    return layer.removesuffix(".output")


def array(values: Tensor) -> NDArray[np.float32]:
    found: NDArray[np.float32] = values.float().cpu().numpy()
    return found
