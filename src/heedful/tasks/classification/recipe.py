"""The recipes of text classification, with an encoder or from words, and of text regression."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from heedful.config import Config, FieldError
from heedful.data.embedded import NumberLanguages
from heedful.data.embedding_init import EmbeddingInit
from heedful.data.formats.tables import CsvTable, JsonlTable, TsvTable, collect_labels
from heedful.data.own import OwnData
from heedful.data.tables.texts import LabelTable, NumberTable
from heedful.data.trees.treebank import WordsConfig
from heedful.errors import UserError
from heedful.models import any_of, config_class
from heedful.models.heads.config import ClassifierConfig, RegressorConfig
from heedful.tasks.finetuning.recipe import Finetuning
from heedful.tasks.recipe_parts import ConfidencePenalty, Recipe, Sampling, Start
from heedful.training.configs import TrainConfig

ClassesConfig = Annotated[
    TsvTable | CsvTable | JsonlTable | LabelTable | NumberLanguages | OwnData, Field(discriminator="kind")
]
NumbersConfig = Annotated[TsvTable | CsvTable | JsonlTable | NumberTable | OwnData, Field(discriminator="kind")]

USUAL_WORDS = "conv_classifier"
if TYPE_CHECKING:
    WordClassifierConfig = Any
else:
    WordClassifierConfig = any_of("word_classifier", usual=USUAL_WORDS)


class ClassesTask(Sampling):
    """Settings that both classification tasks share."""

    kind: str
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="probability spread evenly over all classes")
    confidence_penalty: ConfidencePenalty = 0.0
    metric: Literal["accuracy", "f1", "matthews"] = Field(
        "accuracy", description="the score that selects the best checkpoint"
    )


class ClassificationTaskConfig(ClassesTask):
    """The task: predict the class of a text, or of a pair of texts."""

    kind: Literal["classification"] = "classification"


class RegressionTaskConfig(Config):
    """The task: predict a number for a text, or for a pair of texts."""

    kind: Literal["regression"] = "regression"
    metric: Literal["pearson", "spearman"] = Field("spearman", description="the score that selects the best checkpoint")


class ClassificationRecipe(Finetuning):
    """A text classification experiment with an encoder."""

    predicts_classes: ClassVar = True

    task: ClassificationTaskConfig = ClassificationTaskConfig()
    data: ClassesConfig = Field(description="texts and their labels")
    model: ClassifierConfig = Field(ClassifierConfig(), description="the model")
    train: TrainConfig = Field(description="training settings")

    def inferred_settings(self) -> dict[str, Any]:
        """The labels of the training data, unless the recipe lists labels itself."""
        if self.model.labels is not None:
            return {}
        read = self.data.read("train")
        return {"labels": collect_labels(read.items, "the training data")}


class RegressionRecipe(Finetuning):
    """A text regression experiment with an encoder."""

    task: RegressionTaskConfig = RegressionTaskConfig()
    data: NumbersConfig = Field(description="texts and their numbers")
    model: RegressorConfig = Field(RegressorConfig(), description="the model")
    train: TrainConfig = Field(description="training settings")

    @field_validator("model")
    @classmethod
    def _names_of_numbers(cls, model: RegressorConfig, info: ValidationInfo) -> RegressorConfig:
        """The names of the numbers are those of their columns, if the model has no others."""
        data = info.data.get("data")
        columns = data.columns.several if isinstance(data, NumberTable) else ()
        if columns and model.numbers and len(model.numbers) != len(columns):
            raise FieldError(
                f"these are {len(model.numbers)} names, and data.columns.label has {len(columns)} columns; leave "
                "numbers out, or write as many",
                "numbers",
            )
        return model if model.numbers or not columns else model.model_copy(update={"numbers": columns})


class CharactersConfig(Config):
    """Characters as tokens; unknown ones share one token."""

    kind: Literal["characters"] = "characters"
    lowercase: bool = Field(True, description="lowercase texts")
    at_least: int = Field(1, ge=1, description="minimum count of a character in the training data")


class TextClassificationTaskConfig(ClassesTask):
    """The task: predict the class of a text, or of a pair of texts, from its words."""

    kind: Literal["text_classification", "classification"] = "text_classification"


class TextClassificationRecipe(Recipe):
    """A text classification experiment without an encoder, optionally with pre-trained word vectors."""

    predicts_classes: ClassVar = True

    task: TextClassificationTaskConfig = TextClassificationTaskConfig()
    start: Start | None = Field(None, description="the model to start from; null: randomly initialized")
    data: ClassesConfig = Field(description="texts and their labels")
    tokenizer: Annotated[WordsConfig | CharactersConfig, Field(discriminator="kind")] = Field(
        WordsConfig(), description="tokens: words or characters"
    )
    embedding_init: EmbeddingInit | None = Field(
        None, description="word vectors to start from; null: randomly initialized"
    )
    model: WordClassifierConfig = Field(config_class(USUAL_WORDS)(), description="the model")
    train: TrainConfig = Field(description="training settings")

    @field_validator("train")
    @classmethod
    def _check_batching(cls, train: TrainConfig) -> TrainConfig:
        if train.compile:
            raise FieldError("texts have too many different lengths to compile; write compile: false", "compile")
        if train.batching == "packed":
            raise FieldError("filters would mix packed texts; write batching: padded", "batching")
        return train

    @model_validator(mode="after")
    def _check_embedding_init(self) -> Self:
        if self.embedding_init is not None and self.tokenizer.kind == "characters":
            raise FieldError("characters have no word vectors; leave this out, or use words", "embedding_init")
        return self

    @model_validator(mode="after")
    def _check_freeze(self) -> Self:
        if self.model.freeze and self.embedding_init is None and self.start is None:
            raise FieldError(
                "randomly initialized vectors must be trained; set embedding_init, or write freeze: false",
                "model",
                "freeze",
            )
        return self

    @property
    def size(self) -> int:
        """The number of parameters, as far as it is known before the data are read."""
        size: int = self.model.parameters(self.model.vocab or 0)
        return size

    def problems(self) -> list[UserError]:
        """Errors in the file of word vectors."""
        return self.embedding_init.problems() if self.embedding_init is not None else []
