"""What recipes of several tasks share."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from heedful.config import Config, FieldError
from heedful.data.formats.sources import Name
from heedful.data.tokenizers.tokenizer import Bpe, Characters, Unigram, WholeWords, WordPiece
from heedful.errors import UserError
from heedful.training.configs import TrainConfig

TokenizerConfig = Annotated[Bpe | WordPiece | Unigram | Characters | WholeWords, Field(discriminator="kind")]


class Recipe(Config):
    """Everything that decides a run, as one typed, frozen value; each task has a class of its own."""

    own_model: str = Field(
        "",
        exclude_if=lambda name: not name,
        description="class of the user's own model, which Python gives (heedful.train(recipe, run, model=...)); of "
        "`model`, only what the task asks for counts then: the context, the vocabulary, the labels, the input",
    )

    if TYPE_CHECKING:

        @property
        def task(self) -> Any:
            """What is learned."""

        @property
        def start(self) -> Any:
            """The model to start from, if any."""

        @property
        def data(self) -> Any:
            """What it is learned from."""

        @property
        def model(self) -> Any:
            """What is trained."""

        @property
        def train(self) -> Any:
            """How it is trained."""

    @property
    def comments(self) -> list[str]:
        """What `show` adds to the settings, a line each."""
        return []

    def problems(self) -> list[UserError]:
        """What is wrong with files that it names besides its data."""
        return []

    @property
    @abstractmethod
    def size(self) -> int:
        """How many numbers are trained, as far as it can be known before the data are read."""


class Start(Config):
    """A trained model of the same task to start from: its weights, and its tokenizer, words or image sizes."""

    folder: Name = Field(
        description="a run or a model folder of Heedful; also a checkpoint of a run, such as RUN/checkpoints/best"
    )

    @property
    def path(self) -> Path:
        """Where it is."""
        return Path(self.folder)


def packs(train: TrainConfig, model: Any) -> TrainConfig:
    """Refuse packed batches for a model that cannot read them; there is none to ask where it has mistakes itself."""
    if train.batch_examples is not None:
        raise FieldError("in this task a batch is as large as batch_tokens says; leave this out", "batch_examples")
    if train.batching == "packed" and model is not None and not model.packs:
        raise FieldError(
            f"{with_article(model.kind)} cannot read texts that lie end to end in one row; write batching: padded",
            "batching",
        )
    return train


def with_article(kind: str) -> str:
    """A kind of model with its article, for a sentence."""
    return f"{'an' if kind.startswith(('a', 'e', 'i', 'o', 'rnn', 'x')) else 'a'} {kind}"


def require_room(given: int | None, tokens: int) -> None:
    """Refuse a vocabulary that the tokenizer may not fit into."""
    if given is not None and given < tokens:
        raise ValueError(
            f"model.vocab is {given}, but the tokenizer may have {tokens} tokens; "
            "leave model.vocab out to follow the tokenizer"
        )
