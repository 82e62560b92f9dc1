"""Networks of layers, built from a list or, as in Keras' functional API, from symbolic tensors; both give the same.

    network = Network.of((784,), [Dense(width=100), Dense(width=20)])

    image = Input(784)
    hidden = Dense(width=100)(image)
    code = Dense(width=20)(hidden)
    network = Network(image, code)

Networks that share symbolic tensors share the weights of the layers between them.

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
    Upsample,
    summarize,
)
from heedful.models.summary import Summary


def linear(x: Tensor) -> Tensor:
    return x


ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "linear": linear,
}


class SymbolicTensor:
    """The shape of a value in a network, with the layer and module that compute it from its parent."""

    def __init__(
        self, shape: Shape, layer: Layer | None, module: nn.Module | None, parent: SymbolicTensor | None
    ) -> None:
        self.shape, self.layer, self.module, self.parent = shape, layer, module, parent

    def apply(self, layer: Layer) -> SymbolicTensor:
        """The output of a layer for this input; the layer's weights are randomly initialized."""
        return SymbolicTensor(layer.output_shape(self.shape), layer, build_module(layer, self.shape), self)

    def ancestors(self) -> Iterator[SymbolicTensor]:
        """This tensor, its parent, and so on to an input."""
        node: SymbolicTensor | None = self
        while node is not None:
            yield node
            node = node.parent


def Input(*shape: int) -> SymbolicTensor:  # noqa: N802, named like a layer, as in Keras
    """The input of a network: a vector of this width, or an image of channels, rows and columns."""
    return SymbolicTensor(shape, None, None, None)


class Network(nn.Module):
    """The layers between two symbolic tensors, applied one after the other."""

    def __init__(self, start: SymbolicTensor, end: SymbolicTensor) -> None:
        super().__init__()
        path: list[SymbolicTensor] = []
        for node in end.ancestors():
            if node is start:
                break
            path.insert(0, node)
        else:
            raise ValueError("no layers lead from this input to this output")
        self.shape, self.code = start.shape, end.shape
        self.specs: tuple[Layer, ...] = tuple(node.layer for node in path if node.layer is not None)
        self.layers = nn.ModuleList(node.module for node in path if node.module is not None)
        self.activations = [
            ACTIVATIONS[layer.activation if isinstance(layer, Dense | Conv) else "linear"] for layer in self.specs
        ]

    @classmethod
    def of(cls, shape: Shape, layers: Sequence[Layer]) -> Network:
        """The network of a list of layers, applied in order."""
        start = end = Input(*shape)
        for layer in layers:
            end = layer(end)
        return cls(start, end)

    def summary(self) -> Summary:
        """Each layer with its output shape and its number of parameters."""
        return summarize(self.shape, self.specs, self.frozen)

    @property
    def frozen(self) -> list[int]:
        """For each layer, the number of parameters that are not trained."""
        return [
            sum(weight.numel() for weight in layer.parameters() if not weight.requires_grad) for layer in self.layers
        ]

    def forward(self, x: Tensor) -> Tensor:
        for layer, activation in zip(self.layers, self.activations, strict=True):
            x = activation(layer(x))
        return x


def build_module(layer: Layer, shape: Shape) -> nn.Module:
    """The torch module of a layer, without its activation, for inputs of this shape."""
    match layer:
        case Dense():
            return _initialize(nn.Linear(shape[0], layer.width))
        case Conv():
            padding = layer.size // 2 if layer.padding == "same" else 0
            return _initialize(Convolution(shape[0], layer.filters, layer.size, padding))
        case MaxPool():
            return nn.MaxPool2d(layer.size, ceil_mode=True)
        case Upsample():
            return nn.Upsample(scale_factor=layer.size)
        case Flatten():
            return nn.Flatten()
        case Reshape():
            return nn.Unflatten(1, layer.shape)
    raise TypeError(f"{layer!r} is not a layer of a network")


def _initialize(layer: nn.Linear | Convolution) -> nn.Module:
    """Initialize weights with Glorot uniform (Glorot and Bengio, 2010), and biases with zero."""
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
