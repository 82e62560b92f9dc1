"""Images of every kind of file are read exactly, and every mistake in a file is reported with its location."""

from __future__ import annotations

import contextlib
import gzip
import os
import random
import re
import resource
import shutil
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from pydantic import ValidationError

from heedful.config import parse
from heedful.data.embedded import Digits
from heedful.data.formats.idx import TYPES, read_idx
from heedful.data.formats.sources import SPLITS, Split
from heedful.data.images.sources import (
    ArrayFile,
    ArrayImages,
    CsvImages,
    IdxImages,
    ImageData,
    ImageFiles,
    ImageFolders,
    Images,
    scale_pixels,
)
from heedful.errors import UserError
from patience import LONG

GREY = np.arange(3 * 4 * 5, dtype=np.uint8).reshape(3, 4, 5) * 4  # three images of 4 x 5
LABELS = np.array([2, 0, 1], np.uint8)


def gzip_bytes(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


def idx(array: NDArray[Any]) -> bytes:
    code = {"u1": 8, "i1": 9, "i2": 11, "i4": 12, "f4": 13, "f8": 14}[array.dtype.str[1:]]
    return (
        bytes([0, 0, code, array.ndim])
        + struct.pack(f">{array.ndim}I", *array.shape)
        + array.astype(array.dtype.newbyteorder(">")).tobytes()
    )


def idx_files(root: Path, images: bytes, labels: bytes | None = None) -> IdxImages:
    (root / "images").write_bytes(images)
    if labels is not None:
        (root / "labels").write_bytes(labels)
    return IdxImages(root=str(root), train=ImageFiles(images="images", labels=None if labels is None else "labels"))


def arrays(
    root: Path, array: NDArray[Any], labels: NDArray[Any] | None = None, shape: tuple[int, int, int] | None = None
) -> ArrayImages:
    np.save(root / "images.npy", array)
    if labels is not None:
        np.save(root / "labels.npy", labels)
    file = ArrayFile(file="images.npy", labels=None if labels is None else "labels.npy")
    return ArrayImages(root=str(root), train=file, shape=shape)


def table(root: Path, text: str, **more: Any) -> CsvImages:
    (root / "rows.csv").write_text(text)
    return CsvImages(root=str(root), train="rows.csv", **more)


def write_image(path: Path, pixels: NDArray[np.uint8]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def error_for(source: ImageData, split: Split = "train") -> UserError:
    with pytest.raises(UserError) as caught:
        source.read(split)
    assert str(caught.value).startswith(f"{caught.value.where}: ")
    return caught.value


def test_idx_images_and_labels(tmp_path: Path) -> None:
    found = idx_files(tmp_path, idx(GREY), idx(LABELS)).read("train")
    assert found.pixels.dtype == np.uint8
    np.testing.assert_array_equal(found.pixels, GREY[:, None])
    np.testing.assert_array_equal(found.labels, [2, 0, 1])
    assert found.names == ("0", "1", "2")
    assert np.shares_memory(found.vectors, found.pixels)
    np.testing.assert_array_equal(found.vectors, GREY.reshape(3, 20))
    assert len(found) == 3 and found.skipped == 0


def test_idx_without_labels_and_gzip(tmp_path: Path) -> None:
    found = idx_files(tmp_path, gzip_bytes(idx(GREY))).read("train")
    np.testing.assert_array_equal(found.pixels, GREY[:, None])
    assert found.labels is None and found.names == ()


def test_idx_channels_are_last_in_the_file_and_first_in_the_tensor(tmp_path: Path) -> None:
    colours = np.arange(2 * 4 * 5 * 3, dtype=np.uint8).reshape(2, 4, 5, 3)
    found = idx_files(tmp_path, idx(colours)).read("train").pixels
    assert found.shape == (2, 3, 4, 5) and found.flags.c_contiguous
    assert found[1, 2, 3, 4] == colours[1, 3, 4, 2]


@pytest.mark.parametrize("code", sorted(TYPES))
def test_idx_of_every_dtype_and_rank(tmp_path: Path, code: int) -> None:
    array = np.array([[1, 100], [3, 4], [0, 7]]).astype(np.dtype(TYPES[code]).newbyteorder("="))
    for shape in [(6,), (3, 2), (1, 3, 2), (1, 1, 3, 1, 2)]:
        (tmp_path / "x").write_bytes(idx(array.reshape(shape)))
        np.testing.assert_array_equal(read_idx(tmp_path / "x"), array.reshape(shape))
    pixels = idx_files(tmp_path, idx(array[None])).read("train").pixels
    assert pixels.dtype == (np.float32 if array.dtype.kind == "f" else np.uint8)
    np.testing.assert_array_equal(pixels[0, 0], array)


def header(*sizes: int, code: int = 8) -> bytes:
    return bytes([0, 0, code, len(sizes)]) + struct.pack(f">{len(sizes)}I", *sizes)


@pytest.mark.parametrize(
    ("data", "message", "detail"),
    [
        (b"", "this file is empty", "images"),
        (b"\0\0", "not an idx file", "b'\\x00\\x00' at"),
        (b"<html><body>", "not an idx file", "b'<htm'"),
        (b"\0\0\x0a\x03" + bytes(20), "not an idx file", "8, 9, 11"),
        (b"\0\0\x08\x00", "not an idx file", "dimensions"),
        (b"\0\0\x08\xff" + bytes(2000), "not an idx file", "dimensions"),
        (b"\0\0\x08\x03\0\0", "truncated", "6 bytes"),
        (idx(GREY)[:-1], "truncated", "75 bytes\n  expected: 76 bytes: 3 x 4 x 5 numbers of 1 byte"),
        (gzip_bytes(idx(GREY)[:-7]), "truncated", "69 bytes"),
        (idx(GREY) + b"\0", "longer than its header says", "76 bytes"),
        (header(2**32 - 1, 2**32 - 1, 2**32 - 1) + bytes(50), "truncated", "66 bytes"),
        (header(0, 28, 28), "idx file is empty", "(0, 28, 28)"),
        (header(2**32 - 1, 0, 2**32 - 1), "idx file is empty", "numbers"),
        (gzip_bytes(idx(GREY))[:-9], "gzip file is damaged", "gzip -t"),
        (gzip_bytes(idx(GREY))[:30] + b"????" + gzip_bytes(idx(GREY))[34:], "gzip file is damaged", "gzip -t"),
        (idx(LABELS), "has no images", "are swapped"),
        (header(3, 4) + bytes(12), "has no images", "shape 3 x 4"),
        (idx(GREY.astype(np.int16) * 100), "value is invalid", "400 in image 0, channel 0, row 0, column 1"),
        (idx(-GREY.astype(np.int32)), "value is invalid", "-4 in image 0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "file",
)  # fmt: skip
def test_invalid_idx_files_are_rejected(tmp_path: Path, data: bytes, message: str, detail: str) -> None:
    error = error_for(idx_files(tmp_path, data))
    assert error.where == f"{tmp_path}/images"
    assert message in error.message
    assert detail in str(error)


@pytest.mark.parametrize(
    ("labels", "message", "detail"),
    [
        (idx(LABELS[:2]), "number of labels differs", "2 labels\n  expected: 3"),
        (idx(GREY), "has no labels", "are swapped"),
        (idx(LABELS.astype(np.int8) - 1), "this is not a label", "-1 for image 1"),
        (idx(LABELS + 0.5), "this is not a label", "2.5 for image 0"),
        (idx(LABELS.astype(np.int32) * 10**9), "this is not a label", "2000000000 for image 0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "file",
)
def test_invalid_idx_labels_are_rejected(tmp_path: Path, labels: bytes, message: str, detail: str) -> None:
    error = error_for(idx_files(tmp_path, idx(GREY), labels))
    assert error.where == f"{tmp_path}/labels"
    assert message in error.message
    assert detail in str(error)


def test_gzip_bomb_is_rejected(tmp_path: Path) -> None:
    bomb = gzip_bytes(header(100_000, 1000, 10) + bytes(80 * 2**20))
    error = error_for(idx_files(tmp_path, bomb))
    assert "suspiciously high" in error.message


def read_with_memory_limit(path: Path) -> subprocess.CompletedProcess[str]:
    """Read an idx file in a process limited to 1 GiB."""
    script = (
        "import sys; from pathlib import Path; from heedful.data.formats.idx import read_idx;"
        "read_idx(Path(sys.argv[1]))"
    )

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))

    return subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, preexec_fn=limit, timeout=LONG
    )


@pytest.mark.parametrize("pack", [bytes, gzip_bytes], ids=["plain", "gzip"])
def test_oversized_header_takes_no_memory(tmp_path: Path, pack: Any) -> None:
    (tmp_path / "x").write_bytes(pack(header(60_000, 2000, 2000) + bytes(100)))
    output = read_with_memory_limit(tmp_path / "x").stderr
    assert "this idx file is truncated" in output and "MemoryError" not in output


GOOD = [idx(GREY), idx(LABELS), gzip_bytes(idx(GREY)), idx(GREY.astype(np.float32))]


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.one_of(
        st.binary(max_size=200),
        st.builds(lambda data, end: data[:end], st.sampled_from(GOOD), st.integers(0, 300)),
        st.builds(
            lambda data, place, byte: data[: place % len(data)] + bytes([byte]) + data[place % len(data) + 1 :],
            st.sampled_from(GOOD),
            st.integers(0, 300),
            st.integers(0, 255),
        ),
        st.builds(lambda tail: b"\0\0" + tail, st.binary(max_size=60)),
    )
)
@example(header(2**32 - 1, 2**32 - 1, 0, 2**32 - 1, code=14))
def test_random_bytes_are_images_or_a_user_error(tmp_path: Path, data: bytes) -> None:
    with contextlib.suppress(UserError):
        assert isinstance(idx_files(tmp_path, data, idx(LABELS)).read("train"), Images)


def test_validation_defaults_to_the_test_images(tmp_path: Path) -> None:
    for name, shade in (("a", 10), ("b", 20), ("c", 30)):
        (tmp_path / name).write_bytes(idx(np.full((1, 2, 2), shade, np.uint8)))
    a, b, c = (ImageFiles(images=name) for name in "abc")
    data = IdxImages(root=str(tmp_path), train=a, test=c)
    assert [data.read(split).pixels.max() for split in ("train", "valid", "test")] == [10, 30, 30]
    assert IdxImages(root=str(tmp_path), train=a, valid=b, test=c).read("valid").pixels.max() == 20
    alone = IdxImages(root=str(tmp_path), train=a)
    assert alone.read("train").pixels.max() == 10
    assert error_for(alone, "valid").where == "data.valid"
    assert error_for(alone, "test").where == "data.test"
    assert [problem.where for problem in alone.problems()] == ["data.valid"]
    assert data.problems() == [] and alone.problems(["train"]) == []


def test_missing_files_are_reported(tmp_path: Path) -> None:
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(idx(GREY))
    (tmp_path / "folder").mkdir()
    data = IdxImages(
        root=str(tmp_path),
        train=ImageFiles(images="train-images-idx3-ubyte", labels="folder"),
        test=ImageFiles(images="x" * 300),
    )
    problems = {str(problem.where): str(problem) for problem in data.problems()}
    assert "did you mean train-images-idx3-ubyte.gz?" in problems[f"{tmp_path}/train-images-idx3-ubyte"]
    assert "this is a folder" in problems[f"{tmp_path}/folder"]
    assert "File name too long" in problems[f"{tmp_path}/{'x' * 300}"]
    assert len(problems) == 3
    (lost,) = data.model_copy(update={"root": "no/such/place"}).problems()
    assert lost.where == "data.root"


def test_image_settings_are_checked_without_heavy_packages(tmp_path: Path) -> None:
    data = parse(ArrayImages, {"kind": "array", "train": {"file": "x.npz"}, "shape": [1, 28, 28]})
    assert data.shape == (1, 28, 28)
    script = (
        "import sys; from heedful.data.embedded import Digits;"
        "from heedful.data.images.sources import CsvImages, ImageFolders;"
        f"Digits().problems(), CsvImages(train='x').problems(), ImageFolders(root={str(tmp_path)!r}).problems();"
        "print({'numpy', 'torch', 'PIL', 'sklearn'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "set()\n"


def test_uint8_is_scaled_and_floats_are_not() -> None:
    every = np.arange(256, dtype=np.uint8)
    np.testing.assert_array_equal(scale_pixels(every), np.arange(256, dtype=np.float32) / 255)
    assert scale_pixels(every).dtype == np.float32 and scale_pixels(every)[255] == 1
    reals = np.array([-3.5, 255], np.float32)
    assert scale_pixels(reals) is reals


@pytest.mark.parametrize("shade", [0, 255])
def test_single_uniform_image_is_read(tmp_path: Path, shade: int) -> None:
    one = np.full((1, 2, 2), shade, np.uint8)
    assert idx_files(tmp_path, idx(one)).read("train").pixels.tolist() == [[[[shade] * 2] * 2]]
    assert arrays(tmp_path, one).read("train").pixels.tolist() == [[[[shade] * 2] * 2]]
    assert scale_pixels(table(tmp_path, ",".join([str(shade)] * 4)).read("train").pixels).max() == shade / 255


def test_arrays_of_every_shape(tmp_path: Path) -> None:
    np.testing.assert_array_equal(arrays(tmp_path, GREY).read("train").pixels, GREY[:, None])
    rows = GREY.reshape(3, 20)
    assert arrays(tmp_path, rows).read("train").pixels.shape == (3, 1, 1, 20)
    np.testing.assert_array_equal(arrays(tmp_path, rows, shape=(1, 4, 5)).read("train").pixels, GREY[:, None])
    last = np.random.default_rng(0).random((2, 4, 5, 3), np.float32)
    first = np.ascontiguousarray(np.moveaxis(last, -1, 1))
    for array, shape in ((last, None), (last, (3, 4, 5)), (first, (3, 4, 5)), (first.reshape(2, 60), (3, 4, 5))):
        found = arrays(tmp_path, array, shape=shape).read("train").pixels
        np.testing.assert_array_equal(found, first)
        assert found.flags.c_contiguous
    np.testing.assert_array_equal(arrays(tmp_path, np.asfortranarray(GREY)).read("train").pixels, GREY[:, None])


def test_arrays_of_every_dtype(tmp_path: Path) -> None:
    def read(array: NDArray[Any]) -> NDArray[Any]:
        return arrays(tmp_path, array).read("train").pixels[:, 0]

    assert read(GREY % 8 == 0).max() == 255  # black and white
    for kind in (np.int8, np.int64, np.uint16):
        found = read((GREY // 2).astype(kind))
        assert found.dtype == np.uint8
        np.testing.assert_array_equal(found, GREY // 2)
    for kind in (np.float16, np.float32, np.float64, ">f4"):
        found = read((GREY / 7).astype(kind))
        assert found.dtype == np.float32 and found.dtype.isnative
        np.testing.assert_array_equal(found, (GREY / 7).astype(kind).astype(np.float32))


def test_uint8_and_float_arrays_stay_memory_mapped(tmp_path: Path) -> None:
    for array in (GREY, GREY.astype(np.float32)):
        found = arrays(tmp_path, array).read("train").pixels
        with (tmp_path / "images.npy").open("r+b") as file:
            file.seek(-array.itemsize, os.SEEK_END)
            file.write(array[0, 0, :1].tobytes())
        assert found[-1, 0, -1, -1] == array[0, 0, 0]
        found[0] = 9  # writable, without changing the file
        assert np.load(tmp_path / "images.npy")[0, 0, 0] == array[0, 0, 0]


def test_array_labels(tmp_path: Path) -> None:
    for labels in (LABELS, LABELS[:, None], LABELS.astype(np.float64)):
        assert arrays(tmp_path, GREY, labels).read("train").labels.tolist() == [2, 0, 1]  # type: ignore[union-attr]
    assert "differs from" in error_for(arrays(tmp_path, GREY, LABELS[:1])).message
    assert "not labels" in error_for(arrays(tmp_path, GREY, np.array(["a", "b", "c"]))).message


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_archives(tmp_path: Path, save: Any) -> None:
    save(tmp_path / "mnist.npz", x_train=GREY, y_train=LABELS, x_test=GREY[:1])
    named = ArrayFile(file="mnist.npz", key="x_train", labels="y_train")
    found = ArrayImages(root=str(tmp_path), train=named, test=ArrayFile(file="mnist.npz", key="x_test"))
    np.testing.assert_array_equal(found.read("train").pixels, GREY[:, None])
    np.testing.assert_array_equal(found.read("train").labels, LABELS)
    assert len(found.read("valid")) == 1 and found.problems() == []
    error = error_for(ArrayImages(root=str(tmp_path), train=ArrayFile(file="mnist.npz")))
    assert error.found == "'x_train', 'y_train', 'x_test'" and "key" in str(error.todo)
    error = error_for(ArrayImages(root=str(tmp_path), train=ArrayFile(file="mnist.npz", key="images")))
    assert "no such array" in error.message
    save(tmp_path / "two.npz", images=GREY, labels=LABELS)
    two = ArrayImages(root=str(tmp_path), train=ArrayFile(file="two.npz", labels="labels"))
    np.testing.assert_array_equal(two.read("train").pixels, GREY[:, None])


def test_key_for_npy_files_is_rejected() -> None:
    for more in ({"key": "x"}, {"labels": "y"}):
        with pytest.raises(ValidationError, match="file has named arrays"):
            ArrayFile(file="x.npy", **more)


def test_objects_are_never_unpickled(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, tuple[str]]:
            return os.mkdir, (str(tmp_path / "sprung"),)

    trap = np.array([Trap()], dtype=object)
    np.savez(tmp_path / "images.npz", images=trap)
    archive = ArrayImages(root=str(tmp_path), train=ArrayFile(file="images.npz"))
    for source in (arrays(tmp_path, trap), archive):
        assert "never unpickled" in error_for(source).message
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("array", "message", "detail"),
    [
        (np.where(GREY == 100, np.nan, GREY), "value is invalid", "nan in image 1, channel 0, row 1, column 0"),
        (np.where(GREY == 100, np.inf, GREY).astype(np.float32), "value is invalid", "inf in image 1"),
        (np.where(GREY == 100, 1e300, GREY), "value is invalid", "1e+300 in image 1"),
        (GREY.astype(np.int64) - 1, "value is invalid", "-1 in image 0, channel 0, row 0, column 0"),
        (GREY.astype(np.uint16) * 2, "value is invalid", "256 in image 1"),
        (GREY.astype(complex), "pixels must be numbers", "complex128"),
        (GREY.astype(str), "pixels must be numbers", "<U3"),
        (GREY[:0], "array is empty", "(0, 4, 5)"),
        (GREY[0, 0], "not an array of images", "(5,)"),
        (GREY[None, None], "not an array of images", "(1, 1, 3, 4, 5)"),
        (np.zeros((2, 3, 8, 8)), "are the channels", "data.shape=[3, 8, 8]"),
    ],
)
def test_invalid_arrays_are_rejected(tmp_path: Path, array: NDArray[Any], message: str, detail: str) -> None:
    error = error_for(arrays(tmp_path, array))
    assert str(error.where) == f"{tmp_path}/images.npy"
    assert message in error.message
    assert detail in str(error)


def test_first_invalid_pixel_is_located(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heedful.data.images.pixels.CHUNK", 40)  # two images at a time
    many = np.zeros((9, 4, 5))
    many[7, 3, 2] = many[8, 0, 0] = np.nan
    assert "nan in image 7, channel 0, row 3, column 2" in str(error_for(arrays(tmp_path, many)))


def test_mismatched_shape_is_reported(tmp_path: Path) -> None:
    error = error_for(arrays(tmp_path, GREY, shape=(1, 5, 5)))
    assert error.found == "4 x 5 numbers an image" and "25 in a row" in str(error.expected)
    assert "3 x 4 x 5" in str(error_for(arrays(tmp_path, GREY, shape=(3, 4, 5))))


@pytest.mark.parametrize("spoil", [0, 1, 7, 30, 60, 127, 130, -1])
def test_truncated_arrays(tmp_path: Path, spoil: int) -> None:
    source = arrays(tmp_path, GREY)
    path = tmp_path / "images.npy"
    path.write_bytes(path.read_bytes()[:spoil])
    assert error_for(source).message in {"this file is empty", "this is not a numpy array", "the size of this array differs from its header"}  # fmt: skip  # noqa: E501


def test_arrays_with_odd_headers_are_rejected(tmp_path: Path) -> None:
    source = arrays(tmp_path, GREY)
    path = tmp_path / "images.npy"
    good = path.read_bytes()
    for shape in (
        b"(10**15, 4, 5)",
        b"(99999999999, 4, 5)",
        b"(-3, -4, 5)",
        b"(3, 4, 'x')",
        b"(3, 4, 5",
        b"(3, 4, 5.0)",
    ):
        path.write_bytes(good.replace(b"(3, 4, 5), }" + b" " * (len(shape) - 9), shape + b", }"))
        assert error_for(source).message in {
            "this is not a numpy array",
            "the size of this array differs from its header",
        }


def test_damaged_archives_are_rejected(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", images=GREY)
    good = (tmp_path / "a.npz").read_bytes()
    source = ArrayImages(root=str(tmp_path), train=ArrayFile(file="a.npz"))
    generator = random.Random(0)
    for trial in range(300):
        spoiled = bytearray(good)
        spoiled[generator.randrange(len(good))] ^= 1 << generator.randrange(8)
        (tmp_path / "a.npz").write_bytes(spoiled if trial % 2 else good[: generator.randrange(1, len(good))])
        with contextlib.suppress(UserError):
            source.read("train")
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("images.npy", bytes(100 * 2**20))
    assert "suspiciously high" in error_for(source).message


CSV = "\n".join(",".join(map(str, [label, *row])) for label, row in zip(LABELS, GREY.reshape(3, 20), strict=True))


def test_rows_of_numbers(tmp_path: Path) -> None:
    found = table(tmp_path, CSV + "\n", label=0, shape=(1, 4, 5)).read("train")
    assert found.pixels.dtype == np.uint8
    np.testing.assert_array_equal(found.pixels, GREY[:, None])
    np.testing.assert_array_equal(found.labels, LABELS)
    assert found.names == ("0", "1", "2")
    assert table(tmp_path, CSV, label=0).read("train").pixels.shape == (3, 1, 1, 20)
    assert table(tmp_path, "9,8,7,6").read("train").pixels.tolist() == [[[[9, 8], [7, 6]]]]  # a square
    (tmp_path / "rows.csv").write_bytes(gzip_bytes(b"\xef\xbb\xbf" + CSV.replace("\n", "\r\n\r\n").encode()))
    found = CsvImages(root=str(tmp_path), train="rows.csv", label=0, shape=(1, 4, 5)).read("train")
    np.testing.assert_array_equal(found.pixels, GREY[:, None])


@pytest.mark.parametrize("first", ["label,1x1,1x2,1x3,1x4", '"label","p 1","p2","p3","p4"', "label,0,1,2,3"])
def test_headers_are_detected(tmp_path: Path, first: str) -> None:
    found = table(tmp_path, f"{first}\n7,4,3,2,1\n", label="label").read("train")
    assert found.pixels.tolist() == [[[[4, 3], [2, 1]]]]
    assert found.labels.tolist() == [7]  # type: ignore[union-attr]


def test_header_of_numbers(tmp_path: Path) -> None:
    assert len(table(tmp_path, "0,1,2,3\n9,9,9,9\n").read("train")) == 1
    assert len(table(tmp_path, "0,1,2,3\n9,9,9,9\n", header=False).read("train")) == 2
    assert len(table(tmp_path, "5,6,7,8\n9,9,9,9\n", header=True).read("train")) == 1
    assert "data.header=true" in str(error_for(table(tmp_path, ",1,2,3\n9,9,9,9\n")))
    assert "a header" in str(error_for(table(tmp_path, "a,b,c\n")))


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("0,128,255,3", np.array([0, 128, 255, 3], np.uint8)),
        ("0.0,1.28e2,255.0,3", np.array([0, 128, 255, 3], np.uint8)),
        ("0,1,1,0", np.array([0, 1, 1, 0], np.float32)),
        ("0,0.5,1,0.25", np.array([0, 0.5, 1, 0.25], np.float32)),
        ("5.7,2,2,2", np.array([5.7, 2, 2, 2], np.float32)),
        ("0,256,1,0", np.array([0, 256, 1, 0], np.float32)),
        ("-1,2,3,4", np.array([-1, 2, 3, 4], np.float32)),
        (" 1 , 2,3,\t4", np.array([1, 2, 3, 4], np.uint8)),
    ],
)
def test_integers_up_to_255_become_uint8(tmp_path: Path, text: str, values: NDArray[Any]) -> None:
    found = table(tmp_path, text).read("train").pixels
    assert found.dtype == values.dtype
    np.testing.assert_array_equal(found.ravel(), values)


def test_one_float_among_integers_changes_no_value(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).integers(0, 256, (2500, 4)).astype(np.float32)
    rows[1700, 2] = 0.5
    found = table(tmp_path, "\n".join(",".join(f"{n:g}" for n in row) for row in rows)).read("train").pixels
    np.testing.assert_array_equal(found.reshape(-1, 4), rows)


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("1,2,3,4\n1,2,3\n", ":2", "different number of columns"),
        ("1,2,3,4\n\n1,2,x,4\n", ":3, column 3", "not a number"),
        ("1,2,3,4\n1,2,,4\n", ":2, column 3", "not a number"),
        ("1,2,3,4\n1,2,nan,4\n", ":2, column 3", "not a number"),
        ("1,2,3,4\n1,2,1e99,4\n", ":2, column 3", "not a number"),
        ("1,2,3,4\n1,2,1_0,4\n", ":2, column 3", "not a number"),
        ("1;2;3;4\n", ":1, column 1", "not a number"),
        ("1,2,3,4\n1,2,\0,4\n", ":2:5", "not text"),
        ("\n\n", "", "there are no numbers"),
    ],
)
def test_invalid_rows_are_located(tmp_path: Path, text: str, place: str, message: str) -> None:
    error = error_for(table(tmp_path, text))
    assert error.where == f"{tmp_path}/rows.csv{place}"
    assert message in error.message


def test_missing_columns_and_labels_are_reported(tmp_path: Path) -> None:
    assert "'a', 'b', 'c'" in str(error_for(table(tmp_path, "a,b,c\n1,2,3\n", label="label")))
    assert "without names" in str(error_for(table(tmp_path, "1,2,3\n", label=3)))
    assert "0.5 for image 0" in str(error_for(table(tmp_path, "0.5,2,3\n", label=0)))
    assert "no image" in error_for(table(tmp_path, "5\n", label=0)).message


def test_sixty_thousand_rows_of_784_take_seconds(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).integers(0, 256, (6000, 785)) % 10
    source = table(tmp_path, "\n".join(",".join(map(str, row)) for row in rows.tolist()), label=0)
    began = os.times().user
    np.testing.assert_array_equal(source.read("train").vectors, rows[:, 1:])
    assert os.times().user - began < 1  # a tenth of them


def shades(*levels: int, size: tuple[int, int] = (4, 5)) -> list[NDArray[np.uint8]]:
    return [np.full(size, level, np.uint8) for level in levels]


def test_subfolders_are_classes(tmp_path: Path) -> None:
    for name, level in (
        ("train/dog/b.png", 3),
        ("train/cat/x.bmp", 1),
        ("train/dog/a/z.PNG", 2),
        ("test/dog/1.png", 9),
    ):
        write_image(tmp_path / name, *shades(level))
    (tmp_path / "train/dog/notes.txt").write_text("not a picture")
    (tmp_path / "train/dog/.hidden.png").write_text("nor this")
    data = ImageFolders(root=str(tmp_path), channels=1)
    found = data.read("train")
    assert found.pixels.shape == (3, 1, 4, 5) and found.pixels.dtype == np.uint8
    assert found.pixels[:, 0, 0, 0].tolist() == [1, 2, 3]
    assert found.labels.tolist() == [0, 1, 1]  # type: ignore[union-attr]
    assert found.names == ("cat", "dog") and found.skipped == 1
    test = data.read("test")
    assert test.labels.tolist() == [1] and test.names == ("cat", "dog")  # type: ignore[union-attr]
    assert len(data.read("valid")) == 1 and data.problems() == []
    write_image(tmp_path / "test/fox/1.png", *shades(9))
    assert error_for(data, "test").where == f"{tmp_path}/test/fox"
    assert error_for(data.model_copy(update={"train": "absent"}), "test").where == f"{tmp_path}/absent"
    write_image(tmp_path / "train/loose.png", *shades(9))
    assert "loose.png beside the folder cat" in str(error_for(data))


@pytest.mark.parametrize("packed", [False, True])
def test_parts_of_one_folder_are_held_out(tmp_path: Path, packed: bool) -> None:
    for number in range(20):
        write_image(tmp_path / f"photos/cat/{number}.png", *shades(number))
        write_image(tmp_path / f"photos/dog/{number // 2}{'ab'[number % 2]}.png", *shades(100 + number))
    write_image(tmp_path / "photos/fox/only.png", *shades(200))
    if packed:
        shutil.make_archive(str(tmp_path / "photos"), "zip", tmp_path / "photos")

    def levels(split: Split, **settings: object) -> list[int]:
        name = "photos.zip" if packed else "photos"
        given = {"root": str(tmp_path), "train": name, "valid": 0.2, "test": 4, "channels": 1, **settings}
        found = ImageFolders.model_validate(given).read(split)
        labels: Any = found.labels
        assert [found.names[label] for label in labels] == [
            "cat" if level < 100 else "dog" if level < 200 else "fox" for level in found.pixels[:, 0, 0, 0]
        ]
        return [int(level) for level in found.pixels[:, 0, 0, 0]]

    parts = [levels(split) for split in SPLITS]
    assert sorted(level for part in parts for level in part) == [*range(20), *range(100, 120), 200]
    assert [sum(level < 100 for level in part) for part in parts[1:]] == [4, 2]
    assert [len(part) for part in parts[1:]] == [8, 4] and 200 in parts[0]
    assert levels("valid", seed=1) != parts[1] == levels("valid")
    named = ImageFolders(root=str(tmp_path), train="photos.zip" if packed else "photos", valid=0.2, test=4, channels=1)
    assert {split: len(names) for split, names in named.division.items()} == {"valid": 8, "test": 4}
    for split in SPLITS[1:]:
        levels_there = [np.asarray(Image.open(tmp_path / "photos" / name))[0, 0] for name in named.division[split]]
        assert [int(level) for level in levels_there] == levels(split)
    assert levels("valid", valid=None) == levels("test", valid=None)
    gone = parts[0][0]
    (tmp_path / f"photos/cat/{gone}.png").unlink()
    if not packed:
        assert len({*levels("valid")} & {*parts[1]}) >= 6  # others keep their part, but for a few at the border


@pytest.mark.parametrize(
    ("valid", "found"), [(0.5, "3 images, 3 of them different or of different groups, of 3 classes that have one each"),
                         (3, "3 of 3 images are held out")]
)  # fmt: skip
def test_images_that_cannot_be_held_out_are_called_images(valid: float, found: str, tmp_path: Path) -> None:
    for name in "abc":
        write_image(tmp_path / f"train/{name if valid == 3 else f'{name}/same'}.png", *shades(9))
    error = error_for(ImageFolders(root=str(tmp_path), valid=valid, test=None))
    assert not re.search(r"\brows?\b", str(error)) and found in str(error)


def test_image_folders_without_classes(tmp_path: Path) -> None:
    colours = np.random.default_rng(0).integers(0, 256, (4, 5, 3)).astype(np.uint8)
    write_image(tmp_path / "train/10.png", colours)
    write_image(tmp_path / "train/9.png", *shades(7))
    found = ImageFolders(root=str(tmp_path), test=None).read("train")
    np.testing.assert_array_equal(found.pixels[0], colours.transpose(2, 0, 1))
    assert (found.pixels[1] == 7).all()
    assert found.labels is None and found.names == ()
    write_image(tmp_path / "test/cat/1.png", *shades(7))
    assert ImageFolders(root=str(tmp_path)).read("test").names == ("cat",)


def test_images_of_several_sizes(tmp_path: Path) -> None:
    write_image(tmp_path / "train/a.png", *shades(50))
    write_image(tmp_path / "train/b.png", *shades(60, size=(8, 6)))
    data = ImageFolders(root=str(tmp_path), test=None, channels=1)
    error = error_for(data)
    assert error.where == f"{tmp_path}/train/b.png"
    assert error.found == "8 rows of 6 pixels"
    assert error.expected == f"4 rows of 5 pixels, as {tmp_path}/train/a.png has"
    assert "data.size=[4, 5]" in str(error.todo)
    found = data.model_copy(update={"size": (8, 3)}).read("train").pixels
    assert found.shape == (2, 1, 8, 3)
    assert found[:, 0, 0, 0].tolist() == [50, 60]


def test_images_are_resized_as_pillow_does(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (16, 12)).astype(np.uint8)
    write_image(tmp_path / "train/a.png", pixels)
    found = ImageFolders(root=str(tmp_path), channels=1, size=(8, 6)).read("train").pixels[0, 0]
    target = Image.fromarray(pixels).resize((6, 8), Image.Resampling.LANCZOS)
    np.testing.assert_array_equal(found, np.asarray(target))


def test_exif_orientation_is_applied(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated by 90 degrees
    (tmp_path / "train").mkdir()
    Image.fromarray(shades(9)[0]).save(tmp_path / "train/a.png", exif=exif)
    assert ImageFolders(root=str(tmp_path), channels=1).read("train").pixels.shape == (1, 1, 5, 4)


@pytest.mark.parametrize("kind", ["png", "jpg", "gif", "bmp", "webp", "tif"])
def test_damaged_images_are_named(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"train/a.{kind}"
    pixels = np.random.default_rng(0).integers(0, 256, (40, 40)).astype(np.uint8)
    write_image(path, pixels)
    good = path.read_bytes()
    data = ImageFolders(root=str(tmp_path), channels=1)
    assert data.read("train").pixels.shape == (1, 1, 40, 40)
    path.write_bytes(good[: len(good) // 2])
    assert error_for(data).where == str(path)
    generator = random.Random(0)
    for _ in range(60):
        spoiled = bytearray(good)
        for _ in range(5):
            spoiled[generator.randrange(len(good))] = generator.randrange(256)
        path.write_bytes(spoiled)
        with contextlib.suppress(UserError):
            assert data.read("train").pixels.ndim == 4
    path.write_text("no picture at all")
    assert error_for(data).message == "this image cannot be read"


def test_too_large_or_too_deep_images_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "train/a.png"
    write_image(path, *shades(1, size=(30, 30)))
    data = ImageFolders(root=str(tmp_path), channels=1)
    for most in (500, 100):  # Pillow warns beyond this, and refuses beyond twice this
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", most)
        assert "suspiciously large" in error_for(data).message
    monkeypatch.undo()
    Image.fromarray(np.full((4, 4), 300, np.uint16)).save(path)
    assert "I;16" in str(error_for(data).found)


def test_folders_without_images_are_reported(tmp_path: Path) -> None:
    (tmp_path / "train/cat").mkdir(parents=True)
    (tmp_path / "train/cat/notes.txt").touch()
    data = ImageFolders(root=str(tmp_path))
    assert {str(problem.where): problem.message for problem in data.problems()} == {
        f"{tmp_path}/train": "there is no image in this folder",
        f"{tmp_path}/test": "there is no such folder",
    }
    write_image(tmp_path / "train/dog/a.png", *shades(1))
    assert error_for(data).where == f"{tmp_path}/train/cat"


def test_digits_are_complete_and_disjoint() -> None:
    from sklearn.datasets import load_digits

    data = Digits()
    parts = [data.read(split) for split in ("train", "valid", "test")]
    assert [len(part) for part in parts] == [1437, 180, 180]
    assert all(part.pixels.dtype == np.float32 and part.pixels.shape[1:] == (1, 8, 8) for part in parts)
    assert parts[0].names == tuple("0123456789")
    assert (parts[0].pixels.min(), parts[0].pixels.max()) == (0, 1)

    def rows(vectors: NDArray[Any], labels: NDArray[Any]) -> list[tuple[Any, ...]]:
        return sorted((*row, label) for row, label in zip(vectors.tolist(), labels.tolist(), strict=True))

    every = load_digits()
    vectors = np.concatenate([part.vectors for part in parts]) * 16
    labels = np.concatenate([part.labels for part in parts if part.labels is not None])
    assert rows(vectors, labels) == rows(every.data, every.target)


def test_digits_depend_on_the_seed_and_sizes() -> None:
    np.testing.assert_array_equal(Digits().read("test").pixels, Digits().read("test").pixels)
    assert (Digits(seed=1).read("test").pixels != Digits().read("test").pixels).any()
    assert len(Digits(train=3, valid=2, test=1).read("valid")) == 2
    with pytest.raises(ValidationError, match="only 1,797 digits"):
        Digits(train=1500)
