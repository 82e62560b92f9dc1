"""The command `describe`, and `predict` with a model that describes images."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

import heedful as library
from heedful.data.images.scenes import draw, scene
from heedful.runs.recipe import load_recipe

Cli = Callable[..., tuple[int, str, str]]
SMALL = (
    "data.train=4", "data.valid=2", "data.test=2", "data.size=[24,24]", "data.objects=[2,2]", "train.device=cpu",
    "model.encoder.size=[24,24]", "model.encoder.filters=[3,4]", "model.memory=12", "model.width=8", "model.hidden=10",
    "train.budget={steps: 2}", "decode.sentences=3",
)  # fmt: skip
SCENE = scene(0, 1, 24, 24, (2, 2))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "paragraphs"
    list(library.train(load_recipe("paragraphs", SMALL), folder))
    return folder


@pytest.fixture
def image(tmp_path: Path) -> Path:
    Image.fromarray(draw(SCENE).transpose(1, 2, 0)).save(tmp_path / "scene.png")
    (tmp_path / "scene.json").write_text(json.dumps([list(thing.box) for thing in SCENE.things]))
    return tmp_path / "scene.png"


def test_describe_prints_phrases_and_sentences_with_their_regions(heedful: Cli, run: Path, image: Path) -> None:
    code, out, err = heedful("describe", run, image, "--picture", "out.png")
    assert code == 0, err
    lines = out.splitlines()
    assert lines[0] == str(image) and lines[1].startswith("  1) ") and lines[2].startswith("  2) ")
    assert 4 <= len(lines) <= 6 and all(line.startswith("  [") for line in lines[3:])
    with Image.open("out.png") as picture:
        assert picture.width > 800
    described = library.load(run, library.ImageDescriber)
    (same,) = described.describe([image], [[list(thing.box) for thing in SCENE.things]])
    code, out, _ = heedful("describe", run, image, "--json", "--beams", 1)
    assert code == 0 and json.loads(out) == {"image": str(image), **json.loads(json.dumps(same.to_dict()))}


def test_boxes_and_phrases_from_a_file(heedful: Cli, run: Path, image: Path) -> None:
    boxes = {"boxes": [[0, 0, 12, 12]], "phrases": ["a red circle"]}
    Path("boxes.json").write_text(json.dumps(boxes))
    code, out, err = heedful("describe", run, image, "--boxes", "boxes.json", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["boxes"] == boxes["boxes"] and found["phrases"] == boxes["phrases"]


@pytest.mark.parametrize(
    ("boxes", "message"),
    [
        ("[[0, 0, 25, 9]]", "this box is outside the image"),
        ("[]", "there are no boxes"),
        ('{"boxes": 3}', "these are no boxes"),
        ('{"boxes": [[0, 0, 9, 9]], "phrases": []}', "each box needs a phrase"),
        ('{"boxes": [[0, 0, 9, 9]], "phrases": 3}', "these are no phrases"),
        ("{", "this is not JSON"),
    ],
)
def test_boxes_that_cannot_be_used(heedful: Cli, run: Path, image: Path, boxes: str, message: str) -> None:
    Path("boxes.json").write_text(boxes)
    code, out, err = heedful("describe", run, image, "--boxes", "boxes.json", "--picture", "out.png")
    assert code == 2 and message in err and not out and not Path("out.png").exists()


def test_images_without_boxes_and_other_mistakes(heedful: Cli, run: Path, image: Path) -> None:
    image.with_suffix(".json").unlink()
    for words, message in (
        ([run, image], "there are no boxes for this image"),
        ([run], "there is no image to read"),
        ([run, "none.png"], "there is no such file"),
        ([run, image, image, "--boxes", "boxes.json"], "one file of boxes is for one image"),
    ):
        code, _, err = heedful("describe", *words)
        assert code == 2 and message in err
    assert "heedful describe" in heedful("caption", run, image)[2]


def test_predict_reads_images_and_boxes(heedful: Cli, run: Path, image: Path) -> None:
    row = {"image": str(image), "boxes": [list(thing.box) for thing in SCENE.things], "id": 7}
    Path("in.jsonl").write_text(json.dumps(row) + "\n")
    code, _, err = heedful("predict", run, "in.jsonl", "--out", "out.jsonl")
    assert code == 0, err
    found = json.loads(Path("out.jsonl").read_text())
    assert found["id"] == 7 and found["sentences"][0]["region"] in (0, 1, 2)
    Path("in.jsonl").write_text(json.dumps({"image": str(image)}) + "\n")
    code, _, err = heedful("predict", run, "in.jsonl")
    assert code == 2 and "there is no field 'boxes'" in err and "in.jsonl:1" in err
