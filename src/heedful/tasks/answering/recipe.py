"""The recipe of extractive question answering."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from heedful.config import Config
from heedful.data.formats.squad import QuestionsConfig, WindowsConfig
from heedful.data.own import OwnData
from heedful.data.tables.texts import QuestionTable
from heedful.models.heads.config import AnswererConfig
from heedful.tasks.finetuning.recipe import Finetuning
from heedful.training.configs import TrainConfig


class AnsweringTaskConfig(Config):
    """The task: predict where in a passage the answer to a question starts and ends."""

    kind: Literal["answering"] = "answering"


class AnsweringRecipe(Finetuning):
    """An experiment in extractive question answering, such as SQuAD."""

    task: AnsweringTaskConfig = AnsweringTaskConfig()
    data: QuestionsConfig | QuestionTable | OwnData = Field(
        discriminator="kind", description="questions, passages and answers"
    )
    model: AnswererConfig = Field(AnswererConfig(), description="the model")
    train: TrainConfig = Field(description="training settings")
    decode: WindowsConfig = Field(
        WindowsConfig(), description="windows over long passages, in training too, and the maximum length of an answer"
    )
