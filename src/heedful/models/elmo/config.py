"""The settings of ELMo, readable without torch."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from heedful.models.limits import refuse_too_large
from heedful.models.roles import ModelConfig
from heedful.models.sizes import layer_parameters


class ElmoConfig(ModelConfig):
    """Language models in both directions whose layers are embeddings (Peters 2018), in the published size."""

    implementation: ClassVar = "model.Elmo"

    kind: Literal["elmo"] = "elmo"
    vocab: int | None = Field(None, ge=4, le=10_000_000, description="vocabulary size; null: that of the tokenizer")
    width: int = Field(512, ge=1, le=65_536, description="width of the embeddings and outputs, in each direction")
    layers: int = Field(2, ge=1, le=100, description="LSTM layers in each direction")
    hidden: int = Field(4096, ge=1, le=65_536, description="width of the LSTM states, before they are projected down")
    context: int = Field(20, ge=2, le=1_048_576, description="tokens in a training window; texts may have any length")
    dropout: float = Field(0.1, ge=0, lt=1, description="dropout rate")

    @model_validator(mode="after")
    def _size_is_plausible(self) -> Self:
        refuse_too_large(self.parameters(self.vocab or 0))
        return self

    def parameters(self, vocab: int) -> int:
        """The number of parameters, the embedding counted once, since both directions and the output share it."""
        layer = layer_parameters("lstm", self.width, self.hidden) + self.hidden * self.width
        return vocab * self.width + 2 * self.layers * layer

    @classmethod
    def tiny(cls) -> Self:
        return cls(vocab=23, width=16, hidden=20, context=16)
