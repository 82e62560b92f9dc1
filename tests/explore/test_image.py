"""The image view: classes, feature maps, decisive pixels and attention are those of the library."""

from __future__ import annotations

import shutil
from base64 import b64encode
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from heedful.data.images.image_spec import ImageSpec
from heedful.data.images.inputs import prepare
from heedful.errors import UserError
from heedful.explore.album import LARGEST, ImageRequest
from heedful.explore.packets import unpack
from heedful.explore.subjects import Explorer, Subject
from heedful.explore.views import image as view
from heedful.extras.vision.attention import attention_weights, over_image, rollout
from heedful.extras.vision.gradients import METHODS, class_score
from heedful.extras.vision.layers import feature_maps, layer_names
from heedful.plots.image_grid import shares, signed_pixels
from heedful.runs.images import test_images as own
from heedful.tasks.image_classification.predictor import ImageClassifier
from tolerance import near

DRAWING = "ff" * 8 + "00" * 56  # the first row of eight by eight pixels


def percent(share: float) -> str:
    """As the page writes a probability."""
    if share < 0.00005:
        return "<0.01 %"
    return f"{100 * share:.{2 if share < 0.0005 else 1}f} %"


@pytest.fixture(scope="module")
def explorer(run: Callable[[str], Path]) -> Explorer:
    return Explorer([run("lenet"), run("vit")])


def call_view(explorer: Explorer, call: str, model: str = "lenet", **settings: Any) -> tuple[Any, Any]:
    return unpack(explorer.answer("image", call, {"model": model, **settings}))


def as_bytes(images: NDArray[Any]) -> NDArray[np.uint8]:
    return (images.astype(float).clip(0, 1) * 255 + 0.5).astype(np.uint8)


@pytest.mark.parametrize("name", ["lenet", "vit"])
def test_classes_are_those_of_the_predictor(explorer: Explorer, run: Callable[[str], Path], name: str) -> None:
    predictor, images = ImageClassifier.load(run(name)), own(run(name))
    words, arrays = call_view(explorer, "classes", name, image=7)
    expected = predictor.predict([images.pixels[7]], top=10)[0]
    assert words["labels"] == list(expected.probabilities)
    assert arrays["probabilities"] == near(list(expected.probabilities.values()))
    assert (arrays["picture"] == as_bytes(images.pixels[7, 0])).all()
    assert words["classes"] == [str(number) for number in range(10)]
    assert (arrays["pictures"] == as_bytes(images.pixels[words["images"], 0])).all()
    assert [one["name"] for one in words["layers"]] == [
        layer.removesuffix(".output") for layer in layer_names(predictor.model)
    ]
    assert words["attends"] == (name == "vit") and words["drawable"]


def test_layers_say_what_they_see(explorer: Explorer) -> None:
    assert call_view(explorer, "classes")[0]["layers"] == [
        {"name": "map1", "size": [12, 12], "sees": 5}, {"name": "map2", "size": [2, 2], "sees": 14},
    ]  # fmt: skip
    assert call_view(explorer, "classes", "vit")[0]["layers"][1] == {"name": "blocks.0", "size": [4, 4], "sees": None}


@pytest.mark.parametrize("name", ["lenet", "vit"])
def test_maps_and_pixels_are_those_of_the_library(explorer: Explorer, run: Callable[[str], Path], name: str) -> None:
    predictor = ImageClassifier.load(run(name))
    x = predictor.inputs([own(run(name)).pixels[3]])
    for number, layer in enumerate(layer_names(predictor.model)):
        words, arrays = call_view(explorer, "maps", name, image=3, layer=number)
        map = feature_maps(predictor.model, x, layer)[layer][0]
        assert words["channels"] == list(range(len(map))) and words["count"] == len(map)
        assert np.abs(arrays["pictures"].astype(int) - (shares(map.numpy()) * 255 + 0.5).astype(np.uint8)).max() <= 1
    methods = call_view(explorer, "classes", name)[0]["methods"]
    assert methods == (list(METHODS) if name == "lenet" else list(METHODS)[:3])
    for method in methods:
        words, arrays = call_view(explorer, "pixels", name, image=3, method=method, label=5)
        found = METHODS[method](class_score(predictor.model, 5), x).numpy()
        assert np.abs(arrays["picture"].astype(int) - signed_pixels(found)[0]).max() <= 1, method
        assert words == {"label": "5", "largest": pytest.approx(float(np.abs(found).max()), rel=1e-4)}
    with torch.no_grad():
        best = int(predictor.model(x).argmax())
    assert call_view(explorer, "pixels", name, image=3)[0]["label"] == str(best)


@pytest.mark.parametrize("name", ["lenet", "vit"])
def test_covered_square_has_the_mean_colour(explorer: Explorer, run: Callable[[str], Path], name: str) -> None:
    predictor, pixels = ImageClassifier.load(run(name)), own(run(name)).pixels[7].astype(np.float32)
    whole, _ = call_view(explorer, "classes", name, image=7)
    assert whole["squares"] == [4, 4]  # the patches of the one; squares of two by two pixels of the other
    changed = 0.0
    for square, (y, x) in {0: (0, 0), 6: (2, 4), 15: (6, 6)}.items():
        covered = pixels.copy()
        covered[:, y : y + 2, x : x + 2] = pixels.mean()
        (expected,) = predictor.predict([covered], top=10)
        words, arrays = call_view(explorer, "covered", name, image=7, square=square)
        assert words == {"label": expected.label, "share": near(expected.probability)}
        assert arrays["probabilities"] == near([expected.probabilities[label] for label in whole["labels"]])
        assert (arrays["picture"] == as_bytes(covered[0])).all()
        changed = max(
            changed,
            np.abs(arrays["probabilities"] - call_view(explorer, "classes", name, image=7)[1]["probabilities"]).max(),
        )
    assert changed > 1e-3


def test_squares_cover_an_image_of_any_size(run: Callable[[str], Path]) -> None:
    """Each pixel belongs to one square, also where the sides do not divide."""
    album = view.ClassAlbum(Subject("lenet", run("lenet")))
    for shape in ((1, 7, 19), (3, 1, 2), (1, 30, 9)):
        album.shape = shape
        vars(album).pop("squares", None)
        times, pixels = np.zeros(shape[1:], int), np.arange(np.prod(shape), dtype=np.float32).reshape(shape) ** 2 + 1
        for square in range(album.squares[0] * album.squares[1]):
            found = album.covered(pixels, square)
            times += (found != pixels).any(0)
        assert times.min() >= 0 and times.max() == 1 and (times == 1).mean() > 0.9, shape


def test_attention_is_that_of_the_library(explorer: Explorer, run: Callable[[str], Path]) -> None:
    predictor = ImageClassifier.load(run("vit"))
    layers = attention_weights(predictor.model, predictor.inputs([own(run("vit")).pixels[3]]))
    words, arrays = call_view(explorer, "attention", "vit", image=3, layer=1)
    assert words == {"layers": 2}
    assert arrays["heads"] == near(over_image(layers[1][0], (4, 4)).numpy())
    assert arrays["mean"] == near(over_image(layers[1][0].mean(0), (4, 4)).numpy())
    assert arrays["rollout"] == near(over_image(rollout(layers)[0], (4, 4)).numpy())


def test_channels_that_vary_most_are_shown(explorer: Explorer, monkeypatch: pytest.MonkeyPatch) -> None:
    words, arrays = call_view(explorer, "maps", image=0, layer=1)
    monkeypatch.setattr(view, "CHANNELS", 3)
    few, some = call_view(explorer, "maps", image=0, layer=1)
    predictor = explorer.subject("lenet").predictor
    map = feature_maps(predictor.model, predictor.inputs([own(explorer.subject("lenet").folder).pixels[0]]))["map2"][0]
    assert set(few["channels"]) == set(map.flatten(1).std(1).topk(3).indices.tolist())
    assert few["channels"] == sorted(few["channels"]) and few["count"] == words["count"]
    assert (some["pictures"] == arrays["pictures"][few["channels"]]).all()


def test_drawing_is_read_like_any_image(explorer: Explorer) -> None:
    pixels = np.zeros((1, 8, 8), np.float32)
    pixels[:, 0] = 1
    words, arrays = call_view(explorer, "classes", image=-1, drawn=DRAWING)
    expected = explorer.subject("lenet").predictor.predict([pixels], top=10)[0]
    assert words["labels"] == list(expected.probabilities)
    assert arrays["probabilities"] == near(list(expected.probabilities.values()))
    assert (arrays["picture"] == as_bytes(pixels[0])).all()


def test_colours_of_a_drawing_come_last(run: Callable[[str], Path]) -> None:
    subject = Subject("lenet", run("lenet"))
    album = view.ClassAlbum(subject)
    album.shape, album.images = (3, 1, 2), view.Images(np.zeros((1, 3, 1, 2), np.float32))
    found = album.pixels(ImageRequest(model="lenet", image=-1, drawn="ff0000" + "00ff00"))
    assert found.tolist() == [[[1.0, 0.0]], [[0.0, 1.0]], [[0.0, 0.0]]]


def test_model_without_data_starts_with_a_black_image(run: Callable[[str], Path], tmp_path: Path) -> None:
    shutil.copytree(run("lenet") / "model", folder := tmp_path / "lenet")
    words, arrays = call_view(Explorer([folder]), "classes")
    assert not words["readable"] and not arrays["picture"].any() and len(words["labels"]) == 10
    assert call_view(Explorer([folder]), "maps", image=-1, drawn=DRAWING)[1]["pictures"].any()


def test_file_is_read_as_classify_reads_it(explorer: Explorer, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated by 90 degrees
    picture = Image.fromarray(np.random.default_rng(5).integers(0, 256, (37, 61, 3), np.uint8))
    picture.save(place := tmp_path / "photo.jpg", exif=exif)
    predictor: Any = explorer.subject("lenet").predictor
    words, _ = call_view(explorer, "read", file=b64encode(place.read_bytes()).decode())
    assert words["drawn"] == prepare(place, predictor.canvas).transpose(1, 2, 0).tobytes().hex()
    shown, arrays = call_view(explorer, "classes", image=-1, drawn=words["drawn"])
    (expected,) = predictor.predict([place], top=10)
    assert shown["labels"] == list(expected.probabilities)
    assert arrays["probabilities"].tolist() == [np.float32(share) for share in expected.probabilities.values()]
    for file, message in (("!", "pattern"), ("A", "base 64"), ("AAAA", "cannot be read"), ("", "cannot be read")):
        with pytest.raises(UserError, match=message):
            call_view(explorer, "read", file=file)


def test_view_fits_image_classifiers_only(run: Callable[[str], Path]) -> None:
    found = {name: view.fits(Subject(name, run(name))) for name in ("lenet", "vit", "images", "gpt")}
    assert found == {"lenet": True, "vit": True, "images": False, "gpt": False}
    subject = Subject("lenet", run("lenet"))
    subject.predictor.tokenizer = ImageSpec((4, 8, 8), subject.predictor.labels)
    assert not view.fits(subject), "four channels are no colours"


def test_invalid_requests_are_rejected(explorer: Explorer) -> None:
    for call, settings in (
        ("classes", {"image": 180}), ("classes", {"image": -1}), ("classes", {"image": -2}),
        ("classes", {"image": -1, "drawn": "ff"}), ("classes", {"image": -1, "drawn": "zz" * 64}),
        ("classes", {"image": -1, "drawn": "ff" * (LARGEST + 1)}), ("maps", {"layer": 2}), ("maps", {"layer": -1}),
        ("pixels", {"label": 10}),
        ("covered", {"square": 16}), ("covered", {}), ("covered", {"square": -1}),
        ("pixels", {"method": "none"}), ("attention", {}), ("classes", {"model": "?"}),
        ("attention", {"model": "vit", "layer": 2}),
    ):  # fmt: skip
        with pytest.raises(UserError):
            call_view(explorer, call, **settings)
    states = ({"image": "x"}, {"image": 10**9}, {"drawn": DRAWING}, {"drawn": "file"}, {"layer": None}, {"square": "x"})
    for state in states:
        for one in view.calls(explorer.subject("vit"), {"model": "vit", **state}):
            explorer.answer(*one)


def test_page_reads_drawings_and_files(browse: Callable[..., Any], run: Callable[[str], Path], tmp_path: Path) -> None:
    browsing = browse(run("lenet"), run("vit"))
    page, explorer = browsing.go("image", model="lenet"), browsing.explorer

    def canvas_pixels(selector: str) -> list[int]:
        every: list[int] = page.locator(selector).first.evaluate(
            "one => [...one.getContext('2d').getImageData(0, 0, one.width, one.height).data]"
        )
        return every[::4]

    def check(**image: Any) -> None:
        """The page shows what the library computes."""
        words, arrays = call_view(explorer, "classes", **image)
        assert page.locator(".classes th").all_inner_texts() == words["labels"]
        shown = [page.get_by_test_id(f"probability-{place}").inner_text() for place in range(10)]
        assert shown == [percent(share) for share in arrays["probabilities"]]
        assert canvas_pixels("[data-testid=whole]") == arrays["picture"].repeat(19, 0).repeat(19, 1).flatten().tolist()

    opened, _ = unpack(explorer.answer("image", "opening", {"model": "lenet"}))
    assert page.get_by_test_id("why").inner_text() == opened["why"]
    assert browsing.address["image"] == str(opened["state"]["image"])
    check(**opened["state"])
    page.get_by_test_id("image-4").click()
    page.get_by_test_id("layer").select_option("1")
    page.get_by_test_id("method-deconvnet").click()
    browsing.ready()
    number = call_view(explorer, "classes")[0]["images"][4]
    check(image=number)
    maps = call_view(explorer, "maps", image=number, layer=1)[1]["pictures"]
    assert page.get_by_test_id("maps").locator("canvas").count() == len(maps)
    assert canvas_pixels("[data-testid=maps] canvas:nth-child(3)") == maps[2].flatten().tolist()
    for label in (None, 7):  # by every method side by side, of the first class and of another
        if label is not None:
            page.get_by_test_id(f"class-{label}").click()
            page.wait_for_url(lambda url: "label=7" in url)
            browsing.ready()
        for method in METHODS:
            picture = call_view(explorer, "pixels", image=number, method=method, label=label)[1]["picture"]
            selector = f"[data-testid=method-{method.replace(' ', '-')}] canvas"
            assert canvas_pixels(selector) == picture.flatten().tolist(), method
    assert "disagree" in page.get_by_test_id("caution").inner_text()

    # A square is left out by a click, and its neighbour by the keys.
    box = page.get_by_test_id("whole").bounding_box()
    page.get_by_test_id("whole").click(position={"x": box["width"] * 0.6, "y": box["height"] * 0.4})
    for square in (6, 7):
        page.wait_for_url(lambda url, square=square: f"square={square}" in url)
        browsing.ready()
        words, arrays = call_view(explorer, "covered", image=number, square=square)
        shown = [page.get_by_test_id(f"without-{place}").inner_text() for place in range(10)]
        assert shown == [percent(share) for share in arrays["probabilities"]]
        assert canvas_pixels("[data-testid=without] canvas") == arrays["picture"].flatten().tolist()
        said = page.get_by_test_id("without").inner_text()
        assert said == f"without it: “{words['label']}” {percent(words['share'])}"
        if square == 6:
            page.get_by_test_id("whole").focus()
            page.keyboard.press("ArrowRight")
            page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    page.get_by_test_id("without").wait_for(state="detached")

    page.get_by_test_id("draw").click()
    box = page.get_by_test_id("pad").bounding_box()
    page.mouse.move(box["x"] + 60, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + 60, box["y"] + 150, steps=8)
    page.mouse.up()
    page.get_by_text("your image", exact=True).wait_for()
    browsing.ready()
    check(image=-1, drawn=browsing.address["drawn"])
    page.get_by_test_id("wipe").click()
    page.get_by_text(f"test image {number + 1}", exact=True).wait_for()
    browsing.ready()

    Image.fromarray(np.random.default_rng(2).integers(0, 256, (50, 31), np.uint8)).save(tmp_path / "large.png")
    page.get_by_test_id("file").set_input_files(tmp_path / "large.png")
    predictor: Any = explorer.subject("lenet").predictor
    resized = prepare(tmp_path / "large.png", predictor.canvas).tobytes().hex()
    page.wait_for_url(lambda url: resized in url)  # it is resized by the server, as by `heedful classify`
    browsing.ready()
    check(image=-1, drawn=resized)

    pixels = (np.arange(64).reshape(8, 8) * 3).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "digit.png")
    page.get_by_test_id("file").set_input_files(tmp_path / "digit.png")
    page.wait_for_url(lambda url: pixels.tobytes().hex() in url)  # an image of the right size stays as it is
    browsing.ready()
    check(image=-1, drawn=pixels.tobytes().hex())
    (tmp_path / "broken.png").write_bytes(b"no image")
    page.get_by_test_id("file").set_input_files(tmp_path / "broken.png")
    page.get_by_test_id("refused").wait_for()
    assert browsing.address["drawn"] == pixels.tobytes().hex(), "the last image stays"


@pytest.mark.claim("I6")
def test_page_shows_attention_of_a_dropped_image(browse: Callable[..., Any], run: Callable[[str], Path]) -> None:
    browsing = browse(run("vit"))
    page, explorer = browsing.go("image", block=1), browsing.explorer
    file = BytesIO()
    Image.fromarray(np.full((8, 8), 200, np.uint8)).save(file, "PNG")
    page.evaluate(
        """values => {
          const given = new DataTransfer();
          given.items.add(new File([new Uint8Array(values)], "a.png", { type: "image/png" }));
          window.dispatchEvent(new DragEvent("drop", { dataTransfer: given, bubbles: true, cancelable: true }));
        }""",
        list(file.getvalue()),
    )
    page.get_by_text("your image", exact=True).wait_for()
    browsing.ready()
    assert browsing.address["drawn"] == "c8" * 64
    largest = call_view(explorer, "attention", "vit", image=-1, drawn="c8" * 64, layer=1)[1]["mean"].max()
    label = page.get_by_test_id("mean").get_attribute("aria-label")
    assert float(label.rpartition(" ")[2]) == pytest.approx(float(largest), rel=6e-3)
    page.get_by_test_id("block").select_option("0")
    browsing.ready()
    page.get_by_text("Layer 1: the attention").wait_for()
