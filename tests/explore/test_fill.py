"""Masked tokens: the page shows the predictions of the predictor."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from heedful.data.tokenizers.tokenizer import WordPiece
from heedful.data.tokenizers.wordpiece import BertTokenizer
from heedful.errors import UserError
from heedful.explore import inspect
from heedful.explore.export import Export, page_of
from heedful.explore.inspect import TextInput
from heedful.explore.packets import unpack
from heedful.explore.subjects import Explorer, Subject
from heedful.explore.views import fill
from heedful.hub import write
from heedful.hub.loading import Pretrained
from heedful.models import build
from heedful.models.bert.config import BertConfig
from tolerance import close, near

RUNS = Path(__file__).parents[1] / "golden" / "runs"
TEXT, OTHER = "O = C O . N", "C C O"
GAPPED = "O = [MASK] O . N"  # as the third place of the text is hidden, after [CLS]


@pytest.fixture(scope="module")
def explorer(chemist: Path) -> Explorer:
    return Explorer([chemist])


@pytest.fixture(scope="module")
def subject(explorer: Explorer) -> Subject:
    return next(iter(explorer.subjects.values()))


def ask(explorer: Explorer, call: str, **asked: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    return unpack(explorer.answer("fill", call, {"model": next(iter(explorer.subjects)), "text": TEXT, **asked}))


def test_predictions_of_a_masked_token_are_those_of_the_encoder(explorer: Explorer, subject: Subject) -> None:
    words, arrays = ask(explorer, "guess", hidden=[3])
    right = subject.predictor.fill(GAPPED, fill.TOP).predictions[0]
    assert words["words"] == [[guess.word for guess in right]]
    assert arrays["shares"][0].tolist() == near([guess.probability for guess in right], 16)
    every = subject.predictor.fill(GAPPED, subject.predictor.tokenizer.vocab).predictions[0]
    (own,) = subject.predictor.tokenizer.pieces([subject.predictor.tokenizer.ids([TEXT])[0][2]])
    rank = [guess.word for guess in every].index(own) + 1
    assert arrays["rank"].tolist() == [rank]
    assert arrays["share"].tolist() == near([every[rank - 1].probability], 16)
    assert ask(explorer, "guess", text=GAPPED)[0]["words"] == words["words"]


def test_several_tokens_can_be_masked_but_not_special_ones(explorer: Explorer, subject: Subject) -> None:
    _, arrays = ask(explorer, "guess", hidden=[0, 1, 3, 7, 999])
    assert arrays["places"].tolist() == [1, 3]
    right = subject.predictor.fill("[MASK] = [MASK] O . N", fill.TOP).predictions
    assert arrays["shares"].tolist() == [near([one.probability for one in gap], 16) for gap in right]
    _, none = ask(explorer, "guess", hidden=[])
    assert none["places"].shape == (0,) and not none["moved"].any()


def test_mask_in_the_text_has_no_original_token(explorer: Explorer) -> None:
    _, arrays = ask(explorer, "guess", text=GAPPED)
    assert (arrays["places"].tolist(), arrays["rank"].tolist(), arrays["share"].tolist()) == ([3], [0], [0.0])
    assert ask(explorer, "tokens", text=GAPPED)[0]["first"] == []


def test_mask_has_the_name_that_its_tokenizer_gives_it(explorer: Explorer, tmp_path: Path) -> None:
    assert ask(explorer, "tokens")[0]["mask"] == "[MASK]"
    folder = shutil.copytree(RUNS / "permutation_lm-xlnet", tmp_path / "xlnet")
    assert ask(Explorer([folder]), "tokens")[0]["mask"] == "<mask>"


def test_next_sentence_prediction_is_that_of_the_encoder(explorer: Explorer, subject: Subject) -> None:
    words, _ = ask(explorer, "tokens", other=OTHER)
    assert words["follows"] == subject.predictor.follows(TEXT, OTHER)
    assert ask(explorer, "tokens")[0]["follows"] is None
    row, segments = inspect.pair_ids(subject.predictor.tokenizer, TextInput(text=TEXT, other=OTHER), 512)
    with torch.inference_mode():
        x = subject.model(torch.tensor([row]), torch.tensor([segments]))
        right = float(subject.model.follows(x[:, 0]).double().softmax(-1)[0, 0])
    assert words["follows"] == pytest.approx(right, rel=1e-5)
    covered = inspect.pair_ids(subject.predictor.tokenizer, TextInput(text=GAPPED, other=OTHER), 512)
    after = ask(explorer, "guess", other=OTHER, hidden=[3])[0]["follows"]
    assert after == subject.predictor.next_sentence_probability(*covered) != words["follows"]


def test_attention_with_and_without_mask_is_that_of_each_text(explorer: Explorer, subject: Subject) -> None:
    _, arrays = ask(explorer, "layer", hidden=[3], layer=5)
    traces = [subject.trace(TextInput(text=text)) for text in (TEXT, GAPPED)]
    right = [trace.weights(trace.attentions[0], 5) for trace in traces]
    for name, weights in zip(("before", "after"), right, strict=True):
        assert np.array_equal(arrays[name], weights.half().numpy())
    moved = ask(explorer, "guess", hidden=[3])[1]["moved"]
    gone = (right[1].double() - right[0].double()).clamp(min=0).sum(-1).mean(-1)  # what one token gains, others lose
    assert moved.shape == (12, 4)
    close(torch.tensor(moved[5]), gone, of=1.0)


def test_view_fits_masked_language_models_only(run: Callable[[str], Path], minilm: Path, subject: Subject) -> None:
    others = Explorer([run("translation"), run("gpt"), run("images"), minilm]).subjects.values()
    assert [fill.fits(one) for one in (subject, *others)] == [True, False, False, False, False]


def test_unusual_texts_are_shown_or_rejected(explorer: Explorer) -> None:
    words, _ = ask(explorer, "tokens", text="")
    assert words["first"] == [] and len(words["sides"]["text"]) == 2
    assert ask(explorer, "guess", text="", hidden=[0, 1])[1]["places"].shape == (0,)
    with pytest.raises(UserError, match="too long"):
        ask(explorer, "guess", text="C " * 600)
    with pytest.raises(UserError, match="no such layer"):
        ask(explorer, "layer", layer=12)
    with pytest.raises(UserError):
        ask(explorer, "guess", hidden=[-1])


def percent(share: float) -> str:
    return "<0.01 %" if 0 < share < 5e-5 else f"{100 * share:.{2 if 0 < share < 0.0005 else 1}f} %"


def test_page_masks_a_token_and_restores_it(browse: Callable[..., Any], chemist: Path, subject: Subject) -> None:
    browsing = browse(chemist)
    page = browsing.go("fill", text=TEXT, other=OTHER, hidden="")
    page.get_by_test_id("token-3").click()
    page.get_by_test_id("gap-3").wait_for()
    browsing.ready()
    shares = [page.get_by_test_id(f"share-3-{number}").inner_text() for number in range(fill.TOP)]
    row, segments = inspect.pair_ids(subject.predictor.tokenizer, TextInput(text=GAPPED, other=OTHER), 512)
    right = subject.predictor.masked_log_probabilities(row, segments, [3])[0].exp().topk(fill.TOP).values.tolist()
    assert shares == [percent(share) for share in right]
    assert page.get_by_test_id("follows-after").inner_text() == percent(
        subject.predictor.next_sentence_probability(row, segments)
    )
    assert "hidden=3" in page.url
    page.get_by_test_id("moved-0-0").click()
    browsing.ready()
    assert "layer=0" in page.url and "head=0" in page.url
    for width in (1280, 1024):
        page.set_viewport_size({"width": width, "height": 860})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.get_by_test_id("show-all").click()
    page.get_by_text("No token is masked").wait_for()
    assert page.get_by_test_id("moved-grid").count() == page.get_by_test_id("before").count() == 0  # nothing changed


def test_saved_file_has_all_layers_and_other_masks(explorer: Explorer) -> None:
    state = {"model": next(iter(explorer.subjects)), "text": TEXT, "hidden": "3"}
    asked = [
        (one.call, one.settings.get("hidden"), one.settings.get("layer"))
        for one in fill.calls(explorer.subject(state["model"]), state)
    ]
    assert all(("layer", [3], number) in asked for number in range(12))
    for hidden in ([], [3], [1, 3]):  # what is hidden, and what a click on its word or on another leads to
        most = int(ask(explorer, "guess", hidden=hidden)[1]["moved"].argmax()) // 4
        assert ("guess", hidden, None) in asked and ("layer", hidden, most) in asked
    assert len(page_of(explorer, Export(view="fill", state=state))) < 10_000_000


def test_tokens_are_shown_in_the_direction_of_their_letters(tmp_path: Path, browse: Callable[..., Any]) -> None:
    texts = ["چهل و یک هزار و دو", "forty one thousand and two"]
    tokenizer = BertTokenizer.train(WordPiece(vocab=120), texts * 3)
    config = BertConfig(vocab=tokenizer.vocab, width=16, heads=2, layers=1, hidden=20, context=32)
    write(tmp_path / "persian", Pretrained(config, tokenizer, build(config).state_dict(), ()))
    browsing = browse(tmp_path / "persian")
    for text, other, rightwards in ((*texts, False), (*reversed(texts), True)):
        page = browsing.go("fill", text=text, other=other, hidden="")
        places = [page.get_by_test_id(f"token-{place}").bounding_box()["x"] for place in (1, 2)]
        assert (places[0] < places[1]) == rightwards, text
        assert page.locator(".text").nth(0).get_attribute("dir") == ("ltr" if rightwards else "rtl")
        assert page.locator(".text").nth(1).get_attribute("dir") == ("rtl" if rightwards else "ltr")
        page = browsing.go("steps", text=text)
        assert page.locator(".queries").get_attribute("dir") == ("ltr" if rightwards else "rtl")
