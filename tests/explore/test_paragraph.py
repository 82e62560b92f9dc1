"""The paragraph view: sentences, regions and weights are those of the library."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from heedful.errors import UserError
from heedful.explore.packets import unpack
from heedful.explore.subjects import Explorer
from heedful.explore.views import paragraph as view
from heedful.runs.images import test_split as own
from heedful.tasks.paragraphs.predictor import Description, ImageDescriber
from tolerance import near

RUN = Path(__file__).parents[1] / "golden" / "runs" / "paragraphs-paragraph_captioner"
BOXES = [[0.1, 0.2, 0.5, 0.6], [0.5, 0.5, 1.0, 1.0]]


@pytest.fixture(scope="module")
def explorer() -> Explorer:
    return Explorer([RUN])


def call_view(explorer: Explorer, **settings: Any) -> tuple[Any, Any]:
    return unpack(explorer.answer("paragraph", "description", {"model": RUN.name, **settings}))


def compare(words: Any, arrays: Any, expected: Description) -> None:
    assert [one["text"] for one in words["sentences"]] == [one.text for one in expected.sentences]
    assert [one["region"] for one in words["sentences"]] == [one.region for one in expected.sentences]
    assert [tuple(one["regions"]) for one in words["sentences"]] == [one.regions for one in expected.sentences]
    assert [one["log"] for one in words["sentences"]] == near([one.log_probability for one in expected.sentences])
    assert arrays["weights"] == near(np.stack([one.weights for one in expected.sentences]))
    assert words["phrases"] == expected.phrases and words["complete"] == expected.complete


def test_paragraph_is_that_of_the_library(explorer: Explorer) -> None:
    images: Any = own(RUN)
    describer = ImageDescriber.load(RUN)
    pixels = torch.from_numpy(images.pixels[2:3])
    words, arrays = call_view(explorer, image=2)
    boxes = images.paragraphs[2].boxes
    assert [tuple(box) for box in words["boxes"]] == [near(box) for box in boxes]
    assert words["references"] == list(images.paragraphs[2].sentences)
    compare(words, arrays, describer.describe_pixels(pixels, [boxes])[0])
    words, arrays = call_view(explorer, image=2, boxes=BOXES)
    compare(words, arrays, describer.describe_pixels(pixels, [[tuple(box) for box in BOXES]])[0])


def test_page_opens_on_the_longest_paragraph_and_drawings_have_quarters(explorer: Explorer) -> None:
    images: Any = own(RUN)
    words = call_view(explorer)[0]
    assert len(images.paragraphs[words["image"]].text.split()) == max(len(p.text.split()) for p in images.paragraphs)
    words = call_view(explorer, image=-1, drawn="7f" * 3 * 16 * 16)[0]
    assert [tuple(box) for box in words["boxes"]] == [*view.QUARTERS] and words["references"] == []


def test_invalid_requests_are_rejected(explorer: Explorer) -> None:
    for settings in (
        {"image": 10**6}, {"image": -1}, {"boxes": [[0.5, 0, 0.5, 1]]}, {"boxes": [[0, 0, 1, 1.5]]},
        {"boxes": [[0, 0, 1, 1]] * 13}, {"boxes": [[0, 1, 1]]},
    ):  # fmt: skip
        with pytest.raises(UserError):
            call_view(explorer, **settings)
    subject = explorer.subject(RUN.name)
    assert [dict(one.settings).get("boxes") for one in view.calls(subject, {"boxes": "0,0,500,500,1"})] == [
        None, [[0, 0, 0.5, 0.5]],
    ]  # fmt: skip
    for state in ({"boxes": "x"}, {"boxes": "9" * 5000}):
        with pytest.raises(ValueError):
            view.calls(subject, state)


def test_page_shows_sentences_with_their_regions(browse: Callable[..., Any]) -> None:
    browsing = browse(RUN)
    page, explorer = browsing.go("paragraph", image=1), browsing.explorer
    words, arrays = call_view(explorer, image=1)
    for number, sentence in enumerate(words["sentences"][:2]):
        page.get_by_test_id(f"sentence-{number}").focus()
        page.locator(f'[data-testid="sentence-{number}"][aria-pressed="true"]').wait_for()
        assert page.get_by_test_id(f"sentence-{number}").inner_text().startswith(sentence["text"])
        for region, weight in enumerate(arrays["weights"][number, 0]):
            assert float(page.get_by_test_id(f"weight-0-{region}").inner_text()) == pytest.approx(weight, abs=5.1e-4)
    box = page.get_by_test_id("picture").bounding_box()
    page.mouse.move(box["x"] + 0.25 * box["width"], box["y"] + 0.1 * box["height"])
    page.mouse.down()
    page.mouse.move(box["x"] + 0.75 * box["width"], box["y"] + 0.6 * box["height"], steps=4)
    page.mouse.up()
    page.get_by_text("1 box of yours", exact=True).wait_for()
    browsing.ready()
    sides = [int(side) for side in browsing.address["boxes"].split(",")]
    assert sides == pytest.approx([100, 250, 600, 750], abs=6)
    words, arrays = call_view(explorer, image=1, boxes=[[side / 1000 for side in sides]])
    assert page.get_by_test_id("phrases").locator("li").all_inner_texts() == words["phrases"]
    page.get_by_test_id("own-boxes").click()
    browsing.ready()
    assert "boxes" not in browsing.address
