"""The caption view: captions, weights and the search are those of the library."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heedful.data.images.inputs import display
from heedful.errors import UserError
from heedful.explore.packets import unpack
from heedful.explore.subjects import Explorer, Subject
from heedful.explore.views import caption as view
from heedful.plots.caption_grid import overlay
from heedful.runs.images import test_split as own
from heedful.tasks.captioning.predictor import ImageCaptioner
from tolerance import near

DRAWING = "ff0000" * 256  # 16 x 16 pixels of red


@pytest.fixture(scope="module")
def explorer(run: Callable[[str], Path]) -> Explorer:
    return Explorer([run("captions")])


@pytest.fixture(scope="module")
def captioner(run: Callable[[str], Path]) -> ImageCaptioner:
    return ImageCaptioner.load(run("captions"))


def call_view(explorer: Explorer, call: str = "captions", **settings: Any) -> tuple[Any, Any]:
    return unpack(explorer.answer("caption", call, {"model": "captions", **settings}))


def test_captions_and_maps_are_those_of_the_library(explorer: Explorer, captioner: ImageCaptioner) -> None:
    images: Any = own(explorer.subject("captions").folder)
    words, arrays = call_view(explorer, image=4, beams=3)
    found = captioner.search([images.pixels[4]], 3, 3)[0]
    assert [one["text"] for one in words["captions"]] == [one.text for one in found]
    assert [one["words"] for one in words["captions"]] == [one.words for one in found]
    assert [one["log"] for one in words["captions"]] == near([one.log_probability for one in found])
    assert [one["probabilities"] for one in words["captions"]] == [near(one.probabilities) for one in found]
    assert arrays["maps"] == near(np.concatenate([one.maps.numpy() for one in found if one.maps is not None]))
    assert arrays["maps"].sum((1, 2)) == near(np.ones(len(arrays["maps"])))
    assert tuple(words["grid"]) == captioner.grid == arrays["maps"].shape[1:]
    assert words["references"] == list(images.captions[4])
    assert (arrays["picture"] == images.pixels[4].transpose(1, 2, 0)).all()
    assert (arrays["pictures"] == images.pixels[words["images"]].transpose(0, 2, 3, 1)).all()


@pytest.mark.claim("I9")
def test_soft_and_hard_maps_have_the_same_words(explorer: Explorer, captioner: ImageCaptioner) -> None:
    image = own(explorer.subject("captions").folder).pixels[2]
    words, arrays = call_view(explorer, image=2, beams=2)
    assert words["kinds"] == ["soft", "hard"]
    assert arrays["soft"] == near(arrays["maps"])
    assert sorted(np.unique(arrays["hard"])) == [0, 1] and (arrays["hard"].sum((1, 2)) == 1).all()
    hard = captioner.attending("hard").describe(image, words["captions"][0]["ids"])
    assert hard.maps is not None and hard.words == words["captions"][0]["words"]
    assert arrays["hard"][: len(hard.words)] == near(hard.maps.numpy())
    assert words["captions"][0]["logs"]["hard"] == near(hard.log_probability)
    assert words["captions"][0]["logs"]["soft"] == near(words["captions"][0]["log"])


def test_search_is_that_of_the_library(explorer: Explorer) -> None:
    words, arrays = call_view(explorer, "search", image=4, beams=3)
    captions = call_view(explorer, image=4, beams=3)[0]["captions"]
    best = captions[0]
    assert len(best["steps"]) == len(best["words"])
    kept = [
        [words["texts"][node] for node in np.flatnonzero((arrays["step"] == step) & (arrays["fate"] > 0))]
        for step in best["steps"]
    ]
    for number, texts in enumerate(kept):
        assert any(text.endswith(best["words"][number]) and best["text"].startswith(text) for text in texts)
    ended = {words["texts"][node]: arrays["log"][node] for node in np.flatnonzero(arrays["fate"] == 2)}
    for one in captions:
        assert not one["complete"] or ended[one["text"]] == near(one["log"])


def test_page_opens_on_the_image_with_the_longest_caption(explorer: Explorer) -> None:
    images: Any = own(explorer.subject("captions").folder)
    words = call_view(explorer)[0]
    lengths = [len(images.captions[index][0].split()) for index in words["images"]]
    assert sorted(words["images"]) == list(range(10)) and lengths == sorted(lengths, reverse=True)
    assert words["image"] == words["images"][0]


def test_drawing_is_described_like_any_image(explorer: Explorer, captioner: ImageCaptioner) -> None:
    words, arrays = call_view(explorer, image=-1, drawn=DRAWING, beams=1)
    pixels = np.zeros((3, 16, 16), np.float32)
    pixels[0] = 1
    assert [one["text"] for one in words["captions"]] == [captioner.caption([pixels], beams=1)[0].text]
    assert (arrays["picture"] == (255, 0, 0)).all() and words["references"] == [] and words["image"] == -1


def test_view_fits_captioners_only(run: Callable[[str], Path], explorer: Explorer) -> None:
    assert explorer.subject("captions").views == ("home", "caption", "run")
    assert not view.fits(Subject("lenet", run("lenet")))


def test_invalid_requests_are_rejected(explorer: Explorer) -> None:
    for settings in ({"image": 10**6}, {"image": -1}, {"image": -1, "drawn": "ff"}, {"beams": 0}, {"beams": 9}):
        for call in view.CALLS:
            with pytest.raises(UserError):
                call_view(explorer, call, **settings)
    for state in ({"image": "x"}, {"image": 10**9}, {"drawn": DRAWING}, {"drawn": "file"}, {"beams": "x"}):
        calls = view.calls(explorer.subject("captions"), {"model": "captions", **state})
        assert len(calls) == 2 * view.MOST_BEAMS
        for one in calls[:2]:
            explorer.answer(*one)


@pytest.mark.claim("I8")
def test_page_shows_the_map_of_each_word(browse: Callable[..., Any], run: Callable[[str], Path]) -> None:
    browsing = browse(run("captions"))
    page, explorer = browsing.go("caption", image=4), browsing.explorer
    words, arrays = call_view(explorer, image=4, beams=3)
    best = words["captions"][0]
    image = display(own(run("captions")).pixels[4])

    def drawn(testid: str) -> tuple[Any, int]:
        width, values = page.get_by_test_id(testid).evaluate(
            "one => [one.width, [...one.getContext('2d').getImageData(0, 0, one.width, one.height).data]]"
        )
        return np.array(values).reshape(-1, width, 4)[..., :3], width // image.shape[1]

    def check(testid: str, weights: Any) -> None:
        """The canvas shows what the figure of the library does, each pixel as several."""
        found, scale = drawn(testid)
        assert np.abs(found - overlay(image.repeat(scale, 0).repeat(scale, 1), weights)).max() <= 1

    assert [one.split("\n")[0] for one in page.locator("[data-testid=words] button").all_inner_texts()] == best["words"]
    last = len(best["words"]) - 1
    page.get_by_test_id(f"word-{last}").hover()
    page.locator(f'[data-testid="word-{last}"][aria-pressed="true"]').wait_for()
    check("overlay", arrays["maps"][last])
    check("soft-0", arrays["soft"][0])
    check("hard-0", arrays["hard"][0])
    assert float(page.get_by_test_id("largest").inner_text()) == pytest.approx(arrays["maps"][last].max(), rel=1e-3)

    page.get_by_test_id("word-0").focus()
    page.get_by_test_id("numbers").click()
    page.get_by_test_id("step-on").click()  # the first word
    browsing.ready()
    shown = [float(one) for one in page.get_by_test_id("weights").locator("td").all_inner_texts()]
    assert shown == pytest.approx(arrays["maps"][0].flatten().tolist(), abs=5.1e-5)
    page.get_by_test_id("candidates").wait_for()
    assert browsing.address["step"] == "0"

    box = page.get_by_test_id("overlay").bounding_box()
    rows, columns = words["grid"]
    page.mouse.click(box["x"] + 1.5 * box["width"] / columns, box["y"] + 0.5 * box["height"] / rows)  # row 1, column 2
    page.get_by_test_id("region").wait_for()
    assert browsing.address["place"] == "1"
    for at in range(len(best["words"])):
        said, weight = page.get_by_test_id(f"share-{at}").inner_text(), arrays["maps"][at, 0, 1]
        assert said == "<0.001" if 0 < weight < 0.0005 else float(said) == pytest.approx(weight, abs=5.1e-4)
    page.keyboard.press("Escape")
    page.get_by_test_id("beam-1").click()
    browsing.ready()
    texts = page.locator("[data-testid=words] button").all_inner_texts()
    assert [one.split("\n")[0] for one in texts] == words["captions"][1]["words"]


def test_pointing_at_a_word_moves_no_word(browse: Callable[..., Any], run: Callable[[str], Path]) -> None:
    browsing = browse(run("captions"))
    page = browsing.go("caption", image=4)
    buttons = page.locator("[data-testid=words] button")
    for width in (1280, 700):
        page.set_viewport_size({"width": width, "height": 860})
        browsing.ready()
        boxes = set()
        for at in range(buttons.count()):
            page.get_by_test_id(f"word-{at}").focus()
            page.locator(f'[data-testid="word-{at}"][aria-pressed="true"]').wait_for()
            boxes.add(tuple(tuple(one.bounding_box().values()) for one in buttons.all()))
        assert buttons.count() > 1 and len(boxes) == 1, boxes
