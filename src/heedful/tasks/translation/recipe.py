"""The recipe of translation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from heedful.config import Config, FieldError
from heedful.data.embedded import NumberWords
from heedful.data.formats.sources import Jsonl, ParallelFiles, Tsv
from heedful.data.own import OwnData
from heedful.decode.settings import DecodeConfig
from heedful.models import any_of, config_class
from heedful.tasks.recipe_parts import Recipe, Start, TokenizerConfig, packs, require_room
from heedful.training.configs import TrainConfig

PairsConfig = Annotated[ParallelFiles | Tsv | Jsonl | NumberWords | OwnData, Field(discriminator="kind")]
USUAL = "transformer"
if TYPE_CHECKING:
    TranslatorConfig = Any
else:
    TranslatorConfig = any_of("seq2seq", usual=USUAL)


class TranslationTaskConfig(Config):
    """What is learned: the target sentence from the source sentence."""

    kind: Literal["translation"] = "translation"
    label_smoothing: float = Field(0.1, ge=0, lt=1, description="probability spread evenly over all tokens")


class TranslationRecipe(Recipe):
    """A whole experiment: task, data, tokenizer, model, training and decoding."""

    task: TranslationTaskConfig = TranslationTaskConfig()
    start: Start | None = Field(None, description="the model to start from; null: randomly initialized")
    data: PairsConfig = Field(description="texts and their translations")
    tokenizer: TokenizerConfig = Field(description="how texts are cut into tokens")
    model: TranslatorConfig = Field(config_class(USUAL)(), description="what is trained")
    train: TrainConfig = Field(description="how it is trained")
    decode: DecodeConfig = DecodeConfig()

    @field_validator("train")
    @classmethod
    def _batches_can_be_read(cls, train: TrainConfig, info: ValidationInfo) -> TrainConfig:
        model = info.data.get("model")
        if train.compile and model is not None and model.uncompiled is not None:
            raise FieldError(model.uncompiled, "compile")
        return packs(train, model)

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Self:
        require_room(self.model.vocab, self.tokenizer.vocab)
        return self

    @model_validator(mode="after")
    def _translations_fit(self) -> Self:
        longest = self.decode.max_length
        if longest is not None and longest > self.model.context:
            raise ValueError(
                f"decode.max_length is {longest}, but the model's context is {self.model.context}; "
                f"write model.context: {longest}"
            )
        return self

    @property
    def size(self) -> int:
        """How many numbers are trained, as far as it can be known before the data are read."""
        size: int = self.model.parameters(self.model.vocab or self.tokenizer.vocab)
        return size
