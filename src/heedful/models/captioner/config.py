"""The settings of the captioner, readable without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from heedful.config import Config, FieldError
from heedful.models import any_of, config_class
from heedful.models.limits import refuse_too_large
from heedful.models.roles import ImageEncoderConfig, ModelConfig
from heedful.models.sizes import (
    CellKind,
    HeadScore,
    Normalizer,
    Score,
    attention_parameters,
    block_parameters,
    layer_parameters,
    score_parameters,
    share_width,
)

USUAL = "resnet"
if TYPE_CHECKING:
    AnyImageEncoder = ImageEncoderConfig
else:
    AnyImageEncoder = any_of("image_encoder", usual=USUAL)


def without_head(encoder: ImageEncoderConfig) -> ImageEncoderConfig:
    """An image encoder of which the map alone is used: refuse settings of what comes after it."""
    if encoder.classes is not None:
        raise FieldError("the layer of the classes is left out; leave classes out", "classes")
    if encoder.freeze:
        raise FieldError("here it is a setting of the captioner; write model.freeze: encoder", "freeze")
    return encoder


class MapAttention(Config):
    """What soft and hard attention to the map share."""

    score: Score = Field("additive", description="how the decoder's state and a place of the map are compared")
    normalize: Normalizer = "softmax"
    gate: bool = Field(True, description="whether the state scales the context by a gate between 0 and 1")


class SoftAttention(MapAttention):
    """The context is the sum of the map's places, by their weights."""

    kind: Literal["soft"] = "soft"
    coverage: float = Field(
        1.0, ge=0, le=1000, description="weight of the loss (1 - sum of a place's weights over all words)^2"
    )


class HardAttention(MapAttention):
    """The context is one place of the map, sampled in training with the weights as probabilities."""

    kind: Literal["hard"] = "hard"
    soft: float = Field(
        0.5, ge=0, le=1, description="probability that a word is trained with soft attention instead of a sample"
    )
    reinforce: float = Field(1.0, ge=0, le=1000, description="weight of the REINFORCE loss of the sampled places")
    entropy: float = Field(0.01, ge=0, le=1000, description="weight of the entropy of the weights, which is raised")
    decay: float = Field(0.9, ge=0, lt=1, description="of the moving average of rewards that is the baseline")


class RecurrentDecoder(Config):
    """A recurrent decoder (Xu et al., 2015), without attention one that knows the map's mean alone (Vinyals, 2015)."""

    kind: Literal["recurrent"] = "recurrent"
    width: int = Field(512, ge=1, le=65_536, description="width of the embeddings")
    cell: CellKind = Field("lstm", description="LSTM, GRU, or the plain RNN")
    layers: int = Field(1, ge=1, le=100, description="number of layers")
    hidden: int = Field(512, ge=1, le=65_536, description="width of the states")
    attention: Annotated[SoftAttention | HardAttention, Field(discriminator="kind")] | None = Field(
        SoftAttention(), description="how the decoder attends to the map; null: not at all"
    )

    def parameters(self, vocab: int, memory: int, places: int) -> int:
        """The number of parameters over a map of this width and number of places."""
        seen, hidden = self.attention, self.hidden
        context = memory if seen else 0
        states = self.layers * (2 if self.cell == "lstm" else 1) * hidden
        layers = sum(
            layer_parameters(self.cell, hidden if n else self.width + context, hidden) for n in range(self.layers)
        )
        looking = score_parameters(seen.score, hidden, memory, places) + seen.gate * (hidden + 1) if seen else 0
        out = (hidden + context + self.width + 1) * self.width
        return vocab * self.width + (memory + 1) * states + layers + looking + out


class TransformerDecoder(Config):
    """Blocks of the Transformer with cross-attention to the map."""

    kind: Literal["transformer"] = "transformer"
    width: int = Field(512, ge=2, le=65_536, multiple_of=2, description="width of the decoder; an even number")
    heads: int = Field(8, ge=1, le=1024, description="attention heads; each has an equal part of the width")
    score: HeadScore = "scaled_dot"
    normalize: Normalizer = "softmax"
    layers: int = Field(6, ge=1, le=1000, description="number of blocks")
    hidden: int = Field(2048, ge=1, le=1_048_576, description="inner width of the feed-forward layers")
    norm: Literal["post", "pre"] = Field("pre", description="layer norm after each sum (as published) or before it")

    _heads_share_width = field_validator("heads")(share_width)

    def parameters(self, vocab: int, memory: int, places: int) -> int:
        """The number of parameters over a map of this width."""
        block = block_parameters(self.width, self.hidden, self.heads, self.score)
        block += attention_parameters(self.width, self.heads, self.score) + 2 * self.width
        last = 2 * self.width if self.norm == "pre" else 0
        return vocab * self.width + (memory + 1) * self.width + self.layers * block + last


class CaptionerConfig(ModelConfig):
    """Image captioning with attention over the feature map of any image encoder (Xu et al., 2015)."""

    implementation: ClassVar = "model.Captioner"

    kind: Literal["captioner"] = "captioner"
    vocab: int | None = Field(None, ge=4, le=10_000_000, description="vocabulary size; null: that of the tokenizer")
    encoder: AnyImageEncoder = Field(description="the image encoder, whose layers after the feature map are left out")
    positions: Literal["none", "learned", "sinusoid"] = Field(
        "none", description="positions of row and column that are added to the map"
    )
    decoder: Annotated[RecurrentDecoder | TransformerDecoder, Field(discriminator="kind")] = Field(
        RecurrentDecoder(), description="what generates the words"
    )
    freeze: Literal["none", "encoder", "decoder"] = Field("none", description="the part that is not trained")
    context: int = Field(64, ge=2, le=1_048_576, description="longest caption, in tokens")
    dropout: float = Field(0.5, ge=0, lt=1, description="dropout rate of the embeddings and before the last layer")

    _leaves_out_the_head = field_validator("encoder")(without_head)

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        width, decoder = self.memory, self.decoder
        if self.positions == "sinusoid" and width % 4:
            raise FieldError(
                f"sinusoids of row and column need a map whose width 4 divides, and it is {width}; "
                "write positions: learned",
                "positions",
            )
        seen = decoder.attention if isinstance(decoder, RecurrentDecoder) else None
        if seen and seen.score in ("dot", "scaled_dot", "cosine") and width != decoder.hidden:
            raise FieldError(
                f"the score {seen.score} compares vectors of one width, but the decoder's states have "
                f"{decoder.hidden} numbers and the places of the map {width}; write hidden: {width}, or score: general",
                "decoder",
                "attention",
                "score",
            )
        refuse_too_large(self.parameters(self.vocab or 0))
        return self

    @property
    def memory(self) -> int:
        """The width of the map."""
        return self.encoder.map_shape[0]

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of the map of an image of the encoder's size."""
        return self.encoder.map_shape[1:]

    @property
    def hard(self) -> bool:
        """Whether it has hard attention, which is trained by sampling."""
        return isinstance(self.decoder, RecurrentDecoder) and isinstance(self.decoder.attention, HardAttention)

    @property
    def coverage(self) -> float:
        """The weight of the coverage loss of soft attention; 0 without it."""
        attention = self.decoder.attention if isinstance(self.decoder, RecurrentDecoder) else None
        return attention.coverage if isinstance(attention, SoftAttention) else 0.0

    @property
    def uncompiled(self) -> str | None:
        """Why its steps cannot be compiled, and what to write instead; None: they can be."""
        if isinstance(self.decoder, RecurrentDecoder):
            return "a recurrent decoder is a loop, compiled again for each caption length; write compile: false"
        return None

    def parameters(self, vocab: int) -> int:
        """The number of parameters: the layers up to the map, its positions, and the decoder."""
        places = self.grid[0] * self.grid[1]
        table = places * self.memory if self.positions == "learned" else 0
        return self.encoder.map_parameters + table + self.decoder.parameters(vocab, self.memory, places)

    @classmethod
    def tiny(cls) -> Self:
        small = {"kind": USUAL, "channels": 1, "size": (8, 12), "stem": "small", "stem_width": 4}
        encoder = config_class(USUAL).model_validate(small | {"depths": (1, 1), "widths": (8, 12)})
        return cls(
            vocab=23, encoder=encoder, positions="learned", decoder=RecurrentDecoder(width=16, hidden=20), context=16,
            dropout=0.1,
        )  # fmt: skip
