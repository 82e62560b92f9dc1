"""Layers wired into a network, in either of two ways that give the same: one after the other, or point by point.

    network = Network.of((784,), [Dense(width=100), Dense(width=20)])

    image = Input(784)
    hidden = Dense(width=100)(image)
    code = Dense(width=20)(hidden)
    network = Network(image, code)

Networks that share places share the weights of the layers between them.

B batch, D vector, C channels, Y rows, X columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from heedful.blocks.convolution import Convolution
from heedful.models.autoencoder.layers import (
    Activation,
    Conv,
    Dense,
    Flatten,
    Layer,
    MaxPool,
    Reshape,
    Shape,
    Summary,
    Upsample,
    summarised,
)


def linear(x: Tensor) -> Tensor:
    return x


ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "linear": linear,
}


class Place:
    """A point in a network: the layer that leads to it, with its weights, and the point before that."""

    def __init__(self, shape: Shape, layer: Layer | None, module: nn.Module | None, before: Place | None) -> None:
        self.shape, self.layer, self.module, self.before = shape, layer, module, before

    @classmethod
    def behind(cls, before: Place, layer: Layer) -> Place:
        """The point that a layer leads to, its weights randomly initialized."""
        return cls(layer.after(before.shape), layer, made(layer, before.shape), before)

    def back(self) -> Iterator[Place]:
        """This point, the one before it, and so on to an input."""
        place: Place | None = self
        while place is not None:
            yield place
            place = place.before


def Input(*shape: int) -> Place:  # noqa: N802, since it stands among layers
    """The input of a network: a vector of this width, or an image of channels, rows and columns."""
    return Place(shape, None, None, None)


class Network(nn.Module):
    """The layers that lead from one point to another: x -> layer(... layer(x))."""

    def __init__(self, start: Place, end: Place) -> None:
        super().__init__()
        path: list[Place] = []
        for place in end.back():
            if place is start:
                break
            path.insert(0, place)
        else:
            raise ValueError("no layers lead from this input to this output")
        self.shape, self.code = start.shape, end.shape
        self.specs: tuple[Layer, ...] = tuple(place.layer for place in path if place.layer is not None)
        self.layers = nn.ModuleList(place.module for place in path if place.module is not None)
        self.activations = [
            ACTIVATIONS[layer.activation if isinstance(layer, Dense | Conv) else "linear"] for layer in self.specs
        ]

    @classmethod
    def of(cls, shape: Shape, layers: Sequence[Layer]) -> Network:
        """The network of a list of layers, each following on the one before it."""
        start = end = Input(*shape)
        for layer in layers:
            end = layer(end)
        return cls(start, end)

    def summary(self) -> Summary:
        """Each layer with what comes out of it and how many parameters it has."""
        return summarised(self.shape, self.specs, self.frozen)

    @property
    def frozen(self) -> list[int]:
        """How many parameters of each layer are not trained."""
        return [
            sum(weight.numel() for weight in layer.parameters() if not weight.requires_grad) for layer in self.layers
        ]

    def forward(self, x: Tensor) -> Tensor:
        for layer, activation in zip(self.layers, self.activations, strict=True):
            x = activation(layer(x))
        return x


def made(layer: Layer, shape: Shape) -> nn.Module:
    """The module of a layer up to its activation, for inputs of a shape."""
    match layer:
        case Dense():
            return _drawn(nn.Linear(shape[0], layer.width))
        case Conv():
            padding = layer.size // 2 if layer.padding == "same" else 0
            return _drawn(Convolution(shape[0], layer.filters, layer.size, padding))
        case MaxPool():
            return nn.MaxPool2d(layer.size, ceil_mode=True)
        case Upsample():
            return nn.Upsample(scale_factor=layer.size)
        case Flatten():
            return nn.Flatten()
        case Reshape():
            return nn.Unflatten(1, layer.shape)
    raise TypeError(f"{layer!r} is no layer of a network")


def _drawn(layer: nn.Linear | Convolution) -> nn.Module:
    """A layer whose weights are uniform by fan in and fan out (Glorot and Bengio, 2010), and its biases zero."""
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
