"""Galleries: every pixel is a crisp square, numbers of any range can be seen, and an SVG says the same as a PNG."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from base64 import b64decode
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from heedful.errors import UserError
from heedful.plots.figures import DOTS
from heedful.plots.image_grid import (
    LEAST,
    MOST,
    SIDE,
    Column,
    Sheet,
    Window,
    drawn_size,
    gallery,
    require_picture,
    strips,
)

SVG = "{http://www.w3.org/2000/svg}"
CHANCE = np.random.default_rng(0)
SHARES = CHANCE.random((3, 1, 4, 5)).astype(np.float32)


def shown(sheet: Sheet, number: int) -> np.ndarray:
    """The part of the drawn page that a picture takes, one dot of each square of whole dots; all must be alike."""
    page = np.asarray(Image.open(BytesIO(sheet.png())).convert("RGB"))
    x, y, picture, (wide, tall) = sheet.pictures[number]
    found = page[round(y * DOTS) : round(y * DOTS) + tall, round(x * DOTS) : round(x * DOTS) + wide]
    squares = found.reshape(picture.height, tall // picture.height, picture.width, wide // picture.width, 3)
    assert (squares == squares[:, :1, :, :1]).all(), "a pixel is not one colour"
    return squares[:, 0, :, 0]


def texts(sheet: Sheet) -> list[str]:
    return [text for _, _, text, *_ in sheet.texts]


def test_every_pixel_becomes_a_square_of_one_colour() -> None:
    sheet = gallery([Column("input", SHARES), Column("made", 1 - SHARES, np.array([0.1, 0.25, 1.0]))], None, "Pictures")
    assert len(sheet.pictures) == 6
    for number in range(3):
        wanted = (SHARES[number, 0] * 255 + 0.5).astype(np.uint8)
        np.testing.assert_array_equal(shown(sheet, number), np.repeat(wanted[..., None], 3, 2))
        wanted = ((1 - SHARES[number, 0].astype(np.float64)) * 255 + 0.5).astype(np.uint8)
        np.testing.assert_allclose(shown(sheet, 3 + number)[..., 0], wanted, atol=1)


def test_rows_are_images_and_errors_stand_beneath_them() -> None:
    column = Column("made\nagain", SHARES, np.array([0.1, 0.25, 1.0]))
    sheet = gallery([Column("input", SHARES), column], ["zero", "one", "two"], "Pictures")
    assert texts(sheet) == ["Pictures", "zero", "one", "two", "input", "made", "again", "0.1000", "0.2500", "1.0000"]
    (x, first, *_), (same, second, *_), _, (right, beside, *_) = sheet.pictures[:4]
    assert x == same and second > first
    assert right > x and beside == first
    places = {text: (at, y) for at, y, text, *_ in sheet.texts}
    _, _, _, (wide, tall) = sheet.pictures[3]
    assert places["0.1000"][0] == pytest.approx(right + wide / DOTS / 2, abs=1)
    assert first + tall / DOTS < places["0.1000"][1] < second


def test_what_is_out_of_bounds_is_cut_for_the_eye_alone() -> None:
    wild = SHARES * 4 - 1
    sheet = gallery([Column("input", SHARES), Column("made", wild)], None, "Pictures")
    np.testing.assert_allclose(shown(sheet, 3)[..., 0], wild[0, 0].clip(0, 1) * 255, atol=1)
    assert wild.max() > 1  # the numbers themselves are as they were
    assert texts(sheet) == ["Pictures", "input", "made"]


def test_numbers_of_another_range_are_drawn_from_the_least_to_the_greatest_and_it_is_said() -> None:
    far = SHARES * 500 - 250
    sheet = gallery([Column("input", far, np.array([1234.5, 2.0, 3.0]))], None, "Pictures")
    low, high = far.min(), far.max()
    np.testing.assert_allclose(shown(sheet, 0)[..., 0], (far[0, 0] - low) / (high - low) * 255, atol=1)
    assert texts(sheet)[1] == f"black is {low:.3g}, white is {high:.3g}"
    assert "1234" in texts(sheet)[3]
    assert Window.of(np.full((1, 1, 2, 2), 7.0)) == (7, 8)
    assert Window.of(np.zeros((1, 1, 2, 2))) == (0, 1)


def test_three_channels_are_colours_and_other_numbers_of_them_their_mean() -> None:
    colours = CHANCE.random((2, 3, 4, 4))
    np.testing.assert_allclose(
        shown(gallery([Column("input", colours)], None, "Pictures"), 0), colours[0].transpose(1, 2, 0) * 255, atol=1
    )
    many = CHANCE.random((2, 5, 4, 4))
    sheet = gallery([Column("input", many)], None, "Pictures")
    np.testing.assert_allclose(shown(sheet, 0)[..., 0], many[0].mean(0) * 255, atol=1.5)
    assert "the mean of 5 channels" in texts(sheet)


@pytest.mark.parametrize(("rows", "columns"), [(28, 28), (8, 8), (1, 784), (300, 2), (1, 1), (2000, 1000)])
def test_pictures_of_any_shape_can_be_seen_and_fit(rows: int, columns: int) -> None:
    wide, tall = drawn_size((rows, columns))
    assert min(wide, tall) >= LEAST
    assert max(wide, tall) <= max(SIDE, 784, MOST)
    images = CHANCE.random((1, 1, rows, columns))
    sheet = gallery([Column("input", images)], None, "Pictures")
    assert Image.open(BytesIO(sheet.png())).width == round(sheet.width * DOTS)


def test_an_svg_has_its_text_as_text_and_its_pictures_pixel_by_pixel(tmp_path: Path) -> None:
    sheet = gallery([Column("a <b> & \x1b", SHARES, np.array([0.1, 0.2, 0.3]))], ["x", "y", "z"], "Pictures")
    sheet.save(tmp_path / "grid.SVG")
    root = ElementTree.parse(tmp_path / "grid.SVG").getroot()
    assert [text.text for text in root.iter(f"{SVG}text")] == texts(sheet)
    assert "a <b> & \\x1b" in texts(sheet)
    (first, *_) = root.iter(f"{SVG}image")
    kind, _, data = first.attrib["href"].partition(",")
    assert kind == "data:image/png;base64"
    found = np.asarray(Image.open(BytesIO(b64decode(data))))
    np.testing.assert_array_equal(found, (SHARES[0, 0] * 255 + 0.5).astype(np.uint8))
    x, y, _, (wide, tall) = sheet.pictures[0]
    box = [float(first.attrib[name]) for name in ("x", "y", "width", "height")]
    assert box == [x, y, wide / DOTS, tall / DOTS]


def test_a_strip_goes_from_left_to_right_without_gaps() -> None:
    sheet = strips([("one", SHARES), ("two", SHARES[::-1])], "A walk", Window(0, 1))
    (x, y, _, (wide, _)), (second, same, *_) = sheet.pictures[:2]
    assert (second - x, same) == (wide / DOTS, y)
    assert sheet.pictures[3][1] > y
    np.testing.assert_array_equal(shown(sheet, 0), shown(sheet, 5))
    assert texts(sheet) == ["A walk", "one", "two"]


def test_other_kinds_of_pictures_are_refused_by_name() -> None:
    for name in ("grid.png", "grid.SVG"):
        require_picture(Path(name), "--out")
    for name in ("grid.jpg", "grid", "grid.svg.gz"):
        with pytest.raises(UserError, match=r"the name does not say what to draw") as error:
            require_picture(Path(name), "--out")
        assert error.value.expected == "a name that ends in .png or .svg"


def test_a_long_title_is_cut() -> None:
    sheet = gallery([Column("a very long name of a run indeed", SHARES)], None, "Pictures")
    assert texts(sheet)[1] == "a very long name of a..."
    assert sheet.width < 300
