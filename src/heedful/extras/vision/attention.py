"""The attention of a Vision Transformer over an image: of one layer, and through all of them.

B batch, H heads, T tokens, Y rows and X columns of patches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from heedful.blocks.taps import watch
from heedful.models.layer_graph import evaluating

RESIDUAL = 0.5  # share of the path around an attention layer


@torch.no_grad()
def attention_weights(model: Any, images: Tensor) -> list[Tensor]:
    """The attention weights (B, H, T, T) of each layer."""
    with evaluating(model), watch(model, "*.weights") as seen:
        model(images)
    return list(seen.values())


def rollout(layers: Sequence[Tensor], residual: float = RESIDUAL) -> Tensor:
    """What each token draws from each one of the input, through all layers (Abnar and Zuidema, 2020): (B, T, T).

    The product over the layers of r I + (1 - r) A, where A is the mean of the heads of weights (B, H, T, T), and r the
    share of the residual path. Rows sum to one.
    """
    mean = [weights.mean(1) for weights in layers]
    found = torch.eye(mean[0].shape[-1], dtype=mean[0].dtype, device=mean[0].device).expand_as(mean[0])
    same = found
    for weights in mean:
        found = (residual * same + (1 - residual) * weights) @ found  # (B, T, T)
    return found


def over_image(weights: Tensor, grid: tuple[int, int]) -> Tensor:
    """The weights (..., Y, X) with which the image is read, of weights (..., T, T) between tokens.

    They are those of the class token, which comes first; without one, the mean of all patches.
    """
    patches = grid[0] * grid[1]
    read = weights[..., 0, :] if weights.shape[-1] > patches else weights.mean(-2)  # (..., T)
    return read[..., -patches:].unflatten(-1, grid)
