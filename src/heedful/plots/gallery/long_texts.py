"""Attention for long texts: the masks of BigBird, and Linformer's projection along the length.

T tokens, C slots, K width of a head.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch
from pydantic import Field

from heedful.blocks.attention import KV, attend
from heedful.blocks.masks import global_tokens, random_blocks, window
from heedful.blocks.taps import Tap
from heedful.errors import UserError
from heedful.lectures.learning import seeded
from heedful.models.linformer.model import Projection
from heedful.plots.figures import heatmaps
from heedful.plots.gallery.masks import draw_grids, grid_of
from heedful.plots.style import Figure, Style

Seed = Annotated[int, Field(ge=0, lt=2**31, description="random seed")]


def bigbird(
    *,
    length: Annotated[int, Field(ge=4, le=64, description="tokens, or blocks of tokens")] = 16,
    random: Annotated[int, Field(ge=0, le=64, description="random keys of each query")] = 2,
    near: Annotated[int, Field(ge=0, le=64, description="keys on each side that the window reaches")] = 1,
    ends: Annotated[int, Field(ge=0, le=64, description="global tokens, at the beginning")] = 2,
    seed: Seed = 0,
    style: Style = "light",
) -> Figure:
    """Random, window and global attention, and BigBird's, which is all three."""
    window_grid, global_grid = grid_of(window(near), length), grid_of(global_tokens(ends), length)
    taken = torch.from_numpy(window_grid | global_grid)[None]
    chosen = random_blocks(random, 1, 1, seed, length, exclude=taken)
    whole = grid_of(chosen | window(near) | global_tokens(ends), length)
    kinds = np.select([window_grid, global_grid, whole], [1, 2, 3], 0)
    panels = {
        f"(a) random: {random} keys": 3 * grid_of(chosen, length),
        f"(b) window of ± {near}": 1 * window_grid,
        f"(c) global: {ends} tokens": 2 * global_grid,
        "(d) BigBird: all three": kinds,
    }
    names = ("masked", "window", "global", "random")
    return draw_grids(panels, "BigBird: which keys a query may attend to", style, names)


def linformer(
    *,
    length: Annotated[int, Field(ge=2, le=64, description="tokens: n")] = 12,
    slots: Annotated[int, Field(ge=1, le=64, description="slots that keys and values are projected to: k")] = 3,
    width: Annotated[int, Field(ge=1, le=64, description="width of the head: d")] = 6,
    seed: Seed = 0,
    style: Style = "light",
) -> Figure:
    """Keys projected along the length by a random matrix, and the weights of attention to all keys and to slots."""
    if slots > length:
        raise UserError("there are more slots than tokens", where="slots", found=str(slots), expected=f"1 to {length}")
    draw = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(1, 1, length, width, generator=draw) for _ in range(3))  # (1, 1, T, K)
    projection, seen = seeded(lambda: Projection(1, 1, slots, length), seed), list[torch.Tensor]()
    tap = Tap()
    tap.hook = seen.append
    with torch.no_grad():
        few = projection(KV(k, v), None)  # slots (1, 1, C, K)
        attend(q, k, v, weights=tap)
        attend(q, few.k, few.v, weights=tap)
    e = projection.weight.detach()[0, 0]
    sizes = {
        f"E: {slots} x {length}": e,
        f"keys K: {length} x {width}": k[0, 0],
        f"E K: {slots} x {width}": few.k[0, 0],
        f"full attention: {length} x {length} weights": seen[0][0, 0],
        f"Linformer: {length} x {slots} weights": seen[1][0, 0],
    }
    panels = {name: ((x.abs() / x.abs().max()).numpy(), None, None) for name, x in sizes.items()}
    return heatmaps(panels, "Linformer: keys and values projected along the length (sizes of values)", style)
