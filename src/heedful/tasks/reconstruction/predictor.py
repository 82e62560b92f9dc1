"""Images made again from a code: the loss, and the model with all that it takes to use it.

B batch, N images, C channels, Y rows, X columns, D numbers of a code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from heedful.blocks.losses import Loss, squared_error
from heedful.blocks.noise import gaussian
from heedful.data.images.batches import EncodedImages, ImageBatch
from heedful.data.images.image_spec import ImageSpec
from heedful.data.images.sources import scale_pixels
from heedful.errors import UserError

Floats = NDArray[np.float32]
AT_ONCE = 1000  # images that are read together


@dataclass(frozen=True)
class Noise:
    """Gaussian noise on every pixel, and the bounds that noisy pixels are cut to."""

    deviation: float
    clip: tuple[float, float] | None
    seed: int = 0

    def __call__(self, x: Tensor, epoch: Tensor, indices: Tensor) -> Tensor:
        """The same images, noisy; which noise an image gets depends on the seed, the epoch and its number alone."""
        if not self.deviation:
            return x
        noisy = x + self.deviation * gaussian(self.seed, epoch, indices, tuple(x.shape[1:]))  # (B, C, Y, X)
        return noisy if self.clip is None else noisy.clamp(*self.clip)


def pixels_of(batch: ImageBatch) -> Tensor:
    """Pixels as the model reads them: bytes as shares of 255, other numbers as they are."""
    return batch.pixels.float() / 255 if batch.pixels.dtype == torch.uint8 else batch.pixels


def reconstruction_loss(model: Any, batch: ImageBatch, noise: Noise) -> Loss:
    """The mean squared difference of an image's pixels from what is made of it, or of what noise left; added up."""
    x = pixels_of(batch)  # (B, C, Y, X)
    given = noise(x, batch.epoch, batch.indices)  # (B, C, Y, X)
    shape = model.config.input
    made = model(given.view(-1, *shape))
    total = squared_error(made, x.view(-1, *shape)) / math.prod(shape)
    return Loss(total, total.detach(), batch.indices.new_full((), len(x)))


@torch.inference_mode()
def mean_loss(model: nn.Module, encoded: EncodedImages, noise: Noise, device: torch.device) -> float:
    """The mean squared difference a pixel over a split."""
    losses = [reconstruction_loss(model, batch.to(device), noise) for batch in encoded.in_order(AT_ONCE)]
    return float(torch.stack([loss.total.double() for loss in losses]).sum()) / len(encoded)


class ImageAutoencoder:
    """An autoencoder, ready to be used: images are arrays (N, C, Y, X), bytes or floats, as it was trained on them."""

    def __init__(
        self,
        model: Any,
        canvas: ImageSpec,
        noise: Noise,
        device: torch.device,
        notes: tuple[str, ...] = (),
    ) -> None:
        self.model, self.tokenizer, self.noise, self.device, self.notes = model, canvas, noise, device, notes
        self.model.to(device).eval()

    @property
    def canvas(self) -> ImageSpec:
        """What its images are like."""
        return self.tokenizer

    def encode(self, images: NDArray[Any]) -> Floats:
        """The code of each image, as one vector (N, D)."""
        return self._through(lambda x: self.model.encoder(x).flatten(1), self._inputs(images))

    def decode(self, codes: NDArray[Any]) -> Floats:
        """The image that each code stands for, (N, C, Y, X)."""
        shape = self.model.config.code
        if codes.ndim != 2 or codes.shape[1] != math.prod(shape):
            raise UserError(
                "these are no codes of this model",
                found=f"an array of shape {codes.shape}",
                expected=f"(N, {math.prod(shape)}), a row for each image, as `encode` gives them",
            )
        given = torch.from_numpy(np.ascontiguousarray(codes, dtype=np.float32)).view(-1, *shape)
        return self._through(self.model.decoder, given).reshape(-1, *self.canvas.image)

    def reconstruct(self, images: NDArray[Any]) -> Floats:
        """Each image as it is made again from its code, (N, C, Y, X); of a noisy image, what is restored."""
        return self._through(self.model, self._inputs(images)).reshape(-1, *self.canvas.image)

    def noisy(self, images: NDArray[Any], seed: int = 0) -> Floats:
        """The images with such noise as the model learned to undo, (N, C, Y, X)."""
        x = torch.from_numpy(scale_pixels(self.canvas.require(images)))
        noise = replace(self.noise, seed=seed)
        return noise(x, torch.tensor(-1), torch.arange(len(x))).numpy()

    def walk(self, first: NDArray[Any], last: NDArray[Any], steps: int) -> Floats:
        """Images of the codes on the straight line between the codes of two images (1, C, Y, X), ends included."""
        start, end = self.encode(first), self.encode(last)  # (1, D)
        shares = np.linspace(0, 1, steps, dtype=np.float32)[:, None]  # (N, 1)
        return self.decode((1 - shares) * start + shares * end)

    def _inputs(self, images: NDArray[Any]) -> Tensor:
        x = torch.from_numpy(scale_pixels(self.canvas.require(images)))  # (N, C, Y, X)
        return x.reshape(-1, *self.model.config.input)

    @torch.inference_mode()
    def _through(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Floats:
        parts = [function(part.to(self.device)).cpu() for part in _parts(x)]
        return torch.cat(parts).numpy()


def _parts(x: Tensor) -> Iterator[Tensor]:
    """A few images at a time, and once where there are none."""
    for start in range(0, max(1, len(x)), AT_ONCE):
        yield x[start : start + AT_ONCE]
