"""The settings of autoencoders, with the sizes of the lecture."""

from __future__ import annotations

from math import prod
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from heedful.config import FieldError
from heedful.models.autoencoder.layers import (
    Activation,
    AnyLayer,
    Conv,
    Dense,
    Flatten,
    MaxPool,
    Reshape,
    Shape,
    Side,
    Upsample,
    describe,
    summarize,
)
from heedful.models.limits import refuse_too_large
from heedful.models.roles import ModelConfig
from heedful.models.summary import Summary

Layers = Annotated[tuple[AnyLayer, ...], Field(min_length=1, max_length=1000)]


class AutoencoderConfig(ModelConfig):
    """An encoder to a code and a decoder back, each a list of layers."""

    implementation: ClassVar = "model.Autoencoder"

    kind: Literal["autoencoder"] = "autoencoder"
    input: tuple[Side, ...] = Field(
        description="`[784]`: each image as one vector; `[1, 28, 28]`: as channels, rows and columns"
    )
    encoder: Layers = Field(description="layers from the image to its code")
    decoder: Layers = Field(description="layers from the code back to the image")

    @field_validator("input")
    @classmethod
    def _vector_or_image(cls, shape: Shape) -> Shape:
        if len(shape) not in (1, 3):
            raise ValueError("an input is a vector, [784], or an image of channels, rows and columns, [1, 28, 28]")
        return shape

    @model_validator(mode="after")
    def _layers_fit_together(self) -> Self:
        code = _through(self.input, self.encoder, "encoder")
        if (end := _through(code, self.decoder, "decoder")) != self.input:
            raise FieldError(
                f"the decoder ends with {describe(end)}, but the input is {describe(self.input)}; make them the same",
                "decoder",
            )
        refuse_too_large(self.summary().parameters)
        return self

    @property
    def code(self) -> Shape:
        """The shape of a code."""
        return _through(self.input, self.encoder, "encoder")

    @property
    def last_activation(self) -> Activation | None:
        """The activation of the last dense or convolutional layer."""
        ends = [layer.activation for layer in self.decoder if isinstance(layer, Dense | Conv)]
        return ends[-1] if ends else None

    def summary(self) -> Summary:
        """Each layer with its output shape and its number of parameters."""
        return summarize(self.input, (*self.encoder, *self.decoder))

    @property
    def products(self) -> int:
        """The number of multiplications of a forward pass of one image."""
        rows = self.summary()
        return sum(row.parameters * prod(row.shape[1:]) for row in rows)

    def parameters(self, vocab: int = 0) -> int:
        """The number of parameters; there is no vocabulary."""
        return self.summary().parameters

    @classmethod
    def tiny(cls) -> Self:
        return cls(
            input=(2, 6, 6),
            encoder=(Conv(filters=4), MaxPool(), Flatten(), Dense(width=12, activation="tanh")),
            decoder=(
                Dense(width=64, activation="tanh"),
                Reshape(shape=(4, 4, 4)),
                Upsample(),
                Conv(filters=8, padding="valid", activation="tanh"),
                Conv(filters=2, activation="linear"),
            ),
        )


def _through(shape: Shape, layers: tuple[Any, ...], name: str) -> Shape:
    for number, layer in enumerate(layers):
        try:
            shape = layer.output_shape(shape)
        except ValueError as error:
            raise FieldError(str(error), name, number) from None
    return shape


def dense(size: int, *widths: int, activation: Activation = "relu", output: Activation = "relu") -> AutoencoderConfig:
    """Dense layers of these widths down to the code, and back by the same widths; `output` is for the last one."""
    encoder = tuple(Dense(width=width, activation=activation) for width in widths)
    return AutoencoderConfig(
        input=(size,), encoder=encoder, decoder=(*reversed(encoder[:-1]), Dense(width=size, activation=output))
    )


SIZES = {  # as the lecture has them, for images of 28 x 28
    "dense": dense(784, 100, 20),
    "conv": AutoencoderConfig(
        input=(1, 28, 28),
        encoder=(Conv(filters=8), MaxPool(), Conv(filters=4), MaxPool(), Conv(filters=4), MaxPool()),
        decoder=(
            Conv(filters=4),
            Upsample(),
            Conv(filters=4),
            Upsample(),
            Conv(filters=8, padding="valid"),
            Upsample(),
            Conv(filters=1),
        ),
    ),
    "denoising": AutoencoderConfig(
        input=(1, 28, 28),
        encoder=(Conv(filters=32), MaxPool(), Conv(filters=32), MaxPool()),
        decoder=(Conv(filters=32), Upsample(), Conv(filters=32), Upsample(), Conv(filters=1)),
    ),
}
