"""Filters, feature maps, and the image patches that activate a channel most.

B batch, N images, C channels, Y rows, X columns, F filters or channels of a map, T tokens, D width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from heedful.blocks.convolution import Convolution
from heedful.blocks.taps import watch
from heedful.errors import UserError, shown
from heedful.models.layer_graph import evaluating, tap_fields

BATCH = 256  # images at a time


def first_filters(model: nn.Module) -> Tensor:
    """The filters (F, C, Y, X) of the first convolution."""
    every = (layer.weight for layer in model.modules() if isinstance(layer, nn.Conv2d | Convolution))
    return next(every).detach()


@torch.no_grad()
def feature_maps(model: Any, images: Tensor, layer: str = "*") -> dict[str, Tensor]:
    """The feature map (B, F, Y, X) at each tap of that name or pattern, from the first layer to the last.

    The tokens of a Vision Transformer become a map: one pixel for each patch.
    """
    with evaluating(model), watch(model, layer) as seen:
        grid = model.map(images).shape[2:]  # rows and columns of the last map
    return {name: as_map(value, grid) for name, value in seen.items() if value.dim() == map_dims(model)}


def map_dims(model: Any) -> int:
    """The dimensions of a value that is a map: (B, F, Y, X), or of tokens (B, T, D)."""
    return 3 if model.config.attends else 4


def as_map(value: Tensor, grid: tuple[int, ...]) -> Tensor:
    """A value at a tap as a map (B, F, Y, X); of tokens (B, T, D), those of patches, which come last."""
    if value.dim() == 4:
        return value
    return value[:, -grid[0] * grid[1] :].transpose(1, 2).unflatten(2, grid)


def layer_names(model: Any) -> list[str]:
    """The names of all layers that have a feature map."""
    images = torch.zeros(1, *model.config.input, device=model.head.weight.device, dtype=model.head.weight.dtype)
    return list(feature_maps(model, images))


def require_layer(model: Any, layer: str | None) -> str:
    """The layer of that name, or the last one."""
    names = layer_names(model)
    if layer is None:
        return names[-1]
    if layer not in names:
        raise UserError("there is no such layer", where="layer", found=shown(layer), expected=", ".join(names))
    return layer


@dataclass(frozen=True)
class Patch:
    """A part of an image that a unit sees, and the value of the unit there."""

    value: float
    image: int
    rows: range
    columns: range

    def cut(self, images: Tensor) -> Tensor:
        """The pixels (C, Y, X) of the patch."""
        down, across = (slice(side.start, side.stop) for side in (self.rows, self.columns))
        return images[self.image, :, down, across]


def top_patches(model: Any, images: Tensor, layer: str, count: int = 9) -> list[list[Patch]]:
    """For each channel of a layer, the patches of images (N, C, Y, X) that activate it most, one of an image.

    A patch is the receptive field of the unit. A token of a Vision Transformer sees the whole image: its own patch is
    taken.
    """
    values, places = [], []
    for some in images.split(BATCH):
        found = feature_maps(model, some, layer)[layer].flatten(2)  # (B, F, Y X)
        value, place = found.max(2)
        values.append(value)
        places.append(place)
    best, image = torch.cat(values).topk(min(count, len(images)), 0)  # (count, F)
    place = torch.cat(places).gather(0, image)  # (count, F)
    field = tap_fields(model)[layer]
    down, across = (place // len(field.columns)).tolist(), (place % len(field.columns)).tolist()
    listed = zip(best.tolist(), image.tolist(), down, across, strict=True)
    ranks = [
        [Patch(v, i, field.rows[y], field.columns[x]) for v, i, y, x in zip(*rank, strict=True)] for rank in listed
    ]
    return [list(channel) for channel in zip(*ranks, strict=True)]
