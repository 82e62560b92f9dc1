"""Convolutions over the words of a text (Kim, 2014).

B texts, D width, F filters of one size, P positions of such a filter.
"""

import torch.nn.functional as F
from torch import Tensor, nn


class Filters(nn.Module):
    """max over positions of relu(W * x + b), for filters of one size; positions of padding only are left out."""

    def __init__(self, width: int, filters: int, size: int) -> None:
        super().__init__()
        self.size = size
        self.slide = nn.Conv1d(width, filters, size, padding=size - 1)

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        padding = (self.size - 1, self.size - 1)
        covered = F.pad(real, padding).unfold(1, self.size, 1).any(-1)  # (B, P)
        activations = F.relu(self.slide(x))  # (B, F, P)
        return (activations * covered[:, None]).amax(-1)  # (B, F)
