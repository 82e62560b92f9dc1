"""The inputs of predictors in rows: of a file, or of a request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from heedful.data.dialogues.sources import utterances_in
from heedful.data.formats.sources import list_keys, string_field
from heedful.data.stories.sources import sentences_of
from heedful.errors import UserError, shown
from heedful.tasks.answering.predictor import QuestionAnswerer
from heedful.tasks.captioning.predictor import ImageCaptioner
from heedful.tasks.classification.predictor import TextClassifier, TextRegressor
from heedful.tasks.dialogue.predictor import DialogueModel
from heedful.tasks.image_classification.predictor import ImageClassifier
from heedful.tasks.language_model.bidirectional import BidirectionalLanguageModel
from heedful.tasks.language_model.predictor import TextGenerator
from heedful.tasks.multi_label.predictor import MultiLabelClassifier
from heedful.tasks.multiple_choice.predictor import MultipleChoiceAnswerer
from heedful.tasks.paragraphs.predictor import ImageDescriber
from heedful.tasks.pretraining.predictor import TextEncoder
from heedful.tasks.story_answering.predictor import StoryAnswerer
from heedful.tasks.style_transfer.predictor import TextStyleTransfer
from heedful.tasks.tabular.predictor import TablePredictor
from heedful.tasks.tagging.predictor import TokenTagger
from heedful.tasks.text_autoencoding.predictor import SentenceAutoencoder
from heedful.tasks.translation.predictor import Translator
from heedful.tasks.tree_classification.predictor import TreeClassifier

FIELDS: dict[type, tuple[str, ...]] = {  # the fields of a row that are a model's input
    Translator: ("source",),
    DialogueModel: ("utterances",),
    TextGenerator: ("prompt",),
    TextClassifier: ("text",),
    TextRegressor: ("text",),
    MultiLabelClassifier: ("text",),
    TextStyleTransfer: ("text", "style"),
    TokenTagger: ("text",),
    TextEncoder: ("text",),
    BidirectionalLanguageModel: ("text",),
    SentenceAutoencoder: ("text",),
    TreeClassifier: ("tree",),
    ImageClassifier: ("image",),
    ImageCaptioner: ("image",),
    ImageDescriber: ("image", "boxes"),
    QuestionAnswerer: ("question", "passage"),
    MultipleChoiceAnswerer: ("text", "choices"),
    TablePredictor: (),
    StoryAnswerer: ("story", "question"),
}


def row_input(row: dict[str, object], names: tuple[str, ...], where: str, todo: str) -> Any:
    """The model's input in a row: a text, or a tuple of several; None if all are blank."""
    if len(names) == 1 and names[0] not in row and "text" in row:
        names = ("text",)
    for name in names:
        if name not in row and name not in LISTS:
            raise UserError(
                f"there is no field {shown(name)}", where=where, found=list_keys(row),
                todo=todo,
            )  # fmt: skip
    values = [LISTS[name](row, where) if name in LISTS else string_field(row, name, where) for name in names]
    if all(isinstance(value, str) and not value.strip() for value in values):
        return None
    return values[0] if len(values) == 1 else tuple(values)


def row_choices(row: dict[str, object], where: str) -> list[str]:
    """The texts in the field `choices` of a row."""
    choices = row.get("choices")
    if not isinstance(choices, list) or len(choices) < 2 or not all(isinstance(one, str) for one in choices):
        raise UserError(
            "a row needs a list of choices", where=where, found=shown(choices) if choices else list_keys(row),
            expected="'choices' with two texts or more, in a .jsonl file",
        )  # fmt: skip
    return choices


def row_boxes(row: dict[str, object], where: str) -> list[object]:
    """The boxes in the field `boxes` of a row."""
    boxes = row.get("boxes")
    if not isinstance(boxes, list) or not boxes or not all(isinstance(box, list) for box in boxes):
        raise UserError(
            "a row needs a list of boxes", where=where, found=shown(boxes) if boxes else list_keys(row),
            expected="'boxes' with [top, left, bottom, right] in pixels for each, in a .jsonl file",
        )  # fmt: skip
    return boxes


def row_utterances(row: dict[str, object], where: str) -> list[str | tuple[str, str]]:
    """The utterances in the field `utterances` of a row."""
    found = [one for one in utterances_in(row, where) if one.text.strip()]
    if not found:
        raise UserError("a row needs utterances", where=where, found="none with text", expected="one or more texts")
    return [one.text if one.speaker is None else (one.speaker, one.text) for one in found]


LISTS: dict[str, Callable[[dict[str, object], str], Sequence[Any]]] = {
    "choices": row_choices,
    "boxes": row_boxes,
    "story": sentences_of,
    "utterances": row_utterances,
}
