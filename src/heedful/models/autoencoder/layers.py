"""The layers that a network is wired from, one after the other; readable without torch.

A layer knows the shape that it makes of another, and how many numbers it trains. Called on a place in a network, it
goes on from there: see `heedful.models.autoencoder.network`.

D vector, C channels, Y rows, X columns.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from pydantic import Field

from heedful.config import Config

if TYPE_CHECKING:
    from heedful.models.autoencoder.network import Place

Shape = tuple[int, ...]  # of one sample: (D,) or (C, Y, X)
Side = Annotated[int, Field(ge=1, le=65_536)]
Activation = Literal["relu", "sigmoid", "tanh", "linear"]


class Layer(Config):
    """What every layer declares."""

    kind: str

    @abstractmethod
    def after(self, shape: Shape) -> Shape:
        """The output shape for an input shape; a ValueError says why there is none."""

    def parameters(self, shape: Shape) -> int:
        """The number of parameters for inputs of this shape."""
        return 0

    def __call__(self, place: Place) -> Place:
        """The point after this layer, where it follows another point."""
        from heedful.models.autoencoder.network import Place

        return Place.behind(place, self)


class Dense(Layer):
    """f(W x + b): every number that goes in, to every one that comes out."""

    kind: Literal["dense"] = "dense"
    width: int = Field(ge=1, le=1_048_576, description="number of outputs")
    activation: Activation = Field("relu", description="activation function")

    def after(self, shape: Shape) -> Shape:
        if len(shape) != 1:
            raise ValueError(f"a dense layer takes a vector, not {told(shape)}; put `kind: flatten` before it")
        return (self.width,)

    def parameters(self, shape: Shape) -> int:
        return shape[0] * self.width + self.width


class Conv(Layer):
    """f(W * x + b): each filter covers a small square around every pixel, in all channels."""

    kind: Literal["conv"] = "conv"
    filters: int = Field(ge=1, le=65_536, description="number of output channels")
    size: int = Field(3, ge=1, le=1024, description="kernel size, an odd number")
    padding: Literal["same", "valid"] = Field(
        "same", description="same: zero padding, so that the size is kept; valid: none, and the image shrinks"
    )
    activation: Activation = Field("relu", description="activation function")

    def after(self, shape: Shape) -> Shape:
        _, rows, columns = picture(shape, "a convolution")
        if self.padding == "same":
            if self.size % 2 == 0:
                raise ValueError(f"a square of {self.size} has no middle; write an odd size, or padding: valid")
            return (self.filters, rows, columns)
        lost = self.size - 1
        if min(rows, columns) <= lost:
            raise ValueError(f"a square of {self.size} does not fit into {rows} x {columns}; write padding: same")
        return (self.filters, rows - lost, columns - lost)

    def parameters(self, shape: Shape) -> int:
        return self.filters * (shape[0] * self.size**2 + 1)


class MaxPool(Layer):
    """The largest number of each square; at the right and lower edge a square may be cut: 7 rows become 4."""

    kind: Literal["max_pool"] = "max_pool"
    size: int = Field(2, ge=1, le=1024, description="rows and columns of a square")

    def after(self, shape: Shape) -> Shape:
        channels, rows, columns = picture(shape, "pooling")
        return (channels, -(-rows // self.size), -(-columns // self.size))


class Upsample(Layer):
    """Each number becomes a square of that number, the nearest neighbour."""

    kind: Literal["upsample"] = "upsample"
    size: int = Field(2, ge=1, le=1024, description="rows and columns of that square")

    def after(self, shape: Shape) -> Shape:
        channels, rows, columns = picture(shape, "upsampling")
        return (channels, rows * self.size, columns * self.size)


class Flatten(Layer):
    """A picture as one vector, channel by channel, row by row."""

    kind: Literal["flatten"] = "flatten"

    def after(self, shape: Shape) -> Shape:
        return (prod(shape),)


class Reshape(Layer):
    """A vector as a picture."""

    kind: Literal["reshape"] = "reshape"
    shape: tuple[Side, Side, Side] = Field(description="channels, rows and columns of the image")

    def after(self, shape: Shape) -> Shape:
        if len(shape) != 1:
            raise ValueError(f"reshaping takes a vector, not {told(shape)}; put `kind: flatten` before it")
        if prod(shape) != prod(self.shape):
            raise ValueError(f"{told(shape)} has {prod(shape)} numbers, and {told(self.shape)} has {prod(self.shape)}")
        return self.shape


AnyLayer = Annotated[Dense | Conv | MaxPool | Upsample | Flatten | Reshape, Field(discriminator="kind")]


def picture(shape: Shape, what: str) -> tuple[int, int, int]:
    """The three sides of a picture."""
    if len(shape) != 3:
        raise ValueError(f"{what} takes an image, not {told(shape)}; put `kind: reshape` before it")
    channels, rows, columns = shape
    return channels, rows, columns


def told(shape: Shape) -> str:
    """A shape in words."""
    if len(shape) == 1:
        return f"a vector of {shape[0]}"
    channels, rows, columns = shape
    return f"a picture of {channels} x {rows} x {columns} (channels, rows, columns)"


class Row(NamedTuple):
    """A layer in a summary: what it is called, what comes out of it, and how many parameters it has, trained or not."""

    name: str
    kind: str
    shape: Shape
    parameters: int
    frozen: int = 0  # parameters that are not trained


class Summary(tuple[Row, ...]):
    """The layers of a network as a table; shapes of images are printed as rows x columns x channels."""

    @property
    def parameters(self) -> int:
        """How many there are, frozen ones included."""
        return sum(row.parameters for row in self)

    @property
    def frozen(self) -> int:
        """How many of them are not trained."""
        return sum(row.frozen for row in self)

    def __repr__(self) -> str:
        lines = [("Layer (type)", "Output shape", "Parameters")]
        for row in self:
            shape = ", ".join(map(str, ("None", *row.shape[1:], row.shape[0])))
            lines.append((f"{row.name} ({row.kind})", f"({shape})", f"{row.parameters:,}"))
        wide = [max(len(line[column]) for line in lines) for column in range(3)]
        table = [f"{name:<{wide[0]}}  {shape:<{wide[1]}}  {count:>{wide[2]}}" for name, shape, count in lines]
        ends = [
            f"Total parameters: {self.parameters:,}",
            f"Trainable parameters: {self.parameters - self.frozen:,}",
            f"Non-trainable parameters: {self.frozen:,}",
        ]
        return "\n".join([table[0], "-" * len(table[0]), *table[1:], "-" * len(table[0]), *ends])

    __str__ = __repr__


def summarised(shape: Shape, layers: Sequence[Layer], frozen: Sequence[int] | None = None) -> Summary:
    """The table of layers that follow on an input; `frozen` counts the parameters of each that are not trained."""
    rows, counts = [Row("input", "Input", shape, 0)], dict[str, int]()
    for layer, still in zip(layers, frozen or [0] * len(layers), strict=True):
        counts[layer.kind] = counts.get(layer.kind, 0) + 1
        after = layer.after(shape)
        name = f"{layer.kind}_{counts[layer.kind]}"
        rows.append(Row(name, type(layer).__name__, after, layer.parameters(shape), still))
        shape = after
    return Summary(rows)
