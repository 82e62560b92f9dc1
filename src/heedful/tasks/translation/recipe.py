"""The recipe of translation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from heedful.config import Config
from heedful.data.embedded import NumberWords
from heedful.data.formats.parallel import ParallelColumns, ParallelCorpora, ParallelNumbers
from heedful.data.formats.sources import Jsonl, ParallelFiles, Tsv
from heedful.data.own import OwnData
from heedful.decode.settings import DecodeConfig
from heedful.models import any_of, config_class
from heedful.tasks.recipe_parts import Recipe, Start, TokenizerConfig, check_batching, check_vocab_size
from heedful.training.configs import TrainConfig

PairsConfig = Annotated[
    ParallelFiles | Tsv | Jsonl | NumberWords | ParallelCorpora | ParallelColumns | ParallelNumbers | OwnData,
    Field(discriminator="kind"),
]
USUAL = "transformer"
if TYPE_CHECKING:
    TranslatorConfig = Any
else:
    TranslatorConfig = any_of("seq2seq", usual=USUAL)


class TranslationTaskConfig(Config):
    """The task: predict the target sentence from the source sentence."""

    kind: Literal["translation"] = "translation"
    label_smoothing: float = Field(0.1, ge=0, lt=1, description="probability spread evenly over all tokens")


class TranslationRecipe(Recipe):
    """A translation experiment: task, data, tokenizer, model, training and decoding."""

    task: TranslationTaskConfig = TranslationTaskConfig()
    start: Start | None = Field(None, description="the model to start from; null: randomly initialized")
    data: PairsConfig = Field(description="texts and their translations")
    tokenizer: TokenizerConfig = Field(description="tokenizer of both sides")
    model: TranslatorConfig = Field(config_class(USUAL)(), description="the model")
    train: TrainConfig = Field(description="training settings")
    decode: DecodeConfig = DecodeConfig()

    @field_validator("train")
    @classmethod
    def _check_batching(cls, train: TrainConfig, info: ValidationInfo) -> TrainConfig:
        return check_batching(train, info.data.get("model"))

    @model_validator(mode="after")
    def _check_vocab(self) -> Self:
        check_vocab_size(self.model.vocab, self.tokenizer.vocab)
        return self

    @model_validator(mode="after")
    def _check_max_length(self) -> Self:
        longest = self.decode.max_length
        if longest is not None and longest > self.model.context:
            raise ValueError(
                f"decode.max_length is {longest}, but the model's context is {self.model.context}; "
                f"write model.context: {longest}"
            )
        return self

    @property
    def size(self) -> int:
        """The number of parameters, as far as it is known before the data are read."""
        size: int = self.model.parameters(self.model.vocab or self.tokenizer.vocab)
        return size
