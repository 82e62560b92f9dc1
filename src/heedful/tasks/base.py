"""The interface between a task and a run.

A task has a recipe. It reads and encodes the data, defines the loss, and evaluates the model. Its predictor is the
trained model ready for use, as `heedful.load` returns it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from heedful.config import Config
from heedful.data.formats.sources import Split
from heedful.data.own import OwnData
from heedful.data.workers import BatchSource
from heedful.errors import UserError
from heedful.models.heads.config import with_vocab
from heedful.training.class_report import ClassReport
from heedful.training.configs import PlayerConfig
from heedful.training.metrics import Score

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from heedful.tasks.predictor import Predictor
    from heedful.tasks.recipe_parts import Recipe

Progress = Callable[[int], None]
Sample = tuple[str, str, str]  # input, expected output, prediction
TINY = 1_000_000  # parameters of a model that trains fastest on one thread


@dataclass(frozen=True)
class Evaluated:
    """The scores of a model on a split, with a few samples."""

    step: int
    split: Split
    loss: float
    scores: tuple[Score, ...]
    samples: tuple[Sample, ...]
    unread: int  # examples longer than the model's context, which count as wrong

    def selection_score(self, metric: str) -> float:
        """The value by which the best checkpoint is selected, higher is better: a score, or the negative loss."""
        if metric == "loss":
            return -self.loss
        return next(score.value for score in self.scores if score.name == metric)


class Example(NamedTuple):
    """An example to show: a text or a pair of texts, and the expected output."""

    text: str
    other: str | None
    right: str


@dataclass(frozen=True)
class Names:
    """The names of things in a task's messages."""

    examples: str  # the elements of the data
    tokens: str  # the elements of the vocabulary
    too_long: str  # precedes the number of examples that are too long
    blank: str  # precedes the number of examples that are blank
    learning: str  # the stage that builds the vocabulary
    encoding: str  # the stage that encodes the data
    testing: str  # the stage that evaluates on a split, where {} is its name
    sample: tuple[str, str, str]  # the parts of a sample: given, expected, predicted
    counted: str = "tokens"  # the unit of training speed
    loss: str = "nats a token"  # the unit of the loss


class Artifact(Protocol):
    """A file that a run saves with its weights, such as a tokenizer or the shape of images."""

    @property
    def json(self) -> str:
        """The text of its file."""

    @property
    def sha256(self) -> str:
        """Its SHA-256."""


class Codec(NamedTuple):
    """Readers of an artifact: from its text and a name for errors, or from its file."""

    open: Callable[[str, str], Artifact]
    load: Callable[[Path], Artifact]


class Vocabulary(Protocol):
    """The encoder of examples: the artifact of a task, or all of them together."""

    @property
    def vocab(self) -> int:
        """The number of different tokens, or of values in an image."""


class Read(Protocol):
    """The examples of a split, as read."""

    @property
    def skipped(self) -> int:
        """The number of blank examples, which were skipped."""


class Encoded(Protocol):
    """The encoded examples of a split."""

    def __len__(self) -> int: ...

    @property
    def sha256(self) -> str: ...

    @property
    def dropped(self) -> int:
        """The number of examples that were too long and skipped."""


class Batches(BatchSource, Protocol):
    """The endless sequence of training batches; which one comes at a position depends on the seed alone."""

    @property
    def few_shapes(self) -> bool:
        """Whether all batches have one shape."""

    def tokens(self, position: int) -> int:
        """The size of the batch at a position, in tokens or examples."""


class Source(NamedTuple):
    """Weights that a run may start from, with their vocabulary: of the whole model, or of a part of it."""

    vocabulary: Any
    tensors: dict[str, Tensor]
    file: Path  # for errors
    part: str = ""  # of the model that the weights belong to
    random: tuple[str, ...] = ()  # beginnings of names of weights that may be missing, and are randomly initialized


R = TypeVar("R", bound=Read)
V = TypeVar("V", bound=Vocabulary)
E = TypeVar("E", bound=Encoded)
P = TypeVar("P", bound="Predictor[Any, Any, Any]", contravariant=True)


@dataclass(frozen=True)
class HeldOut(Generic[R, E]):
    """A split to evaluate on, with its loss at a training step; `beams` is for tasks with beam search."""

    read: R
    encoded: E
    loss: float
    step: int
    split: Split
    beams: int | None = None
    progress: Progress | None = None

    def rows(self, count: int, most: int) -> list[int]:
        """The indices of a few random examples of `count`, to show as samples."""
        return random.Random(self.step).sample(range(count), min(most, count))

    def result(self, scores: Sequence[Score], samples: Sequence[Sample] = (), unread: int = 0) -> Evaluated:
        """The result of the evaluation."""
        return Evaluated(self.step, self.split, self.loss, tuple(scores), tuple(samples), unread)


class Task(Protocol[R, V, E, P]):
    """A task with its recipe. Methods with a body here are defaults.

    R: the examples as read, V: the vocabulary, E: the encoded examples, P: the predictor.
    """

    words: ClassVar[Names]
    decoding: ClassVar[type[Config] | None]  # the class of `decode`, the settings of its predictor, if it has any
    searches: ClassVar[bool]  # whether its predictor uses beam search
    artifacts: ClassVar[Mapping[str, Codec]]  # the files that are saved with the weights, and their readers
    recipe: Any

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        if isinstance(recipe.data, OwnData):
            recipe.data.attach(self.collect)

    @property
    def decode(self) -> Config | None:
        """The settings of its predictor, if it has any."""
        return None

    def read(self, split: Split) -> R:
        """The examples of a split."""

    @staticmethod
    def collect(examples: Iterable[object], split: Split) -> R:
        """The user's own examples, in the form that `read` returns."""

    def learn(self, read: R) -> V:
        """The vocabulary of the training examples."""

    @classmethod
    def artifacts_of(cls, vocabulary: Any) -> dict[str, Artifact]:
        """The artifacts of a vocabulary, by the names of their files."""
        (name,) = cls.artifacts
        return {name: vocabulary}

    @classmethod
    def vocabulary_of(cls, artifacts: Mapping[str, Any]) -> V:
        """The vocabulary that consists of these artifacts."""
        (only,) = artifacts.values()
        found: V = only
        return found

    @staticmethod
    def fitted(config: Any, vocabulary: Any, where: str) -> Any:
        """The settings of a model with the size of its vocabulary, checked; `where` is for errors."""
        known, room = vocabulary.vocab, config.vocab
        if room is not None and room < known:
            raise UserError(
                "the model's vocabulary is too small",
                where=f"{where}.vocab",
                found=f"{room:,}",
                expected=f"at least {known:,}, the size of the training data's vocabulary",
                todo="leave model.vocab out",
            )
        return with_vocab(config, room or known)

    def adapted(self, vocabulary: V, read: R) -> V:
        """The vocabulary of a run that starts from a model with this one."""
        return vocabulary

    def reused(self, source: Source, vocabulary: V) -> Source | None:
        """Which weights of a model of this task with other settings are used to start from; None: not supported."""
        return None

    def elsewhere(self, folder: Path) -> Source | None:
        """Weights of a model of another task, or of a published model, to start from; None: not supported."""
        return None

    def begin(self, model: Any, vocabulary: V) -> list[str]:
        """Initialize a new model, with word vectors for example, and return notes about it."""
        return []

    def joined(self, model: Any) -> list[str]:
        """Copy weights of further folders into a model that starts from another, and return notes about them."""
        return []

    def sources(self) -> dict[str, tuple[str, str]]:
        """What training reads besides the data, and must not change until it ends: a SHA-256 and a place, by name."""
        return {}

    def encode(self, read: R, vocabulary: V) -> E:
        """The examples as arrays of ids."""

    def notes(self, encoded: E) -> list[str]:
        """Remarks for the user about the encoded examples."""
        return []

    def batches(self, encoded: E, packed: bool, even: bool) -> Batches:
        """The training batches; `even` asks for batches of few different shapes."""

    def loss_of(self, model: Any, packed: bool) -> Callable[..., Any]:
        """The loss of a batch, compiled if the recipe asks for it; with `first_carry`, of a batch and a carry."""

    def loss_on(self, model: Any, packed: bool, encoded: E, vocabulary: V) -> Callable[..., Any]:
        """The loss of training on these examples, whose classes may have weights."""
        return self.loss_of(model, packed)

    def first_carry(self, model: Any, batches: Any, device: torch.device) -> Any:
        """The carry before the first batch, such as zeros for each lane; None: there is no carry."""
        return None

    @property
    def players(self) -> Mapping[str, PlayerConfig]:
        """The parts of the model that have optimizers of their own, such as a discriminator; most models have none."""
        return {}

    @property
    def packs(self) -> bool:
        """Whether its batches may be packed, where the model can read such batches."""
        return True

    @property
    def records(self) -> bool:
        """Whether recording and replaying steps makes training on a CPU faster."""
        return False

    def threads(self, model: Any, cores: int) -> int:
        """The number of CPU threads for training, at most `cores`."""
        return 1 if sum(weight.numel() for weight in model.parameters()) < TINY else cores

    @staticmethod
    def predictor(
        model: Any, config: Any, vocabulary: Any, decode: Any, device: torch.device, notes: tuple[str, ...] = ()
    ) -> Any:
        """The predictor of a trained model."""

    def loss(self, predictor: P, encoded: E) -> float:
        """The mean loss over a split."""

    def quick_loss(self, predictor: P, encoded: E) -> float:
        """The mean loss during training, possibly approximate."""
        return self.loss(predictor, encoded)

    def evaluate(self, predictor: P, held_out: HeldOut[R, E]) -> Evaluated:
        """Scores on a split, and a few samples."""

    def details(self, predictor: P, split: Split) -> ClassReport | None:
        """How a classifier is right and wrong on a split; None for other tasks."""
        return None

    @property
    def metric(self) -> str:
        """The score that selects the best checkpoint; or "loss", where lower is better."""
        return "loss"

    @property
    def validates(self) -> bool:
        """Whether there are validation data besides the test data, to select the best checkpoint."""
        return True

    def example(self, sample: Sample) -> Example | None:
        """The example of a sample; None if the sample does not contain all of it."""
        return Example(sample[0], None, sample[1])

    def examples(self, split: Split) -> Iterator[Example]:
        """Some examples of a split; none where they are not texts."""
        return iter(())

    def in_words(self, loss: float) -> str:
        """A loss as text, with related values such as the perplexity."""
        return f"loss {loss:.5f}"

    def remarks(self, result: Evaluated) -> list[str]:
        """Remarks for the user about the scores."""
        return []

    def next(self, folder: Path, test: Evaluated | None) -> Sequence[str]:
        """Commands to try after training."""


AnyTask: TypeAlias = Task[Any, Any, Any, Any]
