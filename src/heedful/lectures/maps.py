"""Three maps of the same images: t-SNE of their codes, codes of two numbers as they are, and t-SNE of the pixels.

Van der Maaten and Hinton (2008). Each map comes with how often the neighbours of a point say its class rightly, and
with the time that it took. N images, D numbers of a code or of an image.
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
    beside: str | None = Field(None, description="a run of one whose codes are of two numbers; null: no such map")
    points: int = Field(10_000, ge=3, le=100_000, description="images of the test that are drawn, from the first on")
    neighbours: int = Field(10, ge=1, le=1000, description="neighbours that are asked for the class of a point")
    perplexity: float = Field(30.0, gt=0, le=1000, description="neighbours that t-SNE keeps near, about")
    seed: int = Field(0, ge=0, lt=2**32, description="where t-SNE begins")


@dataclass(frozen=True, eq=False)
class Map:
    """The points (N, 2) of one map, made of vectors of so many numbers."""

    name: str
    numbers: int
    points: Floats
    right: float  # the share of points whose neighbours say their class
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
    """Vectors (N, D) as points (N, 2) such that near ones stay near; of few vectors, fewer are taken for near."""
    near = min(perplexity, (len(vectors) - 1) / 3)
    made: Floats = TSNE(perplexity=near, init=beginning(vectors, seed), random_state=seed).fit_transform(vectors)
    return made


def beginning(vectors: Floats, seed: int) -> Floats:
    """Where t-SNE begins, (N, 2): in the directions of most spread, or by chance where vectors have no two of them.

    This is what scikit-learn does by itself, but for vectors that are all the same: of these it makes points that are
    no numbers, and its tree of them ends the process.
    """
    if vectors.shape[1] > 1:
        first: Floats = PCA(2, random_state=seed).fit_transform(vectors).astype(np.float32)
        spread = first[:, 0].std()
        if spread > 0:
            return first / spread * 1e-4
    return np.random.default_rng(seed).normal(scale=1e-4, size=(len(vectors), 2)).astype(np.float32)


def neighbour_accuracy(points: Floats, labels: NDArray[np.int64], neighbours: int) -> float:
    """The share of points (N, 2) whose nearest others, by the most votes, have its label; of a tie, the least label."""
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
    """The lecture's comparison; codes (N, D), and codes of two numbers (N, 2), are made on the way, and timed."""

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
        yield Progress(0.4, "codes of two numbers")
        found.append(mapped("codes of two numbers", lambda: (2, flat())))
    yield Progress(0.5, "t-SNE of the pixels")
    found.append(mapped("t-SNE of the pixels", lambda: embedded(pixels)))
    return Maps(tuple(found), labels, tuple(names), settings.neighbours)


def painter_in(folder: str | None) -> ImageAutoencoder:
    """The autoencoder of a run; this figure cannot do without one."""
    if folder is None:
        raise UserError(
            "this figure needs a trained autoencoder", where="model", found="none",
            expected="the folder of a run of `heedful train digits`, say", todo="name it: model=RUN",
        )  # fmt: skip
    painter = load(folder)
    if not isinstance(painter, ImageAutoencoder):
        raise UserError(
            "this model is no autoencoder",
            where="model",
            found=folder,
            todo="name a run of `heedful train digits`, say",
        )
    return painter


def images_of(folder: str, points: int) -> Images:
    """The first images of a run's test, or of its validation where it has none, with their classes."""
    data: Any = read_recipe(Path(folder)).data
    found: Images = data.read("valid" if data.test is None else "test")
    if found.labels is None:
        raise UserError(
            "these images have no labels, by which a map is judged", where=f"{Path(folder, 'recipe.yaml')}: data",
            todo="train on data with labels; `heedful encode` writes codes without them",
        )  # fmt: skip
    if len(found) < 3:
        raise UserError(
            "there are too few images for a map", where="model", found=str(len(found)), expected="3 or more"
        )
    return Images(found.pixels[:points], found.labels[:points], found.names)


def study(settings: Settings) -> Generator[Progress, None, Maps]:
    """Read the images, encode them, and draw them in each way."""
    painter = painter_in(settings.model)
    beside = None if settings.beside is None else painter_in(settings.beside)
    if beside is not None and (found := beside.code_size) != 2:
        raise UserError(
            "the codes of this run are not of two numbers", where="beside", found=str(found), expected="2",
            todo="train one with a bottleneck of two: the last layer of model.encoder of width 2",
        )  # fmt: skip
    assert settings.model is not None  # as `painter_in` has seen
    images = images_of(settings.model, settings.points)
    assert images.labels is not None  # as `images_of` has seen
    pixels = scale_pixels(images.pixels).reshape(len(images), -1)  # (N, D)
    flat = None if beside is None else lambda: beside.encode(images.pixels)
    return (yield from maps(lambda: painter.encode(images.pixels), flat, pixels, images.labels, images.names, settings))


def plot(found: Maps, style: Style = "light") -> Figure:
    """The maps side by side, coloured by class, each with its figures."""
    panels = {f"{one.name}: {one.right:.1%} right, {one.seconds:.1f} s": one.points for one in found.maps}
    return scatter(panels, found.labels, found.names, f"{len(found.labels):,} images, by their classes", style)
