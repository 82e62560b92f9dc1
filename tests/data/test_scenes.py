"""Drawn scenes: exact from a seed, and what is said of them is true."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from heedful.data.images.scenes import COLOURS, GROUNDS, SHAPES, Scene, Scenes, Thing, draw, relation, scene

SCENES = Scenes(train=60, valid=20, test=20, size=(48, 64), objects=(1, 5))


def test_scenes_are_exact_and_splits_differ() -> None:
    images = SCENES.read("train")
    assert images.pixels.shape == (60, 3, 48, 64) and images.pixels.dtype == np.uint8
    assert hashlib.sha256(images.pixels.tobytes()).hexdigest()[:16] == "fb8df8fa93fcf9c5"
    assert SCENES.scenes("train") == SCENES.scenes("train")
    assert not set(SCENES.scenes("train")) & set(SCENES.scenes("valid"))
    assert SCENES.scenes("train") != SCENES.model_copy(update={"seed": 1}).scenes("train")


def test_things_lie_in_the_image_and_apart() -> None:
    for one in [*SCENES.scenes("train"), *Scenes(train=50, objects=(9, 9), size=(24, 24)).scenes("train")]:
        covered = np.zeros((one.rows, one.columns), int)
        for thing in one.things:
            top, left, bottom, right = thing.box
            assert 0 <= top < bottom <= one.rows and 0 <= left < right <= one.columns
            covered[top:bottom, left:right] += 1
        assert covered.max() == 1
        assert [thing.radius for thing in one.things] == sorted((thing.radius for thing in one.things), reverse=True)
        side = 2 if len(one.things) <= 4 else 3
        order = [
            (-thing.radius, side * thing.row // one.rows, side * thing.column // one.columns) for thing in one.things
        ]
        assert len(one.things) == 1 or order == sorted(order)  # of one size, in reading order


def test_pixels_are_those_of_the_things_and_the_ground() -> None:
    for one in SCENES.scenes("valid"):
        pixels, outside = draw(one), np.ones((one.rows, one.columns), bool)
        for thing in one.things:
            assert pixels[:, thing.row, thing.column].tolist() == list(thing.rgb)
            near = min(COLOURS, key=lambda name: sum(abs(a - b) for a, b in zip(COLOURS[name], thing.rgb, strict=True)))
            assert near == thing.colour
            top, left, bottom, right = thing.box
            outside[top:bottom, left:right] = False
        assert (pixels.transpose(1, 2, 0)[outside] == GROUNDS[one.ground]).all()


@pytest.mark.parametrize(
    ("shape", "share"), [("circle", np.pi / 4), ("square", 0.64), ("triangle", 0.405), ("cross", 5 / 9)]
)
def test_shapes_cover_their_share_of_the_box(shape: str, share: float) -> None:
    thing = Thing(shape, "red", "large", 40, 40, 36, (255, 0, 0))
    pixels = draw(Scene(81, 81, "black", (thing,)))
    covered = (pixels[0].astype(float) - 20) / 235
    assert covered.sum() / 72**2 == pytest.approx(share, abs=0.03)


def test_labels_are_those_of_the_largest_thing() -> None:
    for label, count in (("both", 24), ("shape", 4), ("colour", 6)):
        data = SCENES.model_copy(update={"label": label})
        images = data.read("test")
        assert len(images.names) == count
        first = [one.things[0] for one in data.scenes("test")]
        values = {"both": "name", "shape": "shape", "colour": "colour"}[label]
        assert images.labels is not None
        assert [images.names[number] for number in images.labels] == [getattr(thing, values) for thing in first]


def test_captions_and_paragraphs_say_what_is_there() -> None:
    for one in SCENES.scenes("train"):
        assert len(set(one.captions)) == 5 and one.caption == one.captions[0]
        for text in (*one.captions, one.paragraph):
            assert one.things[0].name in text and " a orange" not in text
        for thing in one.things:
            assert f"{thing.size} {thing.name} {one.place(thing)}." in one.paragraph


def test_places_and_relations() -> None:
    def at(row: int, column: int) -> Thing:
        return Thing("circle", "red", "small", row, column, 2, (0, 0, 0))

    here = Scene(30, 30, "grey", (at(15, 15),))
    assert [here.place(at(row, column)) for row, column in ((3, 3), (15, 28), (15, 15), (28, 15))] == [
        "at the top left", "on the right", "in the centre", "at the bottom",
    ]  # fmt: skip
    assert relation(at(0, 0), at(1, 9)) == "to the left of" and relation(at(1, 9), at(0, 0)) == "to the right of"
    assert relation(at(0, 0), at(9, 1)) == "above" and relation(at(9, 1), at(0, 0)) == "below"
    assert scene(3, 4, 20, 20, (1, 1)).things[0].shape in SHAPES


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"objects": (3, 2)}, r"smaller number first: \[2, 3\]"),
        ({"objects": (1, 9), "size": (20, 40)}, "9 shapes need 24 rows and columns"),
        ({"size": (4, 40)}, "greater than or equal to 8"),
    ],
)
def test_impossible_scenes_are_rejected(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Scenes(**settings)
