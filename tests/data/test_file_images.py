"""Images that stay in their files, and zip files: the same pixels, in any process, checked once at the start."""

from __future__ import annotations

import io
import zipfile
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from heedful.data.images import sources
from heedful.data.images.augmentation import Augmentation
from heedful.data.images.file_images import FileImages
from heedful.data.images.image_files import read_image_file
from heedful.data.images.image_spec import ImageSpec
from heedful.data.images.inputs import prepare, read_labelled
from heedful.data.images.labelled_batches import EncodedLabelledImages, LabelledImageBatches, encode_labelled_images
from heedful.data.images.normalization import channel_statistics
from heedful.data.images.sources import ImageFolders, Images
from heedful.data.images.zip_files import ZipMember
from heedful.data.workers import BatchIndex, load_batches
from heedful.errors import UserError

PIXELS = np.random.default_rng(3).integers(0, 256, (7, 9, 8, 3), np.uint8)


def png(number: int) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(PIXELS[number]).save(buffer, "PNG")
    return buffer.getvalue()


NAMES = [f"{'cat' if number < 4 else 'dog'}/{number}.png" for number in range(7)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, name in enumerate(NAMES):
        (tmp_path / "train" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "train" / name).write_bytes(png(number))
    (tmp_path / "train/cat/notes.txt").write_text("no image")
    return tmp_path


def write_zip(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def read(root: Path, **settings: Any) -> Images:
    return ImageFolders.model_validate({"root": str(root), "test": None, **settings}).read("train")


def encoded(images: Images) -> EncodedLabelledImages:
    _, channels, rows, columns = images.stored.shape
    return encode_labelled_images(images, ImageSpec((channels, rows, columns), images.names))


def test_images_in_files_are_those_in_memory(folder: Path) -> None:
    there, here = read(folder, keep="files"), read(folder)
    assert isinstance(there.stored, FileImages) and isinstance(here.stored, np.ndarray)
    assert there.stored.shape == here.stored.shape and len(there) == 7 and there.skipped == 1
    assert np.array_equal(there.pixels, here.pixels)
    for rows in (3, slice(1, 6, 2), np.array([5, 0, 5])):
        assert np.array_equal(there.stored[rows], here.stored[rows])
    assert channel_statistics(there.stored) == channel_statistics(here.stored)
    for one, other in zip(encoded(there).in_order(3), encoded(here).in_order(3), strict=True):
        assert torch.equal(one.pixels, other.pixels) and torch.equal(one.targets, other.targets)


def test_workers_decode_the_same_batches(folder: Path) -> None:
    augmentation = Augmentation(crop=1, flip=0.5, mixup=0.3)
    there, here = (
        LabelledImageBatches(encoded(read(folder, keep=keep)), 5, 3, augmentation=augmentation)
        for keep in ("files", "memory")
    )
    loaded = load_batches(there, lambda: (BatchIndex(number) for number in range(9)), workers=2)
    for number, batch in enumerate(loaded):
        assert torch.equal(batch.pixels, here.at(number).pixels), number
        assert torch.equal(batch.shares, here.at(number).shares)


def test_large_data_stay_in_their_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(read(folder, size=(9, 8)).stored, np.ndarray)
    monkeypatch.setattr(sources, "MOST_IN_MEMORY", 7 * 9 * 8 * 3 - 1)
    assert isinstance(read(folder, size=(9, 8)).stored, FileImages)
    assert isinstance(read(folder, size=(9, 8), keep="memory").stored, np.ndarray)


def test_hash_follows_contents_and_order(folder: Path) -> None:
    before = encoded(read(folder, keep="files")).sha256
    assert encoded(read(folder, keep="files")).sha256 == before
    (folder / "train/dog/6.png").write_bytes(png(0))
    assert encoded(read(folder, keep="files")).sha256 != before


@pytest.mark.parametrize("keep", ["files", "memory"])
def test_unreadable_files_are_named_before_training(folder: Path, keep: str) -> None:
    (folder / "train/cat/1.png").write_bytes(png(1)[:60])
    (folder / "train/dog/5.png").write_bytes(b"nothing")
    with pytest.raises(UserError, match="2 of 7 images cannot be read") as error:
        read(folder, keep=keep)
    assert "cat/1.png" in str(error.value) and "dog/5.png" in str(error.value)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (png(5)[:70], "this image cannot be read"),
        (None, "this image cannot be read"),
        ("small", "this image has changed"),
    ],
)
def test_file_that_breaks_later_is_named(folder: Path, workers: int, content: Any, message: str) -> None:
    batches = LabelledImageBatches(encoded(read(folder, keep="files")), 0, 7)
    place = folder / "train/dog/5.png"
    if content is None:
        place.unlink()
    elif content == "small":
        Image.new("RGB", (3, 3)).save(place)
    else:
        place.write_bytes(content)
    with pytest.raises(UserError, match=message) as error:
        next(load_batches(batches, lambda: iter([BatchIndex(0)]), workers))
    assert str(place) in str(error.value)


@pytest.mark.parametrize("resample", ["bilinear", "bicubic"])
@pytest.mark.parametrize("channels", [1, 3])
def test_fast_interpolation_is_pillows_but_for_rounding(tmp_path: Path, resample: Any, channels: Any) -> None:
    rows, columns = np.mgrid[:40, :50]
    smooth = np.stack([rows * 6, columns * 5, (rows + columns) * 2], -1).astype(np.uint8)
    picture = Image.fromarray(smooth)
    picture.save(tmp_path / "a.png")
    mode = "L" if channels == 1 else "RGB"
    for size in ((17, 12), (60, 70)):
        found = read_image_file(tmp_path / "a.png", channels, size, resample=resample).transpose(1, 2, 0)
        exact = np.asarray(picture.convert(mode).resize(size[::-1], Image.Resampling[resample.upper()]))
        assert np.abs(found.astype(int) - exact.reshape(found.shape)).max() <= 1


def test_interpolation_of_training_is_that_of_predictions(folder: Path) -> None:
    how: dict[str, Any] = {"size": (5, 4), "resample": "bilinear"}
    there, here = read(folder, keep="files", **how), read(folder, **how)
    assert here.resample == "bilinear" and np.array_equal(there.pixels, here.pixels)
    assert not np.array_equal(here.pixels, read(folder, size=(5, 4)).pixels)
    spec = ImageSpec((3, 5, 4), ("cat", "dog"), resample="bilinear")
    assert np.array_equal(prepare(folder / "train/cat/0.png", spec), here.pixels[0])
    spec = ImageSpec((3, 5, 4), ("cat", "dog"), shorter=7, resample="bilinear")
    cropped = [prepare(folder / "train" / name, spec) for name in NAMES]
    exact = read_image_file(folder / "train/cat/0.png", 3, (5, 4), 7, "bilinear")
    assert np.array_equal(cropped[0], exact)
    assert np.array_equal(read_labelled(folder / "train", spec).array(np.arange(7)), np.stack(cropped))


def test_images_of_several_sizes_need_one(folder: Path) -> None:
    Image.new("RGB", (5, 5)).save(folder / "train/dog/4.png")
    with pytest.raises(UserError, match="different size") as error:
        read(folder, keep="files")
    assert "data.size=[9, 8]" in str(error.value)
    assert read(folder, keep="files", size=(9, 8)).stored.shape == (7, 3, 9, 8)


# ------------------------------------------------------------------ zip files
@pytest.mark.parametrize("around", ["", "pets/", "a/b/"])
@pytest.mark.parametrize("keep", ["files", "memory"])
def test_zip_file_is_the_folder(folder: Path, keep: str, around: str) -> None:
    files = {f"{around}{name}": png(number) for number, name in enumerate(NAMES)}
    hidden = {"__MACOSX/cat/0.png": b"", f"{around}cat/.0.png": b""}
    write_zip(folder / "train.zip", files | hidden | {f"{around}cat/notes.txt": b"no image"})
    there, here = read(folder, train="train.zip", keep=keep), read(folder)
    assert there.names == here.names == ("cat", "dog") and there.skipped == 1
    assert np.array_equal(there.pixels, here.pixels)
    assert there.labels is not None and here.labels is not None and there.labels.tolist() == here.labels.tolist()


def test_processes_read_one_zip_file(folder: Path) -> None:
    write_zip(folder / "train.zip", {name: png(number) for number, name in enumerate(NAMES)})
    there, here = (
        LabelledImageBatches(encoded(read(folder, train=name, keep="files")), 0, 2) for name in ("train.zip", "train")
    )
    indices = lambda: (BatchIndex(number) for number in range(10**6))  # noqa: E731
    for number, batch in enumerate(islice(load_batches(there, indices, workers=3), 12)):
        assert torch.equal(batch.pixels, here.at(number).pixels)


def test_each_process_opens_the_zip_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    member = ZipMember(write_zip(tmp_path / "train.zip", {"a.png": png(0)}), "a.png")
    counts, plain = [0], zipfile.ZipFile

    def counted(path: Path) -> zipfile.ZipFile:
        counts[0] += 1
        return plain(path)

    monkeypatch.setattr("heedful.data.images.zip_files.zipfile.ZipFile", counted)
    for process, opened in ((1, 1), (1, 1), (2, 2), (1, 2)):  # processes would share the position in one
        monkeypatch.setattr("heedful.data.images.zip_files.os.getpid", lambda process=process: process)
        assert member.read().read() == png(0) and counts == [opened]


def test_zip_file_without_classes_has_no_labels(tmp_path: Path) -> None:
    write_zip(tmp_path / "train.zip", {"b.png": png(1), "a.png": png(0)})
    found = read(tmp_path, train="train.zip")
    assert found.labels is None and np.array_equal(found.pixels[0], PIXELS[0].transpose(2, 0, 1))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"notes.txt": b"no image"}, "there is no image in this zip file"),
        ({"cat/0.png": png(0), "1.png": png(1)}, "some images are in a class folder, others are not"),
        ({"cat/0.png": b"nothing", "dog/1.png": png(1)}, "this image cannot be read"),
    ],
)
def test_bad_zip_files_are_refused(tmp_path: Path, files: dict[str, bytes], message: str) -> None:
    write_zip(tmp_path / "train.zip", files)
    with pytest.raises(UserError, match=message):
        read(tmp_path, train="train.zip")


def link(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = 0o120777 << 16
    return info


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_hostile_zip_files_are_refused_and_every_file_named(tmp_path: Path) -> None:
    names: list[Any] = [
        "../a.png",
        "/etc/b.png",
        "cat/../../c.png",
        "cat\\..\\d.png",
        "C:e.png",
        link("f.png"),
        "cat/0.png",
    ]
    with zipfile.ZipFile(tmp_path / "train.zip", "w") as archive:
        for name in [*names, "cat/0.png", "cat/fine..png", "dog/1.png"]:
            archive.writestr(name, png(0))
    with pytest.raises(UserError, match="never read: 7 of 10") as error:
        read(tmp_path, train="train.zip")
    for text in ("../a.png: outside", "/etc/b.png: outside", "C:e.png: outside", "f.png: a link", "cat/0.png: twice"):
        assert text in str(error.value)
    assert "fine" not in str(error.value) and "dog" not in str(error.value)


def test_bombs_and_encrypted_files_in_a_zip_file_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heedful.data.images.zip_files.BOMB_BYTES", 2**16)
    write_zip(tmp_path / "train.zip", {"cat/0.png": png(0), "cat/bomb.bmp": bytes(2**17), "dog/1.png": png(1)})
    whole = (tmp_path / "train.zip").read_bytes()
    with pytest.raises(UserError, match="this image cannot be read") as error:
        read(tmp_path, train="train.zip")
    assert "cat/bomb.bmp" in str(error.value) and "would become 131,072" in str(error.value)
    place = whole.index(b"PK\1\2")  # of the first file in the directory
    (tmp_path / "train.zip").write_bytes(whole[: place + 8] + b"\1" + whole[place + 9 :])
    with pytest.raises(UserError, match="2 of 3 images cannot be read") as error:
        read(tmp_path, train="train.zip")
    assert "encrypted" in str(error.value)


def test_damaged_zip_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = write_zip(tmp_path / "train.zip", {name: png(number) for number, name in enumerate(NAMES)}).read_bytes()
    (tmp_path / "train.zip").write_bytes(whole[:-30])
    with pytest.raises(UserError, match="this zip file cannot be read"):
        read(tmp_path, train="train.zip")
    (tmp_path / "train.zip").write_bytes(whole[:60] + bytes(20) + whole[80:])  # a member is damaged
    with pytest.raises(UserError, match="this image cannot be read"):
        read(tmp_path, train="train.zip")
    (tmp_path / "train.zip").write_bytes(whole)
    monkeypatch.setattr("heedful.data.images.zip_files.MOST_BYTES", 10)
    with pytest.raises(UserError, match="images cannot be read"):
        read(tmp_path, train="train.zip")
    with pytest.raises(UserError, match="there is no such folder"):
        read(tmp_path, train="other.zip")
    assert str(ZipMember(Path("a.zip"), "b/c.png")) == "a.zip: b/c.png"
