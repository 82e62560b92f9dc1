"""Estimators of texts, in scikit-learn's own checks, pipelines and searches."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator
from sklearn.utils.validation import check_is_fitted, validate_data

import heedful
from heedful.sklearn import SentenceEmbedder, TextClassifier, TextRegressor, TokenTagger

WORDS = {"good": ("fine", "great", "lovely"), "bad": ("dull", "awful", "stale")}
ROWS = [
    (f"the {thing} of the {place} was {word}", label)
    for label, words in WORDS.items()
    for word in words
    for thing in ("soup", "bread", "tea")
    for place in ("inn", "ship")
]
TEXTS, LABELS = (list(column) for column in zip(*ROWS, strict=True))
NUMBERS = [1000.0 if label == "good" else 200.0 for label in LABELS]
TAGS = [["O", "B-FOOD", "O", "O", "B-PLACE", "O", "O"] for _ in TEXTS]
QUICK = {"max_iter": 1, "random_state": 0, "settings": {"model.width": 8}}
TINY = {"model.encoder.width": 16, "tokenizer.vocab": 200}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """More would only wait for each other, on so little."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def fitted() -> TextClassifier:
    settings = {"model.width": 16, "model.filters": 16, "model.sizes": [2, 3]}
    return TextClassifier(max_iter=20, learning_rate_init=1e-2, batch_size=8, random_state=0, settings=settings).fit(
        TEXTS, LABELS
    )


def test_a_classifier_learns_and_keeps_the_types_of_its_classes(fitted: TextClassifier) -> None:
    assert fitted.score(TEXTS, LABELS) == 1.0
    assert list(fitted.classes_) == ["bad", "good"]
    assert len(fitted.loss_curve_) == fitted.n_iter_ == 20
    probabilities = fitted.predict_proba(pd.Series(TEXTS, index=range(5, 5 + len(TEXTS))))
    assert probabilities.shape == (36, 2) and np.allclose(probabilities.sum(1), 1, atol=1e-6)
    assert (fitted.classes_[probabilities.argmax(1)] == LABELS).all()
    numbers = TextClassifier(**QUICK).fit(np.array(TEXTS), np.array([7 if one == "good" else -3 for one in LABELS]))
    assert numbers.predict(TEXTS).dtype.kind == "i" and set(numbers.classes_) == {-3, 7}
    assert numbers.predict(["", "nothing of this"]).shape == (2,)


@pytest.mark.parametrize("dtype", ["Int64", "UInt8", "boolean", "bool", "int64", "category"])
def test_classes_of_a_pandas_column_are_its_integers_and_booleans(dtype: str) -> None:
    column = pd.Series([label == "good" for label in LABELS]).astype("int64" if dtype == "category" else dtype)
    model = TextClassifier(**QUICK).fit(TEXTS, column.astype(dtype))
    kind = "b" if dtype.startswith("bool") else "u" if dtype == "UInt8" else "i"
    assert model.classes_.dtype.kind == model.predict(TEXTS).dtype.kind == kind
    assert model.classes_.tolist() == [0, 1]


def test_a_pickle_a_clone_and_a_folder_hold_the_same_model(fitted: TextClassifier, tmp_path: Path) -> None:
    pickled = pickle.dumps(fitted)
    assert b"torch" not in pickled
    again = pickle.loads(pickled)  # noqa: S301
    assert (again.predict_proba(TEXTS) == fitted.predict_proba(TEXTS)).all()
    assert clone(fitted).get_params() == fitted.get_params()
    with pytest.raises(NotFittedError):
        clone(fitted).predict(TEXTS)
    fitted.save(tmp_path / "model")
    loaded = heedful.load(tmp_path / "model", heedful.TextClassifier)
    assert [one.label for one in loaded.predict(TEXTS)] == list(fitted.predict(TEXTS))


def test_the_same_seed_gives_the_same_model_and_leaves_torch_alone() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    one, other = (TextClassifier(**QUICK).fit(TEXTS, LABELS).predict_proba(TEXTS) for _ in range(2))
    assert (one == other).all()
    assert torch.equal(torch.get_rng_state(), before) and torch.get_num_threads() == 1


@pytest.mark.slow
def test_searches_and_cross_validation() -> None:
    search = GridSearchCV(TextClassifier(**QUICK), {"learning_rate_init": [1e-4, 1e-2]}, cv=2).fit(TEXTS, LABELS)
    assert search.best_params_["learning_rate_init"] in (1e-4, 1e-2) and search.predict(TEXTS).shape == (36,)
    tagger = TokenTagger(max_iter=1, random_state=0, settings=TINY)
    assert cross_val_score(tagger, [text.split() for text in TEXTS], TAGS, cv=2).shape == (2,)


def test_numbers_of_any_unit_are_learned() -> None:
    model = TextRegressor(max_iter=25, batch_size=8, random_state=0, learning_rate_init=1e-2, settings=TINY).fit(
        TEXTS, NUMBERS
    )
    assert model.score(TEXTS, NUMBERS) > 0.9
    again = pickle.loads(pickle.dumps(model))  # noqa: S301
    assert (again.predict(TEXTS) == model.predict(TEXTS)).all()


def test_several_numbers_are_learned_and_a_regressor_is_continued(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    y = pandas.DataFrame({"price": NUMBERS, "length": [-len(text) / 1e3 for text in TEXTS]})
    quick = {"batch_size": 8, "random_state": 0, "learning_rate_init": 1e-2}
    model = TextRegressor(max_iter=25, settings=TINY, **quick).fit(TEXTS, y)
    assert model.predictor_.names == ("price", "length") and model.predict(TEXTS).shape == y.shape
    assert model.score(TEXTS, y) > 0.9
    again = pickle.loads(pickle.dumps(model))  # noqa: S301
    assert (again.predict(TEXTS) == model.predict(TEXTS)).all()
    model.save(tmp_path / "model")
    more = TextRegressor(tmp_path / "model", max_iter=1, batch_size=8, learning_rate_init=1e-9).fit(TEXTS, y.to_numpy())
    assert more.predictor_.names == ("price", "length")  # as in the folder, whose weights are all used
    np.testing.assert_allclose(more.predict(TEXTS), model.predict(TEXTS), rtol=1e-4, atol=1e-4)
    alone = TextRegressor(tmp_path / "model", max_iter=1, **quick).fit(TEXTS, NUMBERS)  # its encoder
    assert alone.predict(TEXTS).shape == (len(TEXTS),)
    one = TextRegressor(max_iter=1, settings=TINY, **quick).fit(TEXTS, y[["price"]].to_numpy().ravel())
    one.save(tmp_path / "one")
    one_more = TextRegressor(tmp_path / "one", max_iter=1, learning_rate_init=1e-9).fit(TEXTS, NUMBERS)
    np.testing.assert_allclose(one_more.predict(TEXTS), one.predict(TEXTS), rtol=1e-4)


def test_words_are_tagged() -> None:
    model = TokenTagger(max_iter=20, random_state=0, learning_rate_init=1e-2, settings=TINY)
    sentences = [text.split() for text in TEXTS]
    assert model.fit(sentences, TAGS).score(sentences, TAGS) > 0.95
    assert [len(tags) for tags in model.predict([["soup"], ("the", "tea"), np.array(["fine"])])] == [1, 2, 1]
    assert model.predict(["the soup was fine"]) == model.predict([["the", "soup", "was", "fine"]])


def test_vectors_go_into_a_pipeline_and_an_encoder_can_be_fine_tuned(tmp_path: Path) -> None:
    settings = {"model.width": 32, "model.hidden": 64, "tokenizer.vocab": 200}
    embedder = SentenceEmbedder(max_iter=2, random_state=0, settings=settings, pooling="mean")
    whole = make_pipeline(embedder, LogisticRegression(C=100, max_iter=1000)).fit(TEXTS, LABELS)
    assert whole.score(TEXTS, LABELS) > 0.9
    assert len(whole[0].get_feature_names_out()) == whole[0].transform(TEXTS).shape[1] == 32
    whole[0].save(tmp_path / "encoder")
    loaded = SentenceEmbedder(tmp_path / "encoder", pooling="mean").fit(TEXTS)
    assert (loaded.transform(TEXTS) == whole[0].transform(TEXTS)).all()
    tuned = TextClassifier(tmp_path / "encoder", max_iter=1, validation_fraction=0.2, random_state=0).fit(TEXTS, LABELS)
    assert tuned.predictor_.model.encoder.config.width == 32


# ---------------------------------------------------------------- scikit-learn's checks
class OfNumbers:
    """Lets an estimator of texts take the tables of scikit-learn's checks: each value becomes a word."""

    def fit(self: Any, X: Any, y: Any = None) -> Any:
        return super().fit(self.as_texts(X, True), y)  # type: ignore[misc]

    def as_texts(self: Any, X: Any, reset: bool) -> list[str]:
        rows = validate_data(self, X, reset=reset, dtype="numeric")
        return [
            " ".join(f"{'mp'[int(value > 0)]}{at}x{abs(value):.0f}" for at, value in enumerate(row)) or "none"
            for row in rows
        ]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.two_d_array, tags.input_tags.string = True, False
        return tags


class PredictorOfNumbers(OfNumbers):
    def predict(self: Any, X: Any) -> Any:
        check_is_fitted(self)
        return super().predict(X if isinstance(X, list) else self.as_texts(X, False))  # type: ignore[misc]


class ClassifierOfNumbers(PredictorOfNumbers, TextClassifier):
    def predict_proba(self, X: Any) -> Any:
        check_is_fitted(self)
        return super().predict_proba(X if isinstance(X, list) else self.as_texts(X, False))


class RegressorOfNumbers(PredictorOfNumbers, TextRegressor):
    pass


class EmbedderOfNumbers(OfNumbers, SentenceEmbedder):
    def transform(self, X: Any) -> Any:
        check_is_fitted(self)
        return super().transform(X if isinstance(X, list) else self.as_texts(X, False))


# Near values are no more alike than distant ones once they are words.
WHY = "accuracy on points in a plane, whose values are words here"
EXPECTED_FAILURES = {"check_classifiers_train": WHY}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("estimator", "every"),
    [
        (ClassifierOfNumbers(**QUICK), True),
        (RegressorOfNumbers(**{**QUICK, "settings": TINY}), False),
        (EmbedderOfNumbers(**{**QUICK, "settings": {"model.width": 8, "model.layers": 1}}), False),
    ],
    ids=["classifier", "regressor", "embedder"],
)
def test_scikit_learn_estimator_checks(estimator: Any, every: bool) -> None:
    """`every`: also those that are not about the interface, which train many times."""
    expected = EXPECTED_FAILURES if every else {}
    results = check_estimator(estimator, legacy=every, expected_failed_checks=expected, on_fail=None, on_skip=None)
    failed = {one["check_name"]: repr(one["exception"]) for one in results if one["status"] == "failed"}
    assert failed == {} and len(results) > 5


@pytest.mark.parametrize(
    ("kind", "settings", "X", "y", "message"),
    [
        (TextClassifier, {}, "a single text", ["a"], "not a list"),
        (TextClassifier, {}, {"text": TEXTS}, LABELS, "not a list"),
        (TextClassifier, {}, [], [], "0 sample"),
        (TextClassifier, {}, [*TEXTS[1:], None], LABELS, r"X\[35\] is None"),
        (TextClassifier, {}, pd.Series([*TEXTS[1:], np.nan]), LABELS, r"X\[35\] is nan"),
        (TextClassifier, {}, np.ones((36, 3)), LABELS, r"X\[0\]"),
        (TextClassifier, {}, TEXTS, LABELS[1:], "inconsistent"),
        (TextClassifier, {}, TEXTS, None, "requires y"),
        (TextClassifier, {}, TEXTS, ["one"] * 36, "only one class"),
        (TextClassifier, {}, TEXTS, [*LABELS[:35], None], "of one type"),
        (TextClassifier, {}, TEXTS, pd.Series([*[0, 1] * 17, 1, None], dtype="Int64"), "NaN"),
        (TextClassifier, {}, TEXTS, pd.Series([*[True, False] * 17, True, None], dtype="boolean"), "NaN"),
        (TextClassifier, {}, TEXTS, np.linspace(0, 1, 36), "continuous"),
        (TextClassifier, {}, TEXTS, [*LABELS[:35], ""], "label is missing"),
        (TextClassifier, {"max_iter": 0}, TEXTS, LABELS, "max_iter must be"),
        (TextClassifier, {"learning_rate_init": -1}, TEXTS, LABELS, "learning_rate_init must be"),
        (TextClassifier, {"validation_fraction": 1.5}, TEXTS, LABELS, "validation_fraction must be"),
        (TextClassifier, {"validation_fraction": 0.5}, ["a", "a"], [0, 1], "too few to hold out"),
        (TextClassifier, {"device": "tpu"}, TEXTS, LABELS, "device must be one of"),
        (TextClassifier, {"class_weight": {"goood": 2}}, TEXTS, LABELS, "no such class"),
        (TextClassifier, {"class_weight": "even"}, TEXTS, LABELS, "class_weights"),
        (TextClassifier, {"settings": {"model.widht": 8}}, TEXTS, LABELS, "did you mean model.width"),
        (TextClassifier, {"settings": "model.width=8"}, TEXTS, LABELS, "settings must be a dict"),
        (TextClassifier, {"start": "no-such-folder"}, TEXTS, LABELS, "no-such-folder"),
        (TextClassifier, {"recipe": "no-such-recipe"}, TEXTS, LABELS, "no such recipe"),
        (TextClassifier, {"recipe": "numbers"}, TEXTS, LABELS, "recipe of the task translation"),
        (TextClassifier, {"settings": {"model.width": object()}}, TEXTS, LABELS, "invalid value for model.width"),
        (TextClassifier, {}, [*TEXTS[1:], ""], [*LABELS[:35], "new"], "differ in the classes .'new'.: their texts are"),
        (TextClassifier, {}, set(TEXTS), LABELS, "not a list"),
        (TextClassifier, {}, ["", " "], ["a", "b"], "no examples"),
        (TextRegressor, {}, TEXTS, LABELS, "could not convert"),
        (TextRegressor, {}, TEXTS, [*NUMBERS[1:], np.nan], "NaN"),
        (TextRegressor, {}, TEXTS, [[1.0, np.nan]] * len(TEXTS), "NaN"),
        (TextRegressor, {}, TEXTS, [[1.0, 2.0]] * 3, "inconsistent numbers of samples"),
        (TextRegressor, {}, TEXTS, [["a", "b"]] * len(TEXTS), "could not convert"),
        (TokenTagger, {}, [["a", "b"]], [["O"]], r"X\[0\] has 2 words"),
        (TokenTagger, {}, [["a", 3]], [["O", "B"]], r"X\[0\]"),
        (TokenTagger, {}, [["a", "b"]], [["O", "O"]], "only one class"),
        (SentenceEmbedder, {"start": "no-such-folder"}, TEXTS, None, "no-such-folder"),
        (SentenceEmbedder, {}, list(zip(TEXTS, TEXTS, strict=True)), None, "pairs of texts"),
        (SentenceEmbedder, {"pooling": "middle"}, TEXTS, None, "pooling must be one of"),
    ],
)  # fmt: skip
def test_mistakes_are_value_errors_that_say_what_is_wrong(
    kind: Any, settings: dict[str, Any], X: Any, y: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        kind(**{"max_iter": 1, **settings}).fit(X, y)
