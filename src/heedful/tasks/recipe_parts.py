"""Parts that the recipes of several tasks share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from heedful.config import Config, FieldError
from heedful.data.formats.sources import Name
from heedful.data.tables.reading import Record
from heedful.data.tokenizers.tokenizer import Bpe, Characters, Unigram, WholeWords, WordPiece
from heedful.errors import UserError
from heedful.training.configs import TrainConfig

TokenizerConfig = Annotated[Bpe | WordPiece | Unigram | Characters | WholeWords, Field(discriminator="kind")]

ConfidencePenalty = Annotated[
    float,
    Field(
        ge=0,
        le=100,
        exclude_if=lambda weight: weight == 0,  # recipes and runs without it stay as they are
        description="weight of the entropy of each prediction, which is subtracted from the loss so that predictions "
        "are not too certain (Pereyra et al., 2017)",
    ),
]


class Recipe(Config):
    """All settings of a run, typed and frozen; each task has its own subclass."""

    predicts_classes: ClassVar[bool] = False  # whether the label of an example is one of a few classes

    own_model: str = Field(
        "",
        exclude_if=lambda name: not name,
        description="class of the user's own model, passed in Python (heedful.train(recipe, run, model=...)); the task "
        "then uses only some settings of `model`: the context, the vocabulary, the labels, the input",
    )

    if TYPE_CHECKING:

        @property
        def task(self) -> Any:
            """The task."""

        @property
        def start(self) -> Any:
            """The model to start from, if any."""

        @property
        def data(self) -> Any:
            """The data."""

        @property
        def model(self) -> Any:
            """The model."""

        @property
        def train(self) -> Any:
            """Training settings."""

    @property
    def text_limit(self) -> int | None:
        """The number of tokens of a text that the model reads, as far as it is known before training."""
        settings = dict(self.model)
        found: int | None = settings.get("longest") or settings.get("context")
        return found

    @property
    def comments(self) -> list[str]:
        """Comments that `heedful show` prints with the settings, one per line."""
        return []

    def data_notes(self) -> list[str]:
        """What `heedful check` reports about the data, once it has read them."""
        return []

    def class_column(self, records: Sequence[Record]) -> str | None:
        """The column with the class of each row, where the recipe says which it is."""
        return None

    def problems(self) -> list[UserError]:
        """Errors in files that the recipe refers to, other than its data."""
        return []

    @property
    @abstractmethod
    def size(self) -> int:
        """The number of parameters, as far as it is known before the data are read."""


class GenerationRecipe(Recipe):
    """The recipe of a task whose model generates texts, with the vocabulary of the recipe's tokenizer."""

    if TYPE_CHECKING:

        @property
        def tokenizer(self) -> Any:
            """The tokenizer."""

    @field_validator("train", check_fields=False)
    @classmethod
    def _check_batching(cls, train: TrainConfig, info: ValidationInfo) -> TrainConfig:
        return check_batching(train, info.data.get("model"))

    @model_validator(mode="after")
    def _check_vocab(self) -> Self:
        check_vocab_size(self.model.vocab, self.tokenizer.vocab)
        return self

    @property
    def size(self) -> int:
        """The number of parameters, as far as it is known before the data are read."""
        size: int = self.model.parameters(self.model.vocab or self.tokenizer.vocab)
        return size


Weights = Literal["balanced"] | dict[str, Annotated[float, Field(gt=0, le=1e6)]]  # by class name


class ClassWeights(Config):
    """Weights of rare classes; recipes that set none stay as they are."""

    class_weights: Weights | None = Field(
        None,
        exclude_if=lambda weights: weights is None,
        description="weights of the loss by class name, others 1, scaled to a mean of 1 over the training examples; "
        "balanced: the same total for each class; null: none",
    )


class Sampling(ClassWeights):
    """Weights of rare classes, or how often their examples are drawn."""

    sampling: Literal["shuffled", "balanced"] = Field(
        "shuffled",
        exclude_if=lambda sampling: sampling == "shuffled",
        description="shuffled: each example once an epoch; balanced: as many examples of each class",
    )


class Start(Config):
    """A trained model of the same task to start from, with its tokenizer, vocabulary or image size."""

    folder: Name = Field(
        description="a run or a model folder of Heedful; also a checkpoint of a run, such as RUN/checkpoints/best"
    )

    @property
    def path(self) -> Path:
        """The path of the folder."""
        return Path(self.folder)


def check_batching(train: TrainConfig, model: Any) -> TrainConfig:
    """Refuse batch_examples, and what a model cannot do: packed batches, torch.compile; None: an invalid model."""
    if train.compile and model is not None and model.uncompiled is not None:
        raise FieldError(model.uncompiled, "compile")
    if train.batch_examples is not None:
        raise FieldError("the batch size of this task is batch_tokens; leave this out", "batch_examples")
    check_packing(train, model)
    return train


def check_packing(train: TrainConfig, model: Any) -> None:
    """Refuse packed batches for a model that cannot read them; None: an invalid model."""
    if train.batching == "packed" and model is not None and not model.packs:
        raise FieldError(f"this {model.kind} cannot read packed batches; write batching: padded", "batching")


def check_generating(train: TrainConfig) -> None:
    """Refuse what cannot be combined with texts that are generated in each step, of other lengths in each process."""
    for name, refused, instead in (
        ("batching", train.batching == "packed", "padded"),
        ("compile", train.compile, "false"),
        ("parallel", train.parallel == "fsdp", "ddp"),
    ):
        if refused:
            raise FieldError(f"each step generates texts of different lengths; write {name}: {instead}", "train", name)


def check_image_batching(train: TrainConfig, model: Any) -> TrainConfig:
    """Require batch_examples, the number of images per batch; None: an invalid model."""
    if train.batch_examples is None:
        raise FieldError("the number of images per batch is needed; write 128, for example", "batch_examples")
    check_batching(train.model_copy(update={"batch_examples": None}), model)
    return train


def with_article(kind: str) -> str:
    """A kind of model with its indefinite article."""
    return f"{'an' if kind.startswith(('a', 'e', 'i', 'o', 'rnn', 'x')) else 'a'} {kind}"


def check_vocab_size(vocab: int | None, tokens: int) -> None:
    """Refuse a vocabulary size that is smaller than the tokenizer's."""
    if vocab is not None and vocab < tokens:
        raise ValueError(
            f"model.vocab is {vocab}, but the tokenizer may have {tokens} tokens; "
            "leave model.vocab out to follow the tokenizer"
        )
