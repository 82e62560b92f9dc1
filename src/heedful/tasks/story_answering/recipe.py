"""The recipe of answering questions about stories."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from heedful.config import Config, FieldError
from heedful.data.own import OwnData
from heedful.data.stories.sources import BabiFiles, GeneratedStories, JsonStories
from heedful.data.tables.texts import StoryTable
from heedful.models import any_of, config_class
from heedful.tasks.recipe_parts import Recipe, Start, check_batching
from heedful.training.configs import TrainConfig

USUAL = "memory_network"
if TYPE_CHECKING:
    StoryModel = Any
else:
    StoryModel = any_of("story_answerer", usual=USUAL)


class StoryTaskConfig(Config):
    """The task: answer questions about a story with one of the answers of the training data."""

    kind: Literal["story_answering"] = "story_answering"


class StoryRecipe(Recipe):
    """An experiment in answering questions about stories, such as the bAbI tasks."""

    task: StoryTaskConfig = StoryTaskConfig()
    start: Start | None = Field(None, description="the model to start from; null: randomly initialized")
    data: GeneratedStories | BabiFiles | JsonStories | StoryTable | OwnData = Field(
        discriminator="kind", description="stories with questions and answers"
    )
    model: StoryModel = Field(config_class(USUAL)(), description="the model")
    train: TrainConfig = Field(description="training settings")

    @field_validator("train")
    @classmethod
    def _check_batching(cls, train: TrainConfig, info: ValidationInfo) -> TrainConfig:
        if train.batch_examples is None:
            raise FieldError("the number of questions per batch is needed; write 64, for example", "batch_examples")
        if train.compile:
            raise FieldError("batches of stories have too many shapes to compile; write compile: false", "compile")
        check_batching(train.model_copy(update={"batch_examples": None}), info.data.get("model"))
        return train

    @property
    def size(self) -> int:
        """The number of parameters, as far as it is known before the data are read."""
        size: int = self.model.parameters(self.model.vocab or 0)
        return size
