"""Patches: an image as a sequence of vectors, and their positions in the image.

B batch, C channels, Y rows and X columns of an image or of its grid of patches, D width, N patches, T tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from heedful.blocks.positions import sinusoids

Grid = tuple[int, int]  # rows and columns of patches


class Patches(nn.Module):
    """W x + b for each square x of P x P pixels, flattened: a convolution whose stride is its size.

    As a matrix product it is faster than as a convolution, on a GPU.
    """

    def __init__(self, channels: int, width: int, size: int) -> None:
        super().__init__()
        self.size = size
        self.projection = nn.Conv2d(channels, width, size, size)
        nn.init.trunc_normal_(self.projection.weight, std=(channels * size**2) ** -0.5)  # as published
        assert self.projection.bias is not None
        nn.init.zeros_(self.projection.bias)

    def grid(self, images: Tensor) -> Grid:
        """The rows and columns of patches of images (B, C, Y, X), which must be whole."""
        rows, columns = images.shape[-2:]
        if rows % self.size or columns % self.size or not rows * columns:
            raise ValueError(
                f"images of {rows} x {columns} have no whole patches of {self.size} x {self.size}; "
                f"resize them to multiples of {self.size}"
            )
        return rows // self.size, columns // self.size

    def forward(self, images: Tensor) -> Tensor:
        rows, columns = self.grid(images)
        if not images.is_cuda:
            return self.projection(images).flatten(2).transpose(1, 2)  # (B, N, D)
        squares = images.unflatten(3, (columns, self.size)).unflatten(2, (rows, self.size))
        x = squares.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
        return functional.linear(x, self.projection.weight.flatten(1), self.projection.bias)


def sinusoid_grid(grid: Grid, width: int) -> Tensor:
    """Sinusoids of the row in the first half of the width, of the column in the second, for patches row by row."""
    rows, columns = grid
    y, x = sinusoids(rows, width // 2), sinusoids(columns, width // 2)
    table = torch.cat([y[:, None].expand(-1, columns, -1), x[None].expand(rows, -1, -1)], -1)  # (rows, columns, width)
    return table.flatten(0, 1)  # (N, D)


def resize_positions(table: Tensor, before: Grid, after: Grid) -> Tensor:
    """Positions (1, T, D) of a grid, for a grid of another size, by bicubic interpolation; tokens before it stay."""
    if before == after:
        return table
    first = table.shape[1] - before[0] * before[1]
    square = table[:, first:].unflatten(1, before).permute(0, 3, 1, 2)  # (1, D, Y, X)
    other = functional.interpolate(square, after, mode="bicubic", align_corners=False).flatten(2)  # (1, D, N)
    return torch.cat([table[:, :first], other.transpose(1, 2)], 1)  # (1, T, D)


class LearnedGrid(nn.Module):
    """x + P, where the table P is trained; for a grid of another size it is interpolated."""

    def __init__(self, first: int, grid: Grid, width: int) -> None:
        super().__init__()
        self.size = grid
        self.table = nn.Parameter(torch.zeros(1, first + grid[0] * grid[1], width))
        nn.init.trunc_normal_(self.table, std=0.02)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        return x + resize_positions(self.table, self.size, grid).to(x.dtype)


class SinusoidGrid(nn.Module):
    """x + P with fixed sinusoids of row and column; tokens before the patches have no position."""

    table: Tensor

    def __init__(self, first: int, grid: Grid, width: int) -> None:
        super().__init__()
        self.first, self.size = first, grid
        self.register_buffer("table", self.positions(grid, width), persistent=False)

    def positions(self, grid: Grid, width: int) -> Tensor:
        return functional.pad(sinusoid_grid(grid, width), (0, 0, self.first, 0))  # (T, D)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        table = self.table if grid == self.size else self.positions(grid, x.shape[-1])  # (T, D)
        return x + table.to(x)


class NoGrid(nn.Module):
    """x -> x: no position is added to the patches."""

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        return x
