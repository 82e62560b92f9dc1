"""The recipe of pre-training an encoder on unlabelled text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from heedful.config import Config, FieldError
from heedful.data.embedded import Counting, LibraryProse
from heedful.data.formats.sources import Name
from heedful.data.own import OwnData
from heedful.data.tables.texts import DocumentTable
from heedful.data.text.documents import Documents
from heedful.data.text.token_documents import TokenFiles
from heedful.data.tokenizers.encoders import TRAINABLE, AnyEncoderTokenizer
from heedful.errors import UserError
from heedful.models import any_of, config_class
from heedful.models.roles import EncoderConfig
from heedful.tasks.recipe_parts import Recipe, Start, check_batching, check_vocab_size
from heedful.training.configs import TrainConfig

MIN_CONTEXT = 8  # for a pair of texts

PretrainingData = Annotated[
    Documents | DocumentTable | LibraryProse | Counting | TokenFiles | OwnData, Field(discriminator="kind")
]

USUAL = "bert"
if TYPE_CHECKING:
    AnyEncoder = EncoderConfig
else:
    AnyEncoder = any_of("encoder", usual=USUAL)


class Teacher(Config):
    """A trained encoder whose predictions are learned, with its tokenizer (Sanh et al., 2019)."""

    folder: Name = Field(
        description="a run or a model folder of Heedful, a Hugging Face folder, or the published files"
    )
    temperature: float = Field(2.0, gt=0, le=100, description="divides the logits of both; higher is softer")
    soft: float = Field(5.0, ge=0, le=1000, description="weight of the cross-entropy with the teacher's probabilities")
    masked: float = Field(2.0, ge=0, le=1000, description="weight of the loss without a teacher")
    cosine: float = Field(
        1.0, ge=0, le=1000, description="weight of 1 - the cosine of both models' vectors in the last layer"
    )
    tokens: Literal["all", "masked"] = Field("all", description="which tokens the soft loss is a mean over")
    copy_layers: bool = Field(
        True, description="whether the student starts with the teacher's weights: of 12 layers, 6 take every second"
    )

    def encoder(self) -> EncoderConfig:
        """What kind of encoder the folder holds; only its settings are read."""
        from heedful.hub.folder import read_config

        found: EncoderConfig = read_config(Path(self.folder), "encoder")
        return found

    def problems(self, student: EncoderConfig) -> list[UserError]:
        """Why this student cannot learn from it."""
        try:
            teacher = self.encoder()
        except UserError as error:
            return [error]
        wrong = {
            "context": (teacher.context < student.context, f"at least {student.context:,}, as many as the student's"),
            "width": (
                (self.cosine > 0 or self.copy_layers) and teacher.width != student.width,
                f"{student.width:,}, as the student's; or task.teacher.cosine=0 task.teacher.copy_layers=false",
            ),
            "layers": (
                self.copy_layers and teacher.layers < student.layers,
                f"at least {student.layers}, as many as the student's; or task.teacher.copy_layers=false",
            ),
            "masked_words": (
                self.soft > 0 and not teacher.masked_words,
                "a head for masked tokens; or task.teacher.soft=0",
            ),
        }
        found = dict(teacher)
        return [
            UserError(
                "this teacher does not fit the student", where="task.teacher.folder", found=f"{name}: {found[name]}",
                expected=expected,
            )
            for name, (is_wrong, expected) in wrong.items()
            if is_wrong
        ]  # fmt: skip


def require_tokenizer(recipe: Any) -> None:
    """Refuse text without a tokenizer, token files with one, and a model without room for its tokens."""
    if isinstance(recipe.data, TokenFiles) and recipe.tokenizer is not None:
        raise FieldError("token files have their own tokenizer; leave this out", "tokenizer")
    if not isinstance(recipe.data, TokenFiles) and recipe.tokenizer is None:
        raise FieldError("text needs a tokenizer; write {kind: wordpiece, vocab: ...}", "tokenizer")
    if isinstance(recipe.tokenizer, TRAINABLE):
        check_vocab_size(recipe.model.vocab, recipe.tokenizer.vocab)


def model_size(recipe: Any) -> int:
    """The number of parameters, as far as it is known before the data are read."""
    model, tokens = recipe.model, recipe.data if isinstance(recipe.data, TokenFiles) else recipe.tokenizer
    size: int = model.parameters(model.vocab if model.vocab is not None else tokens.vocab if tokens else 0)
    return size


def require_words(model: EncoderConfig) -> EncoderConfig:
    """Refuse a model that cannot predict tokens, or cannot read a pair of texts."""
    if not model.masked_words:
        raise FieldError("pre-training needs the head for masked tokens; write true", "masked_words")
    if model.context < MIN_CONTEXT:
        raise FieldError(f"a pair of texts needs at least {MIN_CONTEXT} tokens", "context")
    return model


class PretrainingTaskConfig(Config):
    """The task: masked language modelling, and next-sentence prediction."""

    kind: Literal["pretraining"] = "pretraining"
    hidden: float = Field(0.15, gt=0, le=0.9, description="fraction of the tokens that are predicted")
    whole_words: bool = Field(False, description="mask all pieces of a word together")
    unrelated: float = Field(
        0.5,
        ge=0,
        le=1,
        description="fraction of the pairs whose second text is from another document; of a model that learns the "
        "order of sentences, of the pairs that are swapped",
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
    teacher: Teacher | None = Field(
        None,
        exclude_if=lambda teacher: teacher is None,  # recipes and runs without it stay as they are
        description="a trained encoder to learn from as well: distillation; null: none",
    )


class PretrainingRecipe(Recipe):
    """An experiment in pre-training an encoder on documents."""

    task: PretrainingTaskConfig = PretrainingTaskConfig()
    start: Start | None = Field(None, description="the model to start from; null: randomly initialized")
    data: PretrainingData = Field(description="documents")
    tokenizer: AnyEncoderTokenizer | None = Field(
        None, description="tokenizer; null: that of the token files or of the teacher"
    )
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
    def _check_tokenizer_and_pairs(self) -> Self:
        if self.task.teacher is None:
            require_tokenizer(self)
        elif self.tokenizer is not None:
            raise FieldError("the student has the tokenizer of its teacher; leave this out", "tokenizer")
        if self.model.segment_types < 2 and self.task.unrelated > 0:
            raise FieldError("a model without segments cannot be trained on pairs; write 0", "task", "unrelated")
        if self.model.segment_types > 1 and self.task.full_sentences:
            raise FieldError("a model with segments reads pairs; write false", "task", "full_sentences")
        return self

    @property
    def size(self) -> int:
        """The number of parameters, as far as it is known before the data are read."""
        if self.task.teacher is not None and self.model.vocab is None:
            return self.model.parameters(self.task.teacher.encoder().vocab or 0)
        return model_size(self)

    def problems(self) -> list[UserError]:
        """Errors in the folder of the teacher."""
        return [] if self.task.teacher is None else self.task.teacher.problems(self.model)
