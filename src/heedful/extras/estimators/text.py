"""Models of texts as scikit-learn estimators: classes, numbers, tags and vectors.

Training is that of `heedful train`, in a temporary run folder. n texts, c classes, d dimensions of a vector.
"""

from __future__ import annotations

import json
import math
import os
import sys
from abc import ABC
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from numbers import Real
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Self, get_args

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    ClassNamePrefixFeaturesOutMixin,
    RegressorMixin,
    TransformerMixin,
)
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_consistent_length, check_is_fitted, column_or_1d

from heedful.data.own import Dataset
from heedful.data.tables.splits import held_out
from heedful.errors import UserError
from heedful.extras.estimators.settings import (
    DEVICES,
    isolated,
    require_one_of,
    require_positive_integer,
    seed_of,
    store_arguments,
)
from heedful.extras.estimators.text_inputs import (
    names_of_columns,
    parts_of,
    require_same_lengths,
    require_target,
    single_texts_of,
    tags_of,
    texts_of,
    units_of,
    value_errors,
    words_of,
)
from heedful.files.reading import entries, read_file
from heedful.hub.sentence_transformers import Pooling
from heedful.models.heads.config import RegressorConfig
from heedful.runs.init import settings_of_run
from heedful.runs.load import Opened, cores, load, opened
from heedful.runs.recipe import load_recipe, recipe_with
from heedful.runs.train import Epoch, Evaluated, train
from heedful.tasks import TASKS
from heedful.tasks.classification.numbers import TextNumbers
from heedful.tasks.predictor import device_of
from heedful.tasks.pretraining.predictor import TextEncoder
from heedful.training.span_metrics import tag_scores

Array = npt.NDArray[Any]
POOLINGS = get_args(Pooling)
SMALL_ENCODER = {
    "tokenizer": {"kind": "wordpiece", "vocab": 8000},
    "encoder": {"kind": "rnn_encoder", "width": 128, "layers": 1, "context": 256},
}  # read from both sides by a GRU: learns from few texts in seconds
SCRATCH_EPOCHS, FOLDER_EPOCHS = 10, 3
SCRATCH_RATE, FOLDER_RATE = 1e-3, 5e-5
BATCH = 32
BATCH_TOKENS = 2048  # of pre-training
UNHELD = 256  # training texts that stand for held-out ones where none are held out


class TextEstimator(BaseEstimator, ABC):  # type: ignore[misc]
    """The base class: a recipe is trained on the texts of `fit`, and its predictor is kept in `predictor_`.

    `loss_curve_` has the training loss of each epoch, `validation_scores_` the score of each evaluation on held-out
    texts. A pickle has the model as the files of a model folder.
    """

    _task: ClassVar[str]
    _scratch: ClassVar[Mapping[str, Any]]  # the model that is trained without `start`

    start: str | os.PathLike[str] | None
    recipe: str | os.PathLike[str] | None
    settings: Mapping[str, Any] | None
    max_iter: int | None
    learning_rate_init: float | None
    batch_size: int | None
    validation_fraction: float
    random_state: int | np.random.RandomState | None
    device: str
    verbose: bool

    # ------------------------------------------------------------------ fitting
    def _train(self, examples: Sequence[Any], units: Sequence[str], classes: Sequence[str] | None) -> None:
        """Train on examples; `units` are their texts, of which equal ones are held out together."""
        self._require_settings()
        seed = seed_of(self.random_state)
        with value_errors(), TemporaryDirectory(prefix="heedful-") as folder:
            rows, held = self._parts(units, classes, seed)
            data = Dataset([examples[row] for row in rows], [examples[row] for row in held])
            recipe, run = self._recipe(len(rows), seed), Path(folder) / "run"
            self.loss_curve_: list[float] = []
            self.validation_scores_: list[float] = []
            with isolated(device_of(self._place), cores()):
                for event in train(recipe, run, data=data):
                    self._record(event)
                self.predictor_: Any = load(run, self._place)
        self.n_iter_ = len(self.loss_curve_)

    def _record(self, event: object) -> None:
        if isinstance(event, Epoch):
            self.loss_curve_.append(event.loss)
            if self.verbose:
                sys.stdout.write(f"Iteration {event.epoch}, loss = {event.loss:.8f}\n")
        elif isinstance(event, Evaluated):
            score = event.scores[0].value if event.scores else -event.loss
            self.validation_scores_.append(score)
            if self.verbose:
                name = event.scores[0].name if event.scores else "minus the loss"
                sys.stdout.write(f"Validation {name}: {score:.4f}\n")

    def _parts(
        self, units: Sequence[str], classes: Sequence[str] | None, seed: int
    ) -> tuple[Sequence[int], Sequence[int]]:
        """The rows to train on, and those that are held out; of all, some stand for held-out ones."""
        if not self.validation_fraction:
            return range(len(units)), range(min(len(units), UNHELD))
        try:
            parts = held_out(units, classes, {"valid": float(self.validation_fraction)}, seed)
        except UserError:
            raise ValueError(
                f"n_samples={len(units)} is too few to hold out validation_fraction={self.validation_fraction} of "
                "them: pass more different texts, or validation_fraction=0"
            ) from None
        return parts["train"], parts["valid"]

    def _recipe(self, rows: int, seed: int) -> Any:
        """The recipe of the training run."""
        chosen, where = self._chosen(), f"{type(self).__name__}.settings"
        batch = int(self.batch_size or BATCH)
        epochs = int(self.max_iter or (SCRATCH_EPOCHS if self.start is None else FOLDER_EPOCHS))
        rate = float(self.learning_rate_init or (SCRATCH_RATE if self.start is None else FOLDER_RATE))
        steps = max(1, math.ceil(rows / batch))
        own = {
            "budget": {"epochs": epochs},
            "optimizer": {"kind": "adamw", "lr": rate},
            "schedule": {"kind": "linear", "warmup": max(1, epochs * steps // 10)},
            "evaluate_every": steps,
            "save_every": steps,
            **self._batches(batch),
        }
        if self.recipe is not None:  # it keeps its own training, but for what is given here
            given = {
                "budget": self.max_iter,
                "optimizer": self.learning_rate_init,
                **dict.fromkeys(self._batches(batch), self.batch_size),
            }
            own = {key: value for key, value in own.items() if given.get(key) is not None}
        last = {} if self.validation_fraction else {"use": "last"}
        known = chosen.get("train") or {}
        training = {**known, **own, **last, "seed": seed, "device": self.device, "samples": 0, "loggers": []}
        filled = {**chosen, "data": {"kind": "own"}, "train": training}
        overrides = [f"{key}={json.dumps(value, default=repr)}" for key, value in self._given()]
        return recipe_with(filled, {}, where, overrides)

    def _chosen(self) -> dict[str, Any]:
        """The settings of the recipe, of the run in `start`, or of the usual model."""
        begin = {} if self.start is None else {"start": {"folder": os.fspath(self.start)}}
        if self.recipe is not None:
            given = load_recipe(os.fspath(self.recipe)).model_dump(mode="json")
            if (kind := given["task"]["kind"]) not in (self._task, *TASKS[self._task].also.values()):
                raise ValueError(f"recipe={self.recipe!r} is a recipe of the task {kind}, not of {self._task}")
            return {**given, **begin}
        if self.start is None:
            return {"task": {"kind": self._task}, **self._scratch}
        if (known := settings_of_run(self._task, Path(self.start))) is None:
            return {"task": {"kind": self._task}, **begin}
        return {**known, "model": {name: value for name, value in known["model"].items() if name != "labels"}}

    def _given(self) -> Iterator[tuple[str, Any]]:
        """Further settings of the recipe, by key."""
        yield from (self.settings or {}).items()

    def _batches(self, size: int) -> dict[str, int]:
        return {"batch_examples": size}

    def _require_settings(self) -> None:
        require_one_of("device", self.device, DEVICES)
        for name in ("max_iter", "batch_size"):
            if self.get_params()[name] is not None:
                require_positive_integer(name, self.get_params()[name])
        rate, fraction = self.learning_rate_init, self.validation_fraction
        if rate is not None and not (isinstance(rate, Real) and 0 < rate < math.inf):
            raise ValueError(f"learning_rate_init must be a number above 0, got {rate!r}")
        if not (isinstance(fraction, Real) and 0 <= fraction < 1):
            raise ValueError(f"validation_fraction must be a number from 0 to below 1, got {fraction!r}")
        if self.settings is not None and not isinstance(self.settings, Mapping):
            raise ValueError(
                f"settings must be a dict of recipe keys, as {{'model.dropout': 0.2}}, got {self.settings!r}"
            )

    # ------------------------------------------------------------------ use
    @property
    def _place(self) -> str | None:
        """The device as `load` has it."""
        return None if self.device == "auto" else self.device

    def _predict(self, inputs: Sequence[Any]) -> list[Any]:
        with value_errors():
            return list(self.predictor_.predict(inputs))

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Save the model as a new folder for `heedful.load`, `heedful predict` and `heedful serve`."""
        check_is_fitted(self)
        self.predictor_.save(os.fspath(folder))

    def __getstate__(self) -> dict[str, Any]:
        """The state to pickle, with the model as the files of its folder."""
        state = dict(super().__getstate__())
        if "predictor_" in state:
            with TemporaryDirectory(prefix="heedful-") as folder:
                model = Path(folder) / "model"
                state["predictor_"].save(model)
                state["predictor_"] = {file.name: read_file(file) for file in entries(model)}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "predictor_" in state:
            with TemporaryDirectory(prefix="heedful-") as folder:
                for name, content in state["predictor_"].items():
                    (Path(folder) / Path(name).name).write_bytes(content)
                device = state["device"]
                usable = device if device == "cpu" or (device == "cuda" and torch.cuda.is_available()) else None
                state = {**state, "predictor_": load(folder, usable)}
        super().__setstate__(state)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.string = False, True
        return tags


class TextClassifier(ClassifierMixin, TextEstimator):  # type: ignore[misc]
    """A classifier of texts, or of pairs of texts: a ConvNet over words, or an encoder that is fine-tuned.

    `start` is a folder to start from: a trained encoder, or a run of classification; None: a new model. `recipe` is a
    recipe's path or name whose model and training are used instead of the usual ones, and `settings` are further
    keys of the recipe, as {"model.dropout": 0.2}.

    `max_iter` is the number of epochs, `batch_size` the number of texts in a step, and both are chosen if None, as is
    `learning_rate_init`. With `validation_fraction` above 0, that share of the texts is held out, and the best epoch is
    kept instead of the last one. `class_weight` is "balanced", or a dict of weights by class. With an integer
    `random_state`, results on a CPU are reproducible. `device` is auto, cpu or cuda.
    """

    _task = "classification"
    _scratch: ClassVar = {"tokenizer": {"kind": "words"}, "model": {"kind": "conv_classifier"}}

    class_weight: str | Mapping[Any, float] | None

    def __init__(
        self,
        start: str | os.PathLike[str] | None = None,
        *,
        recipe: str | os.PathLike[str] | None = None,
        settings: Mapping[str, Any] | None = None,
        max_iter: int | None = None,
        learning_rate_init: float | None = None,
        batch_size: int | None = None,
        validation_fraction: float = 0.0,
        class_weight: str | Mapping[Any, float] | None = None,
        random_state: int | np.random.RandomState | None = None,
        device: str = "auto",
        verbose: bool = False,
    ) -> None:
        store_arguments(self, locals())

    def fit(self, X: Any, y: Any) -> Self:
        """Train on texts X (n) with the classes y (n), which are strings or integers."""
        texts = texts_of(X)
        given = np.asarray(require_target(y))  # column_or_1d makes floats of pandas' Int64 and boolean
        labels = column_or_1d(given if given.dtype.kind in "biu" else y, warn=True)
        check_consistent_length(texts, labels)
        try:
            check_classification_targets(labels)
            self.classes_, numbers = np.unique(labels, return_inverse=True)
        except TypeError:
            kinds = sorted({type(label).__name__ for label in labels})
            raise ValueError(f"the classes y must be of one type, got {' and '.join(kinds)}") from None
        if len(self.classes_) < 2:
            raise ValueError(f"y has only one class, {self.classes_[0]!r}: a classifier needs two or more")
        names = self._names
        named = [names[number] for number in numbers]
        self._train([(*parts_of(text), name) for text, name in zip(texts, named, strict=True)], units_of(texts), named)
        if unknown := set(names) ^ set(self.predictor_.labels):
            why = "their texts are blank" if self.start is None else "the model in start has other classes"
            raise ValueError(f"the model and y differ in the classes {sorted(unknown)[:5]}: {why}")
        return self

    @property
    def _names(self) -> list[str]:
        return [str(one) for one in self.classes_]

    def _given(self) -> Iterator[tuple[str, Any]]:
        weights = self.class_weight
        if isinstance(weights, Mapping):
            weights = {str(name): float(weight) for name, weight in weights.items()}
        if weights is not None:
            yield "task.class_weights", weights
        yield from super()._given()

    def predict(self, X: Any) -> Array:
        """The most probable class of each text (n)."""
        check_is_fitted(self)
        found: Array = self.classes_[self.predict_proba(X).argmax(1)]
        return found

    def predict_proba(self, X: Any) -> Array:
        """The probability of each class of `classes_` for each text (n, c)."""
        check_is_fitted(self)
        found = self._predict(texts_of(X))
        return np.array([[one.probabilities[name] for name in self._names] for one in found])


class TextRegressor(RegressorMixin, TextEstimator):  # type: ignore[misc]
    """A regressor of texts, or of pairs of texts; the settings are those of `TextClassifier`.

    A text may have several numbers: y then has a column for each. Targets are standardized for training, and the last
    layer is scaled back afterwards, so that they may have any unit. With held-out texts, the epoch with the best rank
    correlation is kept, which need not have the smallest error.
    """

    _task = "regression"
    _scratch: ClassVar = {
        "tokenizer": SMALL_ENCODER["tokenizer"],
        "model": {"kind": "regressor", "encoder": SMALL_ENCODER["encoder"]},
    }

    def __init__(
        self,
        start: str | os.PathLike[str] | None = None,
        *,
        recipe: str | os.PathLike[str] | None = None,
        settings: Mapping[str, Any] | None = None,
        max_iter: int | None = None,
        learning_rate_init: float | None = None,
        batch_size: int | None = None,
        validation_fraction: float = 0.0,
        random_state: int | np.random.RandomState | None = None,
        device: str = "auto",
        verbose: bool = False,
    ) -> None:
        store_arguments(self, locals())

    def fit(self, X: Any, y: Any) -> Self:
        """Train on texts X (n) with the numbers y, one for each text (n) or several (n, k)."""
        texts, names = texts_of(X), names_of_columns(y)
        several = np.ndim(require_target(y)) == 2 and np.shape(y)[1] != 1
        numbers = y if several else column_or_1d(y, warn=True)
        numbers = check_array(numbers, ensure_2d=False, dtype=np.float64, input_name="y", estimator=self)
        check_consistent_length(texts, numbers)
        before = None if self.start is None else numbers_in(self.start)
        continued = before is not None and len(before) == (len(names) if several else 0)
        self._numbers = before if continued else names if several else []
        mean = 0.0 if continued else numbers.mean(0)  # () or (k,)
        spread = 1.0 if continued else numbers.std(0)  # () or (k,)
        scale = np.where(spread == 0, 1.0, spread)  # () or (k,)
        scaled = ((numbers - mean) / scale).tolist()
        self._train([(*parts_of(text), one) for text, one in zip(texts, scaled, strict=True)], units_of(texts), None)
        with torch.no_grad():
            head = self.predictor_.model.head
            factor = torch.as_tensor(scale).to(head.weight)  # () or (k,)
            head.weight.mul_(factor[..., None])
            head.bias.mul_(factor).add_(torch.as_tensor(mean).to(head.bias))
        return self

    def _given(self) -> Iterator[tuple[str, Any]]:
        yield "model.numbers", self._numbers
        yield from super()._given()

    def predict(self, X: Any) -> Array:
        """The number of each text (n), or its numbers (n, k)."""
        check_is_fitted(self)
        found = self._predict(texts_of(X))
        return np.array([list(one.values.values()) if isinstance(one, TextNumbers) else one.value for one in found])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def numbers_in(start: str | os.PathLike[str]) -> Sequence[str] | None:
    """The names of the numbers of a trained regressor, none if it has one; None: the folder is something else."""
    with value_errors():
        found = opened(Path(start))
    return found.config.numbers if isinstance(found, Opened) and isinstance(found.config, RegressorConfig) else None


class TokenTagger(TextEstimator):
    """A tagger of words: X has sentences as lists of words, y the tags of each; settings as of `TextClassifier`.

    A sentence may also be one text with spaces between its words. `score` is F1 of the entities where the tags are
    IOB tags, as B-PER and I-PER, else the share of words with the right tag.
    """

    _task = "tagging"
    _scratch: ClassVar = {
        "tokenizer": SMALL_ENCODER["tokenizer"],
        "model": {"kind": "tagger", "encoder": SMALL_ENCODER["encoder"]},
    }

    def __init__(
        self,
        start: str | os.PathLike[str] | None = None,
        *,
        recipe: str | os.PathLike[str] | None = None,
        settings: Mapping[str, Any] | None = None,
        max_iter: int | None = None,
        learning_rate_init: float | None = None,
        batch_size: int | None = None,
        validation_fraction: float = 0.0,
        random_state: int | np.random.RandomState | None = None,
        device: str = "auto",
        verbose: bool = False,
    ) -> None:
        store_arguments(self, locals())

    def fit(self, X: Any, y: Any) -> Self:
        """Train on sentences X (n), lists of words, with the tags y (n) of their words."""
        sentences, tags = words_of(X), tags_of(y)
        require_same_lengths(sentences, tags)
        self.classes_ = np.unique(list(chain.from_iterable(tags)))
        if len(self.classes_) < 2:
            raise ValueError(f"y has only one class of tags, {list(self.classes_)}: a tagger needs two or more")
        self._train(list(zip(sentences, tags, strict=True)), [" ".join(words) for words in sentences], None)
        return self

    def predict(self, X: Any) -> list[list[str]]:
        """The tags of the words of each sentence."""
        check_is_fitted(self)
        return [list(one.tags) for one in self._predict(words_of(X))]

    def score(self, X: Any, y: Any) -> float:
        """F1 of the entities of IOB tags, or accuracy of other tags, from 0 to 1."""
        sentences, right = words_of(X), tags_of(y)
        require_same_lengths(sentences, right)
        return tag_scores(self.predict(sentences), right, self.predictor_.labels, each=False)[0].value / 100

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags


class SentenceEmbedder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, TextEstimator):  # type: ignore[misc]
    """Vectors of texts, for the estimators after it in a pipeline.

    `start` is a folder with a trained encoder, such as one of sentence-transformers, which `fit` only loads. Without
    it, `fit` trains a small BERT to predict masked tokens of the texts; of few texts, it learns little.
    `pooling` is mean, first, max, weighted_mean or mean_sqrt_length, and `normalize` whether vectors have length 1;
    None: as the folder says. The other settings are those of `TextClassifier`, for training; `batch_size` is in
    tokens.
    """

    _task = "pretraining"
    _scratch: ClassVar = {
        "task": {"kind": "pretraining", "unrelated": 0.0},
        "tokenizer": {"kind": "wordpiece", "vocab": 8000},
        "model": {"kind": "bert", "width": 128, "heads": 4, "layers": 2, "hidden": 512, "context": 128, "dropout": 0.0,
                  "attention_dropout": 0.0},
    }  # fmt: skip

    pooling: Pooling | None
    normalize: bool | None

    def __init__(
        self,
        start: str | os.PathLike[str] | None = None,
        *,
        pooling: Pooling | None = None,
        normalize: bool | None = None,
        recipe: str | os.PathLike[str] | None = None,
        settings: Mapping[str, Any] | None = None,
        max_iter: int | None = None,
        learning_rate_init: float | None = None,
        batch_size: int | None = None,
        validation_fraction: float = 0.0,
        random_state: int | np.random.RandomState | None = None,
        device: str = "auto",
        verbose: bool = False,
    ) -> None:
        store_arguments(self, locals())

    def fit(self, X: Any, y: object = None) -> Self:
        """Load the encoder of `start`, or train one on texts X (n)."""
        texts = single_texts_of(X)
        self._require_settings()
        if self.pooling is not None:
            require_one_of("pooling", self.pooling, POOLINGS)
        if self.start is not None and self.recipe is None:
            with value_errors():
                self.predictor_ = load(os.fspath(self.start), TextEncoder, self._place)
        else:
            self._train(texts, texts, None)
        return self

    def _batches(self, size: int) -> dict[str, int]:
        return {"batch_tokens": int(self.batch_size or BATCH_TOKENS)}

    def transform(self, X: Any) -> Array:
        """The vector of each text (n, d)."""
        check_is_fitted(self)
        with value_errors():
            found: Array = self.predictor_.embed(
                single_texts_of(X), pooling=self.pooling, normalize=self.normalize
            ).numpy()
        return found

    @property
    def _n_features_out(self) -> int:
        return int(self.predictor_.width())

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = True
        return tags
