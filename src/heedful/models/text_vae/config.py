"""The settings of the sentence autoencoder, readable without torch."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from heedful.config import Config
from heedful.models.limits import refuse_too_large
from heedful.models.roles import ModelConfig
from heedful.models.sizes import CellKind, layer_parameters


class ConstantConnector(Config):
    """The decoder starts the same for every sentence, and is a language model."""

    kind: Literal["constant"] = "constant"
    units: ClassVar = 0
    random: ClassVar = False

    def parameters(self, state: int) -> int:
        """The number of parameters between two states of this size."""
        return state


class ForwardConnector(Config):
    """The decoder starts with the encoder's state."""

    kind: Literal["forward"] = "forward"
    units: ClassVar = None
    random: ClassVar = False

    def parameters(self, state: int) -> int:
        """None."""
        return 0


class MlpConnector(Config):
    """The decoder starts from a code that a layer makes of the encoder's state."""

    kind: Literal["mlp"] = "mlp"
    random: ClassVar = False
    units: int = Field(32, ge=1, le=65_536, description="width of the code")

    def parameters(self, state: int) -> int:
        """The number of parameters between two states of this size."""
        return (state + 1) * self.units + (self.units + 1) * state


class StochasticConnector(Config):
    """The decoder starts from a random code, whose mean and variance are linear in the encoder's state."""

    kind: Literal["stochastic"] = "stochastic"
    random: ClassVar = True
    units: int = Field(32, ge=1, le=65_536, description="width of the code")

    def parameters(self, state: int) -> int:
        """The number of parameters between two states of this size."""
        return 2 * (state + 1) * self.units + (self.units + 1) * state


ConnectorConfig = Annotated[
    ConstantConnector | ForwardConnector | MlpConnector | StochasticConnector, Field(discriminator="kind")
]


class TextVaeConfig(ModelConfig):
    """A recurrent autoencoder of sentences; with a stochastic connector, a variational one (Bowman et al., 2016)."""

    implementation: ClassVar = "model.TextVae"

    kind: Literal["text_vae"] = "text_vae"
    vocab: int | None = Field(None, ge=4, le=10_000_000, description="vocabulary size; null: that of the tokenizer")
    width: int = Field(256, ge=1, le=65_536, description="width of the embeddings")
    cell: CellKind = Field("lstm", description="the cell of encoder and decoder: LSTM, GRU, or the plain RNN")
    layers: int = Field(1, ge=1, le=100, description="layers of the encoder, and of the decoder")
    hidden: int = Field(
        256, ge=2, le=65_536, multiple_of=2, description="width of a state; half of the encoder's is of each direction"
    )
    connector: ConnectorConfig = Field(
        StochasticConnector(), description="how the decoder's first state comes from the encoder's last"
    )
    context: int = Field(64, ge=2, le=1_048_576, description="longest sentence, in tokens")
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout rate")

    @model_validator(mode="after")
    def _size_is_plausible(self) -> Self:
        refuse_too_large(self.parameters(self.vocab or 0))
        return self

    @property
    def state(self) -> int:
        """The number of values in the state of the encoder, and of the decoder."""
        return self.layers * (2 if self.cell == "lstm" else 1) * self.hidden

    @property
    def units(self) -> int:
        """The number of units of a code."""
        units: int | None = self.connector.units
        return self.state if units is None else units

    def parameters(self, vocab: int) -> int:
        """The number of parameters, the embedding counted once, since encoder, decoder and output share it."""
        widths = [self.width] + [self.hidden] * (self.layers - 1)
        encoder = sum(2 * layer_parameters(self.cell, width, self.hidden // 2) for width in widths)
        decoder = sum(layer_parameters(self.cell, width, self.hidden) for width in widths)
        out = (self.hidden + 1) * self.width
        return vocab * self.width + encoder + decoder + out + self.connector.parameters(self.state)

    @classmethod
    def tiny(cls) -> Self:
        return cls(
            vocab=23, width=16, layers=2, hidden=20, connector=StochasticConnector(units=6), context=16, dropout=0.1
        )
