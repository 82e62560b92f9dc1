"""`heedful check` of folders and zip files of images."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from heedful.data.images.sources import ImageFolders
from heedful.data.tables.checking import check_data


def picture(path: Path, number: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), (number % 256, number // 256, 7)).save(path)


@pytest.fixture(params=["folder", "zip"])
def photos(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Makes a source of images: by path its number; equal numbers are equal files."""

    def make(**splits: dict[str, int]) -> ImageFolders:
        names = {}
        for split, files in splits.items():
            for path, number in files.items():
                picture(tmp_path / split / path, number)
            names[split] = split
            if request.param == "zip":
                shutil.make_archive(str(tmp_path / split), "zip", tmp_path / split)
                names[split] = f"{split}.zip"
        return ImageFolders(**{"root": str(tmp_path), "test": None, **names})

    return make


def test_classes_are_counted_and_distinct_images_are_no_finding(photos: Any) -> None:
    train = {f"cat/{n}.png": n for n in range(9)} | {f"dog/{n}.png": 100 + n for n in range(4)}
    found = check_data(photos(train=train, valid={"cat/a.png": 50, "dog/b.png": 51}), None, True)
    assert [line.split(": ")[0] + ": " + line.split(": ")[-1] for line in found.lines] == [
        "train: 9 'cat', 4 'dog'", "valid: 1 'cat', 1 'dog'",
    ]  # fmt: skip
    assert "13 images" in found.lines[0] and not found.findings


def test_uneven_classes_and_images_in_two_places_are_found(photos: Any) -> None:
    train = {f"cat/{n}.png": n for n in range(30)} | {"dog/1.png": 200, "dog/2.png": 3, "dog/3.png": 200}
    found = check_data(photos(train=train, valid={"cat/x.png": 5, "dog/y.png": 77}), None, True).findings
    by_name = {one.name: one for one in found}
    assert by_name.keys() == {"duplicates", "leak", "conflicts", "uneven"} and all(
        one.level == "warning" for one in found
    )
    assert (by_name["duplicates"].count, by_name["leak"].count, by_name["conflicts"].count) == (2, 1, 1)
    assert "x.png" in by_name["leak"].where[0] and "5.png" in by_name["leak"].where[0]
    assert "2.png" in by_name["conflicts"].where[0] and "'dog'" in by_name["conflicts"].where[0]
    assert "30 are 'cat', 3 are 'dog'" in by_name["uneven"].message
    assert all("row" not in one.message for one in found)


def test_one_class_is_an_error_only_where_classes_are_predicted(photos: Any) -> None:
    data = photos(train={f"cat/{n}.png": n for n in range(3)})
    assert [one.name for one in check_data(data, None, True).findings] == ["one class"]
    assert not check_data(data, None, False).findings


def test_images_without_classes_are_counted(photos: Any) -> None:
    data = photos(train={f"{n}.png": n // 2 for n in range(4)})
    found = check_data(data, None, False)
    assert found.lines[0].startswith("train: 4 images of ") and [one.name for one in found.findings] == ["duplicates"]


def test_what_is_no_readable_file_is_an_error(tmp_path: Path) -> None:
    for number in range(4):
        picture(tmp_path / "train" / f"{number}.png", number)
    folder = tmp_path / "train"
    (folder / "gone.png").symlink_to("nowhere")
    (folder / "empty.png").touch()
    os.mkfifo(folder / "pipe.png")
    (found,) = check_data(ImageFolders(root=str(tmp_path), test=None), None, False).findings
    assert (found.level, found.name, found.count, found.of) == ("error", "unreadable", 3, 7)
    assert [Path(place).name for place in found.where] == ["empty.png", "gone.png", "pipe.png"]
