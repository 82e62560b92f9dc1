"""Captions from files: COCO, Flickr8k, tables and JSON lines, images in folders and zip files; and what is refused."""

import gzip
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from heedful.data.images.captions import (
    CaptionCsv,
    CaptionedImages,
    CaptionFiles,
    CaptionJsonl,
    CaptionSource,
    CaptionTsv,
    Coco,
    Flickr8k,
    SceneCaptions,
)
from heedful.data.images.paragraphs import SceneParagraphs
from heedful.data.images.scenes import draw
from heedful.errors import UserError

CAPTIONS = {"b.png": ["a dark square", "black"], "a.png": ["a light square", "white , or nearly"]}
KINDS: dict[str, type[Any]] = {
    "captions.txt.gz": Flickr8k,
    "captions.json": Coco,
    "captions.csv": CaptionCsv,
    "captions.tsv": CaptionTsv,
    "captions.jsonl": CaptionJsonl,
}


def write(folder: Path, captions: dict[str, list[str]] = CAPTIONS) -> None:
    """The same captions in every format, and their images in a folder and in a zip file."""
    pairs = [(name, text) for name, texts in captions.items() for text in texts]
    numbered = [f"{name}#{n}\t{text}\n" for name, texts in captions.items() for n, text in enumerate(texts)]
    with gzip.open(folder / "captions.txt.gz", "wt") as file:
        file.writelines(numbered)
    images = [{"id": n, "file_name": name} for n, name in enumerate(captions)]
    annotations = [{"image_id": list(captions).index(name), "caption": text} for name, text in pairs]
    (folder / "captions.json").write_text(json.dumps({"images": images, "annotations": annotations}))
    quoted = "".join(f'{name},"{text}"\n' for name, text in pairs)
    (folder / "captions.csv").write_text("image,caption\n" + quoted)
    (folder / "captions.tsv").write_text("image\tcaption\n" + "".join(f"{name}\t{text}\n" for name, text in pairs))
    rows = (json.dumps({"image": name, "caption": texts}) for name, texts in captions.items())
    (folder / "captions.jsonl").write_text("\n".join(rows) + "\n")
    (folder / "images" / "deep").mkdir(parents=True)
    with zipfile.ZipFile(folder / "images.zip", "w") as archive:
        for name, place, shade in (("a.png", "images/deep/a.png", 250), ("b.png", "images/b.png", 10)):
            Image.new("RGB", (6, 4), (shade, shade, shade)).save(folder / place)
            archive.write(folder / place, f"all/{name}")


def source(kind: type[Any], folder: Path, captions: str, images: str = "images", **more: Any) -> CaptionSource:
    files = CaptionFiles(captions=captions, images=images, names=more.pop("names", None))
    made: CaptionSource = kind(root=str(folder), train=files, valid=files, size=(4, 6), **more)
    return made


@pytest.mark.parametrize("images", ["images", "images.zip"])
@pytest.mark.parametrize("captions", KINDS)
def test_every_format_gives_the_same(captions: str, images: str, tmp_path: Path) -> None:
    write(tmp_path)
    data = source(KINDS[captions], tmp_path, captions, images)
    assert data.problems(["train"]) == []
    found = data.read("train")
    assert found.names == ("b.png", "a.png") and found.captions == tuple(map(tuple, CAPTIONS.values()))
    assert found.pixels.shape == (2, 3, 4, 6) and found.pixels[:, 0, 0, 0].tolist() == [10, 250]


@pytest.mark.parametrize("captions", KINDS)
def test_empty_captions_are_counted_and_named(captions: str, tmp_path: Path) -> None:
    write(tmp_path, {"b.png": ["  ", "x"], "a.png": [""]})
    with pytest.raises(UserError, match="2 captions are empty") as error:
        source(KINDS[captions], tmp_path, captions).read("train")
    assert "b.png" in str(error.value) and "a.png" in str(error.value)


@pytest.mark.parametrize("captions", KINDS)
def test_captions_without_an_image_are_counted_and_named(captions: str, tmp_path: Path) -> None:
    write(tmp_path, CAPTIONS | {"c.png": ["missing"]})
    with pytest.raises(UserError, match="1 image named by captions is not there") as error:
        source(KINDS[captions], tmp_path, captions).read("train")
    assert "c.png" in str(error.value)


def test_images_without_captions_are_refused_or_ignored(tmp_path: Path) -> None:
    write(tmp_path, {"a.png": ["one"]})
    with pytest.raises(UserError, match="1 image has no caption") as error:
        source(Flickr8k, tmp_path, "captions.txt.gz").read("train")
    assert "b.png" in str(error.value) and "without: ignore" in str(error.value)
    assert len(source(Flickr8k, tmp_path, "captions.txt.gz", without="ignore").read("train")) == 1
    assert len(source(Coco, tmp_path, "captions.json").read("train")) == 1  # its images are those that it lists


def test_a_list_of_names_chooses_images(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "names.txt").write_text("a.png\n\n")
    assert source(Flickr8k, tmp_path, "captions.txt.gz", names="names.txt").read("train").names == ("a.png",)
    (tmp_path / "names.txt").write_text("a.png\nz.png\n")
    with pytest.raises(UserError, match=r"z\.png"):
        source(Flickr8k, tmp_path, "captions.txt.gz", names="names.txt").read("train")


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "images" / "b.png").write_bytes(b"no image")
    with pytest.raises(UserError, match="this image cannot be read") as error:
        source(Flickr8k, tmp_path, "captions.txt.gz").read("train")
    assert "b.png" in str(error.value)
    (tmp_path / "images.zip").write_bytes(b"no zip file")
    with pytest.raises(UserError, match="this zip file cannot be read"):
        source(Flickr8k, tmp_path, "captions.txt.gz", "images.zip").read("train")
    (tmp_path / "captions.json").write_text("[1, 2")
    with pytest.raises(UserError, match="this is not JSON"):
        source(Coco, tmp_path, "captions.json").read("train")
    (tmp_path / "captions.json").write_text('{"images": [], "annotations": [{"image_id": 7, "caption": "x"}]}')
    with pytest.raises(UserError, match="of no image in the file"):
        source(Coco, tmp_path, "captions.json").read("train")
    (tmp_path / "captions.txt").write_text("a.png a caption without a number\n")
    with pytest.raises(UserError, match="no image and caption"):
        source(Flickr8k, tmp_path, "captions.txt").read("train")
    assert [str(p.where) for p in source(Flickr8k, tmp_path, "captions.txt", "none").problems(["train"])] == [
        str(tmp_path / "none")
    ]


def test_validation_and_test_scenes_do_not_depend_on_the_number_for_training() -> None:
    """A run that starts from another is tested on scenes that neither was trained on."""
    few, many = SceneCaptions(train=2, valid=3, test=2), SceneCaptions(train=40, valid=9, test=2)
    assert few.scenes("test") == many.scenes("test") and few.scenes("valid") == many.scenes("valid")[:3]
    assert not {*many.scenes("train")} & {*few.scenes("valid"), *few.scenes("test")}
    paragraphs = SceneParagraphs(train=2, valid=3, test=2).read("test")
    assert np.array_equal(paragraphs.pixels, few.read("test").pixels)


def test_drawn_scenes_have_their_own_captions() -> None:
    data = SceneCaptions(train=5, valid=3, test=2, captions=2)
    found: CaptionedImages = data.read("valid")
    scenes = data.scenes("valid")
    assert found.captions == tuple(scene.captions[:2] for scene in scenes)
    assert np.array_equal(found.pixels, np.stack([draw(scene) for scene in scenes]))
    with pytest.raises(ValueError, match="smaller number first"):
        SceneCaptions(objects=(3, 1))
