"""PCA of a word's contextual embeddings: each occurrence is a point, and each layer has its own map.

L layers, N sentences, D width.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import torch
from pydantic import Field
from torch import Tensor

from heedful.config import Config
from heedful.lectures import Progress, Table
from heedful.lectures.contexts import SENTENCES, WORD, reader_in, word_vectors
from heedful.plots.figures import numbered_points
from heedful.plots.style import Figure, Style

MANY = 1000  # vectors from which components are found by their covariances, which is faster


class Settings(Config):
    """The model, the word and its sentences."""

    model: str | None = Field(None, description="folder of a trained encoder, of Heedful or Hugging Face")
    word: str = Field(WORD, min_length=1, max_length=100, description="the word whose occurrences are mapped")
    sentences: tuple[str, ...] = Field(
        SENTENCES, min_length=3, max_length=100, description="sentences that contain the word"
    )
    maps: int = Field(
        4, ge=1, le=12, description="number of layers that are plotted, evenly spaced, the last one included"
    )


@dataclass(frozen=True)
class Maps:
    """The points (L + 1, N, 2) of a word's occurrences by layer, and the variance that two components explain."""

    word: str
    sentences: tuple[str, ...]
    points: Tensor
    explained: list[float]
    maps: int

    def table(self) -> Table:
        axes = [f"{axis} {number}" for number in range(1, len(self.sentences) + 1) for axis in "xy"]
        rows = zip(range(len(self.points)), self.explained, self.points.flatten(1).tolist(), strict=True)
        return Table(("layer", "explained variance", *axes), tuple((layer, share, *row) for layer, share, row in rows))


def principal_components(vectors: Tensor) -> tuple[Tensor, float]:
    """Vectors (N, D) on their first two principal components, (N, 2), and the share of the variance these explain.

    The sign of a component is such that its largest entry is positive, so that the map is reproducible.
    """
    centred = vectors.double() - vectors.double().mean(0)  # (N, D)
    if len(centred) > MANY:
        squares, right = torch.linalg.eigh(centred.T @ centred)  # (D,), (D, D), the largest last
        right = right[:, -2:].flip(1)  # (D, 2)
        right = right * right.gather(0, right.abs().argmax(0, keepdim=True)).sign()
        return (centred @ right).float(), float(squares[-2:].sum() / squares.sum().clamp(min=1e-30))
    left, singular, right = torch.linalg.svd(centred, full_matrices=False)
    largest = right.gather(1, right.abs().argmax(1, keepdim=True))[:, 0]  # (N,)
    points = left * singular * largest.sign()  # (N, N)
    variance = singular.square()
    return points[:, :2].float(), float(variance[:2].sum() / variance.sum().clamp(min=1e-30))


def study(settings: Settings) -> Generator[Progress, None, Maps]:
    """Encode the sentences, and project the vectors of each layer."""
    reader = reader_in(settings.model)
    yield Progress(0.0, "reading the sentences")
    vectors = word_vectors(reader, settings.word, settings.sentences)[:, 1:]  # (N, L + 1, D)
    yield Progress(1.0, "projecting")
    points, explained = zip(*map(principal_components, vectors.transpose(0, 1)), strict=True)
    return Maps(settings.word, settings.sentences, torch.stack(points), list(explained), settings.maps)


def plot(result: Maps, style: Style = "light") -> Figure:
    """The maps of some layers; each point has the number of its sentence, listed below."""
    last = len(result.points) - 1
    layers = dict.fromkeys(round(last * (step + 1) / result.maps) for step in range(result.maps))
    panels = {f"layer {layer}": result.points[layer].numpy() for layer in layers}
    return numbered_points(panels, result.sentences, f"Occurrences of “{result.word}”, by layer", style)
