"""Regions of a map: exact means of what a box contains, and where it is."""

from __future__ import annotations

import torch

from heedful.blocks.regions import bin_weights, geometry, roi_pool
from tolerance import close

MAP = torch.randn(2, 3, 6, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def box(*sides: float) -> torch.Tensor:
    return torch.tensor([[sides]] * 2, dtype=torch.float64)  # (2, 1, 4)


def sampled(x: torch.Tensor, sides: tuple[float, ...], size: int, points: int = 400) -> torch.Tensor:
    """The same by very many samples of the interpolated map."""
    top, left, bottom, right = sides
    y = top + (bottom - top) * (torch.arange(size * points, dtype=x.dtype) + 0.5) / (size * points)
    z = left + (right - left) * (torch.arange(size * points, dtype=x.dtype) + 0.5) / (size * points)
    grid = torch.stack(torch.meshgrid(y, z, indexing="ij")[::-1], -1) * 2 - 1
    found = torch.nn.functional.grid_sample(
        x, grid.expand(len(x), -1, -1, -1), align_corners=False, padding_mode="border"
    )
    return found.unfold(2, points, points).unfold(3, points, points).mean((-1, -2))


def test_pooling_is_the_mean_of_the_interpolated_map() -> None:
    for sides in ((0.1, 0.2, 0.63, 0.9), (0.0, 0.0, 1.0, 1.0), (0.4, 0.5, 0.45, 0.53), (0.0, 0.9, 0.05, 1.0)):
        found = roi_pool(MAP, box(*sides), 2)[:, 0]
        torch.testing.assert_close(found, sampled(MAP, sides, 2), rtol=0, atol=1e-5)  # the samples' own error


def test_whole_cells_are_their_own_means() -> None:
    close(roi_pool(MAP[:, :, :4, :4], box(0, 0, 1, 1), 1)[:, 0, :, 0, 0].shape, (2, 3))
    flat = torch.full((1, 2, 5, 5), 3.0)
    close(
        roi_pool(flat, torch.tensor([[[0.13, 0.2, 0.8, 0.97], [0.0, 0.0, 0.01, 1.0]]]), 3),
        torch.full((1, 2, 2, 3, 3), 3.0),
    )
    weights = bin_weights(torch.rand(4, 7) * 0.5, 0.5 + torch.rand(4, 7) * 0.5, 3, 11)
    assert weights.shape == (4, 7, 3, 11) and (weights >= -1e-6).all()
    close(weights.sum(-1), torch.ones(4, 7, 3))


def test_a_map_of_positions_gives_the_centres_of_bins() -> None:
    rows = (torch.arange(8.0) + 0.5)[None, None, :, None].expand(1, 1, 8, 8) / 8
    found = roi_pool(rows, torch.tensor([[[0.25, 0.1, 0.75, 0.3]]]), 2)[0, 0, 0]
    close(found, torch.tensor([[0.375, 0.375], [0.625, 0.625]]))


def test_a_map_of_one_cell_and_gradients() -> None:
    one = torch.randn(1, 4, 1, 1)
    close(roi_pool(one, torch.tensor([[[0.2, 0.2, 0.9, 0.4]]]), 2), one[:, None].expand(1, 1, 4, 2, 2))
    sides = box(0.15, 0.2, 0.63, 0.9).requires_grad_()
    x = MAP.clone().requires_grad_()
    torch.autograd.gradcheck(lambda x, sides: roi_pool(x, sides, 2), (x, sides))


def test_geometry_tells_boxes_apart() -> None:
    found = geometry(torch.tensor([[[0.0, 0.0, 1.0, 1.0], [0.1, 0.2, 0.3, 0.6]]]))
    assert found.shape == (1, 2, 18) and found.isfinite().all()
    close(found[0, :, :2], torch.tensor([[0.0, 0.0], [-0.6, -0.2]]))
    close(found[0, :, 14:16], torch.tensor([[1.0, 1.0], [0.2, 0.4]]))
