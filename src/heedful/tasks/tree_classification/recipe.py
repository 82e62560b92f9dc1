"""The recipe of tree classification."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from heedful.config import FieldError
from heedful.data.own import OwnData
from heedful.data.tables.texts import TreeTable
from heedful.data.trees.treebank import SentimentTrees, WordsConfig
from heedful.models import any_of, config_class
from heedful.tasks.recipe_parts import ClassWeights, ConfidencePenalty, Recipe, Start, check_batching
from heedful.training.configs import TrainConfig

USUAL = "tree_lstm"
if TYPE_CHECKING:
    TreeModelConfig = Any
else:
    TreeModelConfig = any_of("tree_classifier", usual=USUAL)


class TreeTaskConfig(ClassWeights):
    """The task: predict the class of every node of a tree from the words below it."""

    kind: Literal["tree_classification"] = "tree_classification"
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="probability spread evenly over all classes")
    confidence_penalty: ConfidencePenalty = 0.0


class TreeRecipe(Recipe):
    """An experiment in tree classification, such as the Stanford Sentiment Treebank."""

    task: TreeTaskConfig = TreeTaskConfig()
    start: Start | None = Field(None, description="the model to start from; null: randomly initialized")
    data: SentimentTrees | TreeTable | OwnData = Field(
        discriminator="kind", description="files of labelled trees, and word vectors"
    )
    tokenizer: WordsConfig = Field(WordsConfig(), description="vocabulary of words")
    model: TreeModelConfig = Field(config_class(USUAL)(), description="the model")
    train: TrainConfig = Field(description="training settings")

    @field_validator("train")
    @classmethod
    def _check_batching(cls, train: TrainConfig, info: ValidationInfo) -> TrainConfig:
        if train.compile:
            raise FieldError("batches of trees have too many shapes to compile; write compile: false", "compile")
        return check_batching(train, info.data.get("model"))

    @model_validator(mode="after")
    def _check_classes(self) -> Self:
        if isinstance(self.data, SentimentTrees) and self.model.classes != self.data.classes:
            raise ValueError(
                f"model.classes is {self.model.classes}, but data.classes is {self.data.classes}; "
                f"write model.classes: {self.data.classes}"
            )
        return self

    @property
    def vectors_file(self) -> Path | None:
        """The file of pre-trained word vectors, if there is one."""
        return self.data.vectors_file if isinstance(self.data, SentimentTrees) else None

    @property
    def size(self) -> int:
        """The number of parameters, as far as it is known before the data are read."""
        size: int = self.model.parameters(self.model.vocab or 0)
        return size
