"""The settings of the recurrent encoder-decoder, readable without torch."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from heedful.config import Config, FieldError
from heedful.models.limits import refuse_too_large
from heedful.models.roles import ModelConfig
from heedful.models.sizes import (
    CellKind,
    HeadScore,
    Normalizer,
    Score,
    block_parameters,
    gated_parameters,
    has_a_middle,
    layer_parameters,
    score_parameters,
)


class RecurrentEncoder(Config):
    """Recurrent layers that read the source."""

    kind: Literal["recurrent"] = "recurrent"
    cell: CellKind = Field("lstm", description="LSTM, GRU, or the plain RNN")
    layers: int = Field(2, ge=1, le=100, description="number of layers")
    hidden: int = Field(512, ge=1, le=65_536, description="width of the memory, both directions together")
    directions: Literal["both", "ahead"] = Field("both", description="bidirectional, or forward only")

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
        """The number of parameters."""
        count, each = (2, self.hidden // 2) if self.directions == "both" else (1, self.hidden)
        widths = [width] + [self.hidden] * (self.layers - 1)
        return sum(count * layer_parameters(self.cell, into, each) for into in widths)


class TransformerEncoder(Config):
    """Blocks of the Transformer that read the source, as wide as the embedding."""

    kind: Literal["transformer"] = "transformer"
    heads: int = Field(8, ge=1, le=1024, description="attention heads; each has an equal part of the width")
    score: HeadScore = "scaled_dot"
    normalize: Normalizer = "softmax"
    layers: int = Field(6, ge=1, le=1000, description="number of blocks")
    hidden: int = Field(2048, ge=1, le=1_048_576, description="inner width of the feed-forward layers")
    norm: Literal["post", "pre"] = Field("pre", description="layer norm after each sum (as published) or before it")

    def memory(self, width: int) -> int:
        """The width of what it leaves of each source token."""
        return width

    def parameters(self, width: int) -> int:
        """The number of parameters."""
        block = block_parameters(width, self.hidden, self.heads, self.score)
        return self.layers * block + (2 * width if self.norm == "pre" else 0)


class ConvolutionalEncoder(Config):
    """Gated convolutions over the source (Gehring et al., 2017), as wide as the embedding."""

    kind: Literal["convolutional"] = "convolutional"
    layers: int = Field(4, ge=1, le=100, description="number of layers, each with a residual connection")
    size: int = Field(3, ge=1, le=101, description="tokens that a filter covers, an odd number")

    _has_a_middle = field_validator("size")(has_a_middle)

    def memory(self, width: int) -> int:
        """The width of what it leaves of each source token."""
        return width

    def parameters(self, width: int) -> int:
        """The number of parameters: values and gates."""
        return self.layers * gated_parameters(width, self.size)


class Global(Config):
    """Attention to the whole source."""

    kind: Literal["global"] = "global"


class Monotonic(Config):
    """Attention to a window that moves on by one source token with each target token."""

    kind: Literal["monotonic"] = "monotonic"
    window: int = Field(10, ge=1, le=100_000, description="source tokens on either side of the centre")


class Predictive(Config):
    """Attention to a window whose middle the decoder predicts, and where nearer is better."""

    kind: Literal["predictive"] = "predictive"
    window: int = Field(10, ge=1, le=100_000, description="source tokens on either side of the centre")


class AttentionConfig(Config):
    """How the decoder attends to the source."""

    score: Score = Field("additive", description="how the decoder's state and a source token are compared")
    normalize: Normalizer = "softmax"
    feed: Literal["input", "output"] = Field(
        "input",
        description="where the context vector enters: the input of the first layer (Bahdanau), or beside the "
        "output of the last (Luong)",
    )
    span: Annotated[Global | Monotonic | Predictive, Field(discriminator="kind")] = Field(
        Global(), description="which part of the source is attended to"
    )
    choice: Literal["soft", "hard"] = Field(
        "soft", description="soft attention, a weighted sum of the source, or hard attention, one token of it"
    )


class Seq2SeqConfig(ModelConfig):
    """A recurrent decoder with or without attention over an encoder (Sutskever 2014, Bahdanau 2015, Luong 2015)."""

    implementation: ClassVar = "model.Seq2Seq"

    kind: Literal["seq2seq"] = "seq2seq"
    vocab: int | None = Field(None, ge=4, le=10_000_000, description="vocabulary size; null: that of the tokenizer")
    width: int = Field(512, ge=1, le=65_536, description="width of the embeddings")
    encoder: Annotated[RecurrentEncoder | TransformerEncoder | ConvolutionalEncoder, Field(discriminator="kind")] = (
        Field(RecurrentEncoder(), description="what reads the source")
    )
    cell: CellKind = Field("lstm", description="the decoder's cell: LSTM, GRU, or the plain RNN")
    layers: int = Field(2, ge=1, le=100, description="layers of the decoder")
    hidden: int = Field(512, ge=1, le=65_536, description="width of the decoder's states")
    attention: AttentionConfig | None = Field(
        AttentionConfig(), description="how the decoder attends to the source; null: not at all"
    )
    context: int = Field(1024, ge=2, le=1_048_576, description="longest sequence, in tokens")
    dropout: float = Field(0.2, ge=0, lt=1, description="dropout rate")

    @property
    def hard(self) -> bool:
        """Whether it has hard attention, which is trained by sampling."""
        return self.attention is not None and self.attention.choice == "hard"

    @property
    def uncompiled(self) -> str | None:
        """Why its steps cannot be compiled, and what to write instead; None: they can be."""
        if self.hard:
            return "a model with hard attention cannot be compiled; write compile: false"
        if self.attention and self.attention.feed == "input":
            return (
                "a decoder that attends before each step is a loop, compiled again for each target length; "
                "write compile: false, or model.attention.feed: output"
            )
        return None

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        encoder = self.encoder
        if isinstance(encoder, TransformerEncoder) and self.width % encoder.heads:
            raise FieldError(
                f"a width of {self.width} cannot be shared by the encoder's {encoder.heads} heads; "
                f"write width: {self.width + encoder.heads - self.width % encoder.heads}",
                "encoder",
                "heads",
            )
        if not isinstance(encoder, RecurrentEncoder) and self.width % 2:
            raise FieldError(f"sinusoids need an even width; write width: {self.width + 1}", "width")
        memory, score = encoder.memory(self.width), self.attention and self.attention.score
        if score in ("dot", "scaled_dot", "cosine") and memory != self.hidden:
            keys = "encoder.hidden" if isinstance(encoder, RecurrentEncoder) else "width"
            raise FieldError(
                f"the score {score} compares vectors of one width, but the decoder's states have {self.hidden} numbers "
                f"and the encoder's outputs {memory}; write {keys}: {self.hidden}, or score: general",
                "attention",
                "score",
            )
        refuse_too_large(self.parameters(self.vocab or 0))
        return self

    def parameters(self, vocab: int) -> int:
        """The number of parameters, the embedding counted once, since encoder, decoder and output share it."""
        width, hidden, memory = self.width, self.hidden, self.encoder.memory(self.width)
        seen = self.attention
        into = width + (memory if seen and seen.feed == "input" else 0)
        joined = hidden + (memory if seen and seen.feed == "output" else 0)
        layers = sum(layer_parameters(self.cell, into if n == 0 else hidden, hidden) for n in range(self.layers))
        states = self.layers * (2 if self.cell == "lstm" else 1) * hidden
        looking = score_parameters(seen.score, hidden, memory, self.context) if seen else 0
        if seen and seen.span.kind == "predictive":
            looking += hidden * hidden + hidden
        begin, out = (memory + 1) * states, (joined + 1) * width
        return vocab * width + self.encoder.parameters(width) + layers + looking + begin + out

    @classmethod
    def tiny(cls) -> Self:
        return cls(vocab=23, width=16, encoder=RecurrentEncoder(hidden=20), hidden=20, context=16, dropout=0.1)
