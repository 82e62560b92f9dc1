"""The recipes of texts with a class each, and of texts with a number each."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from heedful.config import Config
from heedful.data.embedded import NumberLanguages
from heedful.data.formats.tables import CsvTable, JsonlTable, TsvTable, labels_of
from heedful.models.heads.config import ClassifierConfig, RegressorConfig
from heedful.tasks.finetuning.recipe import Finetuning
from heedful.training.configs import TrainConfig

ClassesConfig = Annotated[TsvTable | CsvTable | JsonlTable | NumberLanguages, Field(discriminator="kind")]
NumbersConfig = Annotated[TsvTable | CsvTable | JsonlTable, Field(discriminator="kind")]


class ClassificationTaskConfig(Config):
    """What is learned: the class of a text, or of a pair of texts."""

    kind: Literal["classification"] = "classification"
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="share of probability spread over all classes")
    metric: Literal["accuracy", "f1", "matthews"] = Field(
        "accuracy", description="the score that tells which checkpoint is the best"
    )


class RegressionTaskConfig(Config):
    """What is learned: a number for a text, or for a pair of texts."""

    kind: Literal["regression"] = "regression"
    metric: Literal["pearson", "spearman"] = Field(
        "spearman", description="the score that tells which checkpoint is the best"
    )


class ClassificationRecipe(Finetuning):
    """A whole experiment with texts that have a class each."""

    task: ClassificationTaskConfig = ClassificationTaskConfig()
    data: ClassesConfig = Field(description="texts and their labels")
    model: ClassifierConfig = Field(ClassifierConfig(), description="what is trained")
    train: TrainConfig = Field(description="how it is trained")

    def learned(self) -> dict[str, Any]:
        """The labels, which are those of the training data where the recipe names none."""
        if self.model.labels is not None:
            return {}
        read = self.data.read("train")
        return {"labels": labels_of(read.items, "the training data")}


class RegressionRecipe(Finetuning):
    """A whole experiment with texts that have a number each."""

    task: RegressionTaskConfig = RegressionTaskConfig()
    data: NumbersConfig = Field(description="texts and their numbers")
    model: RegressorConfig = Field(RegressorConfig(), description="what is trained")
    train: TrainConfig = Field(description="how it is trained")
