"""The settings of the paragraph captioner, readable without torch."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from heedful.models import config_class
from heedful.models.captioner.config import USUAL, AnyImageEncoder, without_head
from heedful.models.limits import refuse_too_large
from heedful.models.roles import ModelConfig
from heedful.models.sizes import CellKind, layer_parameters, score_parameters

GEOMETRY = 18  # numbers that say where a box is
SAID = 2  # numbers that say how often, and how recently, a region was spoken of


class ParagraphCaptionerConfig(ModelConfig):
    """Paragraphs about images: regions, their phrases, sentences, words (Krause et al., 2017, with attention)."""

    implementation: ClassVar = "model.ParagraphCaptioner"

    kind: Literal["paragraph_captioner"] = "paragraph_captioner"
    vocab: int | None = Field(None, ge=4, le=10_000_000, description="vocabulary size; null: that of the tokenizer")
    encoder: AnyImageEncoder = Field(description="the image encoder, whose layers after the feature map are left out")
    grid: int = Field(3, ge=1, le=100, description="rows and columns that the map is pooled to in each region")
    memory: int = Field(256, ge=1, le=65_536, description="width of a region and of its phrase in the memory")
    width: int = Field(128, ge=1, le=65_536, description="width of the embeddings")
    cell: CellKind = Field("gru", description="LSTM, GRU, or the plain RNN, for sentences and for words")
    hidden: int = Field(256, ge=1, le=65_536, description="width of the states and of a sentence's topic")
    layers: int = Field(1, ge=1, le=100, description="layers of the word decoder")
    regions: int = Field(2, ge=1, le=100, description="regions that a sentence may speak of")
    freeze: Literal["none", "encoder"] = Field("none", description="the part that is not trained")
    context: int = Field(64, ge=2, le=1_048_576, description="longest sentence, in tokens")
    dropout: float = Field(0.2, ge=0, lt=1, description="dropout rate of the embeddings and before the last layer")

    _leaves_out_the_head = field_validator("encoder")(without_head)

    @model_validator(mode="after")
    def _is_not_too_large(self) -> Self:
        refuse_too_large(self.parameters(self.vocab or 0))
        return self

    @property
    def uncompiled(self) -> str | None:
        """Why its steps cannot be compiled, and what to write instead."""
        return "a paragraph is a loop over its sentences, compiled again for each number; write compile: false"

    @property
    def unexported(self) -> str | None:
        """Why it cannot be written as ONNX."""
        return "a paragraph is a plan and a search for each sentence, which is no fixed graph"

    def parameters(self, vocab: int) -> int:
        """The number of parameters: of the map, the regions, their memory, the sentences and the words."""
        memory, width, hidden, said = self.memory, self.width, self.hidden, self.regions * self.memory
        pooled, parts = self.encoder.map_shape[0] * self.grid**2, 2 if self.cell == "lstm" else 1
        reader = (pooled + GEOMETRY + 3 + 2 * memory) * memory
        phrases = (memory + 1) * hidden + layer_parameters(self.cell, width, hidden) + (memory + hidden + 1) * memory
        scores = sum(
            score_parameters("additive", hidden, memory + SAID, 0) + k * memory * hidden for k in range(self.regions)
        )
        sentences = (memory + 1) * parts * hidden + layer_parameters(self.cell, said, hidden) + scores
        sentences += (hidden + said + 1) * hidden + hidden + 1
        words = (hidden + 1) * self.layers * parts * hidden + (hidden + 1) * width
        words += sum(layer_parameters(self.cell, hidden if n else width + hidden, hidden) for n in range(self.layers))
        return self.encoder.map_parameters + vocab * width + reader + phrases + sentences + words

    @classmethod
    def tiny(cls) -> Self:
        small = {"kind": USUAL, "channels": 1, "size": (8, 12), "stem": "small", "stem_width": 4}
        encoder = config_class(USUAL).model_validate(small | {"depths": (1, 1), "widths": (8, 12)})
        return cls(vocab=23, encoder=encoder, grid=2, memory=18, width=14, hidden=20, context=16, dropout=0.1)
