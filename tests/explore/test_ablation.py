"""Head ablation: the model without some heads equals the model with zeros in its output projection."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from heedful.blocks.losses import Loss
from heedful.data.formats.squad import WindowsConfig
from heedful.data.pairs.batches import PairBatch
from heedful.data.tokenizers.wordpiece import NAMES, BertTokenizer
from heedful.errors import UserError
from heedful.explore import head_settings
from heedful.explore.export import Export, page_of
from heedful.explore.inspect import TextInput, attention_taps, reading
from heedful.explore.packets import unpack
from heedful.explore.predictions import prediction_of
from heedful.explore.subjects import Explorer, Subject
from heedful.explore.views import ablation
from heedful.models.bert.config import BertConfig
from heedful.models.bert.model import Bert
from heedful.models.heads.answerer import Answerer
from heedful.models.heads.classifier import Classifier, Regressor
from heedful.models.heads.config import AnswererConfig, ClassifierConfig, RegressorConfig, TaggerConfig
from heedful.models.heads.tagger import Tagger
from heedful.tasks.answering.predictor import QuestionAnswerer
from heedful.tasks.classification.predictor import TextClassifier, TextRegressor
from heedful.tasks.pretraining.predictor import TextEncoder
from heedful.tasks.tagging.predictor import TokenTagger
from heedful.tasks.translation.predictor import translation_loss
from tolerance import near

TEXTS = {"translation": "three hundred forty-two", "recurrent": "ninety-one", "gpt": "The child came home from school"}
LABELS = ("O", "B-PER", "I-PER")
TOKENIZER = BertTokenizer.from_vocab([*NAMES, "ann", "bob", "saw", "rome", "who", "##a", "##s", ".", "?"], True, "here")
CPU = torch.device("cpu")


def opened(folder: Path) -> tuple[Explorer, Subject]:
    explorer = Explorer([folder])
    return explorer, next(iter(explorer.subjects.values()))


def says(explorer: Explorer, **asked: Any) -> tuple[dict[str, Any], list[float]]:
    words, arrays = unpack(explorer.answer("ablation", "says", asked))
    return words, arrays["losses"].tolist()


def small(kind: Any, config: Any = None, **settings: Any) -> Any:
    """A model of two heads with its own encoder, with weights large enough to make a difference."""
    torch.manual_seed(0)
    parts = {"pooler": kind in (Classifier, Regressor), "masked_words": False, "next_sentence": False}
    encoder = BertConfig(vocab=TOKENIZER.vocab, width=16, heads=2, layers=2, hidden=20, context=24,
                         **{**parts, **({} if config else settings)})  # fmt: skip
    found = kind(config(encoder=encoder, **settings) if config else encoder)
    with torch.no_grad():
        for weight in found.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    return found


# ------------------------------------------------------------------ against other computations
def test_loss_with_all_heads_is_that_of_the_translation(run: Callable[[str], Path]) -> None:
    for name in ("translation", "recurrent"):
        explorer, subject = opened(run(name))
        predictor, text = subject.predictor, TEXTS[name]
        best = predictor.search([text])[0][0]
        words, losses = says(explorer, model=subject.name, text=text)
        source, target = (
            torch.tensor(predictor.source_ids([text])),
            torch.tensor([[predictor.tokenizer.bos, *best.ids]]),
        )
        lengths = [torch.tensor([side.shape[1]]) for side in (source, target)]
        with torch.inference_mode():
            loss: Loss = translation_loss(
                predictor.model, PairBatch(source, lengths[0], target, lengths[1], torch.tensor([0]))
            )
        assert words["loss"] == near(float(loss.plain / loss.count))
        assert words["loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-5)
        assert words["answers"] == [{"text": best.text, "chance": pytest.approx(math.exp(best.log_probability))}]


def test_loss_with_all_heads_is_that_of_the_text(run: Callable[[str], Path]) -> None:
    explorer, subject = opened(run("gpt"))
    predictor, text = subject.predictor, TEXTS["gpt"]
    words, losses = says(explorer, model=subject.name, text=text)
    ids = predictor.codec.encode(text)
    with torch.inference_mode():
        assert sum(losses) == pytest.approx(-predictor._log_prob([predictor.codec.start_id], ids), rel=1e-5)
        logits = predictor.model(torch.tensor([[predictor.codec.start_id, *ids]]), predictor.model.start(1, CPU))[0][
            0, -1
        ]
    best = logits[: predictor.tokenizer.vocab].softmax(-1).topk(5)
    assert [one["text"] for one in words["answers"]] == predictor.tokenizer.pieces(best.indices.tolist())
    assert [one["chance"] for one in words["answers"]] == pytest.approx(best.values.tolist(), rel=1e-5)


def test_ablating_heads_equals_zeros_in_the_output_projection(run: Callable[[str], Path], minilm: Path) -> None:
    """In float64, and for every kind of attention."""
    for folder, text in ((run("translation"), TEXTS["translation"]), (run("gpt"), TEXTS["gpt"]), (minilm, "too tired")):
        predictor = Subject("it", folder).predictor
        exact = replace(predictor, model=deepcopy(predictor.model).double())
        given = TextInput(text=text, other="hundert" if folder.name == "translation" else None)
        with torch.inference_mode():
            said = prediction_of(exact, given, reading(exact, given))
            whole = said.losses()
            taps = [each[-1] for each in attention_taps(exact.model).values()]
            assert len(taps) == (3 if folder.name == "translation" else 1)
            for tap in taps:
                with head_settings.ablated(exact.model, {tap: [1, 2]}):
                    without = said.losses()
                attention = exact.model.get_submodule(tap.removesuffix(".weights"))
                kept, size = attention.out.weight.clone(), attention.out.weight.shape[1] // attention.heads
                attention.out.weight[:, size : 3 * size] = 0
                expected = said.losses()
                attention.out.weight.copy_(kept)
                assert without.tolist() == near(expected.tolist(), 8192, dtype=torch.float64), tap
                assert (without - whole).abs().max() > 1e-4, tap
            assert said.losses().tolist() == whole.tolist()  # no trace of it is left


def test_recurrent_decoder_without_attention_ignores_the_source(run: Callable[[str], Path]) -> None:
    explorer, subject = opened(run("recurrent"))
    with_it, _ = says(explorer, model=subject.name, text=TEXTS["recurrent"])
    without, _ = says(explorer, model=subject.name, text=TEXTS["recurrent"], off=[[0, 0, 0]])
    assert without["loss"] > with_it["loss"] + 0.1


def test_losses_of_a_layer_are_those_of_single_heads(run: Callable[[str], Path]) -> None:
    explorer, subject = opened(run("translation"))
    asked = {"model": subject.name, "text": TEXTS["translation"]}
    for look in range(3):
        losses = unpack(explorer.answer("ablation", "alone", {**asked, "look": look, "layer": 1}))[1]["losses"]
        one_by_one = [says(explorer, **asked, off=[[look, 1, head]])[0]["loss"] for head in range(len(losses))]
        assert losses.tolist() == pytest.approx(one_by_one, rel=1e-6)
        assert len(set(losses.tolist())) == len(losses) == 4


# ------------------------------------------------------------------ predictions of each kind of model
def test_every_kind_of_model_has_a_prediction() -> None:
    classifier, tagger = (
        small(kind, config, labels=LABELS) for kind, config in ((Classifier, ClassifierConfig), (Tagger, TaggerConfig))
    )
    answerer = QuestionAnswerer(small(Answerer, AnswererConfig), TOKENIZER, CPU, WindowsConfig(stride=4), 24)
    predictors = [
        (TextClassifier(classifier, TOKENIZER, CPU, LABELS, 24), "the class", "Ann saw Rome", None),
        (TextRegressor(small(Regressor, RegressorConfig), TOKENIZER, CPU, 24), "the value", "Ann saw", "Bob saw"),
        (TokenTagger(tagger, TOKENIZER, CPU, LABELS, 24), "the tags", "Ann saw Rome.", None),
        (answerer, "the answer", "who?", "Ann saw Rome"),
        (TextEncoder(small(Bert, masked_words=True), TOKENIZER, CPU), "the masked token", "Ann saw Rome", "Bob"),
        (TextEncoder(small(Bert), TOKENIZER, CPU), "the mean vector of the text", "Ann saw Rome", None),
    ]  # fmt: skip
    for predictor, what, text, other in predictors:
        given = TextInput(text=text, other=other)
        with torch.inference_mode():
            said = prediction_of(predictor, given, reading(predictor, given))
            whole, answers = said.losses(), said.candidates()
            (taps,) = attention_taps(predictor.model).values()
            with head_settings.ablated(predictor.model, {tap: [0, 1] for tap in taps}):
                without, others = said.losses(), said.candidates()
        assert said.what == what and len(said.pieces) == len(whole) == len(without)
        assert (whole - without).abs().max() > 1e-3 and answers != others, what
        if what in ("the class", "the masked token"):
            assert answers == sorted(answers, key=lambda one: -(one.probability or 0))
    labelled = prediction_of(predictors[0][0], TextInput(text="Ann"), reading(predictors[0][0], TextInput(text="Ann")))
    chance = predictors[0][0].classify(["Ann"])[0].probability
    assert labelled.losses().tolist() == pytest.approx([-math.log(chance)])
    rated = prediction_of(predictors[1][0], TextInput(text="Ann"), reading(predictors[1][0], TextInput(text="Ann")))
    assert rated.losses().tolist() == [0.0] and rated.pieces == [f"{predictors[1][0].predict(['Ann'])[0].value:.4g}"]
    (marked,) = predictors[2][0].tag(["Ann saw Rome."])
    tagged = prediction_of(
        predictors[2][0], TextInput(text="Ann saw Rome."), reading(predictors[2][0], TextInput(text="Ann"))
    )
    assert [one.text.split(": ")[0] for one in tagged.candidates()] == list(marked.words)
    (best,) = predictors[3][0].answer([("who?", "Ann saw Rome")])[0]
    found = prediction_of(
        predictors[3][0],
        TextInput(text="who?", other="Ann saw Rome"),
        reading(predictors[3][0], TextInput(text="who?")),
    )
    assert found.candidates()[0].text == best.text


def test_only_ordinary_tokens_can_be_masked() -> None:
    reader = TextEncoder(small(Bert, masked_words=True), TOKENIZER, CPU)
    given = TextInput(text="Ann saw Rome")
    with torch.inference_mode():
        said = prediction_of(reader, given, reading(reader, given), 2)
        assert said.masked == 2 and said.pieces == ["saw"]
        guesses = reader.fill("Ann [MASK] Rome", top=5).predictions[0]
        assert [(one.text, one.probability) for one in said.candidates()] == [
            (guess.word, pytest.approx(guess.probability, rel=1e-5)) for guess in guesses
        ]
        assert prediction_of(reader, given, reading(reader, given)).pieces == ["saw"]  # the one in the middle
    for text, place in (("Ann saw", 0), ("Ann saw", 3), ("Ann saw", 99), ("[MASK]", None), ("", None)):
        with pytest.raises(UserError, match="no token to mask"):
            prediction_of(reader, TextInput(text=text), reading(reader, TextInput(text=text)), place)


# ------------------------------------------------------------------ requests
def test_missing_heads_and_layers_are_rejected(run: Callable[[str], Path]) -> None:
    explorer, subject = opened(run("gpt"))
    asked = {"model": subject.name, "text": "The"}
    for off in ([[0, 9, 0]], [[0, 0, 99]], [[7, 0, 0]], [[0, 0]], [[-1, 0, 0]], [[0, 0, 0]] * 5001, "all"):
        with pytest.raises(UserError):
            explorer.answer("ablation", "says", {**asked, "off": off})
    for look, layer in ((1, 0), (0, 2), (-1, 0), (0, 10**9)):
        with pytest.raises(UserError):
            explorer.answer("ablation", "alone", {**asked, "look": look, "layer": layer})
    words, losses = says(explorer, model=subject.name, text="")
    assert words["loss"] is None and losses == [] and len(words["answers"]) == 5
    with pytest.raises(UserError, match="invalid heads"):
        ablation.calls(explorer.subject(asked["model"]), {**asked, "off": "0.x.1"})


# ------------------------------------------------------------------ in the page
def number(page: Any, name: str) -> float:
    return float(page.get_by_test_id(name).inner_text().replace("−", "-"))


def test_page_ablates_heads(browse: Callable[..., Any], run: Callable[[str], Path]) -> None:
    browsing = browse(run("gpt"))
    text = TEXTS["gpt"]
    page = browsing.go("ablation", text=text)
    (model,) = browsing.explorer.subjects
    whole, losses = says(browsing.explorer, model=model, text=text)
    assert number(page, "loss-before") == pytest.approx(whole["loss"], rel=5e-4)
    shown = page.get_by_test_id("before-0").locator(".text").inner_text()
    assert shown.replace("·", " ").replace("↵", "\n") == whole["answers"][0]["text"]

    page.get_by_test_id("switch-0-1-2").click()
    page.get_by_test_id("layer-0-0").click()
    browsing.ready()
    assert "off=0.0.0%2C0.0.1%2C0.0.2%2C0.0.3%2C0.1.2" in page.url
    off = [[0, 0, 0], [0, 0, 1], [0, 0, 2], [0, 0, 3], [0, 1, 2]]
    without, after = says(browsing.explorer, model=model, text=text, off=off)
    page.get_by_test_id("loss-after").wait_for()
    assert number(page, "loss-after") == pytest.approx(without["loss"], rel=5e-4)
    assert number(page, "change") == pytest.approx(without["loss"] - whole["loss"], rel=5e-4)
    rises = page.locator("[data-rise]").evaluate_all("(all) => all.map((one) => Number(one.dataset.rise))")
    assert rises == near([one - other for one, other in zip(after, losses, strict=True)], 16)
    chances = [
        float(one.removesuffix(" %")) for one in page.locator("li[data-testid^=after] .chance").all_inner_texts()
    ]
    assert chances == pytest.approx([100 * one["chance"] for one in without["answers"]], abs=0.051)
    page.get_by_test_id("all-on").click()

    page.get_by_test_id("sweep").click()
    browsing.ready()
    changes = page.locator(".switch").evaluate_all("(all) => all.map((one) => Number(one.dataset.change))")
    alone = [
        float(loss) - whole["loss"]
        for layer in range(2)
        for loss in unpack(
            browsing.explorer.answer("ablation", "alone", {"model": model, "text": text, "look": 0, "layer": layer})
        )[1]["losses"]
    ]
    assert changes == near(alone, 16)
    worst = alone.index(max(alone))
    assert page.get_by_test_id("missed").inner_text() == f"layer {worst // 4 + 1}, head {worst % 4 + 1}"


def test_saved_file_ablates_heads_without_a_server(
    browse: Callable[..., Any], run: Callable[[str], Path], tmp_path: Path
) -> None:
    explorer, subject = opened(run("translation"))
    text = TEXTS["translation"]
    state = {"model": subject.name, "text": text, "off": "2.1.0,0.0.1", "alone": "1"}
    (tmp_path / "it.html").write_text(page_of(explorer, Export(view="ablation", state=state)), encoding="utf-8")
    browsing = browse(run("translation"))
    browsing.page.context.set_offline(True)
    browsing.page.goto((tmp_path / "it.html").as_uri())
    browsing.ready()
    without, _ = says(explorer, model=subject.name, text=text, off=[[0, 0, 1], [2, 1, 0]])
    assert number(browsing.page, "loss-after") == pytest.approx(without["loss"], rel=5e-4)
    browsing.page.get_by_test_id("switch-0-0-1").click()  # one head alone is off now
    browsing.ready()
    without, _ = says(explorer, model=subject.name, text=text, off=[[2, 1, 0]])
    assert number(browsing.page, "loss-after") == pytest.approx(without["loss"], rel=5e-4)


def test_loss_without_ablation_does_not_change(minilm: Path) -> None:
    """For a model with vectors only: exactly zero, without rounding errors."""
    (name,) = (explorer := Explorer([minilm])).subjects
    words, arrays = unpack(explorer.answer("ablation", "says", {"model": name, "text": "It was late.", "off": []}))
    assert words["loss"] == 0 and not arrays["losses"].any()
    assert words["answers"][0]["text"].startswith("cosine 1.0000")
