"""The hops view: answers and weights are those of the library, and the page shows them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heedful.errors import UserError
from heedful.explore.packets import unpack
from heedful.explore.subjects import Explorer
from heedful.explore.views import hops as view
from heedful.runs.load import read_recipe
from heedful.tasks.story_answering.predictor import StoryAnswerer
from tolerance import near

RUNS = Path(__file__).parents[1] / "golden" / "runs"
RUN = RUNS / "story_answering-memory_network"
BAG = RUNS / "story_answering-bag_of_words"


@pytest.fixture
def explorer() -> Explorer:
    return Explorer([RUN, BAG])


def call_view(explorer: Explorer, **settings: Any) -> tuple[Any, Any]:
    return unpack(explorer.answer("hops", "answer", {"model": RUN.name, **settings}))


def test_answer_is_that_of_the_library(explorer: Explorer) -> None:
    answerer, asked = StoryAnswerer.load(RUN), read_recipe(RUN).data.read("test").asked
    words, arrays = call_view(explorer, number=3)
    (expected,) = answerer.predict([(asked[3].sentences, asked[3].question.text)], top=view.TOP)
    assert words["sentences"] == list(asked[3].sentences) and words["question"] == asked[3].question.text
    assert words["right"] == asked[3].question.answer and words["supports"] == list(asked[3].question.supports)
    assert list(words["answers"]) == list(expected.probabilities)
    assert list(words["answers"].values()) == near(list(expected.probabilities.values()))
    assert arrays["weights"] == near(np.array(expected.weights, np.float32))
    assert words["forgotten"] == expected.forgotten == max(0, len(asked[3].sentences) - 6)


def test_own_story_and_question(explorer: Explorer) -> None:
    answerer = StoryAnswerer.load(RUN)
    words, arrays = call_view(explorer, story="Mary took the milk.\nA zebra flew.", question="Where is the milk?")
    assert words["own"] and words["right"] is None and words["supports"] == []
    assert words["sentences"] == ["Mary took the milk.", "A zebra flew."] and words["unknown"] == ["a", "zebra", "flew"]
    expected = answerer.answer(words["sentences"], "Where is the milk?")
    assert arrays["weights"] == near(np.array(expected.weights, np.float32))
    assert call_view(explorer, question="Where is Mary?")[0]["sentences"] == call_view(explorer)[0]["sentences"]
    for settings in ({"number": 10**6}, {"story": ""}, {"story": "..."}, {"question": "?"}, {"story": "A b. " * 201}):
        with pytest.raises(UserError):
            call_view(explorer, **settings)


def test_view_fits_models_with_hops(explorer: Explorer) -> None:
    subject = explorer.subject(RUN.name)
    assert subject.views == ("home", "hops", "run") and "hops" not in explorer.subject(BAG.name).views
    words, _ = call_view(explorer)
    assert words["number"] == words["choices"][0]["number"] and len(words["choices"]) == 6
    # One question about each story, and as many calls as choices besides the state's own.
    assert [one["number"] // 2 for one in words["choices"]] == list(range(6))
    assert len(view.calls(subject, {"number": "2"})) == 1 + 6
    assert view.calls(subject, {"story": "A b.", "question": "Who?"})[0].settings == {
        "model": RUN.name, "story": "A b.", "question": "Who?",
    }  # fmt: skip


def test_model_without_data_has_generated_stories(tmp_path: Path) -> None:
    StoryAnswerer.load(RUN).save(tmp_path / "folder")
    explorer = Explorer([tmp_path / "folder"])
    words, _ = unpack(explorer.answer("hops", "answer", {"model": "folder"}))
    assert words["question"].startswith("Where is ") and len(words["choices"]) == view.SHOWN


def test_page_shows_the_weights(browse: Callable[..., Any]) -> None:
    browsing = browse(RUN)
    page, explorer = browsing.go("hops"), browsing.explorer
    choices = call_view(explorer)[0]["choices"]

    def compare(**settings: Any) -> None:
        words, arrays = call_view(explorer, **settings)
        page.get_by_test_id("asked").get_by_text(words["question"], exact=True).wait_for()
        page.locator('[data-figure][data-ready="true"]').wait_for()
        page.get_by_text(f"{len(words['sentences'])} sentences", exact=True).wait_for()
        for (hop, row), weight in np.ndenumerate(arrays["weights"]):
            shown = page.get_by_test_id(f"weight-{hop}-{row}").inner_text()
            assert shown == (f"{weight:.2f}" if weight >= 0.005 else "")
        for place, share in enumerate(words["answers"].values()):
            assert page.get_by_test_id(f"share-{place}").inner_text() == f"{100 * share:.1f} %"
        assert page.locator("tr.fact").count() == len(words["supports"])

    compare()
    page.get_by_test_id("choices").select_option(str(choices[2]["number"]))
    compare(number=choices[2]["number"])
    assert browsing.address["number"] == str(choices[2]["number"])
    page.get_by_test_id("question").fill("Where is the zebra?")
    page.get_by_text("words that the model does not know: zebra").wait_for()
    compare(number=choices[2]["number"], question="Where is the zebra?")
    assert browsing.address["question"] == "Where is the zebra?"
    page.get_by_test_id("choices").select_option(str(choices[1]["number"]))
    compare(number=choices[1]["number"])
    assert "question" not in browsing.address
