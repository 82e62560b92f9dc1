"""The settings of the recurrent text classifier, readable without torch."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from heedful.models.limits import refuse_too_large
from heedful.models.roles import ModelConfig
from heedful.models.sizes import CellKind, Label, layer_parameters, unique_labels


class RnnClassifierConfig(ModelConfig):
    """Recurrent layers that read a text in both directions, and one layer on what they end with."""

    implementation: ClassVar = "model.RnnClassifier"

    kind: Literal["rnn_classifier"] = "rnn_classifier"
    vocab: int | None = Field(None, ge=4, le=10_000_000, description="vocabulary size; null: that of the word list")
    labels: tuple[Label, ...] | None = Field(
        None, min_length=2, max_length=100_000, description="names of the classes; null: those of the training data"
    )
    width: int = Field(100, ge=1, le=65_536, description="width of the word vectors")
    cell: CellKind = Field("lstm", description="LSTM, GRU, or the plain RNN")
    layers: int = Field(1, ge=1, le=100, description="number of layers")
    hidden: int = Field(128, ge=1, le=65_536, description="width of the states, both directions together")
    directions: Literal["both", "ahead"] = Field("both", description="bidirectional, or forward only")
    pool: Literal["last", "mean", "max"] = Field(
        "last", description="what the last layer reads: the final states, or the mean or the maximum over all words"
    )
    dropout: float = Field(0.5, ge=0, lt=1, description="dropout between layers, and before the last one")
    freeze: bool = Field(False, description="whether the word vectors are frozen")
    context: int = Field(512, ge=3, le=1_048_576, description="longest text, in words plus two special tokens")

    _labels_differ = field_validator("labels")(unique_labels)

    @field_validator("directions")
    @classmethod
    def _directions_share_hidden(cls, directions: str, info: ValidationInfo) -> str:
        hidden = info.data.get("hidden")
        if directions == "both" and hidden is not None and hidden % 2:
            raise ValueError(f"two directions cannot share a hidden width of {hidden}; write hidden: {hidden + 1}")
        return directions

    @model_validator(mode="after")
    def _size_is_plausible(self) -> Self:
        refuse_too_large(self.parameters(self.vocab or 0))
        return self

    @property
    def each(self) -> int:
        """The width of the states of one direction."""
        return self.hidden // 2 if self.directions == "both" else self.hidden

    def parameters(self, vocab: int) -> int:
        """The number of parameters, for two classes where they are not known yet."""
        widths = [self.width] + [self.hidden] * (self.layers - 1)
        layers = sum(self.hidden // self.each * layer_parameters(self.cell, into, self.each) for into in widths)
        return vocab * self.width + layers + (self.hidden + 1) * len(self.labels or "ab")

    @classmethod
    def tiny(cls) -> Self:
        return cls(vocab=23, labels=("a", "b"), width=6, hidden=8, layers=2, context=16)
