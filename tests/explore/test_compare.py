"""A | B: one view twice, with one selection; two texts, models or head settings; and B - A where the numbers align."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from heedful.blocks.taps import watch
from heedful.explore.export import Export, page_of
from heedful.explore.inspect import TextInput
from heedful.explore.packets import unpack
from heedful.explore.subjects import Explorer
from heedful.runs.images import test_split as images
from heedful.tasks.captioning.predictor import ImageCaptioner
from heedful.tasks.image_classification.predictor import ImageClassifier
from heedful.tasks.language_model.predictor import TextGenerator
from patience import until
from tolerance import near

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


def shown_text(piece: str) -> str:
    """A token as the page writes it."""
    return re.sub("^ ", "·", piece).replace("\n", "↵") or "∅"


def difference(page: Any) -> Any:
    return page.get_by_test_id("difference")


def lessened(page: Any) -> dict[str, float]:
    """The numbers of B - A in the tables, by name."""
    rows = (
        difference(page)
        .locator("tbody tr")
        .evaluate_all(
            """all => all.map((one) =>
          [one.querySelector('th').textContent, Number(one.querySelector('[data-less]').dataset.less)])"""
        )
    )
    return dict(rows)


def test_two_head_settings_of_one_model_are_compared(browse: Callable[..., Any], run: Callable[[str], Path]) -> None:
    """Heads that are switched off in B alone: in Heads, Next token and the lens, with Python's numbers."""
    browsing = browse(run("gpt"))
    page = browsing.go("next", text="A list of")
    own = TextGenerator.load(run("gpt"), "cpu")  # not the one that the server uses meanwhile
    page.get_by_test_id("compare").click()
    b = page.locator('[data-pane="b"]')
    b.get_by_test_id("heads-open").click()
    b.get_by_test_id("layer-0-1").click()  # all heads of layer 2
    page.wait_for_url(lambda url: "b.off=" in url)
    assert "off" not in browsing.address
    ids = torch.tensor([own.prompt_ids("A list of")])

    def shares() -> torch.Tensor:
        with torch.inference_mode():
            return own.model(ids, own.start(1))[0][0, -1].double().softmax(-1)

    before = shares()
    with watch(own.model, "blocks.1.*.weights", edit=lambda _, weights: torch.zeros_like(weights)):
        less = shares() - before
    most = less.abs().topk(3).indices.tolist()
    names = [shown_text(piece) for piece in own.tokenizer.pieces(most)]
    until(lambda: difference(page).count() and {*names} <= {*lessened(page)})
    shown = lessened(page)
    assert [shown[name] for name in names] == near(less[most].tolist(), 256)

    page.get_by_test_id("view-lens").click()  # the setting is kept
    until(lambda: difference(page).count() and "layer 2" in difference(page).inner_text())
    assert browsing.address["b.off"] == "0.1.0,0.1.1,0.1.2,0.1.3"
    b.get_by_test_id("restore").click()
    until(lambda: "0.00" in page.get_by_test_id("largest").inner_text() and "b.off" not in page.url)
    page.get_by_test_id("undo").click()
    until(lambda: browsing.address.get("b.off") == "0.1.0,0.1.1,0.1.2,0.1.3")


def test_head_settings_of_images_and_dialogues_are_compared(
    browse: Callable[..., Any], run: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In B, a layer of a Vision Transformer is off, and the attention of a captioner and of a dialogue uniform."""
    monkeypatch.chdir(GOLDEN / "dialogue-hred")  # where its data are
    browsing = browse(run("vit"), run("captions"), GOLDEN / "dialogue-hred")
    page = browsing.go("image", model="vit", image=3, compare=1)
    b = page.locator('[data-pane="b"]')
    b.get_by_test_id("heads-open").click()
    b.get_by_test_id("layer-0-1").click()
    page.wait_for_url(lambda url: "b.off=" in url)
    assert browsing.address["b.off"] == "0.1.0,0.1.1" and "off" not in browsing.address

    classifier = ImageClassifier.load(run("vit"))  # not the one that the server uses meanwhile

    def shares() -> dict[str, float]:
        (found,) = classifier.predict([images(run("vit")).pixels[3]], top=10)
        return dict(found.probabilities)

    before = shares()
    with watch(classifier.model, "blocks.1.*.weights", edit=lambda _, weights: torch.zeros_like(weights)):
        less = {name: share - before[name] for name, share in shares().items()}
    assert max(map(abs, less.values())) > 1e-3
    until(lambda: difference(page).count() and lessened(page) == pytest.approx(less, abs=1e-6))
    page.get_by_test_id("undo").click()
    until(lambda: "b.off" not in page.url and "No difference." in difference(page).inner_text())
    assert not lessened(page)

    def make_uniform(view: str, **state: object) -> None:
        browsing.go(view, compare=1, **state)
        b.get_by_test_id("heads-open").click()
        b.get_by_test_id("how-uniform").click()
        b.get_by_test_id("switch-0-0-0").click()
        page.wait_for_url(lambda url: "b.uniform=0.0.0" in url)
        until(lambda: b.get_by_test_id("changed").inner_text().startswith("In all views: layer 1, head 1 uniform"))

    make_uniform("caption", model="captions", image=4)
    captioner = ImageCaptioner.load(run("captions"))
    with watch(captioner.model, "*.weights", edit=lambda _, weights: torch.full_like(weights, 1 / weights.shape[-1])):
        words = captioner.search([images(run("captions")).pixels[4]], 3, 3)[0][0].words
    even = pytest.approx(1 / math.prod(captioner.grid), rel=1e-3)
    until(lambda: float(b.get_by_test_id("largest").inner_text()) == even)
    assert [one.split("\n")[0] for one in b.locator("[data-testid=words] button").all_inner_texts()] == words

    make_uniform("dialogue", model="dialogue-hred")
    asked = {"model": "dialogue-hred", "uniform": [[0, 0, 0]]}
    shown, arrays = unpack(browsing.explorer.answer("dialogue", "reply", asked))
    until(lambda: b.get_by_test_id("weight-0").inner_text() == f"{1 / len(shown['turns']):.2f}")
    assert b.get_by_test_id("chance-0").inner_text() == f"{100 * float(np.exp(arrays['reply logs'][0])):.1f} %"


def test_heads_that_are_changed_hold_in_all_views(browse: Callable[..., Any], run: Callable[[str], Path]) -> None:
    """The page says which; the head that the view of ablation begins with is no choice of the reader's."""
    browsing = browse(run("translation"))
    page, by = browsing.go("ablation"), browsing.page.get_by_test_id
    assert browsing.address["tried"]
    by("all-on").click()
    until(lambda: browsing.address.get("tried", "?") in ("", "?") and page.locator(".switch.off").count() == 0)
    browsing.ready()
    by("how-uniform").click()
    by("switch-2-0-1").click()
    page.wait_for_url(lambda url: "uniform=2.0.1" in url)
    by("view-heads").click()
    by("changed").wait_for()
    until(lambda: by("changed").inner_text().startswith("In all views: decoder cross, layer 1, head 2 uniform"))
    by("look").select_option("decoder.*.cross.weights")
    browsing.ready()
    by("restore").click()
    until(lambda: by("changed").count() == 0 and "uniform" not in page.url)
    page = browsing.go("ablation")
    by("view-heads").click()
    browsing.ready()
    assert "tried" not in page.url and by("changed").count() == 0
    page.goto(f"{browsing.url}#view=heads&text=five+six&off=0.7.7")
    assert "no such head" in by("trouble").inner_text()
    by("restore").click()
    browsing.ready()


def test_each_view_has_differences_or_says_why_not(browse: Callable[..., Any], run: Callable[[str], Path]) -> None:
    """Of gates, images, and words of a caption; a map has none."""
    names = ("rnn", "vit", "captions")
    browsing = browse(*map(run, names))
    page = browsing.go("recurrent", model="rnn", text="as in the", compare=1, **{"b.text": "as on the"})
    difference(page).wait_for()
    assert "gates and states of layer 1" in difference(page).inner_text()
    page = browsing.go("image", model="vit", image=0, compare=1, **{"b.image": 1})
    difference(page).wait_for()
    subject = browsing.explorer.subject("vit")
    shares = [
        dict(zip(words["labels"], arrays["probabilities"].tolist(), strict=True))
        for words, arrays in (
            unpack(browsing.explorer.answer("image", "classes", {"model": "vit", "image": image})) for image in (0, 1)
        )
    ]
    expected = {name: shares[1][name] - shares[0][name] for name in shares[0]}
    assert lessened(page) == {name: pytest.approx(value, abs=1e-6) for name, value in expected.items()}
    assert (
        difference(page).locator("[data-testid=less-2]").count()
        == len(unpack(browsing.explorer.answer("image", "classes", {"model": subject.name}))[0]["methods"]) + 2
    )  # and the rollout and the mean of the heads
    page = browsing.go("caption", model="captions", image=0, compare=1, **{"b.image": 1})
    difference(page).wait_for()
    assert "probability of each word" in difference(page).inner_text()
    page = browsing.go("map", model="rnn", compare=1)
    difference(page).wait_for()
    assert "places cannot" in difference(page).inner_text()
