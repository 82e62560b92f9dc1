"""The Predictor interface on golden runs and published folders: predict, evaluate, save, to and load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import heedful
from heedful.tasks.predictor import Result
from tolerance import near

GOLDEN = Path(__file__).parents[1] / "golden"
IMAGES = (np.arange(72).reshape(2, 1, 6, 6) % 7 / 7).astype(np.float32)
TREE = "(1 (1 not) (1 (1 very) (1 bad)))"
A, B = "the red cat sees a small ball .", "a big dog takes the old stone ."
# Of each class: a folder, inputs, examples to evaluate on, and the scores that these give.
CASES: dict[str, tuple[str, Any, Any, set[str]]] = {
    "Translator": ("translation-transformer", ["seven two", "three"], [("three", "3")], {"exact_match"}),
    "TextGenerator": ("language_model-gpt", ["the red"], [("the red", " cat"), "a big dog"], {"perplexity"}),
    "BidirectionalLanguageModel": ("language_model-elmo", [A, B], [A, B], {"perplexity", "bits_per_byte"}),
    "TextEncoder": ("pretraining-bert", [A, B], [("the red [MASK] sees", "a")], {"masked_accuracy"}),
    "TextClassifier": ("classification-classifier", [A, B], None, {"accuracy", "f1", "matthews"}),
    "TextRegressor": ("regression-regressor", [(A, B), (B, A)], [((A, B), 1.0), ((B, A), 2.0)], {"pearson"}),
    "TokenTagger": ("tagging-tagger", [A], [(["the", "cat"], ["O", "O"])], {"f1"}),
    "QuestionAnswerer": ("answering-answerer", [("who ?", A)], [(("who ?", A), "cat"), (("?", B), ["dog"])], {"f1"}),
    "MultipleChoiceAnswerer": ("multiple_choice-multiple_choice", [(A, [A, B])], [((A, [A, B]), B)], {"accuracy"}),
    "StoryAnswerer": (
        "story_answering-memory_network",
        [(A, "Where is Mary?"), ([A, B], "who ?")],
        [((A, "who ?"), "office")],
        {"accuracy"},
    ),
    "ImageAutoencoder": ("reconstruction-autoencoder", IMAGES, [(IMAGES[0], IMAGES[0])], {"explained"}),
    "TreeClassifier": ("tree_classification-tree_lstm", [TREE], [(TREE, 1)], {"accuracy"}),
}


def predictor(name: str) -> Any:
    return getattr(heedful, name).load(GOLDEN / "runs" / CASES[name][0], "cpu")


def dicts(results: list[Result]) -> list[dict[str, object]]:
    return [result.to_dict() for result in results]


@pytest.mark.parametrize("name", CASES)
def test_saved_predictor_predicts_same(name: str, tmp_path: Path) -> None:
    one, inputs = predictor(name), CASES[name][1]
    assert isinstance(one, heedful.Predictor) and type(one) is getattr(heedful, name)
    results = one.predict(inputs)
    assert len(results) == len(inputs) and one.predict(inputs[:0]) == []
    one.save(tmp_path / "saved")
    again = heedful.load(tmp_path / "saved", "cpu")
    assert type(again) is type(one) and dicts(again.predict(inputs)) == dicts(results)  # type: ignore[arg-type]
    assert one.to("cpu") is one and dicts(one.predict(inputs)) == dicts(results)


@pytest.mark.parametrize("name", CASES)
def test_results_have_a_short_repr_and_plain_dicts(name: str) -> None:
    for result in predictor(name).predict(CASES[name][1]):
        assert repr(result).startswith(f"{type(result).__name__}(") and len(repr(result)) < 400
        assert json.loads(json.dumps(result.to_dict())) == result.to_dict()


@pytest.mark.parametrize("name", CASES)
def test_examples_are_evaluated(name: str) -> None:
    one, examples = predictor(name), CASES[name][2]
    if examples is None:
        examples = [(A, one.labels[0]), (B, one.labels[1])]
    found = one.evaluate(examples)
    assert CASES[name][3] <= found.scores.keys() and found.count >= 1
    assert found.loss is None or found.loss >= 0
    with pytest.raises(heedful.UserError, match="no examples"):
        one.evaluate([])


def test_evaluations_agree_with_predictions() -> None:
    one: heedful.TextClassifier = predictor("TextClassifier")
    said = one.predict([A, B])
    found = one.evaluate([(A, said[0].label), (B, said[1].label)])
    assert found.scores["accuracy"] == 100 and found.count == 2
    assert found.loss == near(-np.mean([np.log(each.probability) for each in said]))
    others = [next(label for label in one.labels if label != each.label) for each in said]
    wrong = list(zip((A, B), others, strict=True))
    assert one.evaluate(wrong).scores["accuracy"] == 0
    number: heedful.TextRegressor = predictor("TextRegressor")
    values = [each.value for each in number.predict([(A, B), (B, A)])]
    assert number.evaluate([((A, B), values[0] + 1), ((B, A), values[1] - 1)]).loss == near(1.0)


FILES = {
    "Translator": ("pairs.tsv", "three\t3\nseven two\t72\n"),
    "TextGenerator": ("text.txt", f"{A}\n{B}\n"),
    "BidirectionalLanguageModel": ("text.txt", f"{A}\n{B}\n"),
    "TextEncoder": ("text.txt", f"{A}\n{B}\n\n{B}\n{A}\n"),
    "TextRegressor": ("scores.jsonl", json.dumps({"text": A, "pair": B, "label": 1.5}) + "\n"),
    "TokenTagger": ("tags.conll", "the O\ncat O\n\na O\n"),
    "QuestionAnswerer": ("q.jsonl", json.dumps({"question": "?", "passage": A, "answer": "red", "start": 4}) + "\n"),
    "MultipleChoiceAnswerer": ("swag.csv", f"sent1,sent2,ending0,ending1,ending2,ending3,label\n{A},,x,y,z,w,1\n"),
    "StoryAnswerer": ("qa.txt", f"1 {A}\n2 who ?\toffice\t1\n"),
    "TreeClassifier": ("trees.txt", f"{TREE}\n"),
}


@pytest.mark.parametrize("name", FILES)
def test_files_are_evaluated(name: str, tmp_path: Path) -> None:
    file, text = FILES[name]
    (tmp_path / file).write_text(text)
    found = predictor(name).evaluate(tmp_path / file)
    assert CASES[name][3] - {"exact_match"} <= found.scores.keys() and found.count >= 1
    assert predictor(name).evaluate(str(tmp_path / file)) == found


def test_tables_and_arrays_are_evaluated(tmp_path: Path) -> None:
    one = predictor("TextClassifier")
    rows = [(A, one.labels[0]), (B, one.labels[1])]
    (tmp_path / "rows.tsv").write_text("label\ttext\n" + "".join(f"{label}\t{text}\n" for text, label in rows))
    assert one.evaluate(tmp_path / "rows.tsv") == one.evaluate(rows)
    images = predictor("ImageAutoencoder")
    np.save(tmp_path / "images.npy", IMAGES[:, 0])
    if not images.noise.deviation:
        assert images.evaluate(tmp_path / "images.npy") == images.evaluate([(one, one) for one in IMAGES])


def test_folder_of_another_kind_is_named() -> None:
    folder = GOLDEN / "runs" / "translation-transformer"
    with pytest.raises(heedful.UserError, match="does not hold a TextGenerator") as no:
        heedful.load(folder, heedful.TextGenerator)
    assert no.value.found == "a Translator" and "heedful.Translator.load" in str(no.value.todo)
    assert type(heedful.load(folder, "cpu", "last")) is heedful.Translator
    assert heedful.load(folder, heedful.Translator, device="cpu").device == torch.device("cpu")
    with pytest.raises(heedful.UserError, match="no such device"):
        heedful.Translator.load(folder).to("tpu")


PUBLISHED = ["bert-answers", "bert-classes", "bert-masked", "bert-number", "bert-tags", "gpt", "gpt2"]


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models_are_saved_in_our_format(name: str, tmp_path: Path) -> None:
    one: Any = heedful.load(GOLDEN / "published" / name, "cpu")
    inputs: Any = [("who ?", A)] if name == "bert-answers" else [A, B]
    one.save(tmp_path / "ours")
    again: Any = heedful.load(tmp_path / "ours", "cpu")
    assert type(again) is type(one) and dicts(again.predict(inputs)) == dicts(one.predict(inputs))


def test_embedding_settings_are_saved(tmp_path: Path) -> None:
    one = predictor("TextEncoder")
    one.pooling, one.normalize, one.prompt = "first", True, "the "
    one.save(tmp_path / "saved")
    again = heedful.TextEncoder.load(tmp_path / "saved", "cpu")
    assert (again.pooling, again.normalize, again.prompt) == ("first", True, "the ")
    with pytest.raises(heedful.UserError, match="int8"):
        one.int8().save(tmp_path / "small")
