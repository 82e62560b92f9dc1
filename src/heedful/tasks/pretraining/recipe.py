"""The recipe of pre-training: an encoder that learns from text without labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from heedful.config import Config, FieldError
from heedful.data.embedded import Counting, LibraryProse
from heedful.data.own import OwnData
from heedful.data.text.documents import Documents
from heedful.data.text.token_documents import TokenFiles
from heedful.data.tokenizers.encoders import TRAINABLE, AnyEncoderTokenizer
from heedful.models import any_of, config_class
from heedful.models.roles import EncoderConfig
from heedful.tasks.recipe_parts import Recipe, Start, packs, require_room
from heedful.training.configs import TrainConfig

SHORTEST = 8  # context that a pair of texts fits into

PretrainingData = Annotated[Documents | LibraryProse | Counting | TokenFiles | OwnData, Field(discriminator="kind")]

USUAL = "bert"
if TYPE_CHECKING:
    AnyEncoder = EncoderConfig
else:
    AnyEncoder = any_of("encoder", usual=USUAL)


class PretrainingTaskConfig(Config):
    """What is learned: masked words from those around them, and whether two texts belong together."""

    kind: Literal["pretraining"] = "pretraining"
    hidden: float = Field(0.15, gt=0, le=0.9, description="fraction of the tokens that are predicted")
    whole_words: bool = Field(False, description="mask all pieces of a word together")
    unrelated: float = Field(
        0.5, ge=0, le=1, description="fraction of the pairs whose second text is from another document"
    )
    short: float = Field(0.1, ge=0, le=1, description="fraction of the pairs that are shorter than the context")
    last_sep: bool = Field(True, description="whether a pair ends with [SEP], as published")
    full_sentences: bool = Field(
        False,
        description="for models without segments: whether an example is as many full sentences as fit, across the ends "
        "of documents, with a separator between documents; else it is from one document",
    )
    objective: Literal["means", "sum"] = Field(
        "means",
        description="mean loss of the masked tokens plus mean loss of the pairs, as published; sum: the losses of "
        "each pair and of all its masked tokens are added",
    )


class PretrainingRecipe(Recipe):
    """A whole experiment with an encoder that learns from documents."""

    task: PretrainingTaskConfig = PretrainingTaskConfig()
    start: Start | None = Field(None, description="the model to start from; null: randomly initialized")
    data: PretrainingData = Field(description="documents")
    tokenizer: AnyEncoderTokenizer | None = Field(
        None, description="how texts are cut into tokens; null: as token files say"
    )
    model: AnyEncoder = Field(config_class(USUAL)(), description="what is trained")
    train: TrainConfig = Field(description="how it is trained")

    @field_validator("model")
    @classmethod
    def _learns_something(cls, model: EncoderConfig) -> EncoderConfig:
        if not model.masked_words:
            raise FieldError("pre-training needs the head for masked words; write true", "masked_words")
        if model.context < SHORTEST:
            raise FieldError(f"a pair of texts needs {SHORTEST} tokens at least", "context")
        return model

    @field_validator("train")
    @classmethod
    def _batches_can_be_read(cls, train: TrainConfig, info: ValidationInfo) -> TrainConfig:
        return packs(train, info.data.get("model"))

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Self:
        if isinstance(self.data, TokenFiles) and self.tokenizer is not None:
            raise FieldError("token files bring their tokenizer with them; leave this out", "tokenizer")
        if not isinstance(self.data, TokenFiles) and self.tokenizer is None:
            raise FieldError("text needs a tokenizer; write {kind: wordpiece, vocab: ...}", "tokenizer")
        if self.model.segments < 2 and self.task.unrelated > 0:
            raise FieldError(
                "a model that does not tell two segments apart reads no pairs; write 0", "task", "unrelated"
            )
        if self.model.segments > 1 and self.task.full_sentences:
            raise FieldError("a model with segments reads pairs; write false", "task", "full_sentences")
        if isinstance(self.tokenizer, TRAINABLE):
            require_room(self.model.vocab, self.tokenizer.vocab)
        return self

    @property
    def size(self) -> int:
        """How many numbers are trained, as far as it can be known before the data are read."""
        if self.model.vocab is not None:
            return self.model.parameters(self.model.vocab)
        known = self.data.vocab if isinstance(self.data, TokenFiles) else self.tokenizer.vocab if self.tokenizer else 0
        return self.model.parameters(known)
