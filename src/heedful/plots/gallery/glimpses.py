"""Where a recurrent attention model looks: at a digit among clutter, and at a target among distractors.

N images, C channels, Y rows, X columns, T glimpses.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from heedful.data.images.cluttered import ClutteredImages, VisualSearch
from heedful.data.images.image_spec import ImageSpec
from heedful.data.images.inputs import AnyImage, prepare
from heedful.data.images.labelled_batches import LabelledImageBatches, encode_labelled_images
from heedful.data.images.normalization import channel_statistics
from heedful.data.images.sources import Images, scale_pixels
from heedful.errors import UserError
from heedful.lectures import Progress
from heedful.lectures.learning import learn, seeded
from heedful.models import build
from heedful.models.recurrent_attention.config import RecurrentAttentionConfig
from heedful.plots.autoencoder_plots import first_of_each
from heedful.plots.gallery.vision import Files, Model, Seed
from heedful.plots.glimpse_plots import Looked, plot_glimpses
from heedful.plots.style import Figure, Style
from heedful.runs.images import test_images
from heedful.runs.load import load
from heedful.tasks.image_classification.glimpses import GlimpseClassifier, glimpse_loss

BATCH = 64  # images in a step
LR = 2e-3
DIGITS = ClutteredImages(size=(28, 28), clutter=0, copies=8)
READER = RecurrentAttentionConfig(glimpses=4, patch=8, noise=0.2)
SCENES = VisualSearch(train=6_000)
SEARCHER = RecurrentAttentionConfig(glimpses=4, patch=8, scales=2, noise=0.2)

Count = Annotated[int, Field(ge=1, le=32, description="images that are drawn")]
Steps = Annotated[int, Field(ge=1, le=100_000, description="training steps of the small model")]
Drawing = Generator[Progress, None, Figure]


def glimpses(
    *,
    model: Model = None,
    images: Files = (),
    count: Count = 5,
    steps: Steps = 1500,
    seed: Seed = 0,
    style: Style = "light",
) -> Drawing:
    """The path over images with a digit among clutter, and what each glimpse sees (Mnih et al., 2014)."""
    return (yield from _drawing(model, images, count, DIGITS, READER, steps, seed, style))


def visual_search(
    *,
    model: Model = None,
    images: Files = (),
    count: Count = 5,
    steps: Steps = 1500,
    seed: Seed = 0,
    style: Style = "light",
) -> Drawing:
    """The path to the only red shape among others, whose name is asked for."""
    return (yield from _drawing(model, images, count, SCENES, SEARCHER, steps, seed, style))


def _drawing(
    model: str | None,
    images: tuple[str, ...],
    count: int,
    data: ClutteredImages | VisualSearch,
    config: RecurrentAttentionConfig,
    steps: int,
    seed: int,
    style: Style,
) -> Drawing:
    if model is None:
        classifier = yield from train(data, config, steps, seed)
        source = f"{config.glimpses} glimpses, {steps:,} training steps"
    else:
        found = load(model)
        if not isinstance(found, GlimpseClassifier):
            raise UserError(
                "this model has no glimpses", where="model", found=model,
                expected="a run of a recurrent attention model, such as digits-glimpse",
            )  # fmt: skip
        classifier, source = found, Path(model).name or model
    if images:
        shown = [looked(classifier, Path(name), Path(name).stem) for name in images]
    else:
        tests = data.read("test") if model is None else test_images(Path(model))
        rows = first_of_each(tests.labels, count, len(tests))
        assert tests.labels is not None  # these have them
        shown = [looked(classifier, tests.pixels[row], tests.names[tests.labels[row]]) for row in rows]
    return plot_glimpses(shown, f"Where it looks: {source}", style)


def looked(classifier: GlimpseClassifier, image: AnyImage, name: str) -> Looked:
    """An image with its glimpses, titled by its name and the predicted class."""
    pixels = prepare(image, classifier.canvas)
    (result,) = classifier.predict([pixels])
    net: Any = classifier.model
    return Looked(
        scale_pixels(np.asarray(pixels)),
        result.path,
        classifier.views(pixels),
        f"{name}: {result.label} ({result.probability:.0%})",
        net.config.patch,
    )


def train(
    data: ClutteredImages | VisualSearch, config: RecurrentAttentionConfig, steps: int, seed: int
) -> Generator[Progress, None, GlimpseClassifier]:
    """Train a small model."""
    known: Images = data.read("train")
    image = known.pixels.shape[1:]
    spec = ImageSpec(image, known.names, *channel_statistics(known.pixels))
    there = {"channels": image[0], "size": image[1:], "classes": len(known.names)}
    model: Any = seeded(lambda: build(config.model_validate(config.model_dump() | there)), seed)
    batches = LabelledImageBatches(encode_labelled_images(known, spec), seed, BATCH)
    position = 0

    def loss() -> Tensor:
        nonlocal position
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed + position)
            found = glimpse_loss(model.look, model.head, batches.at(position))
        position += 1
        return found.total / found.count

    for share in learn(model.train(), loss, steps, lr=LR):
        yield Progress(0.9 * share, "training a small recurrent attention model")
    return GlimpseClassifier(model, spec, torch.device("cpu"))
