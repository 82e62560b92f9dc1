"""The recipe of language models."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, Tag, ValidationInfo, field_validator, model_validator

from heedful.config import Config, by_kind
from heedful.data.embedded import LibraryProse
from heedful.data.text import TextFiles
from heedful.models.configs import ElmoConfig, RnnLMConfig
from heedful.recipe.parts import TokenizerConfig, packs, require_room
from heedful.training.configs import TrainConfig

TextConfig = Annotated[TextFiles | LibraryProse, Field(discriminator="kind")]
LanguageModelConfig = Annotated[
    Annotated[RnnLMConfig, Tag("rnn_lm")] | Annotated[ElmoConfig, Tag("elmo")], by_kind("rnn_lm")
]


class LanguageModelTask(Config):
    """What is learned: each token of a text from those before it, or from those around it."""

    kind: Literal["language_model"] = "language_model"


class WritingConfig(Config):
    """How a language model goes on with a text: each token is drawn by chance."""

    length: int = Field(200, ge=1, le=1_000_000, description="tokens that are written")
    temperature: float = Field(1.0, gt=0, le=100, description="over 1 more daring, under 1 less")
    top_k: int | None = Field(None, ge=1, description="draw from the k likeliest tokens; null: from all")
    top_p: float | None = Field(None, gt=0, le=1, description="draw from this share of likelihood; null: from all")


class LanguageModelRecipe(Config):
    """A whole experiment with a language model: a text, and writing."""

    task: LanguageModelTask = LanguageModelTask()
    data: TextConfig = Field(description="running text")
    tokenizer: TokenizerConfig = Field(description="how texts are cut into tokens")
    model: LanguageModelConfig = Field(RnnLMConfig(), description="what is trained")
    train: TrainConfig = Field(description="how it is trained")
    decode: WritingConfig = WritingConfig()

    @field_validator("train")
    @classmethod
    def _batches_can_be_read(cls, train: TrainConfig, info: ValidationInfo) -> TrainConfig:
        return packs(train, info.data.get("model"))

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Self:
        require_room(self.model.vocab, self.tokenizer.vocab)
        return self

    @property
    def size(self) -> int:
        """How many numbers are trained, as far as it can be known before the data are read."""
        return self.model.parameters(self.model.vocab or self.tokenizer.vocab)
