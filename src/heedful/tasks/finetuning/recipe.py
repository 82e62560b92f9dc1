"""What the recipes of fine-tuned models share: the folder that a run starts from, and what is filled in from it."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from heedful.config import Config, FieldError
from heedful.data.formats.sources import Name
from heedful.data.tokenizers.encoders import TrainableTokenizer
from heedful.errors import UserError
from heedful.files.reading import is_folder
from heedful.models import kinds_of
from heedful.models.heads.config import HeadConfig
from heedful.models.roles import EncoderConfig
from heedful.tasks.recipe_parts import Recipe, Start
from heedful.training.checkpoint.choice import split_checkpoint
from heedful.training.configs import TrainConfig


class EncoderStart(Start):
    """A trained encoder to start from, with its tokenizer."""

    folder: Name = Field(
        description="a run or a model folder of Heedful, a Hugging Face folder, or the published files"
    )
    dropout: float | None = Field(
        None, ge=0, lt=1, description="dropout of the encoder, attention included; null: that of the folder"
    )

    def encoder(self) -> EncoderConfig:
        """What kind of encoder the folder holds; only its settings are read."""
        from heedful.hub.folder import read_config

        dropout = {} if self.dropout is None else {"dropout": self.dropout, "attention_dropout": self.dropout}
        found: EncoderConfig = read_config(self.path, "encoder")
        return found.model_copy(update=dropout)

    def problems(self) -> list[UserError]:
        """What a look at the folder already shows to be wrong."""
        if not is_folder(split_checkpoint(self.path)[0]):
            return [
                UserError(
                    "there is no such folder",
                    where="start.folder",
                    found=self.folder,
                    expected="a folder with a trained encoder: a run, or config.json, weights and vocabulary",
                    todo="name one; a model of kind conv_classifier classifies texts without",
                )
            ]
        try:
            self.encoder()
        except UserError as error:
            return [error]
        return []


class Finetuning(Recipe):
    """A whole experiment with an encoder and one layer on top of it. Each task has its own recipe, and is one of these.

    What is null in the model is filled in when a run begins, so that the run's own recipe says everything.
    """

    task: Config
    start: EncoderStart | None = Field(None, description="the encoder to start from; null: randomly initialized")
    data: Any
    tokenizer: TrainableTokenizer | None = Field(
        None, description="how texts are cut into tokens; null: as in the folder that `start` names"
    )
    model: HeadConfig
    train: TrainConfig

    @field_validator("train")
    @classmethod
    def _is_not_compiled(cls, train: TrainConfig) -> TrainConfig:
        if train.compile:
            raise FieldError("steps are captured as graphs on a GPU, which serves the same end; write false", "compile")
        return train

    @model_validator(mode="after")
    def _has_a_tokenizer(self) -> Self:
        if self.start is None and self.tokenizer is None:
            raise FieldError("without `start`, a tokenizer is needed; write {kind: wordpiece, vocab: ...}", "tokenizer")
        if self.start is not None and self.tokenizer is not None:
            raise FieldError("the encoder reads by the tokenizer it was trained with; leave this out", "tokenizer")
        return self

    @model_validator(mode="after")
    def _has_an_encoder(self) -> Self:
        if self.start is None and self.model.encoder is None:
            usual = kinds_of("encoder")[0]
            raise FieldError(
                f"without `start`, model.encoder is needed; write {{kind: {usual}, width: ...}}", "model", "encoder"
            )
        return self

    @property
    def encoder(self) -> EncoderConfig:
        """The encoder, be it from the folder."""
        if self.model.encoder is not None:
            return self.model.encoder
        assert self.start is not None
        return self.start.encoder().under_head(type(self.model).pools)

    @property
    def size(self) -> int:
        """How many numbers there are, as far as it can be known before the data are read."""
        encoder = self.encoder
        size: int = self.model.model_copy(update={"encoder": encoder}).parameters(
            encoder.vocab or (self.tokenizer.vocab if self.tokenizer else 0)
        )
        return size

    def inferred_settings(self) -> dict[str, Any]:
        """What of the model's settings the training data tell, where the recipe leaves it to them: nothing."""
        return {}

    def filled(self) -> Self:
        """This recipe with what its files tell."""
        model = self.model.model_copy(update={"encoder": self.encoder, **self.inferred_settings()})
        return self.model_copy(update={"model": model})

    def filled_as(self, other: Any) -> Self:
        """This recipe with what another one, which starts from the same folder, was filled in with."""
        if type(other) is not type(self) or other.start != self.start:
            return self
        known = dict(other.model)
        model = self.model.model_copy(update={name: known[name] for name in self.model.missing})
        return self.model_copy(update={"model": model})

    def problems(self) -> list[UserError]:
        """What is wrong with the folder to start from, as long as the recipe is not filled in from it."""
        return self.start.problems() if self.start is not None and self.model.encoder is None else []
