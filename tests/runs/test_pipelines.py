"""`heedful.pipeline` beside the pipelines of `transformers`, on the same folders with random weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import heedful
from golden.library import PUBLISHED, RUNS, TEXTS
from heedful.errors import UserError
from heedful.runs.pipelines import ALIASES, EXPECTED, FITS, PIPELINES, SAME
from heedful.runs.rows import FIELDS
from heedful.tasks import TASKS
from tolerance import near

transformers = pytest.importorskip("transformers")


def theirs(task: str, folder: str) -> Any:
    return transformers.pipeline(task, model=str(PUBLISHED / folder), device="cpu")


def test_classes_are_those_of_transformers() -> None:
    mine = heedful.pipeline("classification", PUBLISHED / "bert-classes", device="cpu")
    expected = theirs("text-classification", "bert-classes")(list(TEXTS))
    found = mine(list(TEXTS))
    assert [one["label"] for one in found] == [one["label"] for one in expected]
    assert [one["score"] for one in found] == near([one["score"] for one in expected])
    assert mine(TEXTS[0]) == {"label": found[0]["label"], "score": near(found[0]["score"])}


def test_masked_words_are_those_of_transformers() -> None:
    text = "the red [MASK] sees a ball ."
    expected = theirs("fill-mask", "bert-masked")(text)
    found = heedful.pipeline("fill-mask", PUBLISHED / "bert-masked", device="cpu")(text)
    assert [one["score"] for one in found] == near([one["score"] for one in expected])
    assert [one["token_str"].removeprefix("##") for one in found] == [
        one["token_str"].removeprefix("##") for one in expected
    ]


def test_features_are_those_of_transformers() -> None:
    expected = theirs("feature-extraction", "bert")(TEXTS[0])[0]
    found = heedful.pipeline("feature-extraction", PUBLISHED / "bert", device="cpu")(TEXTS[0])
    assert found == [near(row, of=expected[0]) for row in expected]


def test_every_task_calls_its_predictor() -> None:
    assert set(ALIASES.values()) <= PIPELINES.keys()
    tags = heedful.pipeline("ner", RUNS / "tagging-tagger", device="cpu")(TEXTS[0])
    assert [one["word"] for one in tags] == [TEXTS[0][one["start"] : one["end"]] for one in tags]
    answer = heedful.pipeline("question-answering", RUNS / "answering-answerer", device="cpu")(
        {"question": "what does the cat see ?", "context": TEXTS[0]}
    )
    assert answer["answer"] == TEXTS[0][answer["start"] : answer["end"]]
    text = heedful.pipeline("text-generation", RUNS / "language_model-gpt", device="cpu")(TEXTS[0])
    assert text[0]["generated_text"].startswith(TEXTS[0])
    translator = heedful.pipeline("translation", RUNS / "translation-transformer", device="cpu")
    right = heedful.load(RUNS / "translation-transformer", heedful.Translator, "cpu").translate(["three"])
    assert translator(["three"]) == [{"translation_text": right[0]}]


@pytest.mark.parametrize("task", TASKS)
def test_every_kind_of_task_is_a_pipeline(task: str) -> None:
    folder = next(path for path in sorted(RUNS.iterdir()) if path.name.startswith(f"{task}-"))
    pipeline = heedful.pipeline(task, folder, device="cpu")
    assert pipeline.predictor.task == SAME.get(task, task)
    assert pipeline([]) == []
    if task in ("regression", "tree_classification"):
        given = "(0 (1 a) (0 b))" if task == "tree_classification" else TEXTS[0]
        assert pipeline(given) == pipeline([given])[0] == pipeline.predictor.predict([given])[0].to_dict()


@pytest.mark.parametrize("task", TASKS)
def test_inputs_of_another_form_are_explained_for_every_task(task: str) -> None:
    assert set(FIELDS) == set(FITS), "give a new predictor the form of its inputs"
    folder = next(path for path in sorted(RUNS.iterdir()) if path.name.startswith(f"{task}-"))
    pipeline = heedful.pipeline(task, folder, device="cpu")
    assert repr(pipeline) == f"Pipeline({pipeline.task!r}, {type(pipeline.predictor).__name__})"
    for given in (None, 3, b"a", object(), [None], [b"a"], [3, "a"], ("a", 3), (1, 2, 3)):
        if not pipeline.fits(given) and not isinstance(given, tuple):
            with pytest.raises(UserError, match="invalid input for this pipeline") as error:
                pipeline(given)
            assert EXPECTED[pipeline.fits] == error.value.expected


def test_mistakes_are_explained() -> None:
    with pytest.raises(UserError, match="did you mean fill-mask"):
        heedful.pipeline("fill_mask", PUBLISHED / "bert")
    with pytest.raises(UserError, match="not hold a model of the task regression"):
        heedful.pipeline("regression", PUBLISHED / "bert-classes")
    with pytest.raises(UserError, match="does not hold a Translator"):
        heedful.pipeline("translation", PUBLISHED / "bert-classes")


@pytest.mark.parametrize("given", [None, 3, b"a", {"text": "a"}, [3], ["a", None], [float("nan")], ("a", "b", "c")])
def test_inputs_that_are_no_texts_are_named(given: Any) -> None:
    pipeline = heedful.pipeline("classification", PUBLISHED / "bert-classes", device="cpu")
    with pytest.raises(UserError, match="invalid input for this pipeline"):
        pipeline(given)


def test_columns_and_iterators_are_lists() -> None:
    pipeline = heedful.pipeline("classification", PUBLISHED / "bert-classes", device="cpu")
    expected = pipeline(list(TEXTS[:2]))
    assert len(expected) == 2
    assert pipeline(np.array(TEXTS[:2])) == pipeline(iter(TEXTS[:2])) == expected
