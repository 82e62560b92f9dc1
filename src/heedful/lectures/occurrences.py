"""A map of where a word stands: each of its occurrences is a point, and each layer has a map of its own.

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


class Settings(Config):
    """What is shown."""

    model: str | None = Field(None, description="a folder with a trained encoder, ours or of Hugging Face's make")
    word: str = Field(WORD, min_length=1, max_length=100, description="the word")
    sentences: tuple[str, ...] = Field(SENTENCES, min_length=3, max_length=100, description="where it stands")
    maps: int = Field(4, ge=1, le=12, description="layers that are drawn, evenly apart, the last one among them")


@dataclass(frozen=True)
class Maps:
    """The points (L + 1, N, 2) of a word's occurrences by layer, and how much of their spread two directions hold."""

    word: str
    sentences: tuple[str, ...]
    points: Tensor
    held: list[float]
    maps: int

    def table(self) -> Table:
        axes = [f"{axis} {number}" for number in range(1, len(self.sentences) + 1) for axis in "xy"]
        rows = zip(range(len(self.points)), self.held, self.points.flatten(1).tolist(), strict=True)
        return Table(("layer", "share held", *axes), tuple((layer, held, *row) for layer, held, row in rows))


def flat(vectors: Tensor) -> tuple[Tensor, float]:
    """Vectors (N, D) in the two directions that hold most of their spread, (N, 2), and the share of it they hold.

    A direction points to where its largest number is positive, so that the same vectors give the same map.
    """
    centred = vectors.double() - vectors.double().mean(0)  # (N, D)
    left, sizes, right = torch.linalg.svd(centred, full_matrices=False)
    largest = right.gather(1, right.abs().argmax(1, keepdim=True))[:, 0]  # (N,)
    points = left * sizes * largest.sign()  # (N, N)
    spread = sizes.square()
    return points[:, :2].float(), float(spread[:2].sum() / spread.sum().clamp(min=1e-30))


def study(settings: Settings) -> Generator[Progress, None, Maps]:
    """Read the sentences, and flatten each layer."""
    reader = reader_in(settings.model)
    yield Progress(0.0, "reading the sentences")
    vectors = word_vectors(reader, settings.word, settings.sentences)[:, 1:]  # (N, L + 1, D)
    yield Progress(1.0, "flattening")
    points, held = zip(*map(flat, vectors.transpose(0, 1)), strict=True)
    return Maps(settings.word, settings.sentences, torch.stack(points), list(held), settings.maps)


def plot(found: Maps, style: Style = "light") -> Figure:
    """A map for some of the layers, the numbers of the sentences at the points, and the sentences below."""
    last = len(found.points) - 1
    chosen = dict.fromkeys(round(last * (step + 1) / found.maps) for step in range(found.maps))
    panels = {f"layer {layer}": found.points[layer].numpy() for layer in chosen}
    return numbered_points(panels, found.sentences, f"Occurrences of “{found.word}”, by layer", style)
