"""What a run asks of a task.

A task has its recipe. It reads and encodes the data, says what a loss is, and judges the trained model. Its predictor
is the model with all that it takes to use it, as `heedful.load` returns it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from heedful.config import Config
from heedful.data.formats.sources import Split
from heedful.errors import UserError
from heedful.models.heads.config import with_vocab
from heedful.training.metrics import Score

if TYPE_CHECKING:
    import torch


Progress = Callable[[int], None]
TINY = 1_000_000  # parameters under which a second thread costs more than it brings


@dataclass(frozen=True)
class Evaluated:
    """How good the model is on a split, with a few samples."""

    step: int
    split: Split
    loss: float
    scores: tuple[Score, ...]
    samples: tuple[tuple[str, str, str], ...]  # what was given, what was right, what the model made of it
    unread: int  # samples that do not fit into the model, which count as wrong


class Example(NamedTuple):
    """An example as people look at it: a text or a pair, and what is right of it."""

    text: str
    other: str | None
    right: str


@dataclass(frozen=True)
class Names:
    """What things are called in a task."""

    examples: str  # what is learned from, and counted
    tokens: str  # what the vocabulary holds
    too_long: str  # of examples that were left out, after their number
    blank: str  # the same
    learning: str  # what is done to get the vocabulary
    encoding: str  # what is done to get what the model reads
    testing: str  # what is done with a split to judge the model, where {} is its name
    sample: tuple[str, str, str]  # what was given, what was right, what the model made of it
    counted: str = "tokens"  # what the speed of training is told in
    loss: str = "nats a token"  # what a loss is measured in


class Vocabulary(Protocol):
    """What turns texts into numbers, or tells what images are like, as it is kept in a run's folder."""

    @property
    def json(self) -> str: ...

    @property
    def vocab(self) -> int: ...

    @property
    def sha256(self) -> str: ...


class Read(Protocol):
    """The examples of a split as they were read."""

    @property
    def skipped(self) -> int:
        """How many were blank, and left out."""


class Encoded(Protocol):
    """The examples of a split as the model reads them."""

    def __len__(self) -> int: ...

    @property
    def sha256(self) -> str: ...

    @property
    def dropped(self) -> int:
        """How many were too long, and left out."""


class Task(Protocol):
    """What is learned, by a recipe. What has a body here is what a task does that does not say otherwise."""

    words: ClassVar[Names]
    decoding: ClassVar[type[Config] | None]  # the class of `decode`, the settings of its predictor, if it has any
    searches: ClassVar[bool]  # whether its predictor can be told a number of beams
    file: ClassVar[str] = "tokenizer.json"  # where a folder keeps the vocabulary
    starts_elsewhere: ClassVar[bool] = False  # whether a run may also start from a part, or from a folder of others
    recipe: Any
    decode: Any

    def __init__(self, recipe: Any) -> None: ...

    def read(self, split: Split) -> Any:
        """The examples of a split, which are `Read`."""

    def learn(self, read: Any) -> Vocabulary:
        """The vocabulary of the training examples."""

    @staticmethod
    def load(path: Path) -> Vocabulary:
        """The same from its file."""

    @staticmethod
    def open(text: str, where: str) -> Vocabulary:
        """The same from its JSON; `where` is what errors name."""

    @staticmethod
    def fitted(config: Any, vocabulary: Any, where: str) -> Any:
        """The settings of a model with what its vocabulary tells, if the two fit; `where` is what errors name."""
        known, room = vocabulary.vocab, config.vocab
        if room is not None and room < known:
            raise UserError(
                "the model's vocabulary is too small",
                where=f"{where}.vocab",
                found=f"{room:,}",
                expected=f"at least {known:,}, as many as the training data have",
                todo="leave model.vocab out",
            )
        return with_vocab(config, room or known)

    def begin(self, model: Any, vocabulary: Any) -> None:
        """Give a new model what it need not learn: nothing, where all weights are drawn by chance."""
        return

    def encode(self, read: Any, vocabulary: Any) -> Any:
        """Examples as numbers, which are `Encoded`."""

    def notes(self, encoded: Any) -> list[str]:
        """What whoever trains on the encoded examples should know of them."""
        return []

    def batches(self, encoded: Any, packed: bool, even: bool) -> Any:
        """The endless sequence of training batches: `at`, `tokens` and `epoch_of` a position, and whether `steady`.

        `even` asks for batches of few shapes, where there is a choice.
        """

    def loss_of(self, model: Any, packed: bool) -> Callable[..., Any]:
        """The loss of a batch, compiled if the recipe asks for it; with `first_carry`, of a batch and a carry."""

    def first_carry(self, model: Any, batches: Any, device: torch.device) -> Any:
        """What the model takes along into the first batch, zeros for each of its lanes, say; None: nothing, ever."""
        return None

    @property
    def records(self) -> bool:
        """Whether a step on a CPU is so short that it is worth being recorded."""
        return False

    def threads(self, model: Any, cores: int) -> int:
        """How many CPU threads of so many training is worth."""
        return 1 if sum(weight.numel() for weight in model.parameters()) < TINY else cores

    @staticmethod
    def predictor(
        model: Any, config: Any, vocabulary: Any, decode: Any, device: torch.device, notes: tuple[str, ...] = ()
    ) -> Any:
        """The model, ready to be used."""

    def loss(self, predictor: Any, encoded: Any) -> float:
        """The mean loss over a split."""

    def quick_loss(self, predictor: Any, encoded: Any) -> float:
        """The same, or near it, at a moment in training."""
        return self.loss(predictor, encoded)

    def evaluate(
        self,
        predictor: Any,
        read: Any,
        encoded: Any,
        loss: float,
        step: int,
        split: Split,
        beams: int | None = None,
        progress: Progress | None = None,
    ) -> Evaluated:
        """Scores on a split whose loss is known, and a few samples; `beams` is for those that search."""

    @property
    def metric(self) -> str:
        """The score that decides which checkpoint is the best, or loss: the less the better."""
        return "loss"

    def merit(self, result: Evaluated) -> float:
        """What decides which checkpoint is the best: more is better."""
        if self.metric == "loss":
            return -result.loss
        return next(score.value for score in result.scores if score.name == self.metric)

    @property
    def validates(self) -> bool:
        """Whether the validation data are others than the test data, so that the best checkpoint can be chosen."""
        return True

    def example(self, sample: tuple[str, str, str]) -> Example | None:
        """What the model was given when a sample was made; None where the sample does not tell all of it."""
        return Example(sample[0], None, sample[1])

    def examples(self, split: Split) -> Iterator[Example]:
        """Some examples of a split; none, where they are no texts."""
        return iter(())

    def in_words(self, loss: float) -> str:
        """A loss, and what else it says in this task."""
        return f"loss {loss:.5f}"

    def remarks(self, result: Evaluated) -> list[str]:
        """What whoever reads the scores should know besides their signatures."""
        return []

    def next(self, folder: Path, test: Evaluated | None) -> Sequence[str]:
        """Commands to go on with, once the model is trained."""
