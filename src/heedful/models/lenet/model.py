"""LeNet-5 (LeCun et al., 1998, "Gradient-based learning applied to document recognition"), as it is usually taught.

B batch, Y rows, X columns, F and G filters, M values of the last map, D and E hidden units, N classes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from heedful.blocks.convolution import Convolution
from heedful.blocks.taps import Tap
from heedful.models.lenet.config import LeNetConfig
from heedful.models.limits import check_image

ACTIVATIONS = {"tanh": torch.tanh, "sigmoid": torch.sigmoid, "relu": torch.relu}
POOLING: dict[str, Callable[[int], nn.Module]] = {"average": nn.AvgPool2d, "max": nn.MaxPool2d}


class LeNet(nn.Module):
    """Convolution and pooling, twice; then two hidden layers, and one of logits."""

    def __init__(self, config: LeNetConfig) -> None:
        super().__init__()
        (first, second), (wide, narrow), (rows, columns) = config.filters, config.hidden, config.map_size
        self.config = config
        self.conv1 = Convolution(config.channels, first, 5, padding=config.padding)
        self.conv2 = Convolution(first, second, 5, padding=0)
        self.hidden1 = nn.Linear(second * rows * columns, wide)
        self.hidden2 = nn.Linear(wide, narrow)
        self.head = nn.Linear(narrow, config.outputs)
        self.activation = ACTIVATIONS[config.activation]
        self.pool1, self.pool2 = (POOLING[config.pooling](2) for _ in range(2))
        self.map1, self.map2 = Tap(), Tap()
        for layer in (self.conv1, self.conv2, self.hidden1, self.hidden2, self.head):
            nn.init.xavier_uniform_(layer.weight)  # Glorot and Bengio, 2010
            nn.init.zeros_(layer.bias)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images))  # (B, N)

    def map(self, images: Tensor) -> Tensor:
        """The feature map after the second pooling."""
        check_image(images.shape, self.config.input)
        x = self.map1(self.activation(self.conv1(images)))  # (B, F, Y, X)
        x = self.pool1(x)  # (B, F, Y / 2, X / 2)
        x = self.map2(self.activation(self.conv2(x)))  # (B, G, Y / 2 - 4, X / 2 - 4)
        return self.pool2(x)  # (B, G, Y / 4 - 2, X / 4 - 2)

    def keep_map(self) -> None:
        """Remove the layers after the map, for a model that reads the map alone."""
        for name in ("hidden1", "hidden2", "head"):
            self.set_submodule(name, nn.Identity())

    def features(self, images: Tensor) -> Tensor:
        """The second hidden layer."""
        x = self.map(images).flatten(1)  # (B, M)
        x = self.activation(self.hidden1(x))  # (B, D)
        return self.activation(self.hidden2(x))  # (B, E)

    def training_logits(self, images: Tensor) -> list[tuple[float, Tensor]]:
        """The logits, with a weight of 1."""
        return [(1.0, self(images))]
