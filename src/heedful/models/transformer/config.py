"""The settings of the Transformer, readable without torch."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from heedful.models.limits import refuse_too_large
from heedful.models.roles import ModelConfig
from heedful.models.sizes import (
    Activation,
    HeadScore,
    Normalizer,
    Output,
    attention_parameters,
    block_parameters,
    check_positions,
    has_kernel,
    output_parameters,
    share_width,
)


class TransformerConfig(ModelConfig):
    """The encoder-decoder of "Attention Is All You Need" (2017), in its published and its pre-norm form."""

    implementation: ClassVar = "model.Transformer"
    fixed_context: ClassVar = True

    kind: Literal["transformer"] = "transformer"
    vocab: int | None = Field(None, ge=4, le=10_000_000, description="vocabulary size; null: that of the tokenizer")
    source_vocab: int | None = Field(
        None,
        ge=4,
        le=10_000_000,
        exclude_if=lambda size: size is None,  # recipes and folders without it stay as they are
        description="vocabulary size of the source, where it has an embedding of its own; null: both sides share one",
    )
    width: int = Field(512, ge=1, le=65_536, description="width of the model")
    heads: int = Field(8, ge=1, le=1024, description="attention heads; each has an equal part of the width")
    score: HeadScore = "scaled_dot"
    normalize: Normalizer = "softmax"
    encoder_layers: int = Field(6, ge=1, le=1000, description="blocks in the encoder")
    decoder_layers: int = Field(6, ge=1, le=1000, description="blocks in the decoder")
    hidden: int = Field(2048, ge=1, le=1_048_576, description="inner width of the feed-forward layers")
    context: int = Field(1024, ge=2, le=1_048_576, description="longest sequence, in tokens")
    dropout: float = Field(0.1, ge=0, lt=1, description="dropout rate")
    norm: Literal["post", "pre"] = Field("post", description="layer norm after each sum (as published) or before it")
    positions: Literal["sinusoid", "sinusoid_halves", "learned", "none", "rotary", "alibi"] = Field(
        "sinusoid", description="how positions are encoded"
    )
    activation: Activation = Field("relu", description="between the two feed-forward matrices")
    output: Output = "tied"
    scale_embedding: bool = Field(
        True,
        exclude_if=lambda scaled: scaled,  # recipes and folders without it stay as they are
        description="whether vectors of tokens are multiplied by the root of the width",
    )

    _heads_share_width = field_validator("heads")(share_width)

    @field_validator("positions")
    @classmethod
    def _positions_come_in_pairs(cls, positions: str, info: ValidationInfo) -> str:
        return check_positions(positions, info)

    @model_validator(mode="after")
    def _size_is_plausible(self) -> Self:
        refuse_too_large(self.parameters(self.vocab or 0))
        return self

    @property
    def packs(self) -> bool:
        """Whether it can read sequences packed end to end in one row."""
        return has_kernel(self.score, self.normalize)

    def parameters(self, vocab: int) -> int:
        """The number of parameters, the embedding counted once where encoder and decoder share it."""
        block = block_parameters(self.width, self.hidden, self.heads, self.score)
        attention, norm = attention_parameters(self.width, self.heads, self.score), 2 * self.width
        encoder = self.encoder_layers * block
        decoder = self.decoder_layers * (block + attention + norm)  # which also attend to the source
        last = 2 * norm if self.norm == "pre" else 0
        places = self.context * self.width if self.positions == "learned" else 0
        tokens = (vocab + (self.source_vocab or 0)) * self.width + output_parameters(self.output, vocab, self.width)
        return tokens + encoder + decoder + last + places

    @classmethod
    def tiny(cls) -> Self:
        return cls(vocab=23, width=16, heads=2, encoder_layers=2, decoder_layers=2, hidden=20, context=16)


SIZES = {
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
