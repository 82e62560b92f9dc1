"""The settings of the hierarchical recurrent encoder-decoder, readable without torch."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from heedful.config import Config, FieldError
from heedful.models.limits import refuse_too_large
from heedful.models.roles import ModelConfig
from heedful.models.seq2seq.config import AttentionConfig, RecurrentEncoder, Seq2SeqConfig, TransformerEncoder
from heedful.models.sizes import CellKind

SHARED = {"vocab", "width", "cell", "layers", "hidden", "context", "dropout"}  # with a seq2seq


class TurnsConfig(Config):
    """The recurrent layers that read the vectors of the utterances, one a turn."""

    cell: CellKind | None = Field(None, description="LSTM, GRU, or the plain RNN; null: as the decoder's")
    layers: int = Field(1, ge=1, le=100, description="number of layers")
    hidden: int | None = Field(None, ge=1, le=65_536, description="width of the states; null: that of the decoder's")


class HredConfig(ModelConfig):
    """A hierarchical recurrent encoder-decoder (Sordoni et al., 2015; Serban et al., 2016)."""

    implementation: ClassVar = "model.Hred"

    kind: Literal["hred"] = "hred"
    vocab: int | None = Field(None, ge=4, le=10_000_000, description="vocabulary size; null: that of the tokenizer")
    width: int = Field(512, ge=1, le=65_536, description="width of the embeddings")
    encoder: Annotated[RecurrentEncoder | TransformerEncoder, Field(discriminator="kind")] | None = Field(
        None, description="what reads an utterance; null: a recurrent layer in both directions, as wide as the decoder"
    )
    turns: TurnsConfig = TurnsConfig()
    speakers: int = Field(
        2, ge=1, le=1024, description="speakers that are distinguished, in the order in which they first speak"
    )
    cell: CellKind = Field("lstm", description="the decoder's cell: LSTM, GRU, or the plain RNN")
    layers: int = Field(1, ge=1, le=100, description="layers of the decoder")
    hidden: int = Field(512, ge=1, le=65_536, description="width of the decoder's states")
    attention: AttentionConfig | None = Field(
        None, description="how the decoder attends to the turns so far; null: it begins with the last one alone"
    )
    context: int = Field(256, ge=2, le=1_048_576, description="longest utterance, in tokens")
    dropout: float = Field(0.2, ge=0, lt=1, description="dropout rate")

    @property
    def uncompiled(self) -> str | None:
        """Why its steps cannot be compiled, and what to write instead."""
        return "the number of utterances differs from batch to batch; write compile: false"

    @property
    def unexported(self) -> str | None:
        """Why it cannot be written as ONNX."""
        return "a dialogue is read in groups of utterances of similar lengths, which is no fixed graph"

    @property
    def reader(self) -> Seq2SeqConfig:
        """The encoder-decoder whose source is one utterance, and whose encoder reads it."""
        encoder = self.encoder or RecurrentEncoder(cell=self.cell, layers=1, hidden=self.hidden)
        return Seq2SeqConfig(encoder=encoder, attention=None, **self.model_dump(include=SHARED))

    @property
    def writer(self) -> Seq2SeqConfig:
        """The encoder-decoder whose source positions are the turns, and whose decoder replies."""
        hidden, cell = self.turns.hidden or self.hidden, self.turns.cell or self.cell
        turns = RecurrentEncoder(cell=cell, layers=self.turns.layers, hidden=hidden, directions="ahead")
        return Seq2SeqConfig(encoder=turns, attention=self.attention, **self.model_dump(include=SHARED))

    @property
    def utterance(self) -> int:
        """The width of the vector of an utterance."""
        return self.reader.encoder.memory(self.width)

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if self.attention and self.attention.choice == "hard":
            raise FieldError("turns have soft attention; write choice: soft", "attention", "choice")
        refuse_too_large(self.parameters(self.vocab or 0))  # after checks of both parts
        return self

    def parameters(self, vocab: int) -> int:
        """The number of parameters."""
        turns, reads, width = self.writer.encoder, self.reader.encoder.parameters(self.width), self.utterance
        replies = self.writer.parameters(vocab) - turns.parameters(self.width)  # the turns read no embeddings
        return replies + reads + turns.parameters(width) + self.speakers * (width + turns.memory(self.width))

    @classmethod
    def tiny(cls) -> Self:
        return cls(vocab=23, width=16, turns=TurnsConfig(hidden=24), hidden=20, context=16, dropout=0.1)
