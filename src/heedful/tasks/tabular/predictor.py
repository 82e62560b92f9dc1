"""Predicting a column of a table: losses, scores, and the predictor.

B rows of a batch, N of all, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from heedful.blocks.losses import Loss, confidence_penalty, cross_entropy
from heedful.data.batch import IGNORE_INDEX
from heedful.data.fields.batches import EncodedRows, RowBatch, encode_inputs, encode_rows
from heedful.data.fields.learned import LearnedClass, LearnedNumber, TableSpec
from heedful.data.fields.rows import Row, Rows, Table, from_python, joined, rows_in
from heedful.tasks.classification.predictor import Classification, Regression
from heedful.tasks.predictor import Evaluation, Predictor
from heedful.training.metrics import Score, accuracy, f1, pearson, r2, spearman

BATCH_TOKENS = 16384  # tokens of a batch
CHUNK = 4096  # rows that are encoded at a time


def row_loss(
    model: Any, batch: RowBatch, label_smoothing: float = 0.0, penalty: float = 0.0, weights: Tensor | None = None
) -> Loss:
    """The cross-entropy of the class of each row, or the squared error of its normalized number."""
    return target_loss(model(batch.values), batch, label_smoothing, penalty, weights)


def target_loss(
    outputs: Tensor, batch: RowBatch, label_smoothing: float = 0.0, penalty: float = 0.0, weights: Tensor | None = None
) -> Loss:
    """The summed loss of outputs (B, N): of logits if the targets are classes, else of numbers."""
    if not batch.targets.is_floating_point():
        loss = cross_entropy(outputs, batch.targets, label_smoothing, IGNORE_INDEX, weights)
        return confidence_penalty(loss, outputs, batch.targets != IGNORE_INDEX, penalty)
    squares = (outputs.squeeze(-1).to(batch.targets.dtype) - batch.targets).square()
    real = batch.indices >= 0
    total = torch.where(real, squares, 0.0).sum()
    return Loss(total, total.detach(), real.sum())


@dataclass(frozen=True)
class ClassTarget:
    """A class to predict, from its logits."""

    column: LearnedClass

    @property
    def outputs(self) -> int:
        """One for each class."""
        return len(self.column.names)

    def results(self, outputs: Tensor, unread: Sequence[int]) -> list[Classification]:
        """The most probable class of each row."""
        names, found = self.column.names, []
        for shares, cut in zip(outputs.softmax(-1).tolist(), unread, strict=True):
            best = max(range(len(shares)), key=shares.__getitem__)
            found.append(Classification(names[best], shares[best], dict(zip(names, shares, strict=True)), cut))
        return found

    def scores(self, outputs: Tensor, targets: NDArray[np.int64]) -> tuple[Score, ...]:
        """Accuracy and F1."""
        found = outputs.argmax(-1).numpy()
        return accuracy(found, targets, "rows"), f1(found, targets, self.column.names, "rows")

    def summary(self, result: Any) -> str:
        """A prediction as a sample shows it."""
        return f"{result.label} ({result.probability:.0%})"

    def show(self, target: Any) -> str:
        """The name of the class."""
        return self.column.names[int(target)]


@dataclass(frozen=True)
class NumberTarget:
    """A number to predict, which the model normalizes."""

    column: LearnedNumber

    @property
    def outputs(self) -> int:
        """One."""
        return 1

    def results(self, outputs: Tensor, unread: Sequence[int]) -> list[Regression]:
        """The number of each row."""
        values = self.column.restore(outputs.double().numpy())[:, 0]
        return [Regression(float(value), cut) for value, cut in zip(values, unread, strict=True)]

    def scores(self, outputs: Tensor, targets: NDArray[np.float64]) -> tuple[Score, ...]:
        """The share of explained variance, and both correlations."""
        found = outputs.squeeze(-1).double().numpy()
        return r2(found, targets, "rows"), pearson(found, targets, "rows"), spearman(found, targets, "rows")

    def summary(self, result: Any) -> str:
        """A prediction as a sample shows it."""
        return f"{result.value:.4g}"

    def show(self, target: Any) -> str:
        """The number."""
        return f"{float(self.column.restore(np.array([[target]]))[0, 0]):.4g}"


def target_of(spec: TableSpec) -> ClassTarget | NumberTarget:
    """What a table's model predicts."""
    return ClassTarget(spec.target) if isinstance(spec.target, LearnedClass) else NumberTarget(spec.target)


@torch.inference_mode()
def outputs_of(model: Any, encoded: EncodedRows, device: torch.device) -> Tensor:
    """The outputs (N, C) for all rows, in their order."""
    parts, places = list[Tensor](), list[Tensor]()
    for batch in encoded.in_order(BATCH_TOKENS):
        parts.append(model(batch.to(device).values).float().cpu())
        places.append(batch.indices)
    return torch.cat(parts)[torch.cat(places).argsort()]


def mean_loss(outputs: Tensor, encoded: EncodedRows) -> float:
    """The mean loss per row."""
    targets = torch.from_numpy(encoded.targets)
    batch = RowBatch((), targets, torch.arange(len(targets)))
    return target_loss(outputs.double(), batch).plain.item() / len(encoded)


@dataclass
class TablePredictor(Predictor[Row, Classification | Regression, Row]):
    """Predicts a column of rows: dicts, a DataFrame, or a `Dataset` of the package `datasets`."""

    task: ClassVar = "tabular"

    model: nn.Module
    tokenizer: TableSpec  # what was learned of the columns
    device: torch.device
    notes: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read."""
        return tuple(self.tokenizer.inputs)

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes; none where a number is predicted."""
        return self.tokenizer.target.names if isinstance(self.tokenizer.target, LearnedClass) else ()

    def predict(self, inputs: Table) -> Sequence[Classification | Regression]:
        """The predicted class or number of each row; other columns than those of the model are ignored."""
        return self.predict_rows(from_python(inputs))

    def check(self, rows: Rows) -> None:
        """Refuse rows without a column that is read, or with invalid values; one error lists them."""
        self.tokenizer.require(rows, target=False)
        if problems := rows.problems(self.tokenizer.inputs):
            raise joined(problems, f"{len(problems)} columns have invalid values")

    def predict_rows(self, rows: Rows) -> Sequence[Classification | Regression]:
        """The predicted class or number of each row of a file."""
        found = list[Classification | Regression]()
        self.check(rows)
        for start in range(0, len(rows), CHUNK):
            some = rows.part(start, start + CHUNK)
            values = encode_inputs(some, self.tokenizer)
            encoded = EncodedRows(self.tokenizer, values, np.zeros(len(some), np.int64))
            found += target_of(self.tokenizer).results(
                outputs_of(self.model, encoded, self.device), self.tokenizer.unread(some, values)
            )
        return found

    def evaluate(self, data: str | Path | Table) -> Evaluation:
        """Scores on a .csv, .tsv, .jsonl or .parquet file, or on rows, with the column to predict."""
        return self._evaluate(Path(data) if isinstance(data, str) else data)

    def _evaluate(self, data: Path | Table) -> Evaluation:
        rows = rows_in(data) if isinstance(data, Path) else from_python(data)
        encoded, target = encode_rows(rows, self.tokenizer), target_of(self.tokenizer)
        outputs = outputs_of(self.model, encoded, self.device)
        return Evaluation.of(target.scores(outputs, encoded.targets), mean_loss(outputs, encoded), len(rows))
