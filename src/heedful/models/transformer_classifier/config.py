"""The settings of the Transformer text classifier, readable without torch."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from heedful.models.limits import refuse_too_large
from heedful.models.roles import ModelConfig
from heedful.models.sizes import (
    HeadScore,
    Label,
    Normalizer,
    block_parameters,
    check_positions,
    share_width,
    unique_labels,
)


class TransformerClassifierConfig(ModelConfig):
    """Blocks of the Transformer over word vectors, and one layer on the mean of what they give."""

    implementation: ClassVar = "model.TransformerClassifier"
    fixed_context: ClassVar = True

    kind: Literal["transformer_classifier"] = "transformer_classifier"
    vocab: int | None = Field(None, ge=4, le=10_000_000, description="vocabulary size; null: that of the word list")
    labels: tuple[Label, ...] | None = Field(
        None, min_length=2, max_length=100_000, description="names of the classes; null: those of the training data"
    )
    width: int = Field(100, ge=1, le=65_536, description="width of the word vectors and of the blocks")
    heads: int = Field(4, ge=1, le=1024, description="attention heads; each has an equal part of the width")
    score: HeadScore = "scaled_dot"
    normalize: Normalizer = "softmax"
    layers: int = Field(2, ge=1, le=1000, description="number of blocks")
    hidden: int = Field(256, ge=1, le=1_048_576, description="inner width of the feed-forward layers")
    norm: Literal["post", "pre"] = Field("pre", description="layer norm after each sum (as published) or before it")
    positions: Literal["sinusoid", "sinusoid_halves", "learned", "none", "rotary", "alibi"] = Field(
        "sinusoid", description="how positions are encoded"
    )
    activation: Literal["relu", "gelu", "swish"] = Field("relu", description="between the two feed-forward matrices")
    pool: Literal["mean", "max"] = Field("mean", description="what the last layer reads of all words")
    dropout: float = Field(0.1, ge=0, lt=1, description="dropout rate, also before the last layer")
    freeze: bool = Field(False, description="whether the word vectors are frozen")
    context: int = Field(512, ge=3, le=1_048_576, description="longest text, in words plus two special tokens")

    _labels_differ = field_validator("labels")(unique_labels)
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
        """The number of parameters, for two classes where they are not known yet."""
        blocks = self.layers * block_parameters(self.width, self.hidden, self.heads, self.score)
        last = 2 * self.width if self.norm == "pre" else 0
        places = self.context * self.width if self.positions == "learned" else 0
        return vocab * self.width + places + blocks + last + (self.width + 1) * len(self.labels or "ab")

    @classmethod
    def tiny(cls) -> Self:
        return cls(vocab=23, labels=("a", "b"), width=16, heads=2, layers=2, hidden=20, context=16)
