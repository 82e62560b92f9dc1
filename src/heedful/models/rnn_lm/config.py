"""The settings of the recurrent language model, readable without torch."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from heedful.models.limits import refuse_too_large
from heedful.models.roles import ModelConfig
from heedful.models.sizes import CellKind, layer_parameters


class RnnLMConfig(ModelConfig):
    """A recurrent language model (Mikolov 2010), with dropout as in Zaremba 2014, whose medium size is the default."""

    implementation: ClassVar = "model.RnnLM"

    kind: Literal["rnn_lm"] = "rnn_lm"
    vocab: int | None = Field(None, ge=4, le=10_000_000, description="vocabulary size; null: that of the tokenizer")
    width: int = Field(650, ge=1, le=65_536, description="width of the embeddings")
    cell: CellKind = Field("lstm", description="LSTM, GRU, or the plain RNN")
    layers: int = Field(2, ge=1, le=100, description="number of layers")
    hidden: int = Field(650, ge=1, le=65_536, description="width of the states")
    context: int = Field(35, ge=2, le=1_048_576, description="tokens in a training window; texts may have any length")
    dropout: float = Field(0.5, ge=0, lt=1, description="dropout rate")

    @model_validator(mode="after")
    def _size_is_plausible(self) -> Self:
        refuse_too_large(self.parameters(self.vocab or 0))
        return self

    def parameters(self, vocab: int) -> int:
        """The number of parameters, the embedding counted once, since input and output share it."""
        widths = [self.width] + [self.hidden] * (self.layers - 1)
        layers = sum(layer_parameters(self.cell, width, self.hidden) for width in widths)
        out = 0 if self.hidden == self.width else (self.hidden + 1) * self.width
        return vocab * self.width + layers + out

    @classmethod
    def tiny(cls) -> Self:
        return cls(vocab=23, width=16, hidden=20, context=16, dropout=0.1)
