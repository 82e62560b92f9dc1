"""Regions of a feature map: what a box contains, and where it is.

B images, R regions of each, D channels, Y rows, X columns, P rows and columns of a pooled region, N bins.
"""

import math

import torch
from torch import Tensor

WAVES = (1, 2, 4)  # half periods over an image of the sinusoids of a place


def geometry(boxes: Tensor) -> Tensor:
    """Where boxes (B, R, 4) are: centre and its sinusoids, height and width and their logarithms, 18 numbers in all.

    Boxes are top, left, bottom, right from 0 to 1. Sinusoids tell places apart that differ little.
    """
    first, last = boxes.chunk(2, -1)
    centre, sides = first + last - 1, last - first  # (B, R, 2)
    angles = torch.cat([math.pi * wave * centre for wave in WAVES], -1)  # (B, R, 6)
    return torch.cat([centre, angles.sin(), angles.cos(), sides, sides.clamp(min=1e-4).log()], -1)  # (B, R, 18)


def roi_pool(x: Tensor, boxes: Tensor, size: int) -> Tensor:
    """The mean of a map (B, D, Y, X) in each of P x P bins of each box (B, R, 4), as (B, R, D, P, P).

    Boxes are top, left, bottom, right from 0 to 1. Between the centres of its cells, the map is interpolated
    linearly, and a bin is its exact mean (Jiang et al., 2018): it changes smoothly with the box, and has a gradient by
    it, where the first RoI pooling (Girshick, 2015) rounds the box to whole cells.
    """
    down = bin_weights(boxes[..., 0], boxes[..., 2], size, x.shape[2]).to(x.dtype)  # (B, R, P, Y)
    across = bin_weights(boxes[..., 1], boxes[..., 3], size, x.shape[3]).to(x.dtype)  # (B, R, P, X)
    rows = torch.einsum("brpy,bdyx->brdpx", down, x)  # (B, R, D, P, X)
    return torch.einsum("brdpx,brqx->brdpq", rows, across)  # (B, R, D, P, P)


def bin_weights(first: Tensor, last: Tensor, size: int, cells: int) -> Tensor:
    """How much each of the cells (Y) counts in each bin (P) between first and last (B, R), as (B, R, P, Y).

    A cell's share of the interpolated line is a tent, and its weight is the tent's integral over the bin. The
    outermost cells have their own values beyond their centres too.
    """
    length = (last - first).clamp(min=1e-4)  # (B, R)
    steps = torch.linspace(0, 1, size + 1, dtype=first.dtype, device=first.device)  # (P + 1,)
    edges = (first[..., None] + length[..., None] * steps) * cells - 0.5  # (B, R, P + 1), where cell y is at y
    inside = edges.clamp(0, cells - 1)  # (B, R, P + 1)
    centres = torch.arange(cells, dtype=first.dtype, device=first.device)  # (Y,)
    area = tent_integral(inside[..., None] - centres)  # (B, R, P + 1, Y)
    outermost = torch.where(edges[..., None] < 0, centres == 0, centres == cells - 1)  # (B, R, P + 1, Y)
    area = area + (edges - inside)[..., None] * outermost
    return area.diff(dim=-2) / edges.diff(dim=-1)[..., None]  # (B, R, P, Y)


def tent_integral(x: Tensor) -> Tensor:
    """The integral from -1 to x of max(0, 1 - |x|)."""
    x = x.clamp(-1, 1)
    return 0.5 + x - x * x.abs() / 2
