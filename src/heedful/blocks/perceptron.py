"""The multilayer perceptron.

B batch, F width of a hidden layer, D width of the output.
"""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from heedful.blocks.feedforward import ACTIVATIONS


class Perceptron(nn.Module):
    """x <- f(W x + b) in every layer but the last, which has no f: a map between vectors of widths (D_0, ..., D_n)."""

    def __init__(self, widths: Sequence[int], activation: str = "relu") -> None:
        super().__init__()
        *before, last = pairwise(widths)
        self.hidden = nn.ModuleList(nn.Linear(*pair) for pair in before)
        self.last = nn.Linear(*last)
        self.activation = ACTIVATIONS[activation]

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.hidden:
            x = self.activation(layer(x))  # (B, F)
        return self.last(x)  # (B, D)
