"""The recipe of language models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from heedful.config import Config, FieldError
from heedful.data.embedded import LibraryProse
from heedful.data.formats.sources import Name
from heedful.data.own import OwnData
from heedful.data.tables.texts import DocumentTable
from heedful.data.text.documents import Documents
from heedful.data.text.files import TextFiles
from heedful.data.text.token_text import TokenizedText
from heedful.data.tokenizers.byte_pairs import Gpt2Bpe, Gpt2BpeFiles
from heedful.data.tokenizers.tokenizer import Bpe, Characters, Unigram, WholeWords, WordPiece
from heedful.decode.settings import WritingConfig
from heedful.models import MODELS, any_of, config_class
from heedful.tasks.recipe_parts import Recipe, Start, check_batching, check_vocab_size, with_article
from heedful.training.configs import TrainConfig

TextConfig = Annotated[
    TextFiles | Documents | DocumentTable | LibraryProse | TokenizedText | OwnData, Field(discriminator="kind")
]
LanguageTokenizerConfig = Annotated[
    Bpe | WordPiece | Unigram | Characters | WholeWords | Gpt2Bpe | Gpt2BpeFiles, Field(discriminator="kind")
]
USUAL = "rnn_lm"
if TYPE_CHECKING:
    LanguageModelConfig = Any
else:
    LanguageModelConfig = any_of("causal", "bidirectional", usual=USUAL)


class LanguageModelTaskConfig(Config):
    """The task: predict each token of a text from the earlier ones, or from those on either side."""

    kind: Literal["language_model"] = "language_model"
    stride: int | None = Field(
        None,
        ge=1,
        description="tokens that a `gpt` predicts in each window when it is evaluated, after the context from the "
        "window before; equal to the context: windows as in training; null: half the context",
    )
    carry: bool = Field(
        False,
        exclude_if=lambda carry: not carry,  # recipes and runs without it stay as they are
        description="carry the state of a recurrent model, or of one with a memory, from step to step: each row of a "
        "batch reads its own part of the text in order, and gradients stay within a step (truncated backpropagation "
        "through time)",
    )


class CausalStart(Start):
    """A trained language model to start from, with its tokenizer."""

    folder: Name = Field(description="a run or a model folder of Heedful, a Hugging Face folder, or published files")


class LanguageModelRecipe(Recipe):
    """An experiment in language modelling.

    If it starts from a folder, model settings that are left out are taken from there.
    """

    task: LanguageModelTaskConfig = LanguageModelTaskConfig()
    start: CausalStart | None = Field(None, description="the model to start from; null: randomly initialized")
    data: TextConfig = Field(description="text")
    tokenizer: LanguageTokenizerConfig | None = Field(
        None, description="tokenizer; null: that of the token files or of `start`"
    )
    model: LanguageModelConfig = Field(config_class(USUAL)(), description="the model")
    train: TrainConfig = Field(description="training settings")
    decode: WritingConfig = WritingConfig()

    @field_validator("model", mode="before")
    @classmethod
    def _complete_from_start(cls, model: Any, info: ValidationInfo) -> Any:
        start = info.data.get("start")
        given = model if isinstance(model, dict) else {}  # without one, pydantic passes the default
        kind = given.get("kind")
        if start is None or (kind in MODELS and given.keys() >= config_class(str(kind))().model_dump().keys()):
            return model  # complete, as in the recipe of a run
        from heedful.hub.folder import read_config

        found = read_config(start.path, "causal", "bidirectional").model_dump()
        if given.get("kind", found["kind"]) != found["kind"]:
            raise FieldError(f"`start` contains {with_article(found['kind'])}; leave this out", "kind")
        return {**found, **given}

    @field_validator("train")
    @classmethod
    def _check_batching(cls, train: TrainConfig, info: ValidationInfo) -> TrainConfig:
        return check_batching(train, info.data.get("model"))

    @model_validator(mode="after")
    def _check_tokenizer(self) -> Self:
        has_tokenizer = isinstance(self.data, TokenizedText) or self.start is not None
        if has_tokenizer and self.tokenizer is not None:
            raise FieldError("token files and trained models have their own tokenizer; leave this out", "tokenizer")
        if not has_tokenizer and self.tokenizer is None:
            raise FieldError("text needs a tokenizer; write {kind: characters, vocab: ...}, say", "tokenizer")
        if self.model.role == "bidirectional" and isinstance(self.tokenizer, Gpt2Bpe | Gpt2BpeFiles):
            raise FieldError(
                f"{with_article(self.model.kind)} reads lines; write {{kind: words, vocab: ...}}, say", "tokenizer"
            )
        if self.tokenizer is not None and not isinstance(self.tokenizer, Gpt2BpeFiles):
            check_vocab_size(self.model.vocab, self.tokenizer.vocab)
        return self

    @model_validator(mode="after")
    def _check_carry(self) -> Self:
        if self.task.carry and (self.model.role != "causal" or self.model.fixed_context):
            problem = f"{with_article(self.model.kind)} has no state to carry; leave this out"
            raise FieldError(problem, "task", "carry")
        if self.task.carry and self.train.compile and not self.model.attends:
            raise FieldError(
                "steps that carry a recurrent state cannot be compiled; leave this out", "train", "compile"
            )
        return self

    @model_validator(mode="after")
    def _check_memory(self) -> Self:
        memory, most = self.decode.memory, self.model.max_memory
        if memory is not None and not most:
            raise FieldError(f"{with_article(self.model.kind)} has no memory; leave this out", "decode", "memory")
        if memory is not None and memory > most:
            problem = f"the model learns distances up to {most}; write at most this, or set model.clamp: {most}"
            raise FieldError(problem, "decode", "memory")
        return self

    @model_validator(mode="after")
    def _check_stride(self) -> Self:
        if self.task.stride is not None and not self.model.fixed_context:
            raise FieldError("only a gpt is evaluated in overlapping windows; leave this out", "task", "stride")
        if self.task.stride is not None and self.task.stride > self.model.context:
            raise FieldError(
                f"a window has {self.model.context} tokens (model.context); write at most that", "task", "stride"
            )
        return self

    @property
    def size(self) -> int:
        """The number of parameters, as far as it is known before the data are read."""
        known = (
            self.data.vocab if isinstance(self.data, TokenizedText) else self.tokenizer.vocab if self.tokenizer else 0
        )
        size: int = self.model.parameters(known if self.model.vocab is None else self.model.vocab)
        return size
