"""The commands `reconstruct`, `denoise` and `encode`: figures, output, files and errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from heedful import load
from heedful.cli import reconstruct
from heedful.data.embedded import Digits
from heedful.data.images.sources import ImageFolders
from heedful.plots.image_grid import Column, image_grid, image_strips
from heedful.runs.recipe import load_recipe
from heedful.runs.train import train
from heedful.tasks.reconstruction.predictor import ImageAutoencoder
from tolerance import close

SMALL = ["data.train=120", "data.valid=20", "data.test=80", "train.budget.epochs=2", "train.evaluate_every=100"]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An autoencoder of digits, and a denoising one."""
    folder = tmp_path_factory.mktemp("runs")
    found = {"plain": "digits", "noisy": "digits-denoising"}
    for name, recipe in found.items():
        list(train(load_recipe(recipe, SMALL), folder / name))
    return {name: folder / name for name in found}


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[list[Column]]:
    """The columns of every image grid that a command draws."""
    seen: list[list[Column]] = []

    def watched(columns: list[Column], *rest: Any) -> Figure:
        seen.append(list(columns))
        return image_grid(columns, *rest)

    monkeypatch.setattr(reconstruct, "image_grid", watched)
    return seen


def test_images() -> Any:
    return Digits(train=120, valid=20, test=80).read("test")


TEST = test_images()
del test_images


def autoencoder(run: Path) -> ImageAutoencoder:
    found: ImageAutoencoder = load(run)
    return found


# ------------------------------------------------------------------ reconstruct
@pytest.mark.claim("K11")
def test_reconstruct_shows_the_first_image_of_each_class(
    heedful: Run, runs: dict[str, Path], drawn: list[list[Column]]
) -> None:
    code, out, err = heedful("reconstruct", runs["plain"], "-o", "grid.png")
    assert (code, err) == (0, "")
    given, made = drawn[0]
    assert [given.title, made.title] == ["input", "plain"]
    first = [int(np.argmax(TEST.labels == digit)) for digit in range(10)]
    np.testing.assert_array_equal(given.images, TEST.pixels[first])
    np.testing.assert_array_equal(made.images, autoencoder(runs["plain"]).reconstruct(TEST.pixels[first]))
    error = np.square(made.images.astype(np.float64) - given.images).mean((1, 2, 3))
    np.testing.assert_allclose(made.errors, error)
    assert out.splitlines()[1].split() == ["plain", *(f"{x:.4g}" for x in (error.mean(), error.min(), error.max()))]
    assert out.endswith("\nfigure  grid.png\n")
    assert Image.open("grid.png").format == "PNG"


@pytest.mark.claim("K11")
def test_several_runs_and_pca_are_columns_of_one_figure(
    heedful: Run, runs: dict[str, Path], drawn: list[list[Column]]
) -> None:
    words = (
        "reconstruct",
        runs["plain"],
        "--pca",
        "--compare",
        runs["noisy"],
        "--count",
        3,
        "-o",
        "grid.svg",
        "--json",
    )
    code, out, err = heedful(*words)
    assert (code, err) == (0, "")
    columns = drawn[0]
    assert [column.title for column in columns] == ["input", "PCA-10", "plain", "noisy\nnoisy", "noisy\nrestored"]
    assert {column.images.shape for column in columns} == {(3, 1, 8, 8)}
    printed = json.loads(out)
    assert printed["mse"].keys() == {"PCA-10", "plain", "noisy noisy", "noisy restored"}
    assert all(len(errors) == 3 for errors in printed["each"].values())
    assert printed["mse"]["PCA-10"] == pytest.approx(np.mean(printed["each"]["PCA-10"]), rel=1e-4)
    assert Path("grid.svg").read_text().startswith("<?xml")
    noisy = autoencoder(runs["noisy"])
    np.testing.assert_array_equal(columns[4].images, noisy.reconstruct(columns[3].images))
    assert columns[3].images.min() >= 0 and columns[3].images.max() <= 1


@pytest.mark.claim("K11")
def test_pca_is_fitted_to_the_training_images(heedful: Run, runs: dict[str, Path], drawn: list[list[Column]]) -> None:
    heedful("reconstruct", runs["plain"], "--pca", "-o", "grid.png")
    known = Digits(train=120, valid=20, test=80).read("train").vectors.astype(np.float64)
    given, left, _ = drawn[0]
    mean = known.mean(0)
    _, _, directions = np.linalg.svd(known - mean, full_matrices=False)
    kept = directions[:10].T @ directions[:10]
    right = (given.images.reshape(10, -1) - mean) @ kept + mean
    close(left.images.reshape(10, -1), right, slack=1024)


def test_images_are_read_from_files_folders_arrays_and_idx(
    heedful: Run, runs: dict[str, Path], drawn: list[list[Column]]
) -> None:
    bytes_ = (TEST.pixels[:6, 0] * 255).round().astype(np.uint8)
    Image.fromarray(bytes_[0]).save("one.png")
    for number, folder in ((1, "a"), (2, "b")):
        Path("many", folder).mkdir(parents=True)
        Image.fromarray(bytes_[number]).save(f"many/{folder}/x.png")
    np.save("three.npy", bytes_[3])
    np.savez("four.npz", images=bytes_[4:5], labels=[4])
    head = bytes([0, 0, 8, 3]) + b"".join(int(n).to_bytes(4, "big") for n in (1, 8, 8))
    Path("five-idx3-ubyte").write_bytes(head + bytes_[5].tobytes())
    words = ("one.png", "many", "three.npy", "four.npz", "five-idx3-ubyte")
    code, _, err = heedful("reconstruct", runs["plain"], *words, "-o", "grid.png")
    assert (code, err) == (0, "")
    close(drawn[0][0].images, bytes_[:, None] / 255, slack=16)


def test_named_array_of_an_archive_is_read(heedful: Run, runs: dict[str, Path], drawn: list[list[Column]]) -> None:
    np.savez("both.npz", x_test=TEST.pixels[:4, 0], y_test=TEST.labels[:4])
    code, _, _ = heedful("reconstruct", runs["plain"], "both.npz:x_test", "-o", "grid.png")
    assert code == 0
    np.testing.assert_array_equal(drawn[0][0].images, TEST.pixels[:4])
    code, _, err = heedful("reconstruct", runs["plain"], "both.npz", "-o", "grid.png")
    assert code == 2
    assert "the archive has several arrays" in err and "both.npz:x_test" in err


def test_colour_image_is_converted_with_a_note(heedful: Run, runs: dict[str, Path]) -> None:
    Image.new("RGB", (8, 8), (255, 0, 0)).save("red.png")
    code, _, err = heedful("reconstruct", runs["plain"], "red.png", "-o", "grid.png")
    assert code == 0
    assert err == "note: red.png is in colour; it was converted to grey, as the model reads\n"


def test_images_of_another_size_are_resized_as_in_training(
    heedful: Run, runs: dict[str, Path], drawn: list[list[Column]]
) -> None:
    Path("many").mkdir()
    for name in ("wide.png", "many/wide.png"):
        Image.fromarray(np.random.default_rng(0).integers(0, 256, (12, 20), np.uint8)).save(name)
    code, _, err = heedful("reconstruct", runs["plain"], "wide.png", "many", "-o", "grid.png")
    note = "note: wide.png has 12 rows of 20 pixels; it was scaled to the model's 8 rows of 8 pixels\n"
    assert (code, err) == (0, note)
    right = ImageFolders(root="many", train=".", test=None, channels=1, size=(8, 8)).read("train").pixels
    close(drawn[0][0].images, np.concatenate([right, right]) / 255, slack=16)
    assert heedful("encode", runs["plain"], "wide.png", "-o", "codes.npy")[0] == 0


def test_interpolation_decodes_the_codes_between_two_images(
    heedful: Run, runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def watched(rows: Any, *rest: Any) -> Figure:
        seen.extend(rows)
        return image_strips(rows, *rest)

    monkeypatch.setattr(reconstruct, "image_strips", watched)
    np.save("last.npy", TEST.pixels[7])
    words = ("reconstruct", runs["plain"], "--interpolate", 2, "last.npy", "--count", 5, "-o", "walk.png")
    code, out, err = heedful(*words)
    assert (code, out, err) == (0, "figure  walk.png\n", "")
    ((name, images),) = seen
    one = autoencoder(runs["plain"])
    codes = one.encode(TEST.pixels[[2, 7]])
    assert name == "plain" and images.shape == (5, 1, 8, 8)
    close(images[2:3], one.decode(codes.mean(0, keepdims=True)))
    close(images[[0, 4]], one.reconstruct(TEST.pixels[[2, 7]]))


# ------------------------------------------------------------------ denoise
@pytest.mark.claim("K11")
def test_denoise_shows_original_noisy_and_restored_images(
    heedful: Run, runs: dict[str, Path], drawn: list[list[Column]]
) -> None:
    for seed in (0, 0, 1):
        code, out, err = heedful("denoise", runs["noisy"], "-o", "grid.png", "--seed", seed)
        assert (code, err) == (0, "")
    assert [column.title for column in drawn[0]] == ["original", "noisy", "restored"]
    original, noisy, restored = (column.images for column in drawn[0])
    assert original.shape == (10, 1, 8, 8)
    assert 0.02 < np.square(noisy - original).mean() < 0.09  # deviation 0.3, clipped to [0, 1]
    np.testing.assert_array_equal(restored, autoencoder(runs["noisy"]).reconstruct(noisy))
    np.testing.assert_array_equal(noisy, drawn[1][1].images)
    assert (noisy != drawn[2][1].images).any()
    assert [line.split()[0] for line in out.splitlines()[1:3]] == ["noisy", "restored"]


def test_noise_can_be_set_and_is_required_for_other_models(
    heedful: Run, runs: dict[str, Path], drawn: list[list[Column]]
) -> None:
    assert heedful("denoise", runs["plain"], "-o", "grid.png", "--noise", 0.1)[0] == 0
    assert np.abs(drawn[0][1].images - drawn[0][0].images).max() < 0.6
    code, _, err = heedful("denoise", runs["plain"], "-o", "other.png")
    assert code == 2 and "was not trained to denoise" in err and "--noise 0.5" in err
    assert not Path("other.png").exists()


def test_noisy_images_are_denoised_unchanged(heedful: Run, runs: dict[str, Path], drawn: list[list[Column]]) -> None:
    np.save("noisy.npy", TEST.pixels[:3])
    code, out, _ = heedful("denoise", runs["noisy"], "noisy.npy", "--noisy", "-o", "grid.png")
    assert (code, out) == (0, "figure  grid.png\n")
    given, restored = drawn[0]
    assert given.errors is None and restored.errors is None
    np.testing.assert_array_equal(restored.images, autoencoder(runs["noisy"]).reconstruct(TEST.pixels[:3]))
    for words in ((), ("noisy.npy", "--noise", 0.5)):
        code, _, err = heedful("denoise", runs["noisy"], *words, "--noisy", "-o", "grid.png")
        assert code == 2 and "already noisy" in err


# ------------------------------------------------------------------ encode
def test_encode_writes_codes_with_labels(heedful: Run, runs: dict[str, Path]) -> None:
    right = autoencoder(runs["plain"]).encode(TEST.pixels)
    code, out, _ = heedful("encode", runs["plain"], "-o", "codes.npy")
    assert (code, out) == (0, "wrote 80 codes of dimension 10 to codes.npy\n")
    np.testing.assert_array_equal(np.load("codes.npy"), right)
    _, out, _ = heedful("encode", runs["plain"], "-o", "codes.npz")
    assert out == "wrote 80 codes of dimension 10 to codes.npz, with labels\n"
    with np.load("codes.npz") as found:
        np.testing.assert_array_equal(found["codes"], right)
        np.testing.assert_array_equal(found["labels"], TEST.labels)
        assert found["names"].tolist() == list("0123456789")
    heedful("encode", runs["plain"], "-o", "codes.csv")
    head, *lines = Path("codes.csv").read_text().splitlines()
    assert head == ",".join([*(f"code{n}" for n in range(1, 11)), "label"])
    numbers = np.array([line.split(",") for line in lines], dtype=np.float32)
    np.testing.assert_array_equal(numbers[:, :-1], right)
    np.testing.assert_array_equal(numbers[:, -1], TEST.labels)


def test_encode_without_labels_writes_codes_only(heedful: Run, runs: dict[str, Path]) -> None:
    np.save("some.npy", TEST.pixels[:3])
    heedful("encode", runs["plain"], "some.npy", "-o", "codes.csv")
    assert "label" not in Path("codes.csv").read_text()
    heedful("encode", runs["plain"], "some.npy", "-o", "codes.npz")
    with np.load("codes.npz") as found:
        assert list(found) == ["codes"] and found["codes"].shape == (3, 10)


# ------------------------------------------------------------------ what is refused
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("reconstruct", "{plain}", "-o", "grid.jpg"), "a name that ends in .png, .svg or .pdf"),
        (("reconstruct", "{plain}", "-o", "no/grid.png"), "there is no such folder"),
        (("reconstruct", "{plain}", "no.png", "-o", "grid.png"), "no.png: there is no such file"),
        (("reconstruct", "{plain}", "wide.npy", "-o", "grid.png"), "shape 2 x 8 x 9"),
        (("reconstruct", "{plain}", "nan.npy", "-o", "grid.png"), "nan in image 1"),
        (("reconstruct", "{plain}", "words.txt", "-o", "grid.png"), "words.txt"),
        (("reconstruct", "{plain}", "torn.png", "-o", "grid.png"), "this image cannot be read"),
        (("reconstruct", "{plain}/model", "-o", "grid.png"), "a model without data"),
        (("reconstruct", "{plain}", "--compare", "{plain}", "-o", "grid.png"), "the same run is named twice"),
        (("reconstruct", "{plain}", "--interpolate", "0", "80", "-o", "grid.png"), "a number below 80, or a file"),
        (("reconstruct", "{plain}", "--interpolate", "0", "1", "--count", "1", "-o", "grid.png"), "at least 2"),
        (
            ("reconstruct", "{plain}", "--interpolate", "0", "1", "--pca", "-o", "grid.png"),
            "an interpolation has two images",
        ),
        (("encode", "{plain}", "-o", "codes.txt"), ".npy or .npz or .csv"),
        (("generate", "{plain}"), "this model reconstructs images"),
    ],
)
def test_errors_have_no_traceback(
    words: tuple[str, ...], message: str, heedful: Run, runs: dict[str, Path], tmp_path: Path
) -> None:
    Image.new("L", (9, 8)).save("wide.png")
    np.save("wide.npy", np.zeros((2, 8, 9), np.uint8))
    spoilt = np.zeros((2, 8, 8), np.float32)
    spoilt[1, 2, 3] = np.nan
    np.save("nan.npy", spoilt)
    Path("words.txt").write_text("not an image")
    Path("torn.png").write_bytes(Path("wide.png").read_bytes()[:40])
    before = sorted(path.name for path in tmp_path.iterdir())
    code, out, err = heedful(*(word.format(**runs) for word in words))
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and message in err
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_models_of_different_image_sizes_cannot_be_compared(
    heedful: Run, runs: dict[str, Path], tmp_path: Path
) -> None:
    np.save("tall.npy", np.zeros((4, 3, 2), np.uint8))
    layers = ["model.input=[6]", "model.encoder=[{kind: dense, width: 2}]", "model.decoder=[{kind: dense, width: 6}]"]
    data = ["data={kind: array, train: {file: tall.npy}, test: {file: tall.npy}}", "train.budget.epochs=1"]
    list(train(load_recipe("digits", [*layers, *data]), tmp_path / "tall"))
    code, _, err = heedful("reconstruct", runs["plain"], "--compare", tmp_path / "tall", "-o", "grid.png")
    assert code == 2
    assert "1 x 3 x 2 for tall" in err and "1 x 8 x 8, as for plain" in err
