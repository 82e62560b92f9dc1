"""Reconstructions: images are those of the autoencoder, and the page draws the same bytes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from heedful.data.images.image_spec import ImageSpec
from heedful.errors import UserError
from heedful.explore.packets import unpack
from heedful.explore.subjects import Explorer, Subject
from heedful.explore.views import reconstruct as view
from heedful.plots.autoencoder_plots import by_pca, chosen, components, made
from heedful.runs.images import test_images as own
from heedful.runs.images import training_vectors
from heedful.runs.load import load
from tolerance import near

DRAWING = "ff" * 8 + "00" * 56  # the first row of eight by eight pixels


def call_view(explorer: Explorer, call: str, **settings: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    return unpack(explorer.answer("reconstruct", call, {"model": "images", **settings}))


def as_bytes(images: NDArray[Any]) -> NDArray[np.uint8]:
    """Shares (N, 1, Y, X) as bytes (N, Y, X)."""
    return (images[:, 0].astype(float).clip(0, 1) * 255 + 0.5).astype(np.uint8)


def test_each_row_is_the_reconstruction_of_the_library(run: Callable[[str], Path]) -> None:
    explorer = Explorer([run("images"), run("noisy")])
    autoencoder, other = load(run("images")), load(run("noisy"))
    images = chosen(own(run("images")), 10).pixels
    words, arrays = call_view(explorer, "rows")
    right = [
        by_pca(training_vectors(run("images")), images, words["width"]),
        *made(autoencoder, images, "images"),
        view.compared("noisy", other.reconstruct(images), images),
    ]
    assert words["titles"] == ["input", *(column.title for column in right)]
    assert words["labels"] == [str(number) for number in range(10)] and words["learned"] == 0
    assert (arrays["pictures"][0] == as_bytes(images)).all()
    for found, errors, column in zip(arrays["pictures"][1:], arrays["errors"][1:], right, strict=True):
        assert (found == as_bytes(column.images)).all(), column.title
        assert errors == pytest.approx(column.errors, rel=1e-6)


def test_noise_is_that_of_the_model_and_is_removed(run: Callable[[str], Path]) -> None:
    explorer = Explorer([run("noisy")])
    autoencoder = load(run("noisy"))
    images = chosen(own(run("noisy")), 10).pixels
    words, arrays = call_view(explorer, "rows", model="noisy")
    noisy, restored = made(autoencoder, images, "")
    # Components as many as the code's numbers, which lose nothing, would show the noisy images once more.
    assert words["width"] > 64 and words["titles"] == ["input", "noisy", "noisy"]
    assert words["noise"] == words["learned"] == autoencoder.noise.deviation > 0
    assert (arrays["pictures"][1] == as_bytes(noisy.images)).all()
    assert (arrays["pictures"][-1] == as_bytes(restored.images)).all()
    assert arrays["errors"][-1] == pytest.approx(restored.errors, rel=1e-6)
    words, arrays = call_view(explorer, "rows", model="noisy", noise=0.0)
    assert (arrays["pictures"][-1] == as_bytes(autoencoder.reconstruct(images))).all()
    more = call_view(explorer, "rows", model="noisy", noise=0.9)[1]["errors"][1].mean()
    assert more > noisy.errors.mean() and explorer.subjects["noisy"].predictor.noise == autoencoder.noise


def test_pages_and_classes_hold_every_image_once(run: Callable[[str], Path]) -> None:
    explorer = Explorer([run("images")])
    images = own(run("images"))
    pages = call_view(explorer, "rows")[0]["pages"]
    every = [number for page in range(pages) for number in call_view(explorer, "rows", page=page)[0]["numbers"]]
    assert sorted(every) == list(range(len(images)))
    words = call_view(explorer, "rows", label=7, page=1)[0]
    assert words["numbers"] == np.flatnonzero(images.labels == 7)[10:20].tolist() and set(words["labels"]) == {"7"}


def test_codes_sweeps_and_interpolations_are_those_of_the_autoencoder(run: Callable[[str], Path]) -> None:
    explorer = Explorer([run("images")])
    autoencoder, images = load(run("images")), own(run("images")).pixels
    codes = autoencoder.encode(images)
    words, arrays = call_view(explorer, "code", image=5)
    assert arrays["code"] == near(codes[5])
    assert arrays["low"] == pytest.approx(codes.min(0)) and arrays["high"] == pytest.approx(codes.max(0))
    assert (arrays["pictures"] == as_bytes(np.concatenate([images[5:6], autoencoder.reconstruct(images[5:6])]))).all()
    assert words["units"] == list(range(codes.shape[1]))

    _, arrays = call_view(explorer, "sweep", image=5, unit=2, moved=[[0, 32], [1, 0]])
    moved = autoencoder.encode(images[5:6]).repeat(view.STOPS, 0)
    moved[:, 0], moved[:, 1] = codes[:, 0].max(), codes[:, 1].min()
    moved[:, 2] = np.linspace(codes[:, 2].min(), codes[:, 2].max(), view.STOPS, dtype=np.float32)
    right = autoencoder.decode(moved)
    assert np.abs(arrays["pictures"].astype(int) - as_bytes(right)).max() <= 1  # one image or many at a time
    assert arrays["values"] == pytest.approx(moved[:, 2])
    assert arrays["errors"] == pytest.approx(np.square(right - images[5]).mean((1, 2, 3)), rel=1e-4)

    _, arrays = call_view(explorer, "walk", first=5, last=9)
    assert (arrays["pictures"] == as_bytes(autoencoder.walk(images[5:6], images[9:10], view.STEPS))).all()
    assert (arrays["blend"][[0, -1]] == as_bytes(images[[5, 9]])).all()


def test_principal_components_are_cached(run: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def counted(known: NDArray[Any], width: int) -> Any:
        calls.append(width)
        return components(known, width)

    monkeypatch.setattr(view, "components", counted)
    explorer = Explorer([run("images")])
    for page in range(3):
        call_view(explorer, "rows", page=page)
    assert calls == [10]


def test_drawing_is_reconstructed_like_any_image(run: Callable[[str], Path]) -> None:
    explorer = Explorer([run("images")])
    autoencoder = load(run("images"))
    pixels = np.zeros((1, 1, 8, 8), np.float32)
    pixels[:, :, 0] = 1
    words, arrays = call_view(explorer, "rows", drawn=DRAWING)
    assert words["numbers"][0] == view.DRAWN and len(words["numbers"]) == 11
    assert (arrays["pictures"][0, 0] == as_bytes(pixels)[0]).all()
    assert np.abs(arrays["pictures"][-1, 0].astype(int) - as_bytes(autoencoder.reconstruct(pixels))[0]).max() <= 1
    assert call_view(explorer, "code", image=-1, drawn=DRAWING)[1]["code"] == pytest.approx(
        autoencoder.encode(pixels)[0]
    )


def test_without_its_data_a_model_shows_digits_or_an_error(run: Callable[[str], Path], tmp_path: Path) -> None:
    folder = tmp_path / "images"
    shutil.copytree(run("images") / "model", folder)
    words, arrays = call_view(Explorer([folder]), "rows")
    assert "PCA-10" in words["titles"] and arrays["pictures"].shape[1:] == (10, 8, 8)
    explorer, subject = Explorer([folder]), Subject("images", folder)
    subject.predictor.tokenizer = ImageSpec((1, 5, 5))
    explorer.subjects = {"images": subject}
    with pytest.raises(UserError, match="cannot be read"):
        call_view(explorer, "rows")


def test_view_fits_image_autoencoders_only(run: Callable[[str], Path]) -> None:
    found = {name: view.fits(Subject(name, run(name))) for name in ("images", "noisy", "gpt", "recurrent")}
    assert found == {"images": True, "noisy": True, "gpt": False, "recurrent": False}


def test_invalid_requests_are_rejected(run: Callable[[str], Path]) -> None:
    explorer = Explorer([run("images"), run("gpt")])
    for call, settings in (
        ("rows", {"page": 18}), ("rows", {"page": -1}), ("rows", {"noise": 1e9}), ("rows", {"label": 99}),
        ("rows", {"drawn": "zz"}), ("rows", {"drawn": "ff"}), ("rows", {"model": "gpt"}), ("rows", {"model": "?"}),
        ("code", {"image": 180}), ("code", {"image": -1}), ("code", {"image": -2}),
        ("sweep", {"image": 0, "unit": 10}), ("sweep", {"image": 0, "unit": 0, "moved": [[10, 0]]}),
        ("sweep", {"image": 0, "unit": 0, "moved": [[1, 33]]}), ("sweep", {"image": 0, "unit": -1}),
        ("sweep", {"image": 0, "unit": 0, "moved": [[1, 1]] * 33}), ("walk", {"first": 0, "last": 10**9}),
    ):  # fmt: skip
        with pytest.raises(UserError):
            call_view(explorer, call, **settings)
    with pytest.raises(UserError):
        view.calls(explorer.subject("images"), {"model": "images", "drawn": 7})
    for request in view.calls(
        explorer.subject("images"), {"model": "images", "page": "x", "noise": None, "image": "1e999"}
    ):
        explorer.answer(*request)


def test_page_changes_a_code_and_interpolates(browse: Callable[..., Any], run: Callable[[str], Path]) -> None:
    browsing = browse(run("images"))
    page, explorer = browsing.go("reconstruct"), browsing.explorer
    words, arrays = call_view(explorer, "rows")

    def canvas_pixels(selector: str) -> list[int]:
        every: list[int] = page.locator(selector).first.evaluate(
            "one => [...one.getContext('2d').getImageData(0, 0, one.width, one.height).data]"
        )
        return every[::4]

    for way in range(len(words["titles"])):
        row = f".gallery tr:nth-child({way + 1})"
        for place in (0, 9):
            assert (
                canvas_pixels(f"{row} td:nth-child({place + 2}) canvas")
                == arrays["pictures"][way, place].flatten().tolist()
            )
            if way:
                shown = page.get_by_test_id(f"error-{way}-{place}").inner_text()
                assert shown == f"{arrays['errors'][way, place]:.4f}"

    page.get_by_test_id("image-3").click()
    browsing.ready()
    image = words["numbers"][3]
    decoded = ".two div:nth-child(2) canvas"
    assert canvas_pixels(decoded) == call_view(explorer, "code", image=image)[1]["pictures"][1].flatten().tolist()
    page.get_by_test_id("unit-1").focus()
    page.keyboard.press("End")
    browsing.ready()
    page.get_by_test_id("unit-4").focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    browsing.ready()
    assert "moved=1%3A32%2C4%3A1" in page.url
    swept = call_view(explorer, "sweep", image=image, unit=4, moved=[[1, 32]])[1]
    assert canvas_pixels(decoded) == swept["pictures"][1].flatten().tolist()
    assert page.get_by_test_id("decoded-error").inner_text() == f"decoded, {swept['errors'][1]:.4f}"
    value = float(page.get_by_test_id("value-4").inner_text().replace("−", "-"))
    assert value == pytest.approx(float(swept["values"][1]), rel=6e-3)
    page.get_by_test_id("reset").click()
    browsing.ready()
    assert canvas_pixels(decoded) == call_view(explorer, "code", image=image)[1]["pictures"][1].flatten().tolist()

    page.get_by_test_id("to-7").click()
    page.get_by_test_id("share").focus()
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    browsing.ready()
    way = call_view(explorer, "walk", first=image, last=words["numbers"][7])[1]["pictures"]
    assert canvas_pixels(".strip-row canvas") == way[59].flatten().tolist()

    page.get_by_test_id("draw").click()
    box = page.get_by_test_id("pad").bounding_box()
    page.mouse.move(box["x"] + 60, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + 60, box["y"] + 150, steps=8)
    page.mouse.up()
    page.get_by_text("The code of your drawing").wait_for()
    browsing.ready()
    pixels = page.evaluate("new URLSearchParams(location.hash.slice(1)).get('drawn')")
    right = call_view(explorer, "rows", drawn=pixels)[1]["pictures"]
    assert len(pixels) == 128 and right[0, 0].max() > 200
    assert canvas_pixels(".gallery tr:last-child td:nth-child(2) canvas") == right[-1, 0].flatten().tolist()
    answers: list[int] = []
    page.on("response", lambda answer: answers.append(answer.status))
    page.get_by_test_id("wipe").click()
    first = call_view(explorer, "rows")[0]["numbers"][0]
    page.get_by_text(f"The code of image {first + 1} ").wait_for()
    browsing.ready()
    assert answers and set(answers) == {200}, "a cleared drawing is not requested"
