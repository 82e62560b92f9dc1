"""The first picture of every view that chooses one: from the model's own data, the same each time, for true reasons."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heedful.explore.openings import Highlight, TextOpening, best, on_image, rivals
from heedful.explore.packets import unpack
from heedful.explore.subjects import Explorer, Subject
from heedful.explore.views import VIEWS, find

OPENING = [name for name in VIEWS if "opening" in find(name).CALLS]


def opened(explorer: Explorer, subject: Subject, view: str) -> dict[str, Any]:
    header, _ = unpack(explorer.answer(view, "opening", {"model": subject.name}))
    return header


@pytest.mark.parametrize(
    "name", ["translation", "rnn", *(pytest.param(one, marks=pytest.mark.slow) for one in ("gpt", "recurrent"))]
)
def test_every_view_of_a_text_opens_on_an_example(run: Callable[[str], Path], name: str) -> None:
    """The text is one of the examples; asked for that text, the view chooses the same and gives the same reason."""
    explorer = Explorer([run(name)])
    subject = explorer.subject(name)
    texts = [(one.text, one.other) for one in subject.examples.examples]
    views = [view for view in OPENING if view in subject.views and find(view).CALLS["opening"][0] is TextOpening]
    assert {"next", "beam"} <= set(views)
    for view in views:
        found = opened(explorer, subject, view)
        assert (found["text"], found["other"]) in texts, view
        assert found["why"].endswith(".") or not found["state"], view
        given = {"model": name, "text": found["text"], "other": found["other"]}
        again, _ = unpack(explorer.answer(view, "opening", given))
        assert (again["why"], again["state"]) == (found["why"], found["state"]), view


def test_next_token_opens_where_the_second_is_most_probable(run: Callable[[str], Path]) -> None:
    explorer = Explorer([run("gpt")])
    subject = explorer.subject("gpt")
    seconds = {}
    for one in subject.examples.examples:
        _, arrays = unpack(explorer.answer("next", "logits", {"model": "gpt", "text": one.text}))
        logits = np.delete(arrays["logits"].astype(np.float64), arrays["never"])
        shares = np.exp(logits - logits.max())
        seconds[one.text] = float(np.sort(shares / shares.sum())[-2])
    found = opened(explorer, subject, "next")
    assert found["text"] == max(seconds, key=lambda text: seconds[text])
    assert f"{seconds[found['text']]:.2f}." in found["why"]


def test_alignment_opens_on_the_longest_way_back(run: Callable[[str], Path]) -> None:
    """From one written word to the next, the largest weight goes back in the source by as much as the reason says."""
    explorer = Explorer([run("translation")])
    subject = explorer.subject("translation")
    found = opened(explorer, subject, "alignment")
    given = {"model": "translation", "text": found["text"]}
    header, _ = unpack(explorer.answer("alignment", "steps", given))
    _, arrays = unpack(explorer.answer("alignment", "weights", given))
    source = [
        place
        for place, one in enumerate(header["source"])
        if any(map(str.isalnum, one["piece"])) and one["part"] is not None
    ]
    keys = [source[one] for one in arrays["mean"][:, source].argmax(-1)]
    back = max(before - after for before, after in pairwise(keys[:-1]))
    assert back > 0 and f"{back} token" in found["why"]


def test_ablation_opens_on_the_head_that_matters_most(run: Callable[[str], Path]) -> None:
    explorer = Explorer([run("gpt")])
    found = opened(explorer, explorer.subject("gpt"), "ablation")
    given = {"model": "gpt", "text": found["text"]}
    full, _ = unpack(explorer.answer("ablation", "says", given))
    rises = {}
    for layer in range(2):
        _, arrays = unpack(explorer.answer("ablation", "alone", {**given, "look": 0, "layer": layer}))
        rises |= {f"0.{layer}.{head}": loss - full["loss"] for head, loss in enumerate(arrays["losses"])}
    assert found["state"]["tried"] == max(rises, key=lambda head: rises[head])
    assert f"rises by {max(rises.values()):.2g};" in found["why"]


def test_choice_has_the_largest_gain_and_skips_what_is_not_finite() -> None:
    gains = {1: 0.2, 2: float("nan"), 3: 0.7, 4: float("inf")}
    assert best(lambda one: Highlight(gains[one], str(one)), list(gains))[0] == 3
    assert best(lambda one: None, [5, 6])[0] == 5
    assert "compete" in rivals("tokens", ("a", 0.4), ("b", 0.3)).why
    assert "compete" not in rivals("tokens", ("a", 0.9), ("b", 0.1)).why


def test_image_is_chosen_once_and_named_in_the_state(run: Callable[[str], Path]) -> None:
    asked = []

    def highlight(subject: Subject, image: int) -> Highlight:
        asked.append(image)
        return Highlight({4: 0.1, 7: 0.9}[image], f"Because of {image}.", {"step": image})

    subject = Subject("gpt", run("gpt"))
    kind, call = on_image(lambda _: [4, 7], highlight)
    for _ in range(2):
        found, _ = unpack(call(subject, kind.model_validate({"model": "gpt"})))
        assert found["state"] == {"image": 7, "step": 7} and found["why"] == "Because of 7."
    assert asked == [4, 7]


def test_page_opens_on_the_input_that_the_view_chooses(browse: Callable[..., Any], run: Callable[[str], Path]) -> None:
    """Its text and its choice stand in the address, with the reason; not in a lesson, nor with a text of the user."""
    browsing = browse(run("translation"))
    subject = browsing.explorer.subject("translation")
    found = opened(browsing.explorer, subject, "alignment")
    page = browsing.go("alignment")
    assert page.get_by_test_id("why").inner_text() == found["why"]
    assert page.get_by_test_id("text").input_value() == found["text"]
    assert browsing.address["text"] == found["text"] != subject.sample["text"]
    page = browsing.go("alignment", text="seven")
    assert page.get_by_test_id("why").count() == 0 and browsing.address["text"] == "seven"
    page = browsing.go("ablation")
    off = opened(browsing.explorer, subject, "ablation")["state"]["tried"]
    assert browsing.address["tried"] == off
    page.get_by_test_id("chip-1").click()
    page.wait_for_url(lambda url: "text=" in url and "tried=" in url)
    assert page.get_by_test_id("text").input_value() == subject.examples.examples[1].text
    page = browsing.go("alignment", lesson="fluent/0")
    assert page.get_by_test_id("why").count() == 0 and "text" not in browsing.address
