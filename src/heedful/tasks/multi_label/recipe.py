"""The recipe of multi-label classification: any number of labels for a text."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from heedful.config import Config
from heedful.data.formats.tables import CsvTable, JsonlTable, TsvTable, sort_labels
from heedful.data.own import OwnData
from heedful.data.tables.texts import LabelsTable
from heedful.errors import UserError
from heedful.models.heads.config import MultiLabelConfig
from heedful.tasks.finetuning.recipe import Finetuning
from heedful.tasks.recipe_parts import Weights
from heedful.training.configs import TrainConfig

LabelsConfig = Annotated[TsvTable | CsvTable | JsonlTable | LabelsTable | OwnData, Field(discriminator="kind")]
SEPARATOR = ","  # between the labels of a text


class MultiLabelTaskConfig(Config):
    """The task: predict all labels of a text, or of a pair of texts."""

    kind: Literal["multi_label"] = "multi_label"
    metric: Literal["micro_f1", "macro_f1", "accuracy"] = Field(
        "micro_f1", description="the score that selects the best checkpoint; accuracy: all labels of a text are right"
    )
    class_weights: Weights | None = Field(
        None,
        exclude_if=lambda weights: weights is None,
        description="weights of the loss of texts that have a label, by label, others 1; balanced: the same total for "
        "texts with a label and without it; null: none",
    )


class MultiLabelRecipe(Finetuning):
    """An experiment in which a text has any number of labels, with commas between them in the data, or none."""

    task: MultiLabelTaskConfig = MultiLabelTaskConfig()
    data: LabelsConfig = Field(description="texts and their labels, with commas between them")
    model: MultiLabelConfig = Field(MultiLabelConfig(), description="the model")
    train: TrainConfig = Field(description="training settings")

    def inferred_settings(self) -> dict[str, Any]:
        """The labels of the training data, unless the recipe lists labels itself."""
        if self.model.labels is not None:
            return {}
        if isinstance(self.data, LabelsTable) and not isinstance(self.data.columns.label, str):
            return {"labels": self.data.columns.label}
        found = {label for item in self.data.read("train").items for label in split_labels(item.label)}
        if not found:
            raise UserError(
                "no text has a label", where="the training data", todo="check data.label",
                expected="labels, with commas between those of a text",
            )  # fmt: skip
        return {"labels": sort_labels(found)}


def split_labels(text: str) -> list[str]:
    """The labels of a text."""
    return [label.strip() for label in text.split(SEPARATOR) if label.strip()]
