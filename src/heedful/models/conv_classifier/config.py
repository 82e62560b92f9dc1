"""The settings of the convolutional text classifier, readable without torch."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from heedful.models.limits import refuse_too_large
from heedful.models.roles import ModelConfig
from heedful.models.sizes import Label, unique_labels

Size = Annotated[int, Field(ge=1, le=1000)]


class ConvClassifierConfig(ModelConfig):
    """Convolutions over words with max pooling over time (Kim, 2014)."""

    implementation: ClassVar = "model.ConvClassifier"

    kind: Literal["conv_classifier"] = "conv_classifier"
    vocab: int | None = Field(None, ge=4, le=10_000_000, description="vocabulary size; null: that of the word list")
    labels: tuple[Label, ...] | None = Field(
        None, min_length=2, max_length=100_000, description="names of the classes; null: those of the training data"
    )
    width: int = Field(100, ge=1, le=65_536, description="width of the word vectors")
    sizes: tuple[Size, ...] = Field((3, 4, 5), min_length=1, max_length=100, description="filter widths, in words")
    filters: int = Field(100, ge=1, le=65_536, description="filters of each width")
    dropout: float = Field(0.5, ge=0, lt=1, description="dropout before the last layer")
    freeze: bool = Field(False, description="whether the word vectors are frozen")
    context: int = Field(512, ge=3, le=1_048_576, description="longest text, in words plus two special tokens")

    _labels_differ = field_validator("labels")(unique_labels)

    @model_validator(mode="after")
    def _size_is_plausible(self) -> Self:
        refuse_too_large(self.parameters(self.vocab or 0))
        return self

    def parameters(self, vocab: int) -> int:
        """The number of parameters, for two classes where they are not known yet."""
        convolutions = self.filters * sum(size * self.width + 1 for size in self.sizes)
        return vocab * self.width + convolutions + (len(self.sizes) * self.filters + 1) * len(self.labels or "ab")

    @classmethod
    def tiny(cls) -> Self:
        return cls(vocab=23, labels=("a", "b"), width=6, sizes=(1, 2), filters=4, context=16)
