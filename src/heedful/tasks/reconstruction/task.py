"""Autoencoders of images, plain or denoising: the mean squared error of the reconstruction."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch

from heedful.blocks.losses import Loss
from heedful.data.formats.sources import Split
from heedful.data.images.batches import EncodedImages, ImageBatches, encode_images
from heedful.data.images.image_spec import ImageSpec
from heedful.data.images.sources import Images
from heedful.data.own import images
from heedful.errors import UserError
from heedful.tasks.base import Codec, Evaluated, HeldOut, Names, Task
from heedful.tasks.reconstruction.predictor import (
    ImageAutoencoder,
    Noise,
    explained_variance,
    mean_loss,
    reconstruction_loss,
)
from heedful.tasks.reconstruction.recipe import ReconstructionRecipe, ReconstructionTaskConfig

PRODUCTS_PER_THREAD = 8_000_000  # multiplications of a step for which another thread pays


class ReconstructionTask(Task[Images, ImageSpec, EncodedImages, ImageAutoencoder]):
    """Reconstruct images from themselves, or from noisy copies."""

    words: ClassVar = Names(
        examples="images",
        tokens="values in each",
        too_long="images that are too large",
        blank="files in the folders that are not images, left out",
        learning="measuring the images",
        encoding="encoding the images",
        testing="reconstructing the {} set",
        sample=("image", "expected", "reconstructed"),
        counted="images",
        loss="mean squared error",
    )
    decoding: ClassVar = ReconstructionTaskConfig
    artifacts: ClassVar = {"images.json": Codec(ImageSpec.parse, ImageSpec.load)}
    searches: ClassVar = False

    def __init__(self, recipe: ReconstructionRecipe) -> None:
        super().__init__(recipe)
        self.noise = Noise(recipe.task.noise, recipe.task.clip, recipe.train.seed)

    @property
    def decode(self) -> ReconstructionTaskConfig:
        """The noise that is added to images."""
        found: ReconstructionTaskConfig = self.recipe.task
        return found

    def read(self, split: Split) -> Images:
        """The images of a split."""
        return self.recipe.data.read(split)

    collect = staticmethod(images)

    def learn(self, read: Images) -> ImageSpec:
        """The shape of the images."""
        channels, rows, columns = read.pixels.shape[1:]
        return ImageSpec((channels, rows, columns), read.names, resample=read.resample)

    @staticmethod
    def fitted(config: Any, vocabulary: ImageSpec, where: str) -> Any:
        """The settings of the model, if it reads images of this size."""
        image = vocabulary.image
        shapes: tuple[tuple[int, ...], ...] = (image, (math.prod(image),))
        if config.input not in shapes:
            raise UserError(
                "the model does not fit the images",
                where=f"{where}.input",
                found=f"{list(config.input)}, but the images are of {' x '.join(map(str, image))}",
                expected=f"{list(image)}, or {list(shapes[1])} for each as one vector",
                todo="change model.input and the width of the decoder's last layer, or scale the images",
            )
        return config

    def encode(self, read: Images, vocabulary: ImageSpec) -> EncodedImages:
        """The pixels, unchanged."""
        vocabulary.require(read.pixels, "the data")
        return encode_images(read)

    def batches(self, encoded: EncodedImages, packed: bool, even: bool) -> ImageBatches:
        """Batches of a fixed number of images."""
        return ImageBatches(encoded, self.recipe.train.seed, self.recipe.images)

    @property
    def records(self) -> bool:
        """True: steps of these networks are short."""
        return True

    def threads(self, model: Any, cores: int) -> int:
        """One thread for every few million multiplications of a step."""
        config: Any = self.recipe.model
        return max(1, min(cores, config.products * self.recipe.images // PRODUCTS_PER_THREAD))

    def loss_of(self, model: Any, packed: bool) -> Callable[[Any], Loss]:
        """The mean squared error of the pixels."""
        compiled = torch.compile(model) if self.recipe.train.compile else model
        return partial(reconstruction_loss, compiled, noise=self.noise)

    @staticmethod
    def predictor(
        model: Any,
        config: Any,
        vocabulary: ImageSpec,
        decode: ReconstructionTaskConfig,
        device: torch.device,
        notes: tuple[str, ...] = (),
    ) -> ImageAutoencoder:
        """The autoencoder of a trained model."""
        return ImageAutoencoder(model, vocabulary, Noise(decode.noise, decode.clip), device, notes)

    def loss(self, predictor: ImageAutoencoder, encoded: EncodedImages) -> float:
        """The mean squared error per pixel."""
        return mean_loss(predictor.model, encoded, self.noise, predictor.device)

    def evaluate(self, predictor: ImageAutoencoder, held_out: HeldOut[Images, EncodedImages]) -> Evaluated:
        """The explained variance of the images."""
        return held_out.result((explained_variance(held_out.loss, held_out.read.pixels, self.noise),))

    @property
    def validates(self) -> bool:
        """Whether there are validation images; otherwise the test images are used."""
        return self.recipe.data.valid is not None

    def in_words(self, loss: float) -> str:
        """The mean squared error per pixel."""
        return f"mean squared error {loss:.4f}"

    def remarks(self, result: Evaluated) -> list[str]:
        """Advice if the model is no better than the mean image."""
        if result.scores[0].value > 0:
            return []
        if self.recipe.model.last_activation == "relu":
            return [
                "no better than the mean image: the ReLU of the last layer may have died, so that its outputs and "
                "gradients are zero; try another train.seed, or activation: sigmoid"
            ]
        return ["no better than the mean image: try another learning rate or train.seed, or train for longer"]

    def next(self, folder: Path, test: Evaluated | None) -> list[str]:
        """Commands that reconstruct images, and that plot their codes."""
        name = shlex.quote(str(folder))
        verb = "denoise" if self.noise.deviation else "reconstruct"
        return [f"heedful {verb} {name} -o grid.png", f"heedful figure maps model={name}"]
