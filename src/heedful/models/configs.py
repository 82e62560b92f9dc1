"""The settings of each model and its published sizes, readable without torch."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from heedful.config import Config

MOST_PARAMETERS = 200_000_000_000  # beyond it, a typing error is likelier than a plan


class TransformerConfig(Config):
    """The encoder-decoder of "Attention Is All You Need" (2017), in its published and its pre-norm form."""

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
        count = self.parameters(self.vocab or 0)
        if count > MOST_PARAMETERS:
            raise ValueError(
                f"this model would have about {count / 1e9:,.0f} billion parameters, more than "
                f"{MOST_PARAMETERS / 1e9:,.0f} billion; lower width, hidden, vocab or the number of layers"
            )
        return self

    def parameters(self, vocab: int) -> int:
        """How many numbers are trained, the embedding counted once, since encoder, decoder and output share it."""
        attention = 4 * (self.width * self.width + self.width)
        mlp = 2 * self.width * self.hidden + self.hidden + self.width
        norm = 2 * self.width
        encoder = self.encoder_layers * (attention + mlp + 2 * norm)
        decoder = self.decoder_layers * (2 * attention + mlp + 3 * norm)
        last = 2 * norm if self.norm == "pre" else 0
        places = self.context * self.width if self.positions == "learned" else 0
        return vocab * self.width + encoder + decoder + last + places


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
