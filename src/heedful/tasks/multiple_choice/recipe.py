"""The recipe of texts with several endings to choose from."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from heedful.config import Config, FieldError
from heedful.data.labelled.choices import ChoicesTable
from heedful.data.own import OwnData
from heedful.models.heads.config import MultipleChoiceConfig
from heedful.tasks.finetuning.recipe import Finetuning
from heedful.training.configs import TrainConfig


class MultipleChoiceTaskConfig(Config):
    """What is learned: the most plausible of several continuations of a text."""

    kind: Literal["multiple_choice"] = "multiple_choice"


class MultipleChoiceRecipe(Finetuning):
    """An experiment with texts that have several endings to choose from."""

    task: MultipleChoiceTaskConfig = MultipleChoiceTaskConfig()
    data: ChoicesTable | OwnData = Field(discriminator="kind", description="texts, their choices, and which is right")
    model: MultipleChoiceConfig = Field(MultipleChoiceConfig(), description="what is trained")
    train: TrainConfig = Field(description="how it is trained")

    @field_validator("train")
    @classmethod
    def _batches_can_be_read(cls, train: TrainConfig) -> TrainConfig:
        if train.batching == "packed":
            raise FieldError("the choices of a question stand in rows of their own; write batching: padded", "batching")
        return train
