"""A | B: one view twice, with one selection, and B - A where the numbers align."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from heedful.explore.export import Export, page_of
from heedful.explore.inspect import TextInput
from heedful.explore.subjects import Explorer
from patience import until

GOLDEN = Path(__file__).parents[1] / "golden" / "runs"
BERT, GPT = GOLDEN / "pretraining-bert", GOLDEN / "language_model-gpt"
ONE, TWO = "a big dog takes the big", "a small dog takes the big"


def test_two_texts_share_the_selection_and_show_their_difference(browse: Callable[..., Any]) -> None:
    browsing = browse(BERT, GPT)
    page = browsing.go("heads", model=BERT.name, text=ONE, layer=1, heads=0)
    page.get_by_test_id("compare").click()
    a, b = page.locator('[data-pane="a"]'), page.locator('[data-pane="b"]')
    b.get_by_test_id("text").fill(TWO)
    b.get_by_test_id("text").press("Enter")
    page.get_by_test_id("largest").wait_for()
    subject = browsing.explorer.subject(BERT.name)
    traces = [subject.trace(TextInput(text=text)) for text in (ONE, TWO)]
    before, after = (trace.weights(trace.attentions[0], 1)[0].float() for trace in traces)
    assert before.shape == after.shape  # they align place by place
    less = after - before
    place = int(less.abs().argmax())
    said = f"{before.flatten()[place]:.2f} → {after.flatten()[place]:.2f}"
    until(lambda: said in page.get_by_test_id("largest").inner_text())
    assert f"{abs(float(less.flatten()[place])):.2f}" in page.get_by_test_id("largest").inner_text()

    # Of a text with a word less, the words that both have correspond.
    b.get_by_test_id("text").fill("a dog takes the big")
    b.get_by_test_id("text").press("Enter")
    until(lambda: "one text only" in page.get_by_test_id("difference").inner_text())
    assert page.get_by_test_id("less-2").locator(".rows span").all_inner_texts() == [
        one.piece for one in subject.trace(TextInput(text="a dog takes the big")).reading.sides["text"]
    ]

    b.get_by_test_id("ask-2").click()  # chosen in B, and so in A
    until(lambda: a.get_by_test_id("ask-2").get_attribute("class").split().count("on") == 1)
    assert browsing.address["token"] == "ask-2"
    page.locator("h2").first.click()
    page.keyboard.press("[")  # one layer down, not one for each pane
    until(lambda: browsing.address["layer"] == "0")
    page.get_by_test_id("undo").click()
    until(lambda: browsing.address["layer"] == "1")
    page.get_by_test_id("view-grid").click()  # both panes go on to another view
    until(lambda: page.locator("[data-pane] [data-testid=grid]").count() == 2)
    b.get_by_test_id("pane-model").select_option(GPT.name)
    until(lambda: browsing.address.get("b.model") == GPT.name)
    page.get_by_test_id("view-fill").click()
    assert "does not fit" in b.get_by_test_id("trouble").inner_text()
    page.get_by_test_id("compare").click()
    until(lambda: not page.locator("[data-pane]").count())
    assert not [name for name in browsing.address if name == "compare" or name.startswith("b.")]


def test_file_of_a_comparison_answers_for_both_panes() -> None:
    state = {"text": ONE, "compare": "1", "b.text": TWO, "b.other": "", "layer": "1"}
    html = page_of(Explorer([BERT]), Export(view="grid", state=state))
    (held,) = re.findall(r'<script id="held" type="application/json">(.*?)</script>', html, re.DOTALL)
    asked = {(one["view"], one["call"], one["asked"].get("text")) for one in json.loads(held)["answers"]}
    assert {(view, call, text) for view, call in (("grid", "wall"), ("heads", "layer")) for text in (ONE, TWO)} <= asked
