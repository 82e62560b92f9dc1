"""The recipe of pre-training an encoder on unlabelled text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from heedful.config import Config, FieldError
from heedful.data.embedded import LibraryProse
from heedful.data.own import OwnData
from heedful.data.text.documents import Documents
from heedful.data.text.token_documents import TokenFiles
from heedful.data.tokenizers.encoders import TRAINABLE, AnyEncoderTokenizer
from heedful.models import any_of, config_class
from heedful.models.roles import EncoderConfig
from heedful.tasks.recipe_parts import Recipe, Start, check_batching, check_vocab_size
from heedful.training.configs import TrainConfig

MIN_CONTEXT = 8  # for a pair of texts

PretrainingData = Annotated[Documents | LibraryProse | TokenFiles | OwnData, Field(discriminator="kind")]

USUAL = "bert"
if TYPE_CHECKING:
    AnyEncoder = EncoderConfig
else:
    AnyEncoder = any_of("encoder", usual=USUAL)


class PretrainingTaskConfig(Config):
    """The task: masked language modelling, and next-sentence prediction."""

    kind: Literal["pretraining"] = "pretraining"
    hidden: float = Field(0.15, gt=0, le=0.9, description="fraction of the tokens that are predicted")
    whole_words: bool = Field(False, description="mask all pieces of a word together")
    unrelated: float = Field(
        0.5, ge=0, le=1, description="fraction of the pairs whose second text is from another document"
    )
    short: float = Field(0.1, ge=0, le=1, description="fraction of the pairs that are shorter than the context")
    last_sep: bool = Field(True, description="whether a pair ends with [SEP], as published")
    objective: Literal["means", "sum"] = Field(
        "means",
        description="mean loss of the masked tokens plus mean loss of the pairs, as published; sum: the losses of "
        "each pair and of all its masked tokens are added",
    )


class PretrainingRecipe(Recipe):
    """An experiment in pre-training an encoder on documents."""

    task: PretrainingTaskConfig = PretrainingTaskConfig()
    start: Start | None = Field(None, description="the model to start from; null: randomly initialized")
    data: PretrainingData = Field(description="documents")
    tokenizer: AnyEncoderTokenizer | None = Field(None, description="tokenizer; null: that of the token files")
    model: AnyEncoder = Field(config_class(USUAL)(), description="the model")
    train: TrainConfig = Field(description="training settings")

    @field_validator("model")
    @classmethod
    def _check_model(cls, model: EncoderConfig) -> EncoderConfig:
        if not model.masked_words:
            raise FieldError("pre-training needs the head for masked tokens; write true", "masked_words")
        if model.context < MIN_CONTEXT:
            raise FieldError(f"a pair of texts needs at least {MIN_CONTEXT} tokens", "context")
        return model

    @field_validator("train")
    @classmethod
    def _check_batching(cls, train: TrainConfig, info: ValidationInfo) -> TrainConfig:
        return check_batching(train, info.data.get("model"))

    @model_validator(mode="after")
    def _check_tokenizer_and_pairs(self) -> Self:
        if isinstance(self.data, TokenFiles) and self.tokenizer is not None:
            raise FieldError("token files have their own tokenizer; leave this out", "tokenizer")
        if not isinstance(self.data, TokenFiles) and self.tokenizer is None:
            raise FieldError("text needs a tokenizer; write {kind: wordpiece, vocab: ...}", "tokenizer")
        if self.model.segments < 2 and self.task.unrelated > 0:
            raise FieldError("a model without segments cannot be trained on pairs; write 0", "task", "unrelated")
        if isinstance(self.tokenizer, TRAINABLE):
            check_vocab_size(self.model.vocab, self.tokenizer.vocab)
        return self

    @property
    def size(self) -> int:
        """The number of parameters, as far as it is known before the data are read."""
        if self.model.vocab is not None:
            return self.model.parameters(self.model.vocab)
        known = self.data.vocab if isinstance(self.data, TokenFiles) else self.tokenizer.vocab if self.tokenizer else 0
        return self.model.parameters(known)
