"""Predicting a column of a table: one artifact with what is learned of every column."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch

from heedful.blocks.losses import Loss
from heedful.config import parse
from heedful.data.fields.batches import EncodedRows, RowBatch, RowBatches, encode_rows
from heedful.data.fields.columns import Array, Picture, describe
from heedful.data.fields.learned import TableSpec
from heedful.data.fields.rows import Rows, from_python
from heedful.data.formats.sources import Split
from heedful.errors import UserError, short, shown
from heedful.tasks.base import Codec, Evaluated, HeldOut, Names, Sample, Task
from heedful.tasks.imbalance import weights_for
from heedful.tasks.tabular.predictor import ClassTarget, TablePredictor, mean_loss, outputs_of, row_loss, target_of
from heedful.tasks.tabular.recipe import TabularRecipe
from heedful.training.class_report import ClassReport, class_report

SAMPLE = 100  # characters of a row in a sample


class TabularTask(Task[Rows, TableSpec, EncodedRows, TablePredictor]):
    """Predict a column of a row from the others."""

    words: ClassVar = Names(
        examples="rows",
        tokens="columns",
        too_long="rows that are too long",
        blank="blank rows, left out",
        learning="measuring the columns",
        encoding="encoding the rows",
        testing="evaluating the {} set",
        sample=("row", "expected", "predicted"),
        counted="rows",
        loss="a row",
    )
    decoding: ClassVar = None
    artifacts: ClassVar = {"columns.json": Codec(TableSpec.parse, TableSpec.load)}
    searches: ClassVar = False
    recipe: TabularRecipe

    def read(self, split: Split) -> Rows:
        """The rows of a split."""
        found: Rows = self.recipe.data.read(split)
        return found

    @staticmethod
    def collect(examples: Iterable[Any], split: Split) -> Rows:
        """The user's own rows: dicts, a DataFrame, or a `Dataset` of the package `datasets`."""
        found = from_python(examples, f"data.{split}")
        if not len(found):
            raise UserError(f"there are no rows for {split}", where=f"data.{split}", expected="at least one row")
        return found

    def learn(self, read: Rows) -> TableSpec:
        """Tokenizers, normalizations, classes and image sizes, from the training rows."""
        found = TableSpec.learn(read, self.recipe.types(read), self.recipe.task.predict)
        if isinstance(target := target_of(found), ClassTarget) and target.outputs < 2:
            raise UserError(
                "there is only one class", where=f"column {shown(found.name)}", found=shown(target.column.names[0]),
                expected="training rows of at least two classes", todo="check task.predict",
            )  # fmt: skip
        return found

    @staticmethod
    def fitted(config: Any, vocabulary: TableSpec, where: str) -> Any:
        """The settings of the model with the columns and the outputs of the data."""
        found = json.loads(json.dumps({"columns": vocabulary.sizes, "outputs": target_of(vocabulary).outputs}))
        settings = config.model_dump(mode="json")
        for name, value in found.items():
            if settings[name] is not None and settings[name] != value:
                raise UserError(
                    f"the model has other {name} than the data", where=f"{where}.{name}", found=shown(settings[name]),
                    expected=shown(value), todo=f"leave {where}.{name} out",
                )  # fmt: skip
        return parse(type(config), settings | found)

    def encode(self, read: Rows, vocabulary: TableSpec) -> EncodedRows:
        """The columns as arrays and ids."""
        return encode_rows(read, vocabulary)

    def notes(self, encoded: EncodedRows) -> list[str]:
        """The types that were guessed, and texts that are truncated."""
        spec = encoded.spec
        guessed = describe(self.recipe.columns, {**spec.inputs, spec.name: spec.target}, len(encoded))
        cut = f"{encoded.truncated:,} of {len(encoded):,} rows have a longer text than its column reads"
        return [*guessed, *([cut] if encoded.truncated else [])]

    def batches(self, encoded: EncodedRows, packed: bool, even: bool) -> RowBatches:
        """Batches of rows whose texts have similar lengths."""
        train = self.recipe.train
        classes = encoded.targets if self.recipe.task.sampling == "balanced" else None
        if classes is not None:
            self._require_classes(encoded.spec, "task.sampling")
        return RowBatches(encoded, train.seed, train.batch_tokens, train.batch_examples, classes=classes)

    def loss_of(self, model: Any, packed: bool) -> Callable[[RowBatch], Loss]:
        """The cross-entropy of the class, or the squared error of the normalized number."""
        task = self.recipe.task
        return partial(row_loss, model, label_smoothing=task.label_smoothing, penalty=task.confidence_penalty)

    def loss_on(
        self, model: Any, packed: bool, encoded: EncodedRows, vocabulary: TableSpec
    ) -> Callable[[RowBatch], Loss]:
        """The same with the weights of the classes."""
        task = self.recipe.task
        if task.class_weights is None:
            return self.loss_of(model, packed)
        names = self._require_classes(encoded.spec, "task.class_weights")
        weights = weights_for(model, encoded.targets, names, task.class_weights)
        return partial(
            row_loss, model, label_smoothing=task.label_smoothing, penalty=task.confidence_penalty, weights=weights
        )

    def _require_classes(self, spec: TableSpec, where: str) -> tuple[str, ...]:
        """The names of the classes to predict; an error for a number."""
        if not isinstance(target := target_of(spec), ClassTarget):
            raise UserError(
                "a number has no classes", where=where, found=f"column {shown(spec.name)}",
                expected="a column with classes", todo="leave it out",
            )  # fmt: skip
        return tuple(target.column.names)

    @staticmethod
    def predictor(
        model: Any,
        config: Any,
        vocabulary: TableSpec,
        decode: None,
        device: torch.device,
        notes: tuple[str, ...] = (),
    ) -> TablePredictor:
        """The predictor of a trained model."""
        return TablePredictor(model, vocabulary, device, notes)

    def loss(self, predictor: TablePredictor, encoded: EncodedRows) -> float:
        """The mean loss per row."""
        return mean_loss(outputs_of(predictor.model, encoded, predictor.device), encoded)

    def evaluate(self, predictor: TablePredictor, held_out: HeldOut[Rows, EncodedRows]) -> Evaluated:
        """Accuracy and F1, or explained variance and correlations, and a few rows with predictions."""
        read, encoded, target = held_out.read, held_out.encoded, target_of(predictor.tokenizer)
        outputs = outputs_of(predictor.model, encoded, predictor.device)
        rows = held_out.rows(len(encoded), self.recipe.train.samples)
        found = target.results(outputs[rows], [0] * len(rows))
        samples = [
            (row_text(read, row, predictor.columns), target.show(encoded.targets[row]), target.summary(one))
            for row, one in zip(rows, found, strict=True)
        ]
        return held_out.result(target.scores(outputs, encoded.targets), samples)

    def details(self, predictor: TablePredictor, split: Split) -> ClassReport | None:
        """Of classes: confusion, scores of each class, calibration and the worst mistakes."""
        names = predictor.labels
        if not names:
            return None
        read = self.read(split)
        encoded = self.encode(read, predictor.tokenizer)
        best = outputs_of(predictor.model, encoded, predictor.device).softmax(-1).max(-1)  # (N,)

        def show(row: int) -> str:
            return row_text(read, row, predictor.columns)

        found, shares = best.indices.numpy(), best.values.numpy()
        return class_report(split, "rows", encoded.targets, found, shares, names, show)

    def example(self, sample: Sample) -> None:
        """None: a row is more than a text."""
        return

    @property
    def metric(self) -> str:
        """The score in `task.metric`."""
        return str(self.recipe.task.metric)

    def next(self, folder: Path, test: Evaluated | None) -> list[str]:
        """Commands that predict the rows of a file, and that evaluate."""
        name = shlex.quote(str(folder))
        return [f"heedful predict {name} rows.csv", f"heedful eval {name} --split valid"]


def row_text(rows: Rows, row: int, names: Sequence[str]) -> str:
    """A row in a few words."""
    values = ((name, rows.values.get(name, [None] * len(rows))[row]) for name in names)
    cells = (f"{name}={'image' if isinstance(value, Array | Picture) else value}" for name, value in values)
    return short(", ".join(cells), SAMPLE)
