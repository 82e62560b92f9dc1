"""The settings of the convolutional text encoder, readable without torch."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, field_validator

from heedful.models.rnn_encoder.config import LayeredEncoderConfig
from heedful.models.sizes import gated_parameters, has_a_middle


class ConvEncoderConfig(LayeredEncoderConfig):
    """Gated convolutions over a text (Gehring et al., 2017), with the head for masked tokens."""

    implementation: ClassVar = "model.ConvEncoder"

    kind: Literal["conv_encoder"] = "conv_encoder"
    layers: int = Field(4, ge=1, le=1000, description="number of layers, each with a residual connection")
    size: int = Field(5, ge=1, le=101, description="tokens that a filter covers, an odd number")

    _has_a_middle = field_validator("size")(has_a_middle)

    @property
    def layer_parameters(self) -> int:
        """The number of parameters of one layer: values and gates."""
        return gated_parameters(self.width, self.size)

    @property
    def span(self) -> int:
        """How many tokens a token's vector in the last layer depends on, itself in the middle."""
        return self.layers * (self.size - 1) + 1

    @classmethod
    def tiny(cls) -> Self:
        return cls.model_validate({"vocab": 23, "width": 16, "layers": 2, "size": 7, "context": 16})
