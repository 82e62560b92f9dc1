"""The recipe of language models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from heedful.config import Config, FieldError
from heedful.data.embedded import LibraryProse
from heedful.data.formats.sources import Name
from heedful.data.own import OwnData
from heedful.data.text.documents import Documents
from heedful.data.text.files import TextFiles
from heedful.data.text.token_text import TokenizedText
from heedful.data.tokenizers.byte_pairs import Gpt2Bpe, Gpt2BpeFiles
from heedful.data.tokenizers.tokenizer import Bpe, Characters, Unigram, WholeWords, WordPiece
from heedful.decode.settings import WritingConfig
from heedful.models import MODELS, any_of, config_class
from heedful.tasks.recipe_parts import Recipe, Start, packs, require_room, with_article
from heedful.training.configs import TrainConfig

TextConfig = Annotated[TextFiles | Documents | LibraryProse | TokenizedText | OwnData, Field(discriminator="kind")]
LanguageTokenizerConfig = Annotated[
    Bpe | WordPiece | Unigram | Characters | WholeWords | Gpt2Bpe | Gpt2BpeFiles, Field(discriminator="kind")
]
USUAL = "rnn_lm"
if TYPE_CHECKING:
    LanguageModelConfig = Any
else:
    LanguageModelConfig = any_of("causal", "bidirectional", usual=USUAL)


class LanguageModelTaskConfig(Config):
    """What is learned: each token of a text from those before it, or from those around it."""

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
        description="a recurrent model, or one with a memory, keeps its state from step to step: each row of a batch "
        "reads its own part of the text in order, and gradients stay within a step (truncated backpropagation "
        "through time)",
    )


class CausalStart(Start):
    """A trained language model to start from, with its tokenizer."""

    folder: Name = Field(description="a run or a model folder of Heedful, a Hugging Face folder, or published files")


class LanguageModelRecipe(Recipe):
    """A whole experiment with a language model: a text, and writing.

    Where it starts from a folder, what the model's settings leave out is filled in from there at once.
    """

    task: LanguageModelTaskConfig = LanguageModelTaskConfig()
    start: CausalStart | None = Field(None, description="the model to start from; null: randomly initialized")
    data: TextConfig = Field(description="running text")
    tokenizer: LanguageTokenizerConfig | None = Field(
        None, description="how texts are cut into tokens; null: as token files or `start` say"
    )
    model: LanguageModelConfig = Field(config_class(USUAL)(), description="what is trained")
    train: TrainConfig = Field(description="how it is trained")
    decode: WritingConfig = WritingConfig()

    @field_validator("model", mode="before")
    @classmethod
    def _filled(cls, model: Any, info: ValidationInfo) -> Any:
        start = info.data.get("start")
        given = model if isinstance(model, dict) else {}  # what is not given is the usual model by now
        kind = given.get("kind")
        if start is None or (kind in MODELS and given.keys() >= config_class(str(kind)).model_fields.keys()):
            return model  # as in a run's own recipe
        from heedful.hub.folder import read_config

        there = read_config(start.path, "causal", "bidirectional").model_dump()
        if given.get("kind", there["kind"]) != there["kind"]:
            raise FieldError(f"the folder to start from holds {with_article(there['kind'])}; leave this out", "kind")
        return {**there, **given}

    @field_validator("train")
    @classmethod
    def _batches_can_be_read(cls, train: TrainConfig, info: ValidationInfo) -> TrainConfig:
        return packs(train, info.data.get("model"))

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Self:
        brought = isinstance(self.data, TokenizedText) or self.start is not None
        if brought and self.tokenizer is not None:
            raise FieldError(
                "token files, or a trained model, bring their tokenizer with them; leave this out", "tokenizer"
            )
        if not brought and self.tokenizer is None:
            raise FieldError("text needs a tokenizer; write {kind: characters, vocab: ...}, say", "tokenizer")
        if self.model.role == "bidirectional" and isinstance(self.tokenizer, Gpt2Bpe | Gpt2BpeFiles):
            raise FieldError(
                f"{with_article(self.model.kind)} reads lines; write {{kind: words, vocab: ...}}, say", "tokenizer"
            )
        if self.tokenizer is not None and not isinstance(self.tokenizer, Gpt2BpeFiles):
            require_room(self.model.vocab, self.tokenizer.vocab)
        return self

    @model_validator(mode="after")
    def _state_is_carried(self) -> Self:
        if self.task.carry and (self.model.role != "causal" or self.model.fixed_context):
            problem = f"{with_article(self.model.kind)} has no state to take along; leave this out"
            raise FieldError(problem, "task", "carry")
        if self.task.carry and self.train.compile and not self.model.attends:
            raise FieldError(
                "steps that take a recurrent state along are not compiled; leave this out", "train", "compile"
            )
        return self

    @model_validator(mode="after")
    def _memory_is_known(self) -> Self:
        memory, most = self.decode.memory, self.model.max_memory
        if memory is not None and not most:
            raise FieldError(f"{with_article(self.model.kind)} has no memory; leave this out", "decode", "memory")
        if memory is not None and memory > most:
            problem = f"the model learns distances up to {most}; write at most this, or set model.clamp: {most}"
            raise FieldError(problem, "decode", "memory")
        return self

    @model_validator(mode="after")
    def _windows_overlap(self) -> Self:
        if self.task.stride is not None and not self.model.fixed_context:
            raise FieldError("only a gpt is judged in windows that overlap; leave this out", "task", "stride")
        if self.task.stride is not None and self.task.stride > self.model.context:
            raise FieldError(
                f"a window has {self.model.context} tokens, as model.context says; write no more", "task", "stride"
            )
        return self

    @property
    def size(self) -> int:
        """How many numbers are trained, as far as it can be known before the data are read."""
        known = (
            self.data.vocab if isinstance(self.data, TokenizedText) else self.tokenizer.vocab if self.tokenizer else 0
        )
        size: int = self.model.parameters(known if self.model.vocab is None else self.model.vocab)
        return size
