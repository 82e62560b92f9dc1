"""The base of fine-tuning recipes: the folder that a run starts from, and settings that are filled in from it."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from heedful.config import Config, FieldError
from heedful.data.formats.sources import Name
from heedful.data.tokenizers.encoders import CLS_LAST, TrainableTokenizer
from heedful.errors import UserError
from heedful.files.reading import is_folder
from heedful.models import kinds_of
from heedful.models.heads.config import HeadConfig
from heedful.models.roles import BELOW_HEADS, BelowHeadConfig
from heedful.tasks.recipe_parts import Recipe, Start, check_packing
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

    def encoder(self) -> BelowHeadConfig:
        """The settings of the encoder in the folder; its weights are not read."""
        from heedful.hub.folder import read_config

        dropout = {} if self.dropout is None else {"dropout": self.dropout, "attention_dropout": self.dropout}
        found: BelowHeadConfig = read_config(self.path, *BELOW_HEADS)
        return found.model_copy(update=dropout)

    def problems(self) -> list[UserError]:
        """Errors in the settings of the folder."""
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
    """An experiment with an encoder and one layer on top of it; each task has a subclass.

    Model settings that are null are filled in when a run starts, so that the recipe of the run is complete.
    """

    task: Config
    start: EncoderStart | None = Field(None, description="the encoder to start from; null: randomly initialized")
    data: Any
    tokenizer: TrainableTokenizer | None = Field(None, description="tokenizer; null: that of the folder in `start`")
    model: HeadConfig
    train: TrainConfig

    @field_validator("train")
    @classmethod
    def _check_steps(cls, train: TrainConfig, info: ValidationInfo) -> TrainConfig:
        if train.compile:
            raise FieldError("fine-tuning is not compiled; on a GPU it uses CUDA graphs; write false", "compile")
        check_packing(train, info.data.get("model"))
        return train

    @model_validator(mode="after")
    def _check_tokenizer(self) -> Self:
        if self.start is None and self.tokenizer is None:
            raise FieldError("without `start`, a tokenizer is needed; write {kind: wordpiece, vocab: ...}", "tokenizer")
        if self.start is not None and self.tokenizer is not None:
            raise FieldError("the encoder in `start` has its own tokenizer; leave this out", "tokenizer")
        return self

    @model_validator(mode="after")
    def _check_encoder(self) -> Self:
        if self.start is None and self.model.encoder is None:
            usual = kinds_of("encoder")[0]
            raise FieldError(
                f"without `start`, model.encoder is needed; write {{kind: {usual}, width: ...}}", "model", "encoder"
            )
        return self

    @model_validator(mode="after")
    def _check_segments(self) -> Self:
        encoder = self.model.encoder
        two = encoder is not None and encoder.segment_types == 2  # fewer are ignored
        if two and encoder is not None and not encoder.compares_segments and isinstance(self.tokenizer, CLS_LAST):
            raise FieldError(
                "its classification token is in a third segment; write model.encoder.segments: 3 or another kind",
                "tokenizer",
                "kind",
            )
        return self

    @property
    def encoder(self) -> BelowHeadConfig:
        """The settings of the encoder, from the recipe or from the folder to start from."""
        if self.model.encoder is not None:
            return self.model.encoder
        assert self.start is not None
        return self.start.encoder().under_head(type(self.model).pools, self.model.kind)

    @property
    def size(self) -> int:
        """The number of parameters, as far as it is known before the data are read."""
        encoder = self.encoder
        size: int = self.model.model_copy(update={"encoder": encoder}).parameters(
            encoder.vocab or (self.tokenizer.vocab if self.tokenizer else 0)
        )
        return size

    def inferred_settings(self) -> dict[str, Any]:
        """Model settings that are inferred from the training data if the recipe leaves them out; none by default."""
        return {}

    def fill_in(self) -> Self:
        """A copy with the settings that are inferred from its files."""
        encoder = self.encoder
        for problem in self._too_long(encoder):
            raise problem
        model = self.model.model_copy(update={"encoder": encoder, **self.inferred_settings()})
        return self.model_copy(update={"model": model})

    def fill_in_like(self, other: Any) -> Self:
        """A copy with the inferred settings of another recipe, if that starts from the same folder."""
        if type(other) is not type(self) or other.start != self.start:
            return self
        known = dict(other.model)
        model = self.model.model_copy(update={name: known[name] for name in self.model.missing})
        return self.model_copy(update={"model": model})

    def problems(self) -> list[UserError]:
        """Errors in the folder to start from, unless the recipe is already filled in from it."""
        if self.start is None or self.model.encoder is not None:
            return []
        return self.start.problems() or self._too_long(self.encoder)

    def _too_long(self, encoder: BelowHeadConfig) -> list[UserError]:
        """The error for texts that may be longer than the context of the encoder in `start`."""
        longest = self.model.longest
        if self.model.encoder is not None or longest is None or longest <= encoder.context:
            return []
        problem = UserError(
            "texts may be longer than the encoder's context", where="model.longest", found=f"{longest:,}",
            expected=f"at most {encoder.context:,}, the context of the encoder in start.folder",
            todo=f"write {encoder.context}, or start from an encoder with more positions: "
            f"heedful convert SRC DST --context {longest}",
        )  # fmt: skip
        return [problem]
