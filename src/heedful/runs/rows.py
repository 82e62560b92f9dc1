"""The inputs of predictors in rows: of a file, or of a request."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heedful.data.dialogues.sources import utterances_in
from heedful.data.formats.sources import list_keys, string_field
from heedful.data.images.inputs import prepare
from heedful.data.images.zip_files import ZipMember
from heedful.data.stories.sources import sentences_of
from heedful.data.tables.reading import parsed, text_of
from heedful.errors import UserError, shown
from heedful.files.reading import exists
from heedful.runs.row_source import RowSource
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

FIELDS: dict[type, tuple[str, ...]] = {  # the fields of a row that are a model's input
    Translator: ("source",),
    DialogueModel: ("utterances",),
    TextGenerator: ("prompt",),
    TextClassifier: ("text",),
    TextRegressor: ("text",),
    MultiRegressor: ("text",),
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
    GlimpseClassifier: ("image",),
    ImageAutoencoder: ("image",),
    TablePredictor: (),
    StoryAnswerer: ("story", "question"),
    Agent: ("observation",),
}
SEVERAL = ("choices", "boxes", "story", "utterances", "observation")  # fields with lists, which are JSON in CSV cells


class RowReader:
    """Reads the inputs of a predictor from the rows of a source; `names` are the columns that have its fields."""

    def __init__(self, predictor: Any, source: RowSource, names: Sequence[str], todo: str) -> None:
        self.predictor, self.source, self.todo = predictor, source, todo
        self.fields = FIELDS[type(predictor)]
        self.names = tuple(names) or self.fields
        if source.has_images and not self.reads_images:
            next(iter(source), None)  # raises the error of a folder or zip file that cannot be read
            raise UserError(
                "this model reads no images", where=str(source.path), found="a folder or zip file of images",
                expected=f"a .csv, .tsv, .jsonl, .parquet or text file with {', '.join(self.fields) or 'its columns'}",
            )  # fmt: skip
        takes_pairs = isinstance(predictor, TextClassifier | TextRegressor | MultiRegressor | MultiLabelClassifier)
        if len(self.names) > len(self.fields) + takes_pairs or len(self.names) < len(self.fields):
            expected = ", ".join(self.fields) + " and optionally a second text" * takes_pairs
            raise UserError(
                "this model reads other fields", where="--field", found=", ".join(self.names),
                expected=f"a column for each of: {expected}" if self.fields else "none: columns have the model's names",
            )  # fmt: skip

    @property
    def reads_images(self) -> bool:
        """Whether an input has an image."""
        return "image" in self.fields

    def file(self, row: Mapping[str, object], where: str) -> Path | ZipMember | None:
        """The image file that a row names, if it names one."""
        name = self._columns(row, where).get("image")
        return self.source.image(name) if isinstance(name, str) and name.strip() else None

    def check(self, row: dict[str, object], where: str) -> None:
        """Refuse a row without the model's fields; images are not opened."""
        if not self.reads_images:
            self.read(row, where)
        elif (file := self.file(row, where)) is not None and not isinstance(file, ZipMember) and not exists(file):
            raise UserError(
                "there is no such image", where=where, found=str(file),
                expected=f"a path from here, or from {self.source.root}",
            )  # fmt: skip

    def read(self, row: dict[str, object], where: str) -> Any:
        """The input in a row; None if it is blank."""
        if isinstance(self.predictor, TablePredictor):
            return row
        found = self._columns(row, where)
        if "image" in found:
            return self._with_image(found, row, where)
        if "observation" in found:
            return None if found["observation"] in ("", None) else numbers_in(found["observation"], where)
        names = {
            kind: kind if kind in SEVERAL else name for kind, name in zip(self._kinds, self._present(row), strict=True)
        }
        return row_input({names[kind]: value for kind, value in found.items()}, tuple(names.values()), where, self.todo)

    @property
    def _kinds(self) -> tuple[str, ...]:
        return (*self.fields, "pair")[: len(self.names)]

    def _present(self, row: Mapping[str, object]) -> tuple[str, ...]:
        """The columns that are read; a single one that was not named may also be called text."""
        usual = len(self.names) == 1 and self.names == self.fields
        return ("text",) if usual and self.names[0] not in row and "text" in row else self.names

    def _columns(self, row: Mapping[str, object], where: str) -> dict[str, object]:
        """The values of the model's fields."""
        names = self._present(row)
        if missing := [name for name in names if name not in row]:
            raise missing_error(missing[0], row, where, self.todo)
        return {kind: field_value(kind, row[name]) for kind, name in zip(self._kinds, names, strict=True)}

    def _with_image(self, found: Mapping[str, object], row: Mapping[str, object], where: str) -> Any:
        file = self.file(row, where)
        image: Any = file
        if file is None and isinstance(found["image"], list):
            image = numbers_in(found["image"], where)
        elif file is None:
            return None
        pixels = prepare(image, self.predictor.canvas)
        if "boxes" in found:  # they are in pixels of the file
            return image, row_boxes({"boxes": found["boxes"]}, where)
        return pixels


def field_value(kind: str, value: object) -> object:
    """The value of a field; a text is what training reads of a number, or of a list of words."""
    if kind in SEVERAL:
        return parsed(value)
    kept = (dict, bytes, np.ndarray, *((list, tuple) if kind == "image" else ()))
    return value if isinstance(value, kept) else text_of(value)


def numbers_in(value: object, where: str) -> NDArray[Any]:
    """An array of numbers; whole numbers from 0 to 255 in rows are the bytes of an image."""
    try:
        array = np.array(value)
    except ValueError:
        array = np.array(None)
    if array.dtype.kind not in "iuf" or not array.size:
        raise UserError("these are not numbers", where=where, found=shown(value), expected="lists of numbers")
    if array.dtype.kind == "f" and not np.abs(array).max() <= np.finfo(np.float32).max:
        raise UserError("a number is too large, or is none", where=where, found=shown(value), expected="float32")
    whole = array.dtype.kind in "iu" and array.min() >= 0 and array.max() <= 255
    return array.astype(np.uint8 if whole and array.ndim > 1 else np.float32)


def missing_error(name: str, row: Mapping[str, object], where: str, todo: str) -> UserError:
    """The error for a row without a field; it names the one that is most like it."""
    close = difflib.get_close_matches(name, row, n=1)
    todo = f"did you mean {shown(close[0])}? {todo}" if close else todo
    return UserError(f"there is no field {shown(name)}", where=where, found=list_keys(row), todo=todo)


def row_input(row: dict[str, object], names: tuple[str, ...], where: str, todo: str) -> Any:
    """The model's input in a row: a text, or a tuple of several; None if all are blank."""
    if len(names) == 1 and names[0] not in row and "text" in row:
        names = ("text",)
    for name in names:
        if name not in row and name not in LISTS:
            raise missing_error(name, row, where, todo)
    values = [LISTS[name](row, where) if name in LISTS else string_field(row, name, where) for name in names]
    if all(isinstance(value, str) and not value.strip() for value in values):
        return None
    return values[0] if len(values) == 1 else tuple(values)


def row_choices(row: dict[str, object], where: str) -> list[str]:
    """The texts in the field `choices` of a row."""
    choices = row.get("choices")
    if (
        not isinstance(choices, list)
        or len(choices) < 2
        or not all(isinstance(one, str | int | float) for one in choices)
    ):
        raise UserError(
            "a row needs a list of choices", where=where, found=shown(choices) if choices else list_keys(row),
            expected="'choices' with two texts or more, in a .jsonl file",
        )  # fmt: skip
    return [text_of(one) for one in choices]


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
