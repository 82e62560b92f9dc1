"""The settings of each model and its published sizes, readable without torch."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from heedful.config import Config, FieldError

MOST_PARAMETERS = 200_000_000_000  # beyond it, a typing error is likelier than a plan


def attention_parameters(width: int) -> int:
    """How many numbers multi-head attention has, whatever its heads."""
    return 4 * (width * width + width)


def block_parameters(width: int, hidden: int) -> int:
    """How many numbers a block of the Transformer's encoder has: attention, feed-forward layer and two norms."""
    return attention_parameters(width) + 2 * width * hidden + hidden + width + 4 * width


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

    @field_validator("heads")
    @classmethod
    def _heads_share_width(cls, heads: int, info: ValidationInfo) -> int:
        width = info.data.get("width")
        if width is not None and width % heads:
            fitting = min((n for n in range(1, width + 1) if width % n == 0), key=lambda n: (abs(n - heads), -n))
            wider = width + heads - width % heads
            raise ValueError(
                f"a width of {width} cannot be shared by {heads} heads; write heads: {fitting} or width: {wider}"
            )
        return heads

    @field_validator("positions")
    @classmethod
    def _positions_come_in_pairs(cls, positions: str, info: ValidationInfo) -> str:
        width, heads = info.data.get("width"), info.data.get("heads")
        if positions in ("sinusoid", "sinusoid_halves") and width is not None and width % 2:
            raise ValueError(f"sinusoids need an even width; write width: {width + 1} or positions: learned")
        if positions == "rotary" and width is not None and heads is not None and width // heads % 2:
            raise ValueError(
                f"rotary positions need an even width for each head, and {width} / {heads} is odd; "
                f"write width: {width + heads}"
            )
        return positions

    @model_validator(mode="after")
    def _size_is_plausible(self) -> Self:
        _refuse_too_large(self.parameters(self.vocab or 0))
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
        _refuse_too_large(self.parameters(self.vocab or 0))
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
        _refuse_too_large(self.parameters(self.vocab or 0))
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
        _refuse_too_large(self.parameters(self.vocab or 0))
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
        _refuse_too_large(self.parameters(self.vocab or 0))
        return self

    def parameters(self, vocab: int) -> int:
        """How many numbers are trained."""
        below = self.arity * (3 + self.arity) if self.form == "nary" else 4
        cell = 4 * self.hidden * (self.width + 1) + below * self.hidden * self.hidden
        return vocab * self.width + cell + self.classes * (self.hidden + 1)


def _refuse_too_large(count: int) -> None:
    if count > MOST_PARAMETERS:
        raise ValueError(
            f"this model would have about {count / 1e9:,.0f} billion parameters, more than "
            f"{MOST_PARAMETERS / 1e9:,.0f} billion; lower width, hidden, vocab or the number of layers"
        )


SIZES: dict[str, TransformerConfig] = {
    "transformer-base": TransformerConfig(),
    "transformer-big": TransformerConfig(width=1024, heads=16, hidden=4096, dropout=0.3),
    "transformer-tiny": TransformerConfig(
        width=96, heads=4, encoder_layers=2, decoder_layers=2, hidden=384, context=256, dropout=0.0, norm="pre"
    ),
    "iwslt": TransformerConfig(heads=4, hidden=1024, dropout=0.3),
    "multi30k": TransformerConfig(
        width=256, heads=4, encoder_layers=4, decoder_layers=4, hidden=512, context=256, dropout=0.3
    ),
}
