"""Captions of images, word by word, with what each word attended to."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from heedful.data.images.augmentation import Augmentation
from heedful.data.images.caption_batches import CaptionBatches, encode_captions
from heedful.data.images.captions import SceneCaptions
from heedful.data.images.image_spec import ImageSpec
from heedful.data.images.inputs import AnyImage, display
from heedful.data.images.normalization import channel_statistics
from heedful.data.tokenizers.tokenizer import TrainedTokenizer, WordPiece
from heedful.errors import UserError
from heedful.lectures import Progress
from heedful.lectures.learning import learn, seeded
from heedful.models import build
from heedful.models.captioner.config import CaptionerConfig, RecurrentDecoder, SoftAttention
from heedful.models.vgg.config import VggConfig
from heedful.plots.caption_grid import caption_rows
from heedful.plots.gallery.vision import Drawing, Files, Seed
from heedful.plots.style import Style
from heedful.runs.images import test_split
from heedful.runs.load import load
from heedful.tasks.captioning.losses import caption_loss
from heedful.tasks.captioning.predictor import Caption, CaptionVocabulary, ImageCaptioner

BATCH, LR = 32, 3e-3  # images in a step
SCENES = SceneCaptions(train=4_000, test=20, size=(24, 24), objects=(1, 2), captions=1)
SMALL = CaptionerConfig(
    encoder=VggConfig(size=(24, 24), depths=(1, 1), filters=(16, 32), norm="batch"),
    positions="learned",
    decoder=RecurrentDecoder(width=48, hidden=96, attention=SoftAttention(score="general", coverage=0)),
    context=32,
    dropout=0,
)

Model = Annotated[
    str | None, Field(description="a run or a model folder of a captioner; null: a small one, trained at once")
]
Count = Annotated[int, Field(ge=1, le=16, description="images that are drawn")]
Steps = Annotated[int, Field(ge=1, le=100_000, description="training steps of the small model")]


def captions(
    *,
    model: Model = None,
    images: Files = (),
    count: Count = 3,
    steps: Steps = 1000,
    seed: Seed = 0,
    style: Style = "light",
) -> Drawing:
    """Images with their captions: each word, and above the image what it attended to (Xu et al., 2015)."""
    captioner, shown, source = yield from _opened(model, images, count, steps, seed)
    found = captioner.caption(shown)
    rows = [_row("", image, caption) for image, caption in zip(shown, found, strict=True)]
    return caption_rows(rows, f"What each word attends to: {source}", style)


def soft_hard(
    *,
    model: Model = None,
    images: Files = (),
    steps: Steps = 1000,
    seed: Seed = 0,
    style: Style = "light",
) -> Drawing:
    """The caption of an image, and the maps of its words with soft and with hard attention, by the same weights."""
    captioner, shown, source = yield from _opened(model, images, 1, steps, seed)
    image = shown[0]
    ids = captioner.caption([image])[0].ids
    kinds = seeded(lambda: [(kind, captioner.attending(kind)) for kind in ("soft", "hard")], seed)
    rows = [_row(kind, image, one.describe(image, ids)) for kind, one in kinds]
    return caption_rows(rows, f"Soft and hard attention: {source}", style)


def _row(name: str, image: AnyImage, caption: Caption) -> tuple[str, Any, list[str], Any]:
    """A row of the figure."""
    if caption.maps is None:
        raise UserError(
            "this captioner does not attend to the image",
            where="model",
            expected="one with attention, such as captions",
        )
    return name, display(image), caption.words, caption.maps.numpy()


def _opened(
    model: str | None, images: tuple[str, ...], count: int, steps: int, seed: int
) -> Generator[Progress, None, tuple[ImageCaptioner, list[AnyImage], str]]:
    """A captioner of a folder, or a small one that is trained at once; image files or test images; and its name."""
    if model is None:
        captioner = yield from train(steps, seed)
        source = f"{steps:,} training steps on drawn scenes"
    else:
        found = seeded(lambda: load(model), seed)
        if not isinstance(found, ImageCaptioner):
            raise UserError(
                "this model does not caption images", where="model", found=model,
                expected="a run of a captioner, such as captions",
            )  # fmt: skip
        captioner, source = found, Path(model).name or model
    if images:
        return captioner, [Path(name) for name in images], source
    pixels = SCENES.read("test").pixels if model is None else test_split(Path(model)).pixels
    return captioner, [np.ascontiguousarray(one) for one in pixels[:count]], source


def train(steps: int, seed: int) -> Generator[Progress, None, ImageCaptioner]:
    """Train a small captioner."""
    known = SCENES.read("train")
    words = TrainedTokenizer.train(WordPiece(vocab=200), (text for each in known.captions for text in each))
    spec = ImageSpec(known.pixels.shape[1:], (), *channel_statistics(known.pixels))
    model: Any = seeded(lambda: build(SMALL.model_copy(update={"vocab": words.vocab})), seed)
    encoded = encode_captions(known, spec, words, SMALL.context)
    batches = CaptionBatches(encoded, seed, BATCH, 1, Augmentation())
    position = 0

    def loss() -> Tensor:
        nonlocal position
        found = caption_loss(model, batches.at(position))
        position += 1
        return found.total / found.count

    for share in learn(model.train(), loss, steps, lr=LR):
        yield Progress(0.9 * share, "training a small captioner")
    model.eval()
    return ImageCaptioner(model, CaptionVocabulary(words, spec), SMALL.context, torch.device("cpu"))
