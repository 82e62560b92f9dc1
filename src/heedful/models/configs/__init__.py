"""The settings of each model and its published sizes, readable without torch."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from heedful.config import Config, FieldError
from heedful.models.configs.limits import refuse_too_large


def attention_parameters(width: int) -> int:
    """How many numbers multi-head attention has, whatever its heads."""
    return 4 * (width * width + width)


def block_parameters(width: int, hidden: int) -> int:
    """How many numbers a block of the Transformer's encoder has: attention, feed-forward layer and two norms."""
    return attention_parameters(width) + 2 * width * hidden + hidden + width + 4 * width


def share_width(heads: int, info: ValidationInfo) -> int:
    """The heads, if they can share the width evenly."""
    width = info.data.get("width")
    if width is not None and width % heads:
        fitting = min((n for n in range(1, width + 1) if width % n == 0), key=lambda n: (abs(n - heads), -n))
        wider = width + heads - width % heads
        raise ValueError(
            f"a width of {width} cannot be shared by {heads} heads; write heads: {fitting} or width: {wider}"
        )
    return heads


def check_positions(positions: str, info: ValidationInfo) -> str:
    """The way that places are told, if the width allows it."""
    width, heads = info.data.get("width"), info.data.get("heads")
    if positions in ("sinusoid", "sinusoid_halves") and width is not None and width % 2:
        raise ValueError(f"sinusoids need an even width; write width: {width + 1} or positions: learned")
    if positions == "rotary" and width is not None and heads is not None and width // heads % 2:
        raise ValueError(
            f"rotary positions need an even width for each head, and {width} / {heads} is odd; "
            f"write width: {width + heads}"
        )
    return positions


class TransformerConfig(Config):
    """The encoder-decoder of "Attention Is All You Need" (2017), in its published and its pre-norm form."""

    packs: ClassVar = True  # whether it can read sentences that lie end to end in one row

    kind: Literal["transformer"] = "transformer"
    vocab: int | None = Field(None, ge=4, le=10_000_000, description="token types; null: as many as the tokenizer has")
    width: int = Field(512, ge=1, le=65_536, description="numbers that stand for one token between blocks")
    heads: int = Field(8, ge=1, le=1024, description="attention heads in each attention; they share the width evenly")
    encoder_layers: int = Field(6, ge=1, le=1000, description="blocks in the encoder")
    decoder_layers: int = Field(6, ge=1, le=1000, description="blocks in the decoder")
    hidden: int = Field(2048, ge=1, le=1_048_576, description="inner width of the feed-forward layers")
    context: int = Field(1024, ge=2, le=1_048_576, description="longest sequence, in tokens")
    dropout: float = Field(0.1, ge=0, lt=1, description="share of numbers set to zero while training")
    norm: Literal["post", "pre"] = Field("post", description="layer norm after each sum (as published) or before it")
    positions: Literal["sinusoid", "sinusoid_halves", "learned", "none", "rotary", "alibi"] = Field(
        "sinusoid", description="how a token's place is told"
    )
    activation: Literal["relu", "gelu", "swish"] = Field("relu", description="between the two feed-forward matrices")

    _heads_share_width = field_validator("heads")(share_width)

    @field_validator("positions")
    @classmethod
    def _positions_come_in_pairs(cls, positions: str, info: ValidationInfo) -> str:
        return check_positions(positions, info)

    @model_validator(mode="after")
    def _size_is_plausible(self) -> Self:
        refuse_too_large(self.parameters(self.vocab or 0))
        return self

    def parameters(self, vocab: int) -> int:
        """How many numbers are trained, the embedding counted once, since encoder, decoder and output share it."""
        block, attention, norm = (
            block_parameters(self.width, self.hidden),
            attention_parameters(self.width),
            2 * self.width,
        )
        encoder = self.encoder_layers * block
        decoder = self.decoder_layers * (block + attention + norm)  # which also look at the source
        last = 2 * norm if self.norm == "pre" else 0
        places = self.context * self.width if self.positions == "learned" else 0
        return vocab * self.width + encoder + decoder + last + places


Score = Literal["dot", "scaled_dot", "cosine", "general", "additive", "location"]
CellKind = Literal["lstm", "gru", "rnn"]
GATES: dict[CellKind, tuple[int, int]] = {"lstm": (4, 1), "gru": (3, 2), "rnn": (1, 0)}  # products, and their biases


def layer_parameters(cell: CellKind, width: int, hidden: int) -> int:
    """How many numbers one recurrent layer has."""
    gates, biases = GATES[cell]
    return gates * hidden * (width + hidden + biases)


class RecurrentEncoder(Config):
    """Recurrent layers that read the source."""

    kind: Literal["recurrent"] = "recurrent"
    cell: CellKind = Field("lstm", description="LSTM, GRU, or the plain RNN")
    layers: int = Field(2, ge=1, le=100, description="layers on top of each other")
    hidden: int = Field(512, ge=1, le=65_536, description="width of the memory, both directions together")
    directions: Literal["both", "ahead"] = Field("both", description="read in both directions, or ahead only")

    @field_validator("directions")
    @classmethod
    def _directions_share_hidden(cls, directions: str, info: ValidationInfo) -> str:
        hidden = info.data.get("hidden")
        if directions == "both" and hidden is not None and hidden % 2:
            raise ValueError(f"two directions cannot share a hidden width of {hidden}; write hidden: {hidden + 1}")
        return directions

    def memory(self, width: int) -> int:
        """The width of what it leaves of each source token."""
        return self.hidden

    def parameters(self, width: int) -> int:
        """How many numbers are trained."""
        count, each = (2, self.hidden // 2) if self.directions == "both" else (1, self.hidden)
        widths = [width] + [self.hidden] * (self.layers - 1)
        return sum(count * layer_parameters(self.cell, into, each) for into in widths)


class TransformerEncoder(Config):
    """Blocks of the Transformer that read the source, as wide as the embedding."""

    kind: Literal["transformer"] = "transformer"
    heads: int = Field(8, ge=1, le=1024, description="attention heads, which share the width evenly")
    layers: int = Field(6, ge=1, le=1000, description="blocks on top of each other")
    hidden: int = Field(2048, ge=1, le=1_048_576, description="inner width of the feed-forward layers")
    norm: Literal["post", "pre"] = Field("pre", description="layer norm after each sum (as published) or before it")

    def memory(self, width: int) -> int:
        """The width of what it leaves of each source token."""
        return width

    def parameters(self, width: int) -> int:
        """How many numbers are trained."""
        return self.layers * block_parameters(width, self.hidden) + (2 * width if self.norm == "pre" else 0)


class Global(Config):
    """Attention to the whole source."""

    kind: Literal["global"] = "global"


class Monotonic(Config):
    """Attention to a window that moves on by one source token with each target token."""

    kind: Literal["monotonic"] = "monotonic"
    window: int = Field(10, ge=1, le=100_000, description="source tokens to either side of the middle")


class Predictive(Config):
    """Attention to a window whose middle the decoder predicts, and where nearer is better."""

    kind: Literal["predictive"] = "predictive"
    window: int = Field(10, ge=1, le=100_000, description="source tokens to either side of the middle")


class AttentionConfig(Config):
    """How the decoder looks at the source while it writes."""

    score: Score = Field("additive", description="how the decoder's state and a source token are compared")
    feed: Literal["input", "output"] = Field(
        "input", description="where the context goes: into the first layer (Bahdanau), or beside the last one (Luong)"
    )
    span: Annotated[Global | Monotonic | Predictive, Field(discriminator="kind")] = Field(
        Global(), description="how much of the source is seen"
    )
    choice: Literal["soft", "hard"] = Field(
        "soft", description="a weighted sum of the source, or one token of it, drawn by chance in training"
    )


class Seq2SeqConfig(Config):
    """A recurrent decoder with or without attention over an encoder (Sutskever 2014, Bahdanau 2015, Luong 2015)."""

    packs: ClassVar = False

    kind: Literal["seq2seq"] = "seq2seq"
    vocab: int | None = Field(None, ge=4, le=10_000_000, description="token types; null: as many as the tokenizer has")
    width: int = Field(512, ge=1, le=65_536, description="numbers that stand for one token")
    encoder: Annotated[RecurrentEncoder | TransformerEncoder, Field(discriminator="kind")] = Field(
        RecurrentEncoder(), description="what reads the source"
    )
    cell: CellKind = Field("lstm", description="the decoder's cell: LSTM, GRU, or the plain RNN")
    layers: int = Field(2, ge=1, le=100, description="layers of the decoder")
    hidden: int = Field(512, ge=1, le=65_536, description="width of the decoder's states")
    attention: AttentionConfig | None = Field(
        AttentionConfig(), description="how the decoder looks at the source; null: not at all"
    )
    context: int = Field(1024, ge=2, le=1_048_576, description="longest sequence, in tokens")
    dropout: float = Field(0.2, ge=0, lt=1, description="share of numbers set to zero while training")

    @property
    def hard(self) -> bool:
        """Whether it learns by chance where to look."""
        return self.attention is not None and self.attention.choice == "hard"

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        encoder = self.encoder
        if isinstance(encoder, TransformerEncoder):
            if self.width % encoder.heads:
                raise FieldError(
                    f"a width of {self.width} cannot be shared by the encoder's {encoder.heads} heads; "
                    f"write width: {self.width + encoder.heads - self.width % encoder.heads}",
                    "encoder",
                    "heads",
                )
            if self.width % 2:
                raise FieldError(f"sinusoids need an even width; write width: {self.width + 1}", "width")
        memory, score = encoder.memory(self.width), self.attention and self.attention.score
        if score in ("dot", "scaled_dot", "cosine") and memory != self.hidden:
            keys = "width" if isinstance(encoder, TransformerEncoder) else "encoder.hidden"
            raise FieldError(
                f"the score {score} compares vectors of one width, but the decoder's states have {self.hidden} numbers "
                f"and the encoder's outputs {memory}; write {keys}: {self.hidden}, or score: general",
                "attention",
                "score",
            )
        refuse_too_large(self.parameters(self.vocab or 0))
        return self

    def parameters(self, vocab: int) -> int:
        """How many numbers are trained, the embedding counted once, since encoder, decoder and output share it."""
        width, hidden, memory = self.width, self.hidden, self.encoder.memory(self.width)
        seen = self.attention
        into = width + (memory if seen and seen.feed == "input" else 0)
        joined = hidden + (memory if seen and seen.feed == "output" else 0)
        layers = sum(layer_parameters(self.cell, into if n == 0 else hidden, hidden) for n in range(self.layers))
        states = self.layers * (2 if self.cell == "lstm" else 1) * hidden
        scores = {
            "general": hidden * memory,
            "additive": hidden * (hidden + memory + 1),
            "location": hidden * self.context,
        }
        looking = scores.get(seen.score, 0) if seen else 0
        if seen and seen.span.kind == "predictive":
            looking += hidden * hidden + hidden
        begin, out = (memory + 1) * states, (joined + 1) * width
        return vocab * width + self.encoder.parameters(width) + layers + looking + begin + out


class RnnLMConfig(Config):
    """A recurrent language model (Mikolov 2010), with dropout as in Zaremba 2014, whose medium size is the default."""

    packs: ClassVar = False

    kind: Literal["rnn_lm"] = "rnn_lm"
    vocab: int | None = Field(None, ge=4, le=10_000_000, description="token types; null: as many as the tokenizer has")
    width: int = Field(650, ge=1, le=65_536, description="numbers that stand for one token")
    cell: CellKind = Field("lstm", description="LSTM, GRU, or the plain RNN")
    layers: int = Field(2, ge=1, le=100, description="layers on top of each other")
    hidden: int = Field(650, ge=1, le=65_536, description="width of the states")
    context: int = Field(35, ge=2, le=1_048_576, description="tokens in a window of training; texts may be any length")
    dropout: float = Field(0.5, ge=0, lt=1, description="share of numbers set to zero while training")

    @model_validator(mode="after")
    def _size_is_plausible(self) -> Self:
        refuse_too_large(self.parameters(self.vocab or 0))
        return self

    def parameters(self, vocab: int) -> int:
        """How many numbers are trained, the embedding counted once, since input and output share it."""
        widths = [self.width] + [self.hidden] * (self.layers - 1)
        layers = sum(layer_parameters(self.cell, width, self.hidden) for width in widths)
        out = 0 if self.hidden == self.width else (self.hidden + 1) * self.width
        return vocab * self.width + layers + out


class ElmoConfig(Config):
    """Language models in both directions whose layers are embeddings (Peters 2018), in the published size."""

    packs: ClassVar = False

    kind: Literal["elmo"] = "elmo"
    vocab: int | None = Field(None, ge=4, le=10_000_000, description="token types; null: as many as the tokenizer has")
    width: int = Field(512, ge=1, le=65_536, description="numbers that stand for one token, in each direction")
    layers: int = Field(2, ge=1, le=100, description="LSTM layers in each direction")
    hidden: int = Field(4096, ge=1, le=65_536, description="width of the LSTM states, before they are projected down")
    context: int = Field(20, ge=2, le=1_048_576, description="tokens in a window of training; texts may be any length")
    dropout: float = Field(0.1, ge=0, lt=1, description="share of numbers set to zero while training")

    @model_validator(mode="after")
    def _size_is_plausible(self) -> Self:
        refuse_too_large(self.parameters(self.vocab or 0))
        return self

    def parameters(self, vocab: int) -> int:
        """How many numbers are trained, the embedding counted once, since both directions and the output share it."""
        layer = layer_parameters("lstm", self.width, self.hidden) + self.hidden * self.width
        return vocab * self.width + 2 * self.layers * layer


class TreeLSTMConfig(Config):
    """The Tree-LSTM that gives each node of a tree a class (Tai 2015), in its published constituency form."""

    packs: ClassVar = False

    kind: Literal["tree_lstm"] = "tree_lstm"
    form: Literal["nary", "child_sum"] = Field(
        "nary", description="children in order, each place with its own weights; or any number of them, in no order"
    )
    arity: int = Field(2, ge=1, le=64, description="the most children of a node in the nary form")
    vocab: int | None = Field(None, ge=2, le=10_000_000, description="words; null: as many as the list of words has")
    width: int = Field(300, ge=1, le=65_536, description="numbers that stand for one word")
    hidden: int = Field(150, ge=1, le=65_536, description="width of the states")
    classes: int = Field(5, ge=2, le=10_000, description="classes that a node may have")
    dropout: float = Field(0.5, ge=0, lt=1, description="share of a state's numbers set to zero before the classes")
    input_dropout: float = Field(0.0, ge=0, lt=1, description="share of a word's numbers set to zero while training")

    @model_validator(mode="after")
    def _size_is_plausible(self) -> Self:
        refuse_too_large(self.parameters(self.vocab or 0))
        return self

    def parameters(self, vocab: int) -> int:
        """How many numbers are trained."""
        below = self.arity * (3 + self.arity) if self.form == "nary" else 4
        cell = 4 * self.hidden * (self.width + 1) + below * self.hidden * self.hidden
        return vocab * self.width + cell + self.classes * (self.hidden + 1)


class BertConfig(Config):
    """The encoder of Devlin et al. (2019), in its published base size, with the heads it is pre-trained with."""

    packs: ClassVar = True

    kind: Literal["bert"] = "bert"
    vocab: int | None = Field(None, ge=5, le=10_000_000, description="token types; null: as many as the tokenizer has")
    width: int = Field(768, ge=1, le=65_536, description="numbers that stand for one token between blocks")
    heads: int = Field(12, ge=1, le=1024, description="attention heads in each block; they share the width evenly")
    layers: int = Field(12, ge=1, le=1000, description="blocks on top of each other")
    hidden: int = Field(3072, ge=1, le=1_048_576, description="inner width of the feed-forward layers")
    context: int = Field(512, ge=4, le=1_048_576, description="longest sequence, in tokens, special ones included")
    segments: int = Field(2, ge=1, le=1000, description="kinds of segments: a pair of texts has two")
    dropout: float = Field(0.1, ge=0, lt=1, description="share of numbers set to zero while training")
    attention_dropout: float = Field(0.1, ge=0, lt=1, description="share of attention weights set to zero")
    activation: Literal["gelu", "gelu_tanh", "relu", "swish"] = Field(
        "gelu", description="between the two feed-forward matrices"
    )
    norm_eps: float = Field(1e-12, gt=0, le=0.1, description="added to the variance in each layer norm")
    pooler: bool = Field(True, description="whether there is a layer on the first token's vector")
    masked_words: bool = Field(True, description="whether there is the head that tells hidden words")
    next_sentence: bool = Field(
        True, description="whether there is the head that tells whether sentences belong together"
    )

    _heads_share_width = field_validator("heads")(share_width)

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if self.next_sentence and not self.pooler:
            raise FieldError("next_sentence reads what the pooler gives; write pooler: true", "pooler")
        refuse_too_large(self.parameters(self.vocab or 0))
        return self

    def parameters(self, vocab: int) -> int:
        """How many numbers are trained, the embedding counted once, since input and output share it."""
        dense = self.width * self.width + self.width
        embeddings = (vocab + self.context + self.segments + 2) * self.width
        words = dense + 2 * self.width + vocab if self.masked_words else 0
        heads = dense * self.pooler + words + (2 * self.width + 2) * self.next_sentence
        return embeddings + self.layers * block_parameters(self.width, self.hidden) + heads


class HeadConfig(Config):
    """What a model shares that is an encoder with one layer on top of it, whatever that layer tells."""

    packs: ClassVar = True
    pools: ClassVar[bool]  # whether it reads the pooled vector of a text, or those of its tokens

    kind: str
    encoder: BertConfig | None = Field(
        None, description="what reads the texts, without heads of its own; null: that of the folder it starts from"
    )
    freeze: bool = Field(False, description="whether the encoder stays as it is, and only what is on top of it learns")
    longest: int | None = Field(
        None, ge=4, le=1_048_576, description="tokens of a text that are read; null: as many as the encoder's context"
    )

    @field_validator("encoder")
    @classmethod
    def _has_no_heads(cls, encoder: BertConfig | None) -> BertConfig | None:
        if encoder is None:
            return None
        bare = encoder_under(encoder, cls.pools)
        for name in ("pooler", "masked_words", "next_sentence"):
            if name in encoder.model_fields_set and getattr(encoder, name) != getattr(bare, name):
                there = str(getattr(bare, name)).lower()
                raise FieldError(f"under the head of another task it is not as written; write {name}: {there}", name)
        return bare

    @property
    def vocab(self) -> int | None:
        """Token types; None while there is no encoder, or while it follows the tokenizer."""
        return None if self.encoder is None else self.encoder.vocab

    @property
    def context(self) -> int:
        """Longest sequence, in tokens."""
        assert self.encoder is not None, "the encoder comes from the folder that the run starts from"
        return min(self.encoder.context, self.longest or self.encoder.context)

    @property
    def lacking(self) -> list[str]:
        """The settings that are not known until a run begins, and a model cannot be without."""
        return [name for name in type(self).model_fields if name != "longest" and getattr(self, name) is None]

    @abstractmethod
    def parameters(self, vocab: int) -> int:
        """How many numbers there are."""


def encoder_under(encoder: BertConfig, pools: bool) -> BertConfig:
    """An encoder as it is under the head of another task: without its own, and with a pooler only if that is read."""
    return encoder.model_copy(update={"pooler": pools, "masked_words": False, "next_sentence": False})


def with_vocab(config: Any, vocab: int) -> Any:
    """The same model for so many tokens."""
    if isinstance(config, HeadConfig):
        return config.model_copy(update={"encoder": with_vocab(config.encoder, vocab)})
    return config.model_copy(update={"vocab": vocab})


Label = Annotated[str, Field(min_length=1, max_length=1000)]


def different(labels: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Names, if none stands twice."""
    seen = Counter(labels or ())
    twice = next((label for label, count in seen.items() if count > 1), None)
    if twice is not None:
        raise ValueError(f"the label {twice!r} stands here more than once; write each once")
    return labels


class ClassifierConfig(HeadConfig):
    """One class of several for a text or a pair of texts (Devlin et al., 2019): a layer on the first token's vector."""

    pools: ClassVar = True

    kind: Literal["classifier"] = "classifier"
    labels: tuple[Label, ...] | None = Field(
        None, min_length=2, max_length=100_000, description="names of the classes; null: those of the training data"
    )
    dropout: float = Field(0.1, ge=0, lt=1, description="share of what the head reads that is set to zero")

    _labels_differ = field_validator("labels")(different)

    def parameters(self, vocab: int) -> int:
        """How many numbers there are, of two classes where they are not known yet."""
        assert self.encoder is not None
        return self.encoder.parameters(vocab) + (self.encoder.width + 1) * len(self.labels or "ab")


class RegressorConfig(HeadConfig):
    """A number for a text or a pair of texts, such as how alike they are: the same layer with one output."""

    pools: ClassVar = True

    kind: Literal["regressor"] = "regressor"
    dropout: float = Field(0.1, ge=0, lt=1, description="share of what the head reads that is set to zero")

    def parameters(self, vocab: int) -> int:
        """How many numbers there are."""
        assert self.encoder is not None
        return self.encoder.parameters(vocab) + self.encoder.width + 1


class MultipleChoiceConfig(HeadConfig):
    """A score for each of several texts that may go on from another (Devlin et al., 2019): a layer with one output."""

    packs: ClassVar = False  # the choices of a question stand in rows of their own
    pools: ClassVar = True

    kind: Literal["multiple_choice"] = "multiple_choice"
    dropout: float = Field(0.1, ge=0, lt=1, description="share of what the head reads that is set to zero")

    def parameters(self, vocab: int) -> int:
        """How many numbers there are."""
        assert self.encoder is not None
        return self.encoder.parameters(vocab) + self.encoder.width + 1


Feature = Literal["first", "last", "second_to_last", "sum_last_four", "concat_last_four", "sum_all"]


class DenseReader(Config):
    """The one layer that is added when the encoder is tuned: each word's vector is looked at alone."""

    kind: Literal["linear"] = "linear"

    def width(self, features: int) -> int:
        """The width of what the last layer reads."""
        return features

    def parameters(self, features: int) -> int:
        """How many numbers there are, the last layer not counted."""
        return 0


class BiLSTMReader(Config):
    """LSTM layers that read the whole sentence in both directions, before the last layer."""

    kind: Literal["bilstm"] = "bilstm"
    layers: int = Field(2, ge=1, le=100, description="layers on top of each other")
    hidden: int = Field(
        768, ge=2, le=65_536, multiple_of=2, description="width of the states, both directions together"
    )

    def width(self, features: int) -> int:
        """The width of what the last layer reads."""
        return self.hidden

    def parameters(self, features: int) -> int:
        """How many numbers there are, the last layer not counted."""
        widths = [features] + [self.hidden] * (self.layers - 1)
        return sum(2 * layer_parameters("lstm", width, self.hidden // 2) for width in widths)


class TaggerConfig(HeadConfig):
    """A tag for each word of a text (Devlin et al., 2019), such as whether it is in a name, and of what."""

    pools: ClassVar = False

    kind: Literal["tagger"] = "tagger"
    labels: tuple[Label, ...] | None = Field(
        None, min_length=1, max_length=100_000, description="the tags; null: those of the training data"
    )
    features: Feature = Field(
        "last", description="what of the encoder's layers is read; first: the embeddings, below the first block"
    )
    reader: Annotated[DenseReader | BiLSTMReader, Field(discriminator="kind")] = Field(
        DenseReader(), description="what reads them: one layer alone, or an LSTM before it"
    )
    dropout: float = Field(0.1, ge=0, lt=1, description="share of what each layer on top reads that is set to zero")

    _labels_differ = field_validator("labels")(different)

    @property
    def packs(self) -> bool:  # type: ignore[override]
        """Whether sentences may lie end to end in one row, which an LSTM would read as one."""
        return self.reader.kind == "linear"

    @model_validator(mode="after")
    def _layers_are_there(self) -> Self:
        if self.features in ("first", "second_to_last") and not self.freeze:
            raise FieldError(
                f"{self.features} leaves blocks of the encoder unread, which then cannot learn; write freeze: true",
                "features",
            )
        if self.encoder is not None and self.encoder.layers < 4 and self.features.endswith("four"):
            raise FieldError(
                f"{self.features} needs four blocks, and the encoder has {self.encoder.layers}; write features: last",
                "features",
            )
        return self

    @property
    def feature_width(self) -> int:
        """How many numbers are read of each token."""
        assert self.encoder is not None
        return self.encoder.width * (4 if self.features == "concat_last_four" else 1)

    def parameters(self, vocab: int) -> int:
        """How many numbers there are, of three tags where they are not known yet."""
        assert self.encoder is not None
        width = self.feature_width
        out = (self.reader.width(width) + 1) * len(self.labels or "BIO")
        return self.encoder.parameters(vocab) + self.reader.parameters(width) + out


class AnswererConfig(HeadConfig):
    """The answer to a question as a part of a passage (Devlin et al., 2019): where it begins, and where it ends."""

    pools: ClassVar = False

    kind: Literal["answerer"] = "answerer"

    def parameters(self, vocab: int) -> int:
        """How many numbers there are."""
        assert self.encoder is not None
        return self.encoder.parameters(vocab) + 2 * (self.encoder.width + 1)


def _bert(layers: int, width: int) -> BertConfig:
    """One of the published sizes: heads of 64, and a feed-forward layer four times as wide."""
    return BertConfig(width=width, heads=width // 64, layers=layers, hidden=4 * width)


SIZES: dict[str, TransformerConfig | BertConfig] = {
    "transformer-base": TransformerConfig(),
    "transformer-big": TransformerConfig(width=1024, heads=16, hidden=4096, dropout=0.3),
    "transformer-tiny": TransformerConfig(
        width=96, heads=4, encoder_layers=2, decoder_layers=2, hidden=384, context=256, dropout=0.0, norm="pre"
    ),
    "iwslt": TransformerConfig(heads=4, hidden=1024, dropout=0.3),
    "multi30k": TransformerConfig(
        width=256, heads=4, encoder_layers=4, decoder_layers=4, hidden=512, context=256, dropout=0.3
    ),
    "bert-tiny": _bert(2, 128),  # Turc et al., 2019, published all of 2 to 12 layers by 128 to 768 numbers
    "bert-mini": _bert(4, 256),
    "bert-small": _bert(4, 512),
    "bert-medium": _bert(8, 512),
    "bert-base": _bert(12, 768),
    "bert-large": _bert(24, 1024),
    **{f"bert-{layers}-{width}": _bert(layers, width) for layers in range(2, 13, 2) for width in (128, 256, 512, 768)},
}
