"""The columns that the results of a predictor add to a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from heedful.data.tables.writing import ValueType
from heedful.errors import UserError
from heedful.tasks.answering.predictor import QuestionAnswerer
from heedful.tasks.captioning.predictor import ImageCaptioner
from heedful.tasks.classification.numbers import MultiRegressor
from heedful.tasks.classification.predictor import TextClassifier, TextRegressor
from heedful.tasks.control.predictor import Agent
from heedful.tasks.dialogue.predictor import DialogueModel
from heedful.tasks.image_classification.glimpses import GlimpseClassifier
from heedful.tasks.image_classification.predictor import ImageClassifier
from heedful.tasks.language_model.bidirectional import BidirectionalLanguageModel
from heedful.tasks.language_model.predictor import TextGenerator
from heedful.tasks.multi_label.predictor import MultiLabelClassifier
from heedful.tasks.multiple_choice.predictor import MultipleChoiceAnswerer
from heedful.tasks.paragraphs.predictor import ImageDescriber
from heedful.tasks.pretraining.predictor import TextEncoder
from heedful.tasks.reconstruction.predictor import ImageAutoencoder
from heedful.tasks.story_answering.predictor import StoryAnswerer
from heedful.tasks.style_transfer.predictor import TextStyleTransfer
from heedful.tasks.tabular.predictor import TablePredictor
from heedful.tasks.tagging.predictor import TokenTagger
from heedful.tasks.text_autoencoding.predictor import SentenceAutoencoder
from heedful.tasks.translation.predictor import Translator
from heedful.tasks.tree_classification.predictor import TreeClassifier


class ResultColumn(NamedTuple):
    """A column: its name, its type, and its value in a result as plain values of Python."""

    name: str
    type: ValueType
    value: Callable[[Any], object]


def field(name: str, kind: ValueType, key: str | None = None) -> ResultColumn:
    """The column with a field of the result, under its own name or another."""
    return ResultColumn(name, kind, lambda result: result.to_dict()[key or name])


PROBABILITY, CUT = field("probability", "number"), field("cut", "integer")
TEXT = field("prediction", "text", "text")
WRITTEN = (TEXT, field("log_probability", "number"))
LABEL = (field("prediction", "text", "label"), PROBABILITY)
CLASS = (*LABEL, CUT)
NUMBER = (field("prediction", "number", "value"), CUT)

COLUMNS: dict[type, tuple[ResultColumn, ...]] = {
    Translator: WRITTEN,
    DialogueModel: WRITTEN,
    TextGenerator: (field("prediction", "text", "completion"), WRITTEN[1]),
    TextClassifier: CLASS,
    TextRegressor: NUMBER,
    MultiRegressor: (field("prediction", "json", "values"), CUT),
    MultiLabelClassifier: (field("prediction", "texts", "labels"), CUT),
    TextStyleTransfer: (TEXT, PROBABILITY, CUT),
    TokenTagger: (
        field("prediction", "texts", "tags"),
        field("probability", "numbers", "probabilities"),
        field("words", "texts"),
        field("entities", "json"),
    ),
    TextEncoder: (field("prediction", "numbers", "vector"),),
    BidirectionalLanguageModel: (field("prediction", "json", "values"), field("pieces", "texts")),
    SentenceAutoencoder: (*WRITTEN, field("code", "numbers")),
    TreeClassifier: (
        field("prediction", "integer", "label"),
        ResultColumn("probability", "number", lambda tree: tree.probabilities[tree.label]),
        field("nodes", "numbers"),
    ),
    ImageClassifier: LABEL,
    GlimpseClassifier: (*LABEL, field("path", "json")),
    ImageCaptioner: WRITTEN,
    ImageDescriber: (TEXT, field("sentences", "json")),
    ImageAutoencoder: (field("prediction", "numbers", "code"), field("error", "number")),
    QuestionAnswerer: (TEXT, PROBABILITY, field("start", "integer"), field("end", "integer")),
    MultipleChoiceAnswerer: (field("prediction", "text", "choice"), PROBABILITY, field("index", "integer"), CUT),
    StoryAnswerer: (TEXT, PROBABILITY, field("forgotten", "integer"), field("unknown", "texts")),
    Agent: (
        field("prediction", "text", "name"),
        ResultColumn("score", "number", lambda action: action.scores[action.name]),
    ),
    TablePredictor: CLASS,
}


def result_columns(predictor: Any, probabilities: bool = False) -> tuple[ResultColumn, ...]:
    """The columns of a predictor's results; with `probabilities`, also one for each class."""
    found = COLUMNS[type(predictor)]
    if isinstance(predictor, TablePredictor) and not predictor.labels:
        found = NUMBER
    if isinstance(predictor, MultiRegressor):
        found = (*found, *(_each("prediction", name, _at("values", name)) for name in predictor.names))
    return (*found, *class_columns(predictor)) if probabilities else found


def class_columns(predictor: Any) -> list[ResultColumn]:
    """A column for the probability of each class, or for the score of each action."""
    match predictor:
        case TreeClassifier():
            return [
                _each("probability", str(number), _at("probabilities", number)) for number in range(predictor.classes)
            ]
        case Agent():
            return [_each("score", name, _at("scores", name)) for name in predictor.environment.actions]
    names = class_names(predictor)
    if not names:
        raise UserError("this model predicts no classes", where="--probabilities", todo="leave it out")
    return [_each("probability", name, _at("probabilities", name)) for name in names]


def class_names(predictor: Any) -> Sequence[str]:
    """The classes that a predictor has probabilities for, if any."""
    match predictor:
        case TextClassifier() | MultiLabelClassifier() | ImageClassifier() | StoryAnswerer() | TablePredictor():
            return predictor.labels
    return ()


def _each(noun: str, name: str, value: Callable[[Any], object]) -> ResultColumn:
    return ResultColumn(f"{noun}_{name}", "number", value)


def _at(key: str, place: int | str) -> Callable[[Any], object]:
    return lambda result: result.to_dict()[key][place]


def require_new(columns: Sequence[ResultColumn], names: Mapping[str, object]) -> None:
    """Refuse a table that has a column of one of these names."""
    if taken := next((column.name for column in columns if column.name in names), None):
        raise UserError(
            "a result would overwrite a column of the file", where=taken, found=", ".join(names),
            expected="other names than " + ", ".join(column.name for column in columns[:10]),
            todo=f"rename the column {taken} first",
        )  # fmt: skip


def values_of(columns: Sequence[ResultColumn], result: object | None) -> list[object]:
    """The values of a row's columns; all are missing without a result."""
    return [None if result is None else column.value(result) for column in columns]
