"""`heedful classify` and `heedful predict` with images."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from heedful.runs.recipe import load_recipe
from heedful.runs.train import train

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits") / "run"
    changes = ["data.train=60", "data.valid=10", "train.budget={steps: 3}"]
    list(train(load_recipe("digits-lenet", changes), folder))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "images" / "more").mkdir(parents=True)
    for name in ("one.png", "more/two.png"):
        Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8) * 4).save(tmp_path / "images" / name)
    return tmp_path / "images"


def test_images_are_classified(heedful: Run, run: Path, folder: Path) -> None:
    code, out, _ = heedful("classify", run, folder / "one.png", "--top", "3")
    lines = out.splitlines()
    assert code == 0 and lines[0].endswith("one.png") and len(lines) == 4
    assert all(line.endswith("%") for line in lines[1:])


def test_folder_is_read_and_unreadable_images_are_named(heedful: Run, run: Path, folder: Path) -> None:
    (folder / "bad.png").write_bytes(b"nothing")
    (folder / "notes.txt").write_text("no image")
    code, out, err = heedful("classify", run, folder, "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and [Path(row["image"]).name for row in rows] == ["two.png", "one.png"]
    assert rows[0]["label"] == rows[1]["label"] and len(rows[0]["probabilities"]) == 5
    assert "images that cannot be read, left out: 1" in err and "bad.png: this image cannot be read" in err


def test_zip_file_is_read_as_its_folder(heedful: Run, run: Path, folder: Path, tmp_path: Path) -> None:
    (folder / "bad.png").write_bytes(b"nothing")
    shutil.make_archive(str(tmp_path / "images"), "zip", folder)
    code, out, err = heedful("classify", run, tmp_path / "images.zip", "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    _, plain, _ = heedful("classify", run, folder, "--json")
    assert code == 0 and [row["image"].split("images.zip: ")[1] for row in rows] == ["more/two.png", "one.png"]
    assert [row["probabilities"] for row in rows] == [json.loads(line)["probabilities"] for line in plain.splitlines()]
    assert "left out: 1" in err and "images.zip: bad.png" in err


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bad.png", "this image cannot be read"),
        ("none.png", "there is no such file"),
        ("empty", "no image in this folder"),
    ],
)
def test_image_that_is_named_must_be_readable(heedful: Run, run: Path, folder: Path, name: str, message: str) -> None:
    (folder / "bad.png").write_bytes(b"nothing")
    (folder / "empty").mkdir()
    code, out, err = heedful("classify", run, folder / name)
    assert (code, out) == (2, "") and message in err


def test_command_without_images_says_how_to_name_one(heedful: Run, run: Path) -> None:
    code, _, err = heedful("classify", run)
    assert code == 2 and "there is no image to read" in err


def test_predictions_for_rows_of_a_file(heedful: Run, run: Path, folder: Path) -> None:
    (folder / "rows.jsonl").write_text(json.dumps({"image": str(folder / "one.png"), "id": 7}) + "\n")
    code, out, _ = heedful("predict", run, folder / "rows.jsonl")
    row = json.loads(out)
    assert code == 0 and row["id"] == 7 and row["prediction"] in "0123456789"


def test_other_commands_name_the_right_one(heedful: Run, run: Path) -> None:
    code, _, err = heedful("translate", run, "text")
    assert code == 2 and "this model classifies images" in err and "heedful classify" in err
