"""The logit lens: predictions of each layer; those of the last layer are the model's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from heedful.blocks.taps import watch
from heedful.errors import UserError
from heedful.explore.export import Export, page_of
from heedful.explore.inspect import TextInput
from heedful.explore.packets import unpack
from heedful.explore.subjects import Explorer, Subject
from heedful.explore.views import lens
from heedful.models import build
from heedful.models.bert.config import BertConfig
from heedful.models.gpt.config import GptConfig
from heedful.models.rnn_lm.config import RnnLMConfig
from heedful.models.transformer.config import TransformerConfig
from patience import until
from tolerance import close, near

TEXT = "The value of the first"


@pytest.fixture(scope="module")
def explorer(run: Callable[[str], Path]) -> Explorer:
    return Explorer([run("gpt"), run("translation")])


def ask(explorer: Explorer, call: str, **asked: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    return unpack(explorer.answer("lens", call, {"model": "gpt", "text": TEXT, **asked}))


def reference(subject: Subject, given: TextInput) -> list[torch.Tensor]:
    """The logits (T, V) of each layer in double precision, from the model's parts."""
    values = subject.trace(given, subject.model.lens_taps).values
    model = subject.model
    norm = model.norm if hasattr(model, "norm") else model.norms[1]
    table = model.tokens.weight.double()
    with torch.inference_mode():
        scale, shift, eps = norm.weight.double(), norm.bias.double(), norm.eps
        return [
            torch.nn.functional.layer_norm(x.double(), x.shape[-1:], scale, shift, eps) @ table.T
            for x in values.values()
        ]


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_predictions_of_the_last_layer_are_those_of_the_model(norm: Any) -> None:
    torch.manual_seed(0)
    tokens, source = torch.randint(50, (1, 9)), torch.randint(50, (1, 7))
    shared: dict[str, Any] = {"vocab": 50, "width": 32}
    configs = (
        GptConfig(**shared, heads=2, layers=3, context=16, norm=norm),
        RnnLMConfig(**shared, hidden=48, layers=2),
        TransformerConfig(**shared, heads=2, encoder_layers=1, decoder_layers=2, hidden=64, context=16, norm=norm),
        BertConfig(**shared, heads=2, layers=2, hidden=64, context=16, masked_words=True),
    )
    for config in configs:
        model: Any = build(config).eval()
        with torch.inference_mode(), watch(model, model.lens_taps) as seen:
            if config.kind == "bert":
                logits = model.words(model(tokens))
            elif config.kind == "transformer":
                logits, _ = model(tokens, model.start(source))
            else:
                logits, _ = model(tokens, model.start(1, tokens.device))
            *before, last = (model.lens(x) for x in seen.values())
        assert torch.equal(last, logits), config.kind
        assert before and all(not torch.allclose(one, logits) for one in before)


def test_model_without_an_output_layer_has_no_lens() -> None:
    assert build(BertConfig(vocab=9, width=8, heads=2, layers=2, hidden=8, masked_words=False)).lens_taps is None


def test_every_cell_has_the_most_probable_tokens_of_its_layer(explorer: Explorer) -> None:
    words, arrays = ask(explorer, "words")
    subject = explorer.subject("gpt")
    right = torch.stack(reference(subject, TextInput(text=TEXT))).softmax(-1)  # (L, T, V)
    shares, ids = torch.from_numpy(arrays["shares"].copy()), torch.from_numpy(arrays["ids"].copy()).long()
    close(shares.double(), right.topk(lens.TOP).values, slack=16, dtype=torch.float32)
    close(right.gather(-1, ids), shares.double(), slack=16, dtype=torch.float32)
    read = [token["id"] for token in words["tokens"]]
    assert arrays["right"].tolist() == [*read[1:], -1] and words["right"][-1] is None and words["ahead"]
    assert words["pieces"][str(int(ids[0, 0, 0]))] == subject.predictor.tokenizer.pieces([int(ids[0, 0, 0])])[0]


def test_ranks_and_probabilities_are_over_the_whole_vocabulary(explorer: Explorer) -> None:
    given = TextInput(text="two hundred five", other=None)
    subject = explorer.subject("translation")
    right = reference(subject, given)
    written = subject.trace(given, subject.model.lens_taps).reading.sides["written"]
    for place in range(len(written)):
        words, arrays = ask(explorer, "ranks", model="translation", text=given.text, place=place)
        ids = arrays["ids"].tolist()
        assert ids[0] == written[place].id and words["pieces"] == subject.predictor.tokenizer.pieces(ids)
        for layer, logits in enumerate(right):
            order = logits[place].argsort(descending=True).tolist()
            assert arrays["rank"][layer].tolist() == [order.index(number) + 1 for number in ids]
            assert arrays["share"][layer].tolist() == near(logits[place].softmax(-1)[ids].tolist(), 16)
            assert order[0] in ids


def test_target_of_an_encoder_is_the_token_itself(chemist: Path) -> None:
    explorer = Explorer([chemist])
    (name,) = explorer.subjects
    words, arrays = ask(explorer, "words", model=name, text="C = O")
    assert not words["ahead"] and words["right"] == [token["piece"] for token in words["tokens"]]
    model, ids = explorer.subject(name).model, torch.tensor([[token["id"] for token in words["tokens"]]])
    with torch.inference_mode():
        right = model.words(model(ids))[0].softmax(-1).topk(lens.TOP).values
    close(torch.from_numpy(arrays["shares"][-1].copy()), right, slack=16)


def test_view_fits_predicting_models_with_several_layers(run: Callable[[str], Path], minilm: Path) -> None:
    names = ("gpt", "translation", "recurrent", "rnn", "images")
    subjects = Explorer([*(run(name) for name in names), minilm]).subjects
    assert {name for name, one in subjects.items() if lens.fits(one)} == {"gpt", "translation"}


def test_unusual_texts_are_shown_or_rejected(explorer: Explorer) -> None:
    assert ask(explorer, "words", text="")[1]["ids"].shape == (2, 1, lens.TOP)
    with pytest.raises(UserError, match="too long"):
        ask(explorer, "words", text="word " * 300)
    with pytest.raises(UserError, match="no such token"):
        ask(explorer, "ranks", place=500)


def test_page_follows_a_token_through_the_layers(
    browse: Callable[..., Any], run: Callable[[str], Path], explorer: Explorer
) -> None:
    browsing = browse(run("gpt"))
    page = browsing.go("lens", text=TEXT)
    words, arrays = ask(explorer, "words")
    last, place = len(arrays["ids"]) - 1, len(words["tokens"]) - 1
    assert page.get_by_test_id("lens").get_attribute("data-place") == str(place)
    page.get_by_test_id(f"cell-0-{place - 1}").hover()
    shown = [page.get_by_test_id(f"top-{number}").inner_text() for number in range(lens.TOP)]
    assert shown == [f"{100 * share:.{3 if share < 0.0005 else 1}f} %" for share in arrays["shares"][0, place - 1]]
    page.get_by_test_id(f"cell-0-{place - 1}").click()
    page.locator(f'[data-testid="lens"][data-ready="true"][data-place="{place - 1}"]').wait_for()
    _, ranked = ask(explorer, "ranks", place=place - 1)
    one = ranked["ids"].tolist().index(int(arrays["ids"][0, place - 1, 0]))
    for layer in range(last + 1):
        assert int(page.get_by_test_id(f"rank-{layer}").get_attribute("data-value")) == ranked["rank"][layer, one]
        share = float(page.get_by_test_id(f"share-{layer}").get_attribute("data-value"))
        assert share == near(float(ranked["share"][layer, one]), 1)
    assert f"follow={ranked['ids'][one]}" in page.url
    page.get_by_test_id(f"cell-0-{place - 1}").press("ArrowUp")
    until(lambda: page.evaluate("document.activeElement.dataset.testid") == f"cell-1-{place - 1}")
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280


def test_selected_column_is_visible_and_an_image_has_all_columns(
    browse: Callable[..., Any], run: Callable[[str], Path], explorer: Explorer
) -> None:
    text = "The child came home from the school of the town, and then it"
    browsing = browse(run("gpt"))
    page = browsing.go("lens", text=text, place="1.5")  # there is no such token: the last one is followed
    last = len(ask(explorer, "words", text=text)[0]["tokens"]) - 1
    box = page.get_by_test_id("lens").bounding_box()

    def in_sight(place: int) -> bool:
        cell = page.get_by_test_id(f"cell-0-{place}").bounding_box()
        return bool(box["x"] <= cell["x"] and cell["x"] + cell["width"] <= box["x"] + box["width"])

    assert (in_sight(0), in_sight(last)) == (False, True)
    with page.expect_download() as download:
        page.get_by_test_id("export-svg").click()
    drawn = Path(download.value.path()).read_text(encoding="utf-8")
    assert float(drawn.split('width="')[1].split('"')[0]) > 64 * (last + 1)
    assert in_sight(last)
    page.get_by_test_id("cell-1-3").click()
    browsing.ready()
    right = page.locator("button", has_text="actual next token").inner_text()
    assert right.endswith("\u2002actual next token")


def test_saved_file_has_every_position(explorer: Explorer) -> None:
    state = {"model": "gpt", "text": TEXT}
    asked = [one.settings.get("place") for one in lens.calls(explorer.subject(state["model"]), state)]
    count = len(ask(explorer, "words")[0]["tokens"])
    assert asked == [None, *range(count)]
    assert len(page_of(explorer, Export(view="lens", state=state))) < 10_000_000
