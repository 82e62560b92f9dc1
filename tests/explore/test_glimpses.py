"""The glimpses view: path, patches and classes are those of the library."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heedful.errors import UserError
from heedful.explore.packets import unpack
from heedful.explore.subjects import Explorer
from heedful.explore.views import glimpses as view
from heedful.runs.images import test_images as own
from heedful.tasks.image_classification.glimpses import GlimpseClassifier
from tolerance import near

RUN = Path(__file__).parents[1] / "golden" / "runs" / "image_classification-recurrent_attention"


@pytest.fixture(autouse=True)
def _in_its_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(RUN)  # where the run's data are


@pytest.fixture
def explorer() -> Explorer:
    return Explorer([RUN])


def call_view(explorer: Explorer, **settings: Any) -> tuple[Any, Any]:
    return unpack(explorer.answer("glimpses", "path", {"model": RUN.name, **settings}))


def test_path_is_that_of_the_library(explorer: Explorer) -> None:
    classifier, image = GlimpseClassifier.load(RUN), own(RUN).pixels[3]
    words, arrays = call_view(explorer, image=3)
    (expected,) = classifier.predict([image], top=10)
    assert arrays["path"] == near(np.array(expected.path, np.float32))
    assert words["labels"] == list(expected.probabilities)
    assert arrays["probabilities"][-1] == near(list(expected.probabilities.values()))
    seen = classifier.views(image).mean(1).clip(0, 1) * 255
    assert np.abs(arrays["views"] - seen).max() <= 1
    assert (words["patch"], words["scales"]) == (classifier.model.config.patch, classifier.model.config.scales)


def test_view_fits_models_that_look_by_glimpses(explorer: Explorer) -> None:
    subject = explorer.subject(RUN.name)
    assert subject.views == ("home", "glimpses", "run")
    assert len(view.calls(subject, {"image": "2"})) == 1 + len(call_view(explorer)[0]["images"])
    for settings in ({"image": 10**6}, {"image": -1}, {"image": -1, "drawn": "ff"}):
        with pytest.raises(UserError):
            call_view(explorer, **settings)


def test_page_plays_the_path(browse: Callable[..., Any]) -> None:
    browsing = browse(RUN)
    page, explorer = browsing.go("glimpses", image=2), browsing.explorer
    words, arrays = call_view(explorer, image=2)
    for step, (row, column) in enumerate(arrays["path"]):
        page.keyboard.press("ArrowRight")
        page.get_by_text(f"glimpse {step + 1} of {len(arrays['path'])}: row {row:.1f}, column {column:.1f}").wait_for()
        assert page.locator("[data-testid=glimpses] circle").count() == step + 1
        for place in range(len(words["labels"])):
            shown = page.get_by_test_id(f"share-{place}").inner_text()
            assert shown == f"{100 * arrays['probabilities'][step, place]:.1f} %"
    assert browsing.address["step"] == str(len(arrays["path"]) - 1)
    page.keyboard.press("Escape")
    assert "step" not in browsing.address
