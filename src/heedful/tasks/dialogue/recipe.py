"""The recipe of dialogues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from heedful.config import Config, FieldError
from heedful.data.dialogues.sources import CsvDialogues, DailyDialog, JsonlDialogues, TsvDialogues
from heedful.data.dialogues.trips import Trips
from heedful.data.own import OwnData
from heedful.data.tables.texts import UtteranceTable
from heedful.decode.settings import ReplyConfig
from heedful.models import any_of, config_class
from heedful.tasks.recipe_parts import (
    ConfidencePenalty,
    GenerationRecipe,
    Start,
    TokenizerConfig,
)
from heedful.training.configs import TrainConfig

DialoguesConfig = Annotated[
    DailyDialog | JsonlDialogues | CsvDialogues | TsvDialogues | UtteranceTable | Trips | OwnData,
    Field(discriminator="kind"),
]
USUAL = "hred"
MARKS = 2  # an utterance begins with bos and ends with eos
if TYPE_CHECKING:
    DialogueModelConfig = Any
else:
    DialogueModelConfig = any_of("hierarchical", "seq2seq", usual=USUAL)


class DialogueTaskConfig(Config):
    """The task: predict each utterance of a dialogue from those before it."""

    kind: Literal["dialogue"] = "dialogue"
    longest: int = Field(
        100, ge=1, le=1_000_000, description="longest utterance in tokens; dialogues with a longer one are left out"
    )
    utterances: int = Field(
        32,
        ge=2,
        le=10_000,
        description="most utterances of a dialogue; a longer one is split into parts, each from the last utterance of "
        "the one before, so that 2 means that a reply sees one utterance",
    )
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="probability spread evenly over all tokens")
    confidence_penalty: ConfidencePenalty = 0.0


class DialogueRecipe(GenerationRecipe):
    """A dialogue experiment: task, data, tokenizer, model, training and decoding."""

    task: DialogueTaskConfig = DialogueTaskConfig()
    start: Start | None = Field(None, description="the model to start from; null: randomly initialized")
    data: DialoguesConfig = Field(description="dialogues")
    tokenizer: TokenizerConfig = Field(description="tokenizer of the utterances")
    model: DialogueModelConfig = Field(config_class(USUAL)(), description="the model")
    train: TrainConfig = Field(description="training settings")
    decode: ReplyConfig = ReplyConfig()

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        if self.model.hard:
            raise FieldError(
                "hard attention is not trained on dialogues; write choice: soft", "model", "attention", "choice"
            )
        for name, longest in (("task.longest", self.task.longest), ("decode.max_length", self.decode.max_length)):
            if longest + MARKS > self.model.context:
                raise ValueError(
                    f"{name} is {longest}, but the model's context is {self.model.context}, with begin and end tokens; "
                    f"write model.context: {longest + MARKS}, or a lower {name}"
                )
        return self
