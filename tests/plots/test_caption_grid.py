"""Overlays of attention maps on images, and the grid of a caption's words."""

import numpy as np
import pytest

from heedful.plots.caption_grid import caption_grid, caption_rows, overlay, upsample


@pytest.mark.claim("I8")
@pytest.mark.parametrize("size", [(12, 18), (48, 31), (3, 5)])
def test_an_overlay_is_brightest_where_the_weight_is_highest(size: tuple[int, int]) -> None:
    """Each word has a map of its own; the maximum of the upsampled map lies in the place with the highest weight."""
    rows, columns = 3, 5
    image = np.full((*size, 3), 200, np.uint8)
    for place in range(rows * columns):
        weights = np.full(rows * columns, 0.01)
        weights[place] = 0.5
        grid = weights.reshape(rows, columns)
        high = upsample(grid, *size)
        assert high.shape == size and high.max() == 1.0 and high.min() >= 0.0
        for found in (high, overlay(image, grid)[..., 0]):
            y, x = np.unravel_index(int(found.argmax()), size)
            assert (int(y) * rows // size[0], int(x) * columns // size[1]) == divmod(place, columns)


def test_upsampling_keeps_even_weights_and_zeros() -> None:
    assert np.allclose(upsample(np.full((2, 3), 1 / 6), 8, 9), 1.0)
    assert not upsample(np.zeros((2, 3)), 4, 6).any()


def test_a_grid_has_the_image_and_one_map_for_each_word() -> None:
    image, words = np.zeros((8, 12, 3), np.uint8), ["a", "red", "circle", "on", "a", "black", "ground", "here"]
    figure = caption_grid(image, words, np.ones((8, 2, 3)), "a title")
    titles = [axis.get_title() for axis in figure.axes]
    assert [title for title in titles if title] == words
    assert sum(len(axis.images) for axis in figure.axes) == 9
    two = caption_rows([("soft", image, words[:2], np.ones((2, 2, 3))), ("hard", image, words[:2], np.ones((2, 2, 3)))])
    assert [axis.get_title() for axis in two.axes] == ["soft", "a", "red", "hard", "a", "red"]
    with pytest.raises(ValueError, match="need as many maps"):
        caption_grid(image, words, np.ones((3, 2, 3)))
