"""The layers of an autoencoder as settings of a recipe; this module does not import torch.

A layer computes its output shape and its number of parameters from an input shape. As in Keras' functional API, it can
be called on a symbolic tensor: see `heedful.models.autoencoder.network`.

Shapes are (D,) for a vector and (C, Y, X) for an image: channels, rows and columns, without the batch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from heedful.config import Config
from heedful.models.summary import Row, Summary

if TYPE_CHECKING:
    from heedful.models.autoencoder.network import SymbolicTensor

Shape = tuple[int, ...]  # (D,) or (C, Y, X)
Side = Annotated[int, Field(ge=1, le=65_536)]
Activation = Literal["relu", "sigmoid", "tanh", "linear"]


class Layer(Config):
    """The base class of all layers."""

    kind: str

    @abstractmethod
    def output_shape(self, shape: Shape) -> Shape:
        """The output shape for an input shape; a ValueError if the layer cannot take this input."""

    def parameters(self, shape: Shape) -> int:
        """The number of parameters for inputs of this shape."""
        return 0

    def __call__(self, x: SymbolicTensor) -> SymbolicTensor:
        """The symbolic output of this layer for a symbolic input, with newly initialized weights."""
        return x.apply(self)


class Dense(Layer):
    """A fully connected layer: f(W x + b)."""

    kind: Literal["dense"] = "dense"
    width: int = Field(ge=1, le=1_048_576, description="number of outputs")
    activation: Activation = Field("relu", description="activation function")

    def output_shape(self, shape: Shape) -> Shape:
        if len(shape) != 1:
            raise ValueError(f"a dense layer takes a vector, not {describe(shape)}; put `kind: flatten` before it")
        return (self.width,)

    def parameters(self, shape: Shape) -> int:
        return shape[0] * self.width + self.width


class Conv(Layer):
    """A convolution with stride 1: f(W * x + b)."""

    kind: Literal["conv"] = "conv"
    filters: int = Field(ge=1, le=65_536, description="number of output channels")
    size: int = Field(3, ge=1, le=1024, description="kernel size, an odd number")
    padding: Literal["same", "valid"] = Field(
        "same", description="same: zero padding, so that the size is kept; valid: none, and the image shrinks"
    )
    activation: Activation = Field("relu", description="activation function")

    def output_shape(self, shape: Shape) -> Shape:
        _, rows, columns = image_shape(shape, "a convolution")
        if self.padding == "same":
            if self.size % 2 == 0:
                raise ValueError(
                    f"a filter of size {self.size} has no center pixel; write an odd size, or padding: valid"
                )
            return (self.filters, rows, columns)
        border = self.size - 1
        if min(rows, columns) <= border:
            raise ValueError(f"a filter of size {self.size} does not fit into {rows} x {columns}; write padding: same")
        return (self.filters, rows - border, columns - border)

    def parameters(self, shape: Shape) -> int:
        return self.filters * (shape[0] * self.size**2 + 1)


class MaxPool(Layer):
    """Max pooling with stride `size`; windows at the right and lower edge may be smaller: 7 rows become 4."""

    kind: Literal["max_pool"] = "max_pool"
    size: int = Field(2, ge=1, le=1024, description="rows and columns of a pooling window")

    def output_shape(self, shape: Shape) -> Shape:
        channels, rows, columns = image_shape(shape, "pooling")
        return (channels, -(-rows // self.size), -(-columns // self.size))


class Upsample(Layer):
    """Nearest-neighbor upsampling: each pixel becomes a square of equal pixels."""

    kind: Literal["upsample"] = "upsample"
    size: int = Field(2, ge=1, le=1024, description="factor by which rows and columns grow")

    def output_shape(self, shape: Shape) -> Shape:
        channels, rows, columns = image_shape(shape, "upsampling")
        return (channels, rows * self.size, columns * self.size)


class Flatten(Layer):
    """An image as one vector, channel by channel, row by row."""

    kind: Literal["flatten"] = "flatten"

    def output_shape(self, shape: Shape) -> Shape:
        return (prod(shape),)


class Reshape(Layer):
    """A vector as an image."""

    kind: Literal["reshape"] = "reshape"
    shape: tuple[Side, Side, Side] = Field(description="channels, rows and columns of the image")

    def output_shape(self, shape: Shape) -> Shape:
        if len(shape) != 1:
            raise ValueError(f"reshaping takes a vector, not {describe(shape)}; put `kind: flatten` before it")
        if prod(shape) != prod(self.shape):
            raise ValueError(
                f"{describe(shape)} has {prod(shape)} values, but {describe(self.shape)} has {prod(self.shape)}"
            )
        return self.shape


AnyLayer = Annotated[Dense | Conv | MaxPool | Upsample | Flatten | Reshape, Field(discriminator="kind")]


def image_shape(shape: Shape, layer: str) -> tuple[int, int, int]:
    """Channels, rows and columns of an image; a ValueError for a vector, which `layer` cannot take."""
    if len(shape) != 3:
        raise ValueError(f"{layer} takes an image, not {describe(shape)}; put `kind: reshape` before it")
    channels, rows, columns = shape
    return channels, rows, columns


def describe(shape: Shape) -> str:
    """A shape in words, for errors."""
    if len(shape) == 1:
        return f"a vector of {shape[0]}"
    channels, rows, columns = shape
    return f"an image of {channels} x {rows} x {columns} (channels, rows, columns)"


def summarize(shape: Shape, layers: Sequence[Layer], frozen: Sequence[int] | None = None) -> Summary:
    """The summary of layers for an input shape; `frozen` has the number of untrained parameters of each layer."""
    rows, counts = [Row("input", "Input", shape, 0)], dict[str, int]()
    for layer, untrained in zip(layers, frozen or [0] * len(layers), strict=True):
        counts[layer.kind] = counts.get(layer.kind, 0) + 1
        output = layer.output_shape(shape)
        name = f"{layer.kind}_{counts[layer.kind]}"
        rows.append(Row(name, type(layer).__name__, output, layer.parameters(shape), untrained))
        shape = output
    return Summary(rows)
