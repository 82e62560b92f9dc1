"""Autoencoders of images: the reconstruction loss, and the predictor.

B batch, N images, C channels, Y rows, X columns, D size of a code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from heedful.blocks.losses import Loss, squared_error
from heedful.blocks.noise import gaussian
from heedful.data.images.batches import EncodedImages, ImageBatch
from heedful.data.images.image_spec import ImageSpec
from heedful.data.images.sources import ArrayFile, ArrayImages, CsvImages, IdxImages, ImageFiles, scale_pixels
from heedful.errors import UserError
from heedful.tasks.predictor import Evaluation, Predictor, Result
from heedful.tasks.reconstruction.recipe import ReconstructionTaskConfig
from heedful.training.metrics import Score

Floats = NDArray[np.float32]
Image = NDArray[np.generic]  # pixels as bytes or as floats
BATCH_SIZE = 1000  # images


@dataclass(frozen=True)
class Noise:
    """Gaussian noise on every pixel, and the range to which noisy pixels are clipped."""

    deviation: float
    clip: tuple[float, float] | None
    seed: int = 0

    def __call__(self, x: Tensor, epoch: Tensor, indices: Tensor) -> Tensor:
        """The images with noise, which depends only on the seed, the epoch and the index of the image."""
        if not self.deviation:
            return x
        noisy = x + self.deviation * gaussian(self.seed, epoch, indices, tuple(x.shape[1:]))  # (B, C, Y, X)
        return noisy if self.clip is None else noisy.clamp(*self.clip)


def pixels_of(batch: ImageBatch) -> Tensor:
    """The pixels as floats: bytes are divided by 255, other numbers are unchanged."""
    return batch.pixels.float() / 255 if batch.pixels.dtype == torch.uint8 else batch.pixels


def reconstruction_loss(model: Any, batch: ImageBatch, noise: Noise) -> Loss:
    """The mean squared error per pixel of reconstructions from images or noisy copies, summed over images."""
    x = pixels_of(batch)  # (B, C, Y, X)
    inputs = noise(x, batch.epoch, batch.indices)  # (B, C, Y, X)
    shape = model.config.input
    reconstructed = model(inputs.view(-1, *shape))
    total = squared_error(reconstructed, x.view(-1, *shape)) / math.prod(shape)
    return Loss(total, total.detach(), batch.indices.new_full((), len(x)))


@torch.inference_mode()
def mean_loss(model: nn.Module, encoded: EncodedImages, noise: Noise, device: torch.device) -> float:
    """The mean squared error per pixel over a split."""
    losses = [reconstruction_loss(model, batch.to(device), noise) for batch in encoded.in_order(BATCH_SIZE)]
    return float(torch.stack([loss.total.double() for loss in losses]).sum()) / len(encoded)


@dataclass(frozen=True, repr=False)
class Reconstruction(Result):
    """A reconstructed image, its code (D,), and the mean squared error per pixel."""

    image: Floats  # (C, Y, X)
    code: Floats  # (D,)
    error: float


@dataclass
class ImageAutoencoder(Predictor[Image, Reconstruction, tuple[Image, Image]]):
    """Encodes images as codes, and decodes codes; images are arrays (N, C, Y, X), bytes or floats as in training."""

    task: ClassVar = "reconstruction"

    model: nn.Module
    tokenizer: ImageSpec  # the shape of its images
    noise: Noise
    device: torch.device
    notes: tuple[str, ...] = ()

    @property
    def canvas(self) -> ImageSpec:
        """The shape of its images."""
        return self.tokenizer

    @property
    def decode_settings(self) -> ReconstructionTaskConfig:
        """The noise that it was trained to remove."""
        return ReconstructionTaskConfig(noise=self.noise.deviation, clip=self.noise.clip)

    @property
    def code_size(self) -> int:
        """The number of values D of a code."""
        return math.prod(self._net.config.code)

    def predict(self, inputs: Sequence[Image] | Image) -> list[Reconstruction]:
        """The reconstruction of each image."""
        if not len(inputs):
            return []
        images = np.stack(list(inputs))
        parts = zip(self.reconstruct(images), self.encode(images), scale_pixels(images), strict=True)
        return [
            Reconstruction(reconstructed, code, float(((reconstructed - given) ** 2).mean()))
            for reconstructed, code, given in parts
        ]

    def _evaluate(self, data: Path | Sequence[tuple[Image, Image]]) -> Evaluation:
        if isinstance(data, Path):
            targets = scale_pixels(self.canvas.require(read_images(data), str(data)))
            inputs = targets if not self.noise.deviation else self.noisy(targets)
        else:
            inputs, targets = (scale_pixels(np.stack(side)) for side in zip(*data, strict=True))
        loss = float(((self.reconstruct(inputs) - targets) ** 2).mean(dtype=np.float64))
        return Evaluation.of((explained_variance(loss, targets, self.noise),), loss, len(targets))

    def encode(self, images: Image) -> Floats:
        """The code of each image, as one vector (N, D)."""
        return self._apply(lambda x: self._net.encoder(x).flatten(1), self._inputs(images))

    def decode(self, codes: Image) -> Floats:
        """The decoded image of each code, (N, C, Y, X)."""
        shape = self._net.config.code
        if codes.ndim != 2 or codes.shape[1] != math.prod(shape):
            raise UserError(
                "these are not codes of this model",
                found=f"an array of shape {codes.shape}",
                expected=f"(N, {math.prod(shape)}), a row per image, as `encode` returns them",
            )
        code = torch.from_numpy(np.ascontiguousarray(codes, dtype=np.float32)).view(-1, *shape)
        return self._apply(self._net.decoder, code).reshape(-1, *self.canvas.image)

    def reconstruct(self, images: Image) -> Floats:
        """Each image reconstructed from its code, (N, C, Y, X); a denoising autoencoder removes noise."""
        return self._apply(self.model, self._inputs(images)).reshape(-1, *self.canvas.image)

    def noisy(self, images: Image, seed: int = 0) -> Floats:
        """The images with noise as in training, (N, C, Y, X)."""
        x = torch.from_numpy(scale_pixels(self.canvas.require(images)))
        noise = replace(self.noise, seed=seed)
        return noise(x, torch.tensor(-1), torch.arange(len(x))).numpy()

    def walk(self, first: Image, last: Image, steps: int) -> Floats:
        """Images decoded from interpolated codes of two images (1, C, Y, X), both ends included."""
        start, end = self.encode(first), self.encode(last)  # (1, D)
        weights = np.linspace(0, 1, steps, dtype=np.float32)[:, None]  # (N, 1)
        return self.decode((1 - weights) * start + weights * end)

    def _inputs(self, images: Image) -> Tensor:
        x = torch.from_numpy(scale_pixels(self.canvas.require(images)))  # (N, C, Y, X)
        return x.reshape(-1, *self._net.config.input)

    @torch.inference_mode()
    def _apply(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Floats:
        parts = [function(part.to(self.device)).cpu() for part in _parts(x)]
        return torch.cat(parts).numpy()


def explained_variance(loss: float, images: Image, noise: Noise) -> Score:
    """The explained variance of the images: 1 - error / variance, in percent."""
    variance = float(scale_pixels(images).var(0, dtype=np.float64).mean())
    how = f"images:{len(images)}|noise:{noise.deviation:g}|of:variance"
    return Score("explained", 100 * (1 - loss / variance) if variance else 0.0, how)


def read_images(path: Path) -> Image:
    """The images of a .npy or .npz array, an idx file, or a .csv or .tsv file with a row per image."""
    suffix, name = Path(path.name.removesuffix(".gz")).suffix, str(path)
    if suffix in (".npy", ".npz"):
        return ArrayImages(train=ArrayFile(file=name), test=ArrayFile(file=name)).read("test").pixels
    if suffix in (".csv", ".tsv"):
        return CsvImages(train=name, test=name, separator="," if suffix == ".csv" else "\t").read("test").pixels
    return IdxImages(train=ImageFiles(images=name), test=ImageFiles(images=name)).read("test").pixels


def _parts(x: Tensor) -> Iterator[Tensor]:
    """Batches of images; one empty batch if there are no images."""
    for start in range(0, max(1, len(x)), BATCH_SIZE):
        yield x[start : start + BATCH_SIZE]
