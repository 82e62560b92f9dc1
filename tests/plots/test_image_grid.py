"""Grids of images: exact pixels, values of any range, and errors below."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from heedful.plots.image_grid import MOST, NARROWEST, Column, Window, image_grid, image_size, image_strips, to_pixels
from heedful.plots.style import encode

RANDOM = np.random.default_rng(0)
SHARES = RANDOM.random((3, 1, 4, 5)).astype(np.float32)


def images(figure: Figure) -> list[AxesImage]:
    return list(figure.axes[0].images)


def pixels(figure: Figure, number: int) -> np.ndarray:
    return np.asarray(images(figure)[number].get_array())


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


def test_pixels_are_drawn_exactly() -> None:
    figure = image_grid(
        [Column("input", SHARES), Column("other", 1 - SHARES, np.array([0.1, 0.2, 1.0]))], None, "Title"
    )
    assert len(images(figure)) == 6
    for row in range(3):  # row by row: the image, then the other
        np.testing.assert_array_equal(pixels(figure, 2 * row), (SHARES[row, 0] * 255 + 0.5).astype(np.uint8))
        np.testing.assert_allclose(pixels(figure, 2 * row + 1), (1 - SHARES[row, 0]) * 255, atol=1)
    assert {image.get_interpolation() for image in images(figure)} == {"nearest"}
    assert {image.get_clim() for image in images(figure)} == {(0, 255)}


def test_rows_of_images_with_errors_below() -> None:
    column = Column("made\nagain", SHARES, np.array([0.1, 0.25, 1.0]))
    figure = image_grid([Column("input", SHARES), column], ["zero", "one", "two"], "Title")
    assert texts(figure) == ["0.1000", "0.2500", "1.0000", "input", "made\nagain", "zero", "one", "two"]
    left, right, below = (image.get_extent() for image in images(figure)[:3])  # (left, right, bottom, top), downwards
    assert left[1] < right[0] and left[2:] == right[2:]
    assert below[3] > left[2] and below[:2] == left[:2]
    x, y = figure.axes[0].texts[0].get_position()
    assert x == pytest.approx((right[0] + right[1]) / 2) and right[2] < y < below[3]
    assert encode(figure, ".svg").count(b"<image") == 6  # one image element each


def test_out_of_range_values_are_clipped_in_the_figure_only() -> None:
    wild = SHARES * 4 - 1
    figure = image_grid([Column("input", SHARES), Column("made", wild)], None, "Title")
    np.testing.assert_allclose(pixels(figure, 1), wild[0, 0].clip(0, 1) * 255, atol=1)
    assert wild.max() > 1  # the values themselves are unchanged
    assert figure.axes[0].get_title("left") == ""
    assert to_pixels(np.full((1, 1, 2, 2), np.nan), Window(0, 1)).max() == 0


def test_other_ranges_are_rescaled_with_a_note() -> None:
    far = SHARES * 500 - 250
    figure = image_grid([Column("input", far, np.array([1234.5, 2.0, 3.0]))], None, "Title")
    low, high = far.min(), far.max()
    np.testing.assert_allclose(pixels(figure, 0), (far[0, 0] - low) / (high - low) * 255, atol=1)
    assert figure.axes[0].get_title("left") == f"black is {low:.3g}, white is {high:.3g}"
    assert "1234" in texts(figure)[0]
    assert Window.of(np.full((1, 1, 2, 2), 7.0)) == (7, 8)
    assert Window.of(np.zeros((1, 1, 2, 2))) == (0, 1)


def test_three_channels_are_rgb_and_others_are_averaged() -> None:
    colours = RANDOM.random((2, 3, 4, 5))
    figure = image_grid([Column("input", colours)], None, "Title")
    np.testing.assert_allclose(pixels(figure, 0), colours[0].transpose(1, 2, 0) * 255, atol=1)
    many = RANDOM.random((2, 5, 4, 4))
    figure = image_grid([Column("input", many)], None, "Title")
    np.testing.assert_allclose(pixels(figure, 0), many[0].mean(0) * 255, atol=1.5)
    assert figure.axes[0].get_title("left") == "the mean of 5 channels"


@pytest.mark.parametrize(("rows", "columns"), [(28, 28), (1, 784), (300, 2), (1, 1), (2000, 1000)])
def test_images_of_any_shape_fit(rows: int, columns: int) -> None:
    wide, tall = image_size((rows, columns))
    assert min(wide, tall) >= NARROWEST and max(wide, tall) <= 1
    found = to_pixels(RANDOM.random((1, 1, rows, columns)), Window(0, 1))
    assert max(found.shape) <= max(784, MOST)


def test_strip_has_no_gaps_and_a_label() -> None:
    figure = image_strips([("dense", SHARES), ("conv", 1 - SHARES)], "Interpolation", Window(0, 1))
    first, second, *_, below = (image.get_extent() for image in images(figure))
    assert first[1] == pytest.approx(second[0])
    assert below[3] > first[2]
    assert texts(figure) == ["dense", "conv"]
    assert texts(image_strips([("", SHARES)], "Interpolation", Window(0, 1))) == []
