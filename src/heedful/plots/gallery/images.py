"""Digits: maps of them, and reconstructions.

N images, D pixels.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from heedful.data.embedded import Digits
from heedful.extras.estimators.autoencoder import Autoencoder, DenoisingAutoencoder
from heedful.extras.estimators.pca import PCA
from heedful.lectures import Progress
from heedful.lectures.maps import neighbour_accuracy, tsne
from heedful.plots.autoencoder_plots import first_of_each
from heedful.plots.figures import scatter
from heedful.plots.image_grid import Window, image_strips
from heedful.plots.style import Figure, Style

Seed = Annotated[int, Field(ge=0, lt=2**32)]
Epochs = Annotated[int, Field(ge=1, le=1000, description="epochs of the autoencoder")]


def digit_maps(
    *,
    points: Annotated[int, Field(ge=10, le=1797, description="digits that are drawn")] = 1000,
    epochs: Epochs = 60,
    seed: Seed = 0,
    style: Style = "light",
) -> Generator[Progress, None, Figure]:
    """Digits by two principal components, by the two values of an autoencoder's code, and by t-SNE."""
    images = Digits().read("train")
    pixels = images.vectors[:points].astype(np.float32)
    assert images.labels is not None  # digits have them
    labels = images.labels[: len(pixels)]
    yield Progress(0.0, "PCA")
    maps: dict[str, NDArray[Any]] = {"PCA": PCA(2).fit_transform(pixels)}
    yield Progress(0.1, "training an autoencoder with a code of two values")
    net = Autoencoder(
        2, hidden_layer_sizes=(64, 32), activation="tanh", solver="adam", learning_rate_init=3e-3, batch_size=32,
        max_iter=epochs, random_state=seed, device="cpu",
    )  # fmt: skip
    maps["autoencoder"] = net.fit(pixels).transform(pixels)
    yield Progress(0.6, "t-SNE")
    maps["t-SNE"] = tsne(pixels, 30.0, seed)
    panels = {
        f"{name}: {neighbour_accuracy(points, labels, 10):.0%} right by 10 neighbours": points
        for name, points in maps.items()
    }
    return scatter(panels, labels, images.names, f"{len(pixels):,} handwritten digits on a plane", style)


def reconstructions(
    *,
    noise: Annotated[float, Field(ge=0, le=10, description="standard deviation of the noise")] = 0.3,
    epochs: Epochs = 20,
    seed: Seed = 0,
    style: Style = "light",
) -> Generator[Progress, None, Figure]:
    """Test digits, the same with noise, and what a denoising autoencoder makes of these."""
    known, test = Digits().read("train"), Digits().read("test")
    yield Progress(0.0, "training a denoising autoencoder")
    net = DenoisingAutoencoder(
        noise=noise, filters=(32,), output_activation="sigmoid", max_iter=epochs, batch_size=32, random_state=seed,
        device="cpu",
    ).fit(known.vectors.astype(np.float32))  # fmt: skip
    some = test.pixels[first_of_each(test.labels, 10, len(test))].astype(np.float32)  # (10, 1, 8, 8)
    random = np.random.default_rng(seed)
    noisy = np.clip(some + random.normal(scale=noise, size=some.shape), 0, 1).astype(np.float32)
    restored = net.reconstruct(noisy.reshape(len(noisy), -1)).reshape(noisy.shape).astype(np.float32)
    errors = [float(np.square(found - some).mean()) for found in (noisy, restored)]
    rows = [
        ("original", some),
        (f"noisy, error {errors[0]:.3f}", noisy),
        (f"restored, error {errors[1]:.3f}", restored),
    ]
    title = f"Digits with noise of deviation {noise:g}, and restored"
    return image_strips(rows, title, Window.of(some), style, apart=1.04)
