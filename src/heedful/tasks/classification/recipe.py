"""The recipes of texts with a class each, over an encoder or from their words, and of texts with a number each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from heedful.config import Config, FieldError
from heedful.data.embedded import NumberLanguages
from heedful.data.embedding_init import EmbeddingInit
from heedful.data.formats.tables import CsvTable, JsonlTable, TsvTable, collect_labels
from heedful.data.own import OwnData
from heedful.data.trees.treebank import WordsConfig
from heedful.errors import UserError
from heedful.models import any_of, config_class
from heedful.models.heads.config import ClassifierConfig, RegressorConfig
from heedful.tasks.finetuning.recipe import Finetuning
from heedful.tasks.recipe_parts import Recipe, Start
from heedful.training.configs import TrainConfig

ClassesConfig = Annotated[TsvTable | CsvTable | JsonlTable | NumberLanguages | OwnData, Field(discriminator="kind")]
NumbersConfig = Annotated[TsvTable | CsvTable | JsonlTable | OwnData, Field(discriminator="kind")]

USUAL_WORDS = "conv_classifier"
if TYPE_CHECKING:
    WordClassifierConfig = Any
else:
    WordClassifierConfig = any_of("word_classifier", usual=USUAL_WORDS)


class ClassesTask(Config):
    """What is asked of classes, whatever tells them."""

    kind: str
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="probability spread evenly over all classes")
    metric: Literal["accuracy", "f1", "matthews"] = Field(
        "accuracy", description="the score that selects the best checkpoint"
    )


class ClassificationTaskConfig(ClassesTask):
    """What is learned: the class of a text, or of a pair of texts."""

    kind: Literal["classification"] = "classification"


class RegressionTaskConfig(Config):
    """What is learned: a number for a text, or for a pair of texts."""

    kind: Literal["regression"] = "regression"
    metric: Literal["pearson", "spearman"] = Field("spearman", description="the score that selects the best checkpoint")


class ClassificationRecipe(Finetuning):
    """A whole experiment with texts that have a class each."""

    task: ClassificationTaskConfig = ClassificationTaskConfig()
    data: ClassesConfig = Field(description="texts and their labels")
    model: ClassifierConfig = Field(ClassifierConfig(), description="what is trained")
    train: TrainConfig = Field(description="how it is trained")

    def inferred_settings(self) -> dict[str, Any]:
        """The labels, which are those of the training data where the recipe names none."""
        if self.model.labels is not None:
            return {}
        read = self.data.read("train")
        return {"labels": collect_labels(read.items, "the training data")}


class RegressionRecipe(Finetuning):
    """A whole experiment with texts that have a number each."""

    task: RegressionTaskConfig = RegressionTaskConfig()
    data: NumbersConfig = Field(description="texts and their numbers")
    model: RegressorConfig = Field(RegressorConfig(), description="what is trained")
    train: TrainConfig = Field(description="how it is trained")


class CharactersConfig(Config):
    """Each character is a token; those that are not known are one."""

    kind: Literal["characters"] = "characters"
    lowercase: bool = Field(True, description="lowercase texts")
    at_least: int = Field(1, ge=1, description="minimum count of a character in the training data")


class TextClassificationTaskConfig(ClassesTask):
    """What is learned: the class of a text, or of a pair of texts, from its words."""

    kind: Literal["text_classification", "classification"] = "text_classification"


class TextClassificationRecipe(Recipe):
    """A text classification experiment, with word vectors to start from."""

    task: TextClassificationTaskConfig = TextClassificationTaskConfig()
    start: Start | None = Field(None, description="the model to start from; null: randomly initialized")
    data: ClassesConfig = Field(description="texts and their labels")
    tokenizer: Annotated[WordsConfig | CharactersConfig, Field(discriminator="kind")] = Field(
        WordsConfig(), description="what a text is cut into"
    )
    embedding_init: EmbeddingInit | None = Field(
        None, description="word vectors to start from; null: randomly initialized"
    )
    model: WordClassifierConfig = Field(config_class(USUAL_WORDS)(), description="what is trained")
    train: TrainConfig = Field(description="how it is trained")

    @field_validator("train")
    @classmethod
    def _batches_can_be_read(cls, train: TrainConfig) -> TrainConfig:
        if train.compile:
            raise FieldError("texts have too many lengths to be compiled; write compile: false", "compile")
        if train.batching == "packed":
            raise FieldError("filters would look from one text into the next; write batching: padded", "batching")
        return train

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Self:
        if self.embedding_init is not None and self.tokenizer.kind == "characters":
            raise FieldError("characters have no word vectors; leave this out, or cut into words", "embedding_init")
        return self

    @model_validator(mode="after")
    def _learns_what_it_draws(self) -> Self:
        if self.model.freeze and self.embedding_init is None and self.start is None:
            raise FieldError(
                "randomly initialized vectors must be learned; name a file in embedding_init, or write freeze: false",
                "model",
                "freeze",
            )
        return self

    @property
    def size(self) -> int:
        """How many numbers there are, as far as it can be known before the data are read."""
        size: int = self.model.parameters(self.model.vocab or 0)
        return size

    def problems(self) -> list[UserError]:
        """What is wrong with the file of word vectors."""
        return self.embedding_init.problems() if self.embedding_init is not None else []
