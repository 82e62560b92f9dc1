"""The image specification of a run: round trip, and errors that name the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from heedful.data.images.image_spec import ImageSpec
from heedful.errors import UserError

CANVAS = ImageSpec((1, 28, 28), ("zero", "eins", "zwölf"))


@pytest.mark.parametrize("canvas", [CANVAS, ImageSpec((3, 4, 5))], ids=["with names", "without"])
def test_image_spec_round_trip(tmp_path: Path, canvas: ImageSpec) -> None:
    (tmp_path / "images.json").write_text(canvas.json, encoding="utf-8")
    found = ImageSpec.load(tmp_path / "images.json")
    assert found == canvas
    assert found.sha256 == canvas.sha256


def test_vocab_is_the_number_of_values_and_the_hash_is_unique() -> None:
    assert CANVAS.vocab == 784
    others = [
        CANVAS,
        ImageSpec((1, 28, 28)),
        ImageSpec((28, 28, 1), CANVAS.names),
        ImageSpec((1, 28, 28), CANVAS.names[::-1]),
    ]
    assert len({canvas.sha256 for canvas in others}) == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"image": [1, 28', "not JSON"),
        ("[1, 28, 28]", "image"),
        ('{"image": [1, 28], "names": []}', "image"),
        ('{"image": [1, 28, "x"], "names": []}', "image.2"),
        ('{"image": [1, 28, 28], "names": [3]}', "names.0"),
        ('{"image": [1, 28, 28], "names": [], "more": 1}', "more"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_damaged_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "images.json"
    path.write_text(text)
    with pytest.raises(UserError) as raised:
        ImageSpec.load(path)
    assert message in str(raised.value)
    assert str(path) in str(raised.value)


def test_missing_or_binary_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nothing\.json"):
        ImageSpec.load(tmp_path / "nothing.json")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=r"bytes\.json"):
        ImageSpec.load(tmp_path / "bytes.json")


def test_images_of_another_size_are_rejected() -> None:
    fit = np.zeros((2, 1, 28, 28), np.uint8)
    assert CANVAS.require(fit) is fit
    with pytest.raises(UserError) as raised:
        CANVAS.require(np.zeros((2, 3, 32, 30), np.uint8), "photos")
    assert (raised.value.where, raised.value.expected) == ("photos", "1 x 28 x 28")
    assert "3 x 32 x 30" in str(raised.value.found)
    with pytest.raises(UserError):
        CANVAS.require(np.zeros((28, 28)))
