"""The image classifiers of the figures: one of the reader's, or a small one, trained at once.

N images, C channels, Y rows, X columns.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from heedful.data.embedded import Digits
from heedful.data.formats.sources import SPLITS, Split
from heedful.data.images.image_spec import ImageSpec
from heedful.data.images.inputs import prepare
from heedful.data.images.normalization import channel_statistics
from heedful.data.images.sources import Images
from heedful.errors import UserError
from heedful.lectures import Progress
from heedful.lectures.learning import learn, seeded
from heedful.models import build
from heedful.models.roles import ImageModelConfig
from heedful.plots.autoencoder_plots import first_of_each
from heedful.runs.images import test_images, training_images
from heedful.runs.load import load
from heedful.tasks.image_classification.predictor import ImageClassifier

BATCH = 64  # images in a step
LR = 3e-3
APART = 4  # pixels between two places of a digit


@dataclass(frozen=True)
class Opened:
    """A classifier with images to look at, their classes where known, and what a title says of it."""

    predictor: ImageClassifier
    images: Images
    source: str
    folder: Path | None = None  # of its run; None: a small one of the figures

    @property
    def model(self) -> Any:
        return self.predictor.model

    def inputs(self, images: Sequence[Any] | None = None) -> Tensor:
        """Images as the model reads them (N, C, Y, X); all of them by default."""
        return self.predictor.inputs(list(self.images.pixels) if images is None else images).to(self.predictor.device)

    def some(self, count: int) -> Opened:
        """The first images of each class, `count` in all."""
        rows = first_of_each(self.images.labels, count, len(self.images))
        labels = None if self.images.labels is None else self.images.labels[rows]
        return replace(self, images=Images(self.images.pixels[rows], labels, self.images.names))

    def first(self, count: int) -> Opened:
        """The first images."""
        labels = None if self.images.labels is None else self.images.labels[:count]
        return replace(self, images=Images(self.images.pixels[:count], labels, self.images.names))

    def known(self) -> Opened:
        """The same with the images that it was trained on."""
        return replace(self, images=data("train") if self.folder is None else training_images(self.folder))

    def names(self, numbers: Tensor) -> list[str]:
        """The names of classes by their numbers."""
        return [self.predictor.labels[number] for number in numbers.tolist()]


def opened(
    model: str | None, images: Sequence[str], config: ImageModelConfig, steps: int, seed: int
) -> Generator[Progress, None, Opened]:
    """A classifier of a folder with its test images or with image files; without a folder, one trained at once."""
    if model is None:
        found = yield from train(config, steps, seed)
    else:
        predictor = load(model)
        if not isinstance(predictor, ImageClassifier):
            raise UserError(
                "this model does not classify images", where="model", found=model, expected="an image classifier"
            )
        source = Path(model).name or model
        found = Opened(predictor, Images(np.empty(0)) if images else test_images(Path(model)), source, Path(model))
    if not images:
        return found
    pixels = np.stack([prepare(Path(name), found.predictor.canvas) for name in images])
    return replace(found, images=Images(pixels))


def data(split: Split) -> Images:
    """Handwritten digits of 8 x 8 pixels, each at one of nine places in an image of 16 x 16."""
    digits = Digits().read(split)
    places = np.random.default_rng(SPLITS.index(split)).integers(3, size=(len(digits), 2)) * APART
    pixels = np.zeros((len(digits), 1, 16, 16), np.float32)
    for image, digit, (y, x) in zip(pixels, digits.pixels, places, strict=True):
        image[:, y : y + 8, x : x + 8] = digit
    return replace(digits, stored=pixels)


def train(config: ImageModelConfig, steps: int, seed: int) -> Generator[Progress, None, Opened]:
    """Train a small classifier."""
    known = data("train")
    assert known.labels is not None  # these have them
    image = known.pixels.shape[1:]
    spec = ImageSpec(image, known.names, *channel_statistics(known.pixels))
    there = {"channels": image[0], "size": image[1:], "classes": len(known.names)}
    model: Any = seeded(lambda: build(config.model_validate(config.model_dump() | there)), seed)
    predictor = ImageClassifier(model, spec, torch.device("cpu"))
    inputs, labels = predictor.inputs(list(known.pixels)), torch.from_numpy(known.labels)
    generator = torch.Generator().manual_seed(seed)

    def loss() -> Tensor:
        rows = torch.randint(len(labels), (BATCH,), generator=generator)
        return cross_entropy(model(inputs[rows]), labels[rows])

    for share in learn(model.train(), loss, steps, lr=LR):
        yield Progress(0.8 * share, f"training a small {config.kind}")
    model.eval()
    return Opened(predictor, data("test"), f"a small {config.kind}, trained on digits")
