"""What can be read from the layers by a linear classifier, and which images have similar features.

N images, M queries, C channels, Y rows, X columns, F features.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, normalize

from heedful.extras.vision.layers import feature_maps
from heedful.lectures.linear_probes import linear_probe
from heedful.models.layer_graph import evaluating

BATCH = 256  # images at a time
WIDEST = 1024  # values of a layer that a probe reads


@torch.no_grad()
def layer_vectors(model: Any, images: Tensor) -> dict[str, Tensor]:
    """The vector of each image at each layer, pixels first and features last: (N, values).

    Of a large map, means over squares are taken, so that no vector is longer than 1,024.
    """
    found: dict[str, list[Tensor]] = {}
    for some in images.split(BATCH):
        with evaluating(model):
            vectors = {"pixels": small(some), **{name: small(map) for name, map in feature_maps(model, some).items()}}
            vectors["features"] = model.features(some)  # (B, F)
        for name, vector in vectors.items():
            found.setdefault(name, []).append(vector)
    return {name: torch.cat(parts) for name, parts in found.items()}


def small(map: Tensor) -> Tensor:
    """A map (N, F, Y, X) as vectors (N, values) of at most `WIDEST` values, where there are no more channels."""
    side = max(1, int((WIDEST / map.shape[1]) ** 0.5))
    rows, columns = map.shape[2:]
    return adaptive_avg_pool2d(map, (min(rows, side), min(columns, side))).flatten(1)


def probe_layers(model: Any, known: tuple[Tensor, Tensor], tested: tuple[Tensor, Tensor]) -> dict[str, float]:
    """The accuracy of a linear classifier on each layer, fitted to images and labels and tested on others."""
    one, other = layer_vectors(model, known[0]), layer_vectors(model, tested[0])
    return {name: linear_probe(one[name], known[1], other[name], tested[1]) for name in one}


def nearest_neighbours(queries: Tensor, features: Tensor, count: int) -> Tensor:
    """The rows (M, count) of features (N, F) with the largest cosine to each query (M, F), the nearest first."""
    cosine = normalize(queries, dim=1) @ normalize(features, dim=1).T  # (M, N)
    return cosine.topk(min(count, len(features)), 1).indices
