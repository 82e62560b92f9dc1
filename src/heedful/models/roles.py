"""The roles of models: a task names a role, and takes any model that has it; readable without torch.

B batch, S source tokens, T tokens, D width, V vocabulary, N texts, M words, C classes, P positions of a passage;
for images C channels, Y rows, X columns, N classes, F features.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol, Self

from pydantic import Field, field_validator

from heedful.config import Config
from heedful.models import MODELS
from heedful.models.sizes import Label, unique_labels

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

Role = Literal[
    "encoder",
    "two_streams",
    "left_encoder",
    "causal",
    "bidirectional",
    "seq2seq",
    "hierarchical",
    "classifier",
    "regressor",
    "multi_label",
    "multiple_choice",
    "tagger",
    "answerer",
    "word_classifier",
    "style_transfer",
    "story_answerer",
    "tree_classifier",
    "tabular",
    "text_autoencoder",
    "autoencoder",
    "image_encoder",
    "glimpse_classifier",
    "captioner",
    "paragraph_captioner",
    "policy",
    "q_network",
]

BELOW_HEADS: tuple[Role, ...] = ("encoder", "left_encoder")  # what the head of a task may be on top of

# Whether a second text follows the first, or is another's; or whether two texts that follow each other are in order.
PairObjective = Literal["next_sentence", "sentence_order"]


class ModelConfig(Config):
    """What the settings of every model have: `kind` first, and all sizes, so that a model is built of them alone."""

    implementation: ClassVar[str] = "model.Model"  # the file beside the settings, and the class in it
    fixed_context: ClassVar[bool] = False  # whether it sees at most `context` tokens, unlike a recurrent model
    attends: ClassVar[bool] = False  # whether a token attends to others, and so can be kept to its own document

    kind: str

    @property
    def role(self) -> Role:
        """Its role in a task."""
        return MODELS[self.kind].role

    @property
    def usual_tokenizer(self) -> str | None:
        """The kind of tokenizer that it was published with, which its folders have; None: any."""
        return None

    @property
    def packs(self) -> bool:
        """Whether it can read sequences packed end to end in one row."""
        return False

    @property
    def segment(self) -> int | None:
        """How many tokens of a long text it reads at a time; None: any number."""
        return None

    @property
    def max_memory(self) -> int:
        """The longest memory, in tokens, that it can be given after training; 0: it has none."""
        return 0

    @property
    def hard(self) -> bool:
        """Whether it has hard attention or chooses glimpses, which is trained by sampling."""
        return False

    @property
    def uncompiled(self) -> str | None:
        """Why its steps cannot be compiled, and what to write instead; None: they can be."""
        return None

    @property
    def unexported(self) -> str | None:
        """Why it cannot be written as ONNX; None: it can be."""
        return None

    @abstractmethod
    def parameters(self, vocab: int) -> int:
        """The number of parameters."""

    @classmethod
    @abstractmethod
    def tiny(cls) -> Self:
        """The smallest model in which nothing is missing, for tests: 23 tokens, and 16 at once."""


class BelowHeadConfig(ModelConfig):
    """What the settings of every model have that gives heads a vector for each token of a text."""

    compares_segments: ClassVar[bool] = False  # whether segments are only compared, and there may be any number
    settled: ClassVar[tuple[str, ...]] = ()  # settings that no weight shows, and that stay as they were in training
    weighs_tokens: ClassVar[bool] = True  # whether its attention weights, if it has any, are of the tokens themselves
    pooled_bias: ClassVar[bool] = True  # whether the layer on the vector of a text has a bias, as published

    if TYPE_CHECKING:
        vocab: int | None
        width: int
        layers: int
        context: int
        dropout: float

    @property
    def segment_types(self) -> int:
        """The number of segment types that it tells apart."""
        return 1

    @abstractmethod
    def under_head(self, pools: bool, head: str | None = None) -> Self:
        """The model below the head of a task: without heads of its own, and with a pooler only if that is read.

        `head` is the kind of the head, where published ones differ in what is below them.
        """


class EncoderConfig(BelowHeadConfig):
    """What the settings of every encoder have."""

    if TYPE_CHECKING:
        segments: int
        pooler: bool
        masked_words: bool
        next_sentence: bool

    @property
    def segment_types(self) -> int:
        """The number of segment types that it tells apart."""
        return self.segments

    @property
    def first_position(self) -> int | None:
        """The row of the first token in the table of positions; None: no such table could be repeated for more."""
        return None

    @classmethod
    def adopt(cls, other: EncoderConfig, published: bool) -> dict[str, Any] | None:
        """The settings with which it computes the same as another encoder with its weights; None: there are none.

        `published`: as a published folder can express them.
        """
        return None

    @property
    def pairs(self) -> PairObjective | None:
        """What its head for pairs of texts predicts, if it has one."""
        return "next_sentence" if self.next_sentence else None


Side = Annotated[int, Field(ge=1, le=16_384)]


class ImageModelConfig(ModelConfig):
    """What the settings of every model that classifies images have."""

    any_size: ClassVar[bool] = False  # whether it also reads images of other rows and columns than `size`

    channels: int = Field(3, ge=1, le=1024, description="channels of an image: 1 for greyscale, 3 for RGB")
    size: tuple[Side, Side] = Field((224, 224), description="rows and columns of an image")
    classes: int | None = Field(None, ge=2, le=100_000, description="number of classes; null: that of the data")
    freeze: bool = Field(False, description="whether all layers but the last one are frozen")

    @property
    def input(self) -> tuple[int, int, int]:
        """Channels, rows and columns of an image."""
        return self.channels, *self.size

    @property
    def outputs(self) -> int:
        """The number of classes; two where they are not known yet."""
        return self.classes or 2

    def grids(self, size: tuple[int, int]) -> dict[str, tuple[tuple[int, int], tuple[int, int]]]:
        """The tables of positions, each with its rows and columns for images of another size, and for its own."""
        return {}

    @abstractmethod
    def parameters(self, vocab: int = 0) -> int:
        """The number of parameters, for two classes where they are not known yet; there is no vocabulary."""


class ImageEncoderConfig(ImageModelConfig):
    """What the settings of every image model with a feature map have."""

    @property
    @abstractmethod
    def map_shape(self) -> tuple[int, int, int]:
        """Channels, rows and columns of the feature map of an image of `size`."""

    @property
    @abstractmethod
    def map_parameters(self) -> int:
        """The number of parameters of the layers up to the map."""


class AgentConfig(ModelConfig):
    """What the settings of every model have that chooses actions."""

    observations: int | None = Field(
        None, ge=1, le=10_000_000, description="values of an observation; null: those of the environment"
    )
    actions: int | None = Field(None, ge=1, le=100_000, description="number of actions; null: that of the environment")

    @property
    def inputs(self) -> int:
        """The number of values of an observation; one where it is not known yet."""
        return self.observations or 1

    @property
    def outputs(self) -> int:
        """The number of actions; one where it is not known yet."""
        return self.actions or 1

    @property
    @abstractmethod
    def estimates(self) -> bool:
        """Whether it estimates the return that is expected after an observation."""

    def perceptron(self, hidden: tuple[int, ...], outputs: int) -> int:
        """The number of parameters of a multilayer perceptron that reads an observation."""
        return sum((before + 1) * after for before, after in pairwise((self.inputs, *hidden, outputs)))

    @abstractmethod
    def parameters(self, vocab: int = 0) -> int:
        """The number of parameters, for observations and actions of one value where these are not known yet."""


class StoryModelConfig(ModelConfig):
    """What the settings of every model that answers questions about stories have."""

    vocab: int | None = Field(None, ge=3, le=10_000_000, description="vocabulary size; null: that of the word list")
    labels: tuple[Label, ...] | None = Field(
        None, min_length=2, max_length=100_000, description="the possible answers; null: those of the training data"
    )
    memory: int = Field(
        50, ge=1, le=100_000, description="sentences that are remembered: of a longer story, the last ones"
    )

    _labels_differ = field_validator("labels")(unique_labels)

    @property
    def answers(self) -> int:
        """The number of possible answers; two where they are not known yet."""
        return len(self.labels or "ab")


class BelowHead(Protocol):
    """tokens (B, T) -> a vector for each of them (B, T, D), which a head reads; maybe from those before it alone."""

    config: BelowHeadConfig

    def layers(self, tokens: Tensor, segments: Tensor | None = None, layout: Any = None) -> list[Tensor]:
        """The vectors (B, T, D) before the first block, and after every one."""

    def summarize(self, x: Tensor, layout: Any) -> Tensor:
        """A vector for each text (N, D), from those of its tokens (B, T, D), as a head reads it."""


class Encoder(BelowHead, Protocol):
    """tokens (B, T) -> a vector for each of them (B, T, D), from all tokens."""

    config: EncoderConfig

    def __call__(self, tokens: Tensor, segments: Tensor | None = None, layout: Any = None) -> Tensor: ...

    def masked_vectors(self, tokens: Tensor, segments: Tensor | None, layout: Any, places: Tensor) -> Tensor:
        """The vectors (B, T, D) that tokens are predicted from; at flat positions `places`, from the others."""

    def words(self, x: Tensor) -> Tensor:
        """The logits (M, V) of masked tokens, from the vectors (M, D) at their positions."""


class TwoStreams(Encoder, Protocol):
    """An encoder with a second stream, of queries that do not know the tokens at their own positions."""

    def two_streams(
        self,
        tokens: Tensor,
        ranks: Tensor,
        places: Tensor,
        segments: Tensor | None = None,
        layout: Any = None,
        memory: Any = None,
    ) -> tuple[list[Tensor], Tensor]:
        """The layers (B, T, D) of tokens (B, T) that see each other by their ranks, and queries (B, G, D) at places."""

    def start(self, rows: int, size: int, device: torch.device) -> Any:
        """A memory of this many tokens, in which there is no text yet."""


class Causal(Protocol):
    """tokens (B, T), state -> logits (B, T, V) of the token after each, and the state after them."""

    config: ModelConfig

    def __call__(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]: ...

    def start(self, rows: int, device: torch.device) -> Any:
        """The state before the first token of this many texts."""

    def features(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """The last layer (B, T, D), from which the logits are made, and the state."""


class Bidirectional(Protocol):
    """tokens (B, T) -> logits (B, T, V) of the token after each, from those before, and of the one before, likewise."""

    config: ModelConfig

    def __call__(self, tokens: Tensor, real: Tensor | None = None) -> tuple[Tensor, Tensor]: ...

    def layers(self, tokens: Tensor, real: Tensor | None = None) -> Tensor:
        """The vectors of each token in each layer (B, L + 1, T, 2 D)."""


class Seq2Seq(Protocol):
    """source (B, S) -> state; then target (B, T), state -> logits (B, T, V), state: causal, once the source is read."""

    config: ModelConfig
    tokens: Any  # the embedding, whose `weight` (V, D) also gives the logits
    alignment: str  # the taps of its attention weights to the source; no tap has this name where there is no attention

    def __call__(self, target: Tensor, state: Any) -> tuple[Tensor, Any]: ...

    def start(self, source: Tensor, layout: Any = None) -> Any:
        """The state once the source is read."""

    def features(self, target: Tensor, state: Any) -> tuple[Tensor, Any]:
        """The last layer (B, T, D), from which the logits are made, and the state."""

    def read(self, source: Tensor, target: Tensor, layout: Any = None) -> Tensor:
        """The last layer (B, T, D) for whole targets at once: teacher forcing."""


class TextAutoencoder(Protocol):
    """source (B, S) -> a code (B, K); code -> state; then target (B, T), state -> logits (B, T, V), state: causal."""

    config: ModelConfig
    tokens: Any  # the embedding, whose `weight` (V, D) also gives the logits

    def __call__(self, target: Tensor, state: Any) -> tuple[Tensor, Any]: ...

    def encode(self, source: Tensor, layout: Any = None) -> Any:
        """The code of each sentence: its `mean` (B, K) and its `log_variance`, None where nothing is random."""

    def start(self, code: Tensor) -> Any:
        """The state before the first token of sentences with these codes."""

    def features(self, target: Tensor, state: Any) -> tuple[Tensor, Any]:
        """The last layer (B, T, D), from which the logits are made, and the state."""


class Hierarchical(Protocol):
    """utterances (B, U, T) -> the state before the reply to each; then tokens (R, T), state -> logits (R, T, V)."""

    config: ModelConfig
    tokens: Any  # the embedding, whose `weight` (V, D) also gives the logits
    alignment: str  # the taps of its attention weights to the turns; no tap has this name where there is no attention

    def __call__(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]: ...

    def start(self, utterances: Tensor, real: Tensor, speakers: Tensor) -> Any:
        """The states (B * U rows) before the reply to each utterance, given those up to it, of a dialogue.

        `real` (B, U, T) is False for padding; `speakers` (B, U + 1) is who says each, and who replies.
        """

    def features(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """The last layer (R, T, D), from which the logits are made, and the state."""


class Autoencoder(Protocol):
    """images (B, ...) -> the same shape, by way of a code that `encoder` gives and `decoder` reads."""

    config: ModelConfig

    def __call__(self, images: Tensor) -> Tensor: ...


class ImageEncoder(Protocol):
    """images (B, C, Y, X), normalized floats -> logits (B, N) of their classes."""

    config: ImageEncoderConfig
    head: nn.Linear  # the last layer, which is replaced where a run starts from a model of other classes

    def __call__(self, images: Tensor) -> Tensor: ...

    def map(self, images: Tensor) -> Tensor:
        """The feature map (B, D, Y', X') of the last spatial layer; of patches, their vectors as a grid."""

    def keep_map(self) -> None:
        """Remove the layers after the map, for a model that reads the map alone."""

    def features(self, images: Tensor) -> Tensor:
        """The vector (B, F) of each image, from which `head` makes the logits."""

    def training_logits(self, images: Tensor) -> list[tuple[float, Tensor]]:
        """The logits (B, N) of each classifier that is trained, with the weight of its loss; most have one, of 1."""


class GlimpseClassifier(Protocol):
    """images (B, C, Y, X), normalized floats -> logits (B, N), from T glimpses at places that it chooses."""

    config: ImageModelConfig
    head: nn.Linear  # the last layer, which is replaced where a run starts from a model of other classes

    def __call__(self, images: Tensor) -> Tensor: ...

    def features(self, images: Tensor) -> Tensor:
        """The vector (B, F) of each image, from which `head` makes the logits."""

    def look(self, images: Tensor) -> Any:
        """The glimpses: `places` (B, T, 2) from -1 to 1, `states` (B, T, F), and of the places after the first `logs`
        (B, T - 1), the log p of those that were sampled, and `values` (B, T - 1), the rewards expected before."""

    def patches(self, images: Tensor, places: Tensor) -> Tensor:
        """What a glimpse at `places` (B, 2) sees: K patches (B, K, C, G, G), each twice as wide as the one before."""


class Captioner(Protocol):
    """images (B, C, Y, X) -> state; then tokens (R, T), state -> logits (R, T, V), state: causal, with images seen."""

    config: ModelConfig
    tokens: Any  # the embedding, whose `weight` (V, D) also gives the logits
    alignment: str  # the taps of its attention weights to the map; no tap has this name where there is no attention

    def __call__(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]: ...

    def start(self, images: Tensor) -> Any:
        """The state once the images are seen."""

    def read(self, images: Tensor, captions: Tensor) -> Any:
        """Of whole captions (R, T) at once: the last layer, weights over the map, and log p of sampled places."""


class ParagraphCaptioner(Protocol):
    """images, boxes -> regions -> memory; a plan for each sentence; tokens (N, T), state -> logits, state."""

    config: ModelConfig
    tokens: Any  # the embedding, whose `weight` (V, D) also gives the logits
    grounding: str  # the tap of the weights (B, K, R) of the regions of each sentence

    def __call__(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]: ...

    def look(self, images: Tensor, boxes: Tensor, real: Tensor) -> Tensor:
        """A vector for each region (B, R, M), from boxes (B, R, 4) from 0 to 1, the first being the whole image."""

    def phrase_topics(self, regions: Tensor) -> Tensor:
        """The topic of the phrase of each region (B, R, H)."""

    def remember(self, regions: Tensor, phrases: Tensor, words: Tensor) -> Tensor:
        """The memory (B, R, M) of regions and their phrases (B, R, T)."""

    def begin_paragraph(self, memory: Tensor, real: Tensor) -> Any:
        """The state before the first sentence."""

    def plan(self, memory: Tensor, real: Tensor, state: Any, chosen: Tensor | None = None) -> tuple[Any, Any]:
        """The plan of the next sentence, with its `topic`, `weights` and `last`; and the state after it."""

    def start(self, topics: Tensor) -> Any:
        """The state before the first word of texts with these topics (N, H)."""

    def features(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """The last layer (N, T, D), from which the logits are made, and the state."""


class Policy(Protocol):
    """observations (B, O) -> logits (B, A) of the actions."""

    config: AgentConfig

    def __call__(self, observations: Tensor) -> Tensor: ...

    def value(self, observations: Tensor) -> Tensor:
        """The return (B,) expected after each observation, where the model has a critic."""


class QNetwork(Protocol):
    """observations (B, O) -> the return (B, A) expected after each action, from weights that learn."""

    config: AgentConfig

    def __call__(self, observations: Tensor) -> Tensor: ...

    def value(self, observations: Tensor) -> Tensor:
        """The return (B,) expected after each observation, by the best action."""

    def target_values(self, observations: Tensor) -> Tensor:
        """The same as a call (B, A), from the weights of the target network."""

    def update_target(self) -> None:
        """Copy the weights that learn to the target network."""


class TreeClassifier(Protocol):
    """trees -> logits (M, C) of a class for each of their M nodes."""

    config: ModelConfig

    def __call__(self, trees: Any) -> Tensor: ...


class Tabular(Protocol):
    """One tensor for each column of B rows -> outputs (B, N): the logits of classes, or a number.

    Texts are ids (B, T) with 0 for padding, numbers are normalized (B, K), classes are numbers (B,), 0 the unknown
    one, and images are normalized (B, C, Y, X).
    """

    config: ModelConfig

    def __call__(self, values: Sequence[Tensor]) -> Tensor: ...


class TextClassifier(Protocol):
    """tokens (B, T) -> logits (N, C), or a number for each text (N,).

    Heads over an encoder are these: classifier, regressor, multi-label and multiple choice; a word classifier has no
    encoder.
    """

    config: ModelConfig

    def __call__(self, tokens: Tensor, segments: Tensor | None = None, layout: Any = None) -> Tensor: ...


class StyleTransfer(Protocol):
    """texts (B, S), styles (B,) -> state; then words (B, T), state -> logits (B, T, V), state: causal, with texts read.

    Texts may be soft (B, S, V): a distribution at each place.
    """

    config: ModelConfig
    discriminator: nn.Module  # texts, soft or not, and what is no padding (B, T) -> logits of styles, and of generated
    alignment: str  # the taps of its attention weights to the text that it reads

    def __call__(self, words: Tensor, state: Any) -> tuple[Tensor, Any]: ...

    def start(self, texts: Tensor, styles: Tensor, layout: Any = None) -> Any:
        """The state before the first word of each text in its style."""

    def write(self, state: Any, begin: Tensor, end: int, never: Tensor, limits: Tensor, temperature: float) -> Any:
        """Soft texts, `words` (B, T, V) and which of them are `real` (B, T), with gradients."""


class StoryAnswerer(Protocol):
    """questions (B, W) about stories (B, S), rows of the batch's distinct sentences (R, W) -> logits (B, C) of answers.

    A story's sentences are in their order, and -1 is padding; of words, 0 is.
    """

    config: StoryModelConfig
    hop_weights: str | None  # the taps of the weights (B, 1, 1, S) of each hop, if it has any

    def __call__(self, sentences: Tensor, stories: Tensor, questions: Tensor) -> Tensor: ...


class Tagger(Protocol):
    """tokens (B, T), which of them begin a word (M,) -> logits (M, C); a head over an encoder."""

    config: ModelConfig

    def __call__(self, tokens: Tensor, segments: Tensor, layout: Any, words: Tensor) -> Tensor: ...


class Answerer(Protocol):
    """tokens (B, T), where passages begin (N,), their lengths (N,) -> scores (N, P, 2); a head over an encoder."""

    config: ModelConfig

    def __call__(
        self, tokens: Tensor, segments: Tensor, layout: Any, begins: Tensor, sizes: Tensor, most: int
    ) -> Tensor: ...


ROLES: dict[Role, type] = {
    "encoder": Encoder,
    "two_streams": TwoStreams,
    "left_encoder": BelowHead,
    "causal": Causal,
    "bidirectional": Bidirectional,
    "seq2seq": Seq2Seq,
    "hierarchical": Hierarchical,
    "classifier": TextClassifier,
    "regressor": TextClassifier,
    "multi_label": TextClassifier,
    "multiple_choice": TextClassifier,
    "tagger": Tagger,
    "answerer": Answerer,
    "word_classifier": TextClassifier,
    "style_transfer": StyleTransfer,
    "story_answerer": StoryAnswerer,
    "tree_classifier": TreeClassifier,
    "tabular": Tabular,
    "text_autoencoder": TextAutoencoder,
    "autoencoder": Autoencoder,
    "image_encoder": ImageEncoder,
    "glimpse_classifier": GlimpseClassifier,
    "captioner": Captioner,
    "paragraph_captioner": ParagraphCaptioner,
    "policy": Policy,
    "q_network": QNetwork,
}
