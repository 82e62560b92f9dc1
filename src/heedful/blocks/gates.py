"""The gates shared by LSTM cells over trees, graphs and grids."""

import torch
from torch import Tensor, nn

from heedful.blocks.taps import Tap


class Gates(nn.Module):
    """c = i * g + kept and h = o * tanh(c), with sigmoid on i and o, and tanh on g."""

    def __init__(self) -> None:
        super().__init__()
        self.write, self.candidate, self.reveal = Tap(), Tap(), Tap()
        self.cell, self.hidden = Tap(), Tap()

    def forward(self, igo: Tensor, kept: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """igo (..., 3 H): the gates before activation; kept: the sum of f_k * c_k, None without predecessors."""
        i, g, o = igo.chunk(3, -1)
        c = self.write(torch.sigmoid(i)) * self.candidate(torch.tanh(g))
        c = self.cell(c if kept is None else c + kept)
        h = self.hidden(self.reveal(torch.sigmoid(o)) * torch.tanh(c))
        return h, c
