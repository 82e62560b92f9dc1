"""The classifier view: slices, saliency and edits are those of the library, and the page shows them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import heedful
from heedful.errors import UserError
from heedful.explore import labelled_sample
from heedful.explore.packets import unpack
from heedful.explore.subjects import Explorer
from heedful.explore.views import classifier as view
from heedful.extras.saliency import explain
from heedful.runs.load import read_recipe
from tolerance import near

RUNS = Path(__file__).parents[1] / "golden" / "runs"
BERT, WORDS = "classification-classifier", "text_classification-conv_classifier"
TEXT = "the red cat sees a ball ."


@pytest.fixture(scope="module")
def explorer() -> Explorer:
    return Explorer([RUNS / BERT, RUNS / WORDS, RUNS / "multi_label-multi_label", RUNS / "regression-regressor"])


def ask(explorer: Explorer, call: str, model: str = BERT, **settings: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    with chdir(RUNS / model):  # where the run's data are
        return unpack(explorer.answer("classifier", call, {"model": model, **settings}))


def test_rows_are_the_test_set_with_its_predictions(explorer: Explorer) -> None:
    about, _ = ask(explorer, "begin")
    words, arrays = ask(explorer, "rows")
    with chdir(RUNS / BERT):
        items = read_recipe(RUNS / BERT).data.read("test").items
    found = heedful.load(RUNS / BERT).predict([item.text for item in items])
    assert words["texts"] == [item.text for item in items] and about["count"] == about["of"] == len(items) == 8
    assert [about["labels"][at] for at in arrays["right"]] == [item.label for item in items]
    assert [about["labels"][at] for at in arrays["predicted"]] == [one.label for one in found]
    assert arrays["sure"] == near([one.probability for one in found])
    assert arrays["true"] == near([one.probabilities[item.label] for one, item in zip(found, items, strict=True)])
    assert ask(explorer, "rows", start=500)[0]["texts"] == []


def test_large_data_are_sampled_evenly(explorer: Explorer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labelled_sample, "MOST", 4)
    with chdir(RUNS / BERT):
        some = labelled_sample.LabelledSample(explorer.subject(BERT))
        every = read_recipe(RUNS / BERT).data.read("test").items
    assert (some.of, [one.text for one in some.examples]) == (8, [item.text for item in every[::2]])


def test_first_text_is_the_most_confident_mistake(explorer: Explorer) -> None:
    found, (words, arrays) = ask(explorer, "first")[0], ask(explorer, "rows")
    wrong = np.flatnonzero(arrays["right"] != arrays["predicted"])
    worst = wrong[arrays["sure"][wrong].argmax()]
    assert found["text"] == words["texts"][worst] and "most confident mistake" in found["why"]


@pytest.mark.parametrize("model", [BERT, WORDS])
def test_words_have_the_sums_of_their_tokens(explorer: Explorer, model: str) -> None:
    words, arrays = ask(explorer, "saliency", model, text=TEXT, label=1)
    predictor = explorer.subject(model).predictor
    assert "".join(word for word, _, _ in words["words"]) == TEXT and words["name"] == predictor.labels[1]
    for method, values, special in zip(words["methods"], arrays["values"], arrays["special"], strict=True):
        whole = explain(predictor, [TEXT], method, predictor.labels[1])[0]
        # Integrated gradients take fewer steps here.
        slack = 0.05 * max(map(abs, whole.values)) if method == "integrated gradients" else 1e-6
        assert float(values.sum() + special) == pytest.approx(sum(whole.values), abs=slack)
        if model == WORDS:  # one token a word, between two special ones
            assert values.tolist() == pytest.approx(whole.values[1:-1], abs=slack)
    assert words["methods"] == list(view.methods_of(predictor.model)) and (len(words["methods"]) == 3) == (
        model == BERT
    )
    shares, logits = ask(explorer, "classes", model, text=TEXT), words["logit"]
    assert np.isfinite(logits) and shares[1]["probabilities"].sum() == pytest.approx(1)


def test_edits_are_predictions_without_each_word(explorer: Explorer) -> None:
    words, arrays = ask(explorer, "edits", text=TEXT, other="a dog", label=0)
    predictor = explorer.subject(BERT).predictor
    parts = TEXT.split()
    pairs = [(" ".join(parts[:at] + parts[at + 1 :]), "a dog") for at in range(len(parts))]
    pairs += [(TEXT, "dog"), (TEXT, "a")]
    found = predictor.predict(pairs)
    assert arrays["chances"] == near([one.probabilities[predictor.labels[0]] for one in found])
    assert [part for _, part, _ in words["words"]] == [0] * len(parts) + [1, 1]
    assert arrays["whole"] == near([predictor.predict([(TEXT, "a dog")])[0].probabilities[predictor.labels[0]]])


def test_long_texts_and_texts_of_one_word_are_read(explorer: Explorer) -> None:
    words, _ = ask(explorer, "saliency", text="the red cat " * 40)
    assert [places for _, _, places in words["words"]].count([]) > 50, "beyond the context"
    assert ask(explorer, "classes", text="the red cat " * 40)[0]["cut"] > 0
    pieces = ask(explorer, "saliency", text="catdogbird")[0]["words"]
    assert len(pieces) > 1 and "".join(word for word, _, _ in pieces) == "catdogbird"
    assert ask(explorer, "edits", text="")[1]["chances"].shape == (0,)


def test_view_fits_classifiers_of_one_class(explorer: Explorer) -> None:
    assert [name for name, one in explorer.subjects.items() if "classifier" in one.views] == [BERT, WORDS]
    for wrong in ({"label": 3}, {"label": -1}):
        with pytest.raises(UserError):
            ask(explorer, "saliency", text=TEXT, **wrong)


def test_page_opens_rows_and_edits_texts(browse: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(RUNS / BERT)
    browsing = browse(RUNS / BERT)
    page, explorer = browsing.go("classifier"), browsing.explorer
    first = ask(explorer, "first")[0]
    assert page.get_by_test_id("why").inner_text() == first["why"] and browsing.address["text"] == first["text"]
    _, arrays = ask(explorer, "rows")
    wrong = arrays["right"] != arrays["predicted"]
    order = sorted(range(8), key=lambda at: (not wrong[at], -arrays["sure"][at] if wrong[at] else arrays["sure"][at]))
    rows = page.locator("[data-testid^=row-]")
    assert [one.get_attribute("data-testid") for one in rows.all()] == [f"row-{at}" for at in order]
    key = f"{arrays['right'][order[0]]}-{arrays['predicted'][order[0]]}"
    page.get_by_test_id(f"slice-{key}").click()
    same = [at for at in order if f"{arrays['right'][at]}-{arrays['predicted'][at]}" == key]
    page.get_by_test_id("slice").get_by_text(f"{len(same)} text").wait_for()
    assert rows.count() == len(same)
    page.get_by_test_id(f"row-{same[-1]}").click()
    browsing.ready()
    text = browsing.address["text"]
    words, values = ask(explorer, "saliency", text=text)
    for method in range(3):
        shown = page.get_by_test_id(f"saliency-{method}").locator(".word").all()
        assert [float(one.get_attribute("data-value")) for one in shown] == near(values["values"][method].tolist())
    assert "Attention is not explanation" in page.get_by_test_id("caution").inner_text()
    _, without = ask(explorer, "edits", text=text)
    most = int(np.abs(without["chances"] - without["whole"]).argmax())
    page.get_by_test_id("edits").locator("button").first.click()
    page.get_by_test_id("back").wait_for()
    browsing.ready()
    gone = [word for word, _, _ in words["words"]]
    assert (
        browsing.address["text"] == "".join(gone[:most] + gone[most + 1 :]).strip() and browsing.address["was"] == text
    )
    page.get_by_test_id("back").click()
    page.get_by_test_id("back").wait_for(state="detached")
    browsing.ready()
    assert browsing.address["text"] == text
    page.get_by_test_id("saliency-0").locator(".word").nth(1).click()
    page.get_by_test_id("by").wait_for()
    assert browsing.address["token"] == str(words["words"][1][2][0]), "a token, as in the other views"
    page.get_by_test_id("by").fill("blue")
    page.get_by_role("button", name="replace", exact=True).click()
    page.get_by_test_id("back").wait_for()
    assert browsing.address["text"].split()[1] == "blue"
