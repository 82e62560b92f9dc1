"""The recipe of predicting a column of a table from the others."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from heedful.config import FieldError
from heedful.data.fields.columns import Column, ColumnType, complete, describe
from heedful.data.fields.parcels import Parcels
from heedful.data.fields.rows import CsvRows, JsonlRows, ParquetRows, Rows, TsvRows, joined
from heedful.data.formats.sources import SPLITS, Name
from heedful.data.own import OwnData
from heedful.data.tables.reading import Record
from heedful.data.tables.texts import FieldTable
from heedful.errors import UserError, shown
from heedful.models import any_of, config_class
from heedful.tasks.recipe_parts import ConfidencePenalty, Recipe, Sampling, Start
from heedful.training.configs import TrainConfig

RowsConfig = Annotated[
    CsvRows | TsvRows | JsonlRows | ParquetRows | FieldTable | Parcels | OwnData, Field(discriminator="kind")
]

USUAL = "tabular"
if TYPE_CHECKING:
    TabularModelConfig = Any
else:
    TabularModelConfig = any_of("tabular", usual=USUAL)


class TabularTaskConfig(Sampling):
    """The task: predict a column, a class or a number, from the other columns of a row."""

    kind: Literal["tabular"] = "tabular"
    predict: Name = Field(description="the column to predict")
    leave_out: tuple[Name, ...] = Field((), max_length=10_000, description="columns that are not read")
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="probability spread evenly over all classes")
    confidence_penalty: ConfidencePenalty = 0.0
    metric: Literal["accuracy", "f1", "r2", "pearson", "spearman", "loss"] = Field(
        "loss",
        description="the score that selects the best checkpoint: accuracy or f1 of classes; r2, pearson or spearman of "
        "numbers; or the loss",
    )


class TabularRecipe(Recipe):
    """An experiment on a table whose columns have types."""

    task: TabularTaskConfig = Field(description="what is predicted")
    start: Start | None = Field(None, description="the model to start from; null: randomly initialized")
    data: RowsConfig = Field(description="the rows")
    columns: dict[Name, Column] = Field(
        {},
        max_length=10_000,
        description="the types of columns, by name; those of others are guessed from their values",
    )
    model: TabularModelConfig = Field(config_class(USUAL)(), description="the model")
    train: TrainConfig = Field(description="training settings")

    @field_validator("train")
    @classmethod
    def _check_batching(cls, train: TrainConfig, info: ValidationInfo) -> TrainConfig:
        if train.compile:
            raise FieldError("texts have too many different lengths to compile; write compile: false", "compile")
        if train.batching == "packed":
            raise FieldError("rows cannot be packed; write batching: padded", "batching")
        return train

    def types(self, rows: Rows) -> dict[str, ColumnType]:
        """The types of the columns that are used; that of the target must be a class or a number."""
        found = complete(self.columns, rows.values, self.task.predict, self.task.leave_out)
        target = found[self.task.predict].kind
        fitting = {"class": ("accuracy", "f1", "loss"), "number": ("r2", "pearson", "spearman", "loss")}
        if target not in fitting:
            raise UserError(
                "this column cannot be predicted", where=f"columns.{self.task.predict}", found=f"kind: {target}",
                expected="a class or a number", todo=f"write columns.{self.task.predict}: {{kind: class}}, or number",
            )  # fmt: skip
        if self.task.metric not in fitting[target]:
            raise UserError(
                f"a {target} has no such score", where="task.metric", found=shown(self.task.metric),
                expected="one of " + ", ".join(fitting[target]),
            )  # fmt: skip
        return found

    def class_column(self, records: Sequence[Record]) -> str | None:
        """The target, if it is a class."""
        target = self.task.predict
        with suppress(UserError):  # it is raised once the data are read
            if isinstance(self.data, FieldTable) and (rows := self.data.examples(records, "train")):
                return target if self.types(rows)[target].kind == "class" else None
        return None

    def data_notes(self) -> list[str]:
        """The types of the columns that are guessed, once the values of all splits are checked."""
        splits = [split for split in SPLITS if split != "test" or self.data.test is not None]
        rows = {split: self.data.read(split) for split in splits}
        types = self.types(rows["train"])
        if problems := [problem for some in rows.values() for problem in some.problems(types)]:
            raise joined(problems, f"{len(problems)} columns have invalid values")
        return list(describe(self.columns, types, len(rows["train"])))

    @property
    def size(self) -> int:
        """The number of parameters, as far as it is known before the data are read."""
        size: int = self.model.parameters()
        return size
