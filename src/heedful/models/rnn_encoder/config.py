"""The settings of the recurrent text encoder, and those that encoders without attention share; needs no torch."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from heedful.models.limits import refuse_too_large
from heedful.models.roles import EncoderConfig
from heedful.models.sizes import CellKind, layer_parameters


class LayeredEncoderConfig(EncoderConfig):
    """An encoder whose layers have one width and no attention, with the head that it is pre-trained with."""

    vocab: int | None = Field(None, ge=5, le=10_000_000, description="vocabulary size; null: that of the tokenizer")
    width: int = Field(256, ge=1, le=65_536, description="width of the model")
    layers: int = Field(2, ge=1, le=1000, description="number of layers")
    context: int = Field(
        512,
        ge=4,
        le=1_048_576,
        description="longest sequence, in tokens, including special ones; no weight depends on it",
    )
    segments: int = Field(2, ge=1, le=1000, description="number of segment types: a pair of texts has two")
    dropout: float = Field(0.1, ge=0, lt=1, description="dropout rate of the embeddings, and before each layer")
    pooler: bool = Field(False, description="whether there is a dense layer on the mean of the tokens' vectors")
    masked_words: bool = Field(True, description="whether there is a head that predicts masked tokens")
    next_sentence: Literal[False] = Field(False, description="always false: there is no next-sentence prediction")

    @model_validator(mode="after")
    def _has_a_possible_size(self) -> Self:
        refuse_too_large(self.parameters(self.vocab or 0))
        return self

    @property
    @abstractmethod
    def layer_parameters(self) -> int:
        """The number of parameters of one layer."""

    def parameters(self, vocab: int) -> int:
        """The number of parameters, the embedding counted once, since input and output share it."""
        embeddings = (vocab + self.segments + 2) * self.width
        words = (self.width + 3) * self.width + vocab if self.masked_words else 0
        heads = (self.width + 1) * self.width * self.pooler + words
        return embeddings + self.layers * self.layer_parameters + heads

    def under_head(self, pools: bool, head: str | None = None) -> Self:
        """The encoder below the head of a task: without heads of its own, and with a pooler only if that is read."""
        return self.model_copy(update={"pooler": pools, "masked_words": False})

    @classmethod
    def tiny(cls) -> Self:
        return cls.model_validate({"vocab": 23, "width": 16, "layers": 2, "context": 16})


class RnnEncoderConfig(LayeredEncoderConfig):
    """Recurrent layers that read a text in both directions, with the head for masked tokens."""

    implementation: ClassVar = "model.RnnEncoder"

    kind: Literal["rnn_encoder"] = "rnn_encoder"
    width: int = Field(
        256, ge=2, le=65_536, multiple_of=2, description="width of the model: of the states, both directions together"
    )
    cell: CellKind = Field("lstm", description="LSTM, GRU, or the plain RNN")

    @property
    def layer_parameters(self) -> int:
        """The number of parameters of one layer: a cell for each direction."""
        return 2 * layer_parameters(self.cell, self.width, self.width // 2)
