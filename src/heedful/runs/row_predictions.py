"""Predictions for many rows, a window at a time; finished windows are kept, and the next one is read meanwhile.

A window is a fixed number of rows, whatever was finished before, so that a resumed computation writes the same bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import nn

from heedful.data.fields.rows import Rows
from heedful.data.images.zip_files import ZipMember
from heedful.data.tables.reading import Record
from heedful.errors import UserError
from heedful.runs.journal import Journal
from heedful.runs.result_columns import ResultColumn, class_names, values_of
from heedful.runs.row_source import RowSource, digest
from heedful.runs.rows import RowReader
from heedful.tasks.classification.numbers import TextNumbers
from heedful.tasks.classification.predictor import Classification, Regression
from heedful.tasks.image_classification.predictor import ImageClassifier
from heedful.tasks.language_model.predictor import TextGenerator
from heedful.tasks.multi_label.predictor import TextLabels
from heedful.tasks.multiple_choice.predictor import Choice
from heedful.tasks.pretraining.predictor import Embedding, TextEncoder
from heedful.tasks.story_answering.predictor import StoryAnswerer
from heedful.tasks.style_transfer.predictor import StyledText
from heedful.tasks.tabular.predictor import TablePredictor
from heedful.tasks.translation.predictor import Translator

T = TypeVar("T")


@dataclass(frozen=True)
class Window:
    """Rows with their predictor's inputs, None where there is none, and the images that could not be read."""

    first: int  # the number of its first row
    records: Sequence[Record]
    inputs: Sequence[Any]
    digest: str
    unread: Sequence[UserError] = ()


class Predicted(NamedTuple):
    """Rows with the values of the columns that were added, in the order of the file."""

    rows: list[dict[str, object]]
    blank: int
    unread: Sequence[UserError]
    resumed: bool


@dataclass
class RowPredictor:
    """Predicts the rows of a source with a loaded model."""

    predictor: Any
    source: RowSource
    reader: RowReader
    columns: Sequence[ResultColumn]
    size: int  # rows of a window
    probabilities: bool = False
    truncated: int = field(default=0, init=False)  # texts of which not all tokens were read

    def about(self) -> dict[str, object]:
        """What the results depend on besides the rows."""
        settings = self.predictor.decode_settings
        return {
            "format": 1,
            "task": self.predictor.task,
            "model": weights_sha256(self.predictor.model),
            "settings": None if settings is None else settings.model_dump(mode="json"),
            "fields": list(self.reader.names),
            "columns": [column.name for column in self.columns],
            "window": self.size,
        }

    def windows(self) -> Iterator[Window]:
        """The windows of the source, with their inputs."""
        records, first = iter(self.source), 0
        while some := list(islice(records, self.size)):
            yield self._window(first, some)
            first += len(some)

    def _window(self, first: int, records: list[Record]) -> Window:
        inputs, files, unread = list[Any](), list[Path | ZipMember](), list[UserError]()
        for row, where in records:
            if (file := self.reader.file(row, where)) is not None:
                files.append(file)
            try:
                inputs.append(self.reader.read(row, where))
            except UserError as error:
                if file is None:
                    raise
                inputs.append(None)
                unread.append(error)
        return Window(first, records, inputs, digest([row for row, _ in records], files), unread)

    def run(self, journal: Journal | None) -> Iterator[Predicted]:
        """The rows of each window with their predictions; those in the journal are not computed again."""
        for window in ahead(self.windows()):
            values = journal.next(window.digest) if journal else None
            resumed = values is not None
            if values is None:
                values = self._values(window)
                if journal is not None:
                    journal.add(window.digest, values)
            names = [column.name for column in self.columns]
            rows = [
                {**row, **dict(zip(names, found, strict=True))}
                for (row, _), found in zip(window.records, values, strict=True)
            ]
            yield Predicted(rows, sum(one is None for one in window.inputs), window.unread, resumed)

    def _values(self, window: Window) -> list[list[object]]:
        given = [one for one in window.inputs if one is not None]
        results = list(self._predict(given, window) if given else ())
        self.truncated += sum(is_cut(one) for one in results)
        rest = iter(results)
        return [values_of(self.columns, None if one is None else next(rest)) for one in window.inputs]

    def _predict(self, inputs: Sequence[Any], window: Window) -> Iterable[object]:
        """The results of inputs, which are those that each would have alone."""
        match self.predictor:
            case Translator():
                require_room(self.predictor, inputs, window)
            case TextEncoder():
                tokenized = self.predictor.tokenize(inputs)
                self.truncated += tokenized.cut
                vectors = self.predictor.embed_tokenized(tokenized)
                return map(Embedding, inputs, vectors)
            case TextGenerator():  # what is sampled depends on the number of the prompt
                return self.predictor.generate(inputs, samples=1, first=window.first)
            case TablePredictor():
                places = (where for _, where in window.records)
                return self.predictor.predict_rows(Rows.of(inputs, places, self.source.root))
            case ImageClassifier() | StoryAnswerer() if self.probabilities:
                return self.predictor.predict(inputs, top=len(class_names(self.predictor)))
        found: Iterable[object] = self.predictor.predict(inputs)
        return found


def is_cut(result: object) -> bool:
    """Whether only the beginning of a text was read."""
    return (
        isinstance(result, Classification | Regression | TextNumbers | TextLabels | Choice | StyledText)
        and result.cut > 0
    )


def require_room(translator: Translator, texts: Sequence[str], window: Window) -> None:
    """Refuse a text that is too long for the model; the error names its row."""
    places = [where for (_, where), one in zip(window.records, window.inputs, strict=True) if one is not None]
    for where, length in zip(places, translator.lengths(texts), strict=True):
        if length > translator.context:
            raise too_long_error(where, length, translator.context)


def too_long_error(where: str, length: int, context: int) -> UserError:
    """The error for a text with more tokens than the model's context."""
    return UserError(
        "this text is too long for the model", where=where, found=f"{length:,} tokens",
        expected=f"at most {context:,}", todo="split it, or train a model with a larger model.context",
    )  # fmt: skip


def ahead(items: Iterable[T]) -> Iterator[T]:
    """The same items, each of which is made in a thread while the one before it is used."""
    rest = iter(items)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(next, rest, None)
        while (item := waiting.result()) is not None:
            waiting = pool.submit(next, rest, None)
            yield item


def weights_sha256(model: nn.Module) -> str:
    """The SHA-256 of a model's weights."""
    found = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        found.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        found.update(memoryview(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()))
    return found.hexdigest()
