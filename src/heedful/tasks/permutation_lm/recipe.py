"""The recipe of permutation language modelling: an encoder that predicts tokens in random orders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from heedful.config import Config, FieldError
from heedful.data.tokenizers.encoders import AnyEncoderTokenizer
from heedful.models import any_of, config_class
from heedful.models.roles import EncoderConfig
from heedful.tasks.pretraining.recipe import (
    PretrainingData,
    model_size,
    require_tokenizer,
    require_words,
)
from heedful.tasks.recipe_parts import Recipe, Start, check_batching
from heedful.training.configs import TrainConfig

USUAL = "xlnet"
SHORTEST = 16  # context that earlier text and a pair fit into
if TYPE_CHECKING:
    AnyEncoder = EncoderConfig
else:
    AnyEncoder = any_of("two_streams", usual=USUAL)


class PermutationTaskConfig(Config):
    """The task: predict some tokens from those before them in a random order (Yang et al., 2019)."""

    kind: Literal["permutation_lm"] = "permutation_lm"
    one_in: int = Field(6, ge=1, le=1000, description="K: one of K tokens is predicted")
    longest_span: int = Field(5, ge=1, le=100, description="maximum length of a predicted span, in tokens")
    unrelated: float = Field(
        0.5, ge=0, le=1, description="fraction of the pairs whose second text is from a random place"
    )
    memory: int = Field(
        0, ge=0, le=1_048_576,
        description="tokens of earlier text in the memory; half of the context is then text for the memory of the next "
        "step; 0: none",
    )  # fmt: skip


class PermutationRecipe(Recipe):
    """An experiment in permutation language modelling with an encoder."""

    task: PermutationTaskConfig = PermutationTaskConfig()
    start: Start | None = Field(None, description="the model to start from; null: randomly initialized")
    data: PretrainingData = Field(description="documents")
    tokenizer: AnyEncoderTokenizer | None = Field(None, description="tokenizer; null: that of the token files")
    model: AnyEncoder = Field(config_class(USUAL)(), description="the model")
    train: TrainConfig = Field(description="training settings")

    @field_validator("model")
    @classmethod
    def _check_model(cls, model: EncoderConfig) -> EncoderConfig:
        return require_words(model)

    @field_validator("train")
    @classmethod
    def _check_batching(cls, train: TrainConfig, info: ValidationInfo) -> TrainConfig:
        return check_batching(train, info.data.get("model"))

    @model_validator(mode="after")
    def _check_tokenizer(self) -> Self:
        require_tokenizer(self)
        if self.task.memory and self.model.context < SHORTEST:
            raise FieldError(f"earlier text and a pair need at least {SHORTEST} tokens", "model", "context")
        return self

    @property
    def size(self) -> int:
        """The number of parameters, as far as it is known before the data are read."""
        return model_size(self)
