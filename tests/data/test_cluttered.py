"""Cluttered images and visual search: pure functions of seed and number, with one target each."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from heedful.config import parse
from heedful.data.embedded import Digits
from heedful.data.images.cluttered import DISTRACTORS, TARGET, ClutteredImages, VisualSearch, place
from heedful.data.images.scenes import SHAPES, draw
from heedful.data.images.sources import Images
from heedful.errors import UserError

SMALL = Digits(train=30, valid=10, test=10)


def test_digit_is_somewhere_in_the_larger_image() -> None:
    """Without clutter the image holds the digit's own pixels and zeros, at places of which all occur."""
    data = ClutteredImages(images=SMALL, size=(11, 9), clutter=0, copies=8)
    found, digits = data.read("train"), SMALL.read("train")
    assert found.pixels.shape == (240, 1, 11, 9) and found.names == digits.names and digits.labels is not None
    np.testing.assert_array_equal(found.labels, np.tile(digits.labels, 8))
    places = set()
    for number, larger in enumerate(found.pixels[:, 0]):
        digit = digits.pixels[number % 30, 0]
        fits = [(y, x) for y in range(4) for x in range(2) if np.array_equal(larger[y : y + 8, x : x + 8], digit)]
        assert fits and larger.sum() == pytest.approx(digit.sum())
        places |= {fits[0]}
    assert len(places) >= 7


def test_clutter_is_pieces_of_other_images() -> None:
    images = Images(np.full((2, 1, 4, 4), 7, np.uint8) + np.arange(2, dtype=np.uint8)[:, None, None, None])
    found = place(images, 50, (12, 12), 3, 2, seed=3, split=0).pixels
    assert found.dtype == np.uint8 and set(np.unique(found).tolist()) == {0, 7, 8}
    covered = (found > 0).sum((1, 2, 3))
    assert covered.min() >= 16 and covered.max() == 16 + 3 * 4


def test_images_are_the_same_for_the_same_seed_alone() -> None:
    data = ClutteredImages(images=SMALL, size=(16, 16), piece=3, copies=2)
    pixels = data.read("train").pixels
    np.testing.assert_array_equal(pixels, data.read("train").pixels)
    assert len(data.read("test")) == 10  # copies are for training
    other = data.model_copy(update={"seed": 1}).read("train").pixels
    assert not np.array_equal(pixels, other) and not np.array_equal(pixels[:30], pixels[30:])
    more = data.model_copy(update={"copies": 3}).read("train").pixels
    np.testing.assert_array_equal(more[:60], pixels)  # an image is a function of its number


@pytest.mark.parametrize(
    ("changes", "where"), [({"size": (8, 9), "piece": 9}, "data.piece"), ({"images": SMALL, "size": (8, 8)}, None)]
)
def test_sizes_must_fit(changes: dict[str, object], where: str | None) -> None:
    data = ClutteredImages.model_validate({"images": SMALL, **changes})
    if where is None:
        assert data.model_copy(update={"piece": 8}).read("test").pixels.shape == (10, 1, 8, 8)
        return
    with pytest.raises(UserError) as error:
        data.read("test")
    assert error.value.where == where


def test_image_larger_than_the_larger_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(struct.pack(">4B3I", 0, 0, 8, 3, 2, 20, 20) + bytes(800))
    (tmp_path / "b").write_bytes(struct.pack(">4BI", 0, 0, 8, 1, 2) + bytes(2))
    files = {"images": "a", "labels": "b"}
    images = {"kind": "idx", "root": str(tmp_path), "train": files, "test": files}
    data = parse(ClutteredImages, {"images": images, "size": [16, 24]})
    assert data.valid is None and data.test is not None and data.problems() == []
    with pytest.raises(UserError, match="do not fit into the larger ones"):
        data.read("train")


@pytest.mark.claim("N3")
def test_there_is_one_target_among_distractors() -> None:
    """One red shape, which is the class; it stands anywhere, as do the distractors, which have all other colours."""
    data = VisualSearch(train=300, valid=20, test=20, distractors=5, size=(48, 48))
    found, scenes = data.read("train"), data.scenes("train")
    assert found.names == SHAPES and found.pixels.shape == (300, 3, 48, 48) and found.labels is not None
    for (one, target), label in zip(scenes, found.labels, strict=True):
        assert [thing.colour == TARGET for thing in one.things] == [n == target for n in range(6)]
        assert found.names[label] == one.things[target].shape
        boxes = [thing.box for thing in one.things]
        assert all(min(box) >= 0 and max(box) <= 48 for box in boxes)
        assert not any(
            a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3] for i, a in enumerate(boxes) for b in boxes[:i]
        )
    np.testing.assert_array_equal(found.pixels[7], draw(scenes[7][0]))
    assert set(found.labels.tolist()) == set(range(4))
    assert {thing.colour for one, _ in scenes for thing in one.things} == {TARGET, *DISTRACTORS}
    assert {target for _, target in scenes} == set(range(6))
    np.testing.assert_array_equal(data.model_copy(update={"train": 299}).read("train").pixels, found.pixels[:299])


def test_too_many_shapes_are_refused() -> None:
    with pytest.raises(UserError, match="9 shapes need 21 rows and columns or more"):
        parse(VisualSearch, {"distractors": 8, "size": [40, 20]})
