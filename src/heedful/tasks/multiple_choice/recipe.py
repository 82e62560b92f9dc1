"""The recipe of multiple choice."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from heedful.config import Config, FieldError
from heedful.data.labelled.choices import ChoicesTable
from heedful.data.own import OwnData
from heedful.data.tables.texts import ChoiceTable
from heedful.models.heads.config import MultipleChoiceConfig
from heedful.tasks.finetuning.recipe import Finetuning
from heedful.training.configs import TrainConfig


class MultipleChoiceTaskConfig(Config):
    """The task: choose the most plausible of several continuations of a text."""

    kind: Literal["multiple_choice"] = "multiple_choice"


class MultipleChoiceRecipe(Finetuning):
    """A multiple-choice experiment, such as SWAG."""

    task: MultipleChoiceTaskConfig = MultipleChoiceTaskConfig()
    data: ChoicesTable | ChoiceTable | OwnData = Field(
        discriminator="kind", description="texts, their choices, and which choice is correct"
    )
    model: MultipleChoiceConfig = Field(MultipleChoiceConfig(), description="the model")
    train: TrainConfig = Field(description="training settings")

    @field_validator("train")
    @classmethod
    def _check_batching(cls, train: TrainConfig) -> TrainConfig:
        if train.batching == "packed":
            raise FieldError("choices cannot be packed, each needs a row; write batching: padded", "batching")
        return train
