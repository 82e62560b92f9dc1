"""Three maps of the same images: t-SNE of their codes, codes of two dimensions as they are, and t-SNE of the pixels.

Van der Maaten and Hinton (2008). Each map comes with its k-nearest-neighbour accuracy and with the time that it took.

N images, D dimensions of a code or pixels of an image.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from sklearn.neighbors import NearestNeighbors

from heedful.config import Config
from heedful.data.images.sources import Images, scale_pixels
from heedful.errors import UserError
from heedful.lectures import Progress, Table
from heedful.plots.figures import scatter
from heedful.plots.style import Figure, Style
from heedful.runs.load import load, read_recipe
from heedful.tasks.reconstruction.predictor import ImageAutoencoder

Floats = NDArray[np.floating[Any]]


class Settings(Config):
    """What is drawn."""

    model: str | None = Field(None, description="a run of an autoencoder")
    beside: str | None = Field(
        None, description="a run of an autoencoder whose codes have two dimensions; null: no such map"
    )
    points: int = Field(10_000, ge=3, le=100_000, description="test images that are drawn, from the first on")
    neighbours: int = Field(10, ge=1, le=1000, description="neighbours that vote for the class of a point")
    perplexity: float = Field(
        30.0, gt=0, le=1000, description="perplexity of t-SNE: about how many neighbours stay near"
    )
    seed: int = Field(0, ge=0, lt=2**32, description="random seed of t-SNE")


@dataclass(frozen=True, eq=False)
class Map:
    """The points (N, 2) of one map, and the dimensions of the vectors it was computed from."""

    name: str
    numbers: int
    points: Floats
    right: float  # k-nearest-neighbour accuracy
    seconds: float


@dataclass(frozen=True, eq=False)
class Maps:
    """The maps, and the class of each of their points (N,)."""

    maps: tuple[Map, ...]
    labels: NDArray[np.int64]
    names: tuple[str, ...]
    neighbours: int

    def table(self) -> Table:
        columns = ("map", "numbers", f"right by {self.neighbours} neighbours", "seconds")
        return Table(columns, tuple((one.name, one.numbers, one.right, one.seconds) for one in self.maps))


def tsne(vectors: Floats, perplexity: float, seed: int) -> Floats:
    """t-SNE of vectors (N, D) as points (N, 2); the perplexity is lower for few vectors."""
    near = min(perplexity, (len(vectors) - 1) / 3)
    points: Floats = TSNE(perplexity=near, init=initial_points(vectors, seed), random_state=seed).fit_transform(vectors)
    return points


def initial_points(vectors: Floats, seed: int) -> Floats:
    """The initial points of t-SNE, (N, 2): two principal components, or random if there are no two.

    This is what scikit-learn does by itself, except for vectors that are all the same: for these it computes NaN, and
    its tree of points crashes the process.
    """
    if vectors.shape[1] > 1 and np.ptp(vectors, axis=0).any():
        first: Floats = PCA(2, random_state=seed).fit_transform(vectors).astype(np.float32)
        spread = first[:, 0].std()
        if spread > 0:
            return first / spread * 1e-4
    return np.random.default_rng(seed).normal(scale=1e-4, size=(len(vectors), 2)).astype(np.float32)


def neighbour_accuracy(points: Floats, labels: NDArray[np.int64], neighbours: int) -> float:
    """The share of points (N, 2) whose label has most votes among the nearest others; the least label wins a tie."""
    nearest = NearestNeighbors(n_neighbors=min(neighbours, len(points) - 1)).fit(points).kneighbors()[1]  # (N, k)
    votes = np.zeros((len(points), int(labels.max()) + 1), dtype=np.int64)
    np.add.at(votes, (np.arange(len(points))[:, None], labels[nearest]), 1)
    return float((votes.argmax(1) == labels).mean())


def maps(
    codes: Callable[[], Floats],
    flat: Callable[[], Floats] | None,
    pixels: Floats,
    labels: NDArray[np.int64],
    names: Sequence[str],
    settings: Settings,
) -> Generator[Progress, None, Maps]:
    """The lecture's comparison; codes (N, D) and codes of two dimensions (N, 2) are computed here, and timed."""

    def mapped(name: str, made: Callable[[], tuple[int, Floats]]) -> Map:
        begin = time.perf_counter()
        numbers, points = made()
        taken = time.perf_counter() - begin
        return Map(name, numbers, points, neighbour_accuracy(points, labels, settings.neighbours), taken)

    def embedded(vectors: Floats) -> tuple[int, Floats]:
        return vectors.shape[1], tsne(vectors, settings.perplexity, settings.seed)

    yield Progress(0.0, "t-SNE of the codes")
    found = [mapped("t-SNE of the codes", lambda: embedded(codes()))]
    if flat is not None:
        yield Progress(0.4, "codes of two dimensions")
        found.append(mapped("codes of two dimensions", lambda: (2, flat())))
    yield Progress(0.5, "t-SNE of the pixels")
    found.append(mapped("t-SNE of the pixels", lambda: embedded(pixels)))
    return Maps(tuple(found), labels, tuple(names), settings.neighbours)


def autoencoder_in(folder: str | None) -> ImageAutoencoder:
    """The autoencoder of a run; this figure cannot do without one."""
    if folder is None:
        raise UserError(
            "this figure needs a trained autoencoder", where="model", found="none",
            expected="the folder of a run of `heedful train digits`, say", todo="name it: model=RUN",
        )  # fmt: skip
    autoencoder = load(folder)
    if not isinstance(autoencoder, ImageAutoencoder):
        raise UserError(
            "this model is no autoencoder",
            where="model",
            found=folder,
            todo="name a run of `heedful train digits`, say",
        )
    return autoencoder


def images_of(folder: str, points: int) -> Images:
    """The first images of a run's test, or of its validation where it has none, with their classes."""
    data: Any = read_recipe(Path(folder)).data
    found: Images = data.read("valid" if data.test is None else "test")
    if found.labels is None:
        raise UserError(
            "these images have no labels, which the accuracy needs", where=f"{Path(folder, 'recipe.yaml')}: data",
            todo="train on data with labels; `heedful encode` writes codes without them",
        )  # fmt: skip
    if len(found) < 3:
        raise UserError(
            "there are too few images for a map", where="model", found=str(len(found)), expected="3 or more"
        )
    return Images(found.pixels[:points], found.labels[:points], found.names)


def study(settings: Settings) -> Generator[Progress, None, Maps]:
    """Read the images, encode them, and draw them in each way."""
    autoencoder = autoencoder_in(settings.model)
    beside = None if settings.beside is None else autoencoder_in(settings.beside)
    if beside is not None and (found := beside.code_size) != 2:
        raise UserError(
            "the codes of this run do not have two dimensions", where="beside", found=str(found), expected="2",
            todo="train one with a bottleneck of two: the last layer of model.encoder of width 2",
        )  # fmt: skip
    assert settings.model is not None  # as `autoencoder_in` has seen
    images = images_of(settings.model, settings.points)
    assert images.labels is not None  # as `images_of` has seen
    pixels = scale_pixels(images.pixels).reshape(len(images), -1)  # (N, D)
    flat = None if beside is None else lambda: beside.encode(images.pixels)
    return (
        yield from maps(lambda: autoencoder.encode(images.pixels), flat, pixels, images.labels, images.names, settings)
    )


def plot(found: Maps, style: Style = "light") -> Figure:
    """The maps side by side, coloured by class, each with its figures."""
    panels = {f"{one.name}: {one.right:.1%} right, {one.seconds:.1f} s": one.points for one in found.maps}
    return scatter(panels, found.labels, found.names, f"{len(found.labels):,} images, by their classes", style)
