"""The recipe of questions whose answers stand in a passage."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from heedful.config import Config
from heedful.data.formats.squad import QuestionsConfig, WindowsConfig
from heedful.data.own import OwnData
from heedful.models.heads.config import AnswererConfig
from heedful.tasks.finetuning.recipe import Finetuning
from heedful.training.configs import TrainConfig


class AnsweringTaskConfig(Config):
    """What is learned: where in a passage the answer to a question begins, and where it ends."""

    kind: Literal["answering"] = "answering"


class AnsweringRecipe(Finetuning):
    """A whole experiment with questions about passages."""

    task: AnsweringTaskConfig = AnsweringTaskConfig()
    data: QuestionsConfig | OwnData = Field(discriminator="kind", description="questions, passages and answers")
    model: AnswererConfig = Field(AnswererConfig(), description="what is trained")
    train: TrainConfig = Field(description="how it is trained")
    decode: WindowsConfig = Field(
        WindowsConfig(), description="how long passages are read, in training too, and what an answer may be"
    )
