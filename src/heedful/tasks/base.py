"""What a run asks of a task.

A task has its recipe. It reads and encodes the data, says what a loss is, and judges the trained model. Its predictor
is the model with all that it takes to use it, as `heedful.load` returns it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from heedful.config import Config
from heedful.data.formats.sources import Split
from heedful.data.workers import BatchSource
from heedful.errors import UserError
from heedful.models.heads.config import with_vocab
from heedful.training.metrics import Score

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from heedful.tasks.predictor import Predictor
    from heedful.tasks.recipe_parts import Recipe

Progress = Callable[[int], None]
Sample = tuple[str, str, str]  # what was given, what is right, and what the model predicts
TINY = 1_000_000  # parameters under which a second thread costs more than it brings


@dataclass(frozen=True)
class Evaluated:
    """How good the model is on a split, with a few samples."""

    step: int
    split: Split
    loss: float
    scores: tuple[Score, ...]
    samples: tuple[Sample, ...]
    unread: int  # samples that do not fit into the model, which count as wrong

    def merit(self, metric: str) -> float:
        """What decides which checkpoint is the best: a score, or loss; more is better."""
        if metric == "loss":
            return -self.loss
        return next(score.value for score in self.scores if score.name == metric)


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


class Artifact(Protocol):
    """What a run keeps in a file besides its weights: a tokenizer, say, or what images are like."""

    @property
    def json(self) -> str:
        """The text of its file."""

    @property
    def sha256(self) -> str:
        """What tells it from any other."""


class Codec(NamedTuple):
    """How an artifact is read: from its text, where errors name the place, or from its file."""

    open: Callable[[str, str], Artifact]
    load: Callable[[Path], Artifact]


class Vocabulary(Protocol):
    """What turns examples into numbers: the artifact of a task, or all of them together."""

    @property
    def vocab(self) -> int:
        """How many different tokens there are, or numbers in an image."""


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


class Batches(BatchSource, Protocol):
    """The endless sequence of training batches; which one comes at a position depends on the seed alone."""

    @property
    def few_shapes(self) -> bool:
        """Whether all have one shape."""

    def tokens(self, position: int) -> int:
        """How much the whole batch at a position counts for."""


class Source(NamedTuple):
    """Weights that a run may begin from, with what they read by: of the whole model, or of a part of it."""

    vocabulary: Any
    tensors: dict[str, Tensor]
    file: Path  # what errors name
    part: str = ""  # of the model, which the weights are for


R = TypeVar("R", bound=Read)
V = TypeVar("V", bound=Vocabulary)
E = TypeVar("E", bound=Encoded)
P = TypeVar("P", bound="Predictor[Any, Any, Any]", contravariant=True)


@dataclass(frozen=True)
class HeldOut(Generic[R, E]):
    """A split to evaluate on, whose loss is known, at a step of training; `beams` is for tasks that search."""

    read: R
    encoded: E
    loss: float
    step: int
    split: Split
    beams: int | None = None
    progress: Progress | None = None

    def rows(self, count: int, most: int) -> list[int]:
        """The rows of a few of `count` examples, to be shown as samples."""
        return random.Random(self.step).sample(range(count), min(most, count))

    def result(self, scores: Sequence[Score], samples: Sequence[Sample] = (), unread: int = 0) -> Evaluated:
        """The evaluation with these scores."""
        return Evaluated(self.step, self.split, self.loss, tuple(scores), tuple(samples), unread)


class Task(Protocol[R, V, E, P]):
    """What is learned, by a recipe. What has a body here is what a task does that does not say otherwise.

    R: the examples as they were read, V: its vocabulary, E: the examples as the model reads them, P: its predictor.
    """

    words: ClassVar[Names]
    decoding: ClassVar[type[Config] | None]  # the class of `decode`, the settings of its predictor, if it has any
    searches: ClassVar[bool]  # whether its predictor can be told a number of beams
    artifacts: ClassVar[Mapping[str, Codec]]  # what a folder keeps besides weights: how each file is read
    recipe: Any

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe

    @property
    def decode(self) -> Config | None:
        """The settings of its predictor, if it has any."""
        return None

    def read(self, split: Split) -> R:
        """The examples of a split."""

    @staticmethod
    def collect(examples: Iterable[object], split: Split) -> R:
        """Examples that a user gives from Python, as `read` returns those of files."""
        raise UserError("this task reads its examples from files", where="data", todo="write them to files first")

    def learn(self, read: R) -> V:
        """The vocabulary of the training examples."""

    @classmethod
    def artifacts_of(cls, vocabulary: Any) -> dict[str, Artifact]:
        """What is kept of a vocabulary, by the names of its files."""
        (name,) = cls.artifacts
        return {name: vocabulary}

    @classmethod
    def vocabulary_of(cls, artifacts: Mapping[str, Any]) -> V:
        """The vocabulary that artifacts make together."""
        (only,) = artifacts.values()
        found: V = only
        return found

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

    def elsewhere(self, folder: Path) -> Source | None:
        """What the model of another task, or of others, has for this one; None: nothing."""
        return None

    def begin(self, model: Any, vocabulary: V) -> list[str]:
        """Give a new model what it need not learn, word vectors say, and tell what that was."""
        return []

    def encode(self, read: R, vocabulary: V) -> E:
        """Examples as numbers."""

    def notes(self, encoded: E) -> list[str]:
        """What whoever trains on the encoded examples should know of them."""
        return []

    def batches(self, encoded: E, packed: bool, even: bool) -> Batches:
        """The training batches; `even` asks for few shapes, where there is a choice."""

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

    def loss(self, predictor: P, encoded: E) -> float:
        """The mean loss over a split."""

    def quick_loss(self, predictor: P, encoded: E) -> float:
        """The same, or near it, at a moment in training."""
        return self.loss(predictor, encoded)

    def evaluate(self, predictor: P, held_out: HeldOut[R, E]) -> Evaluated:
        """Scores on a split, and a few samples."""

    @property
    def metric(self) -> str:
        """The score that decides which checkpoint is the best, or loss: the less the better."""
        return "loss"

    @property
    def validates(self) -> bool:
        """Whether the validation data are others than the test data, so that the best checkpoint can be chosen."""
        return True

    def example(self, sample: Sample) -> Example | None:
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


AnyTask: TypeAlias = Task[Any, Any, Any, Any]
