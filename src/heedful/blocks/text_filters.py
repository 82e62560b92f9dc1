"""Convolutions over the words of a text (Kim, 2014; Gehring et al., 2017).

B texts, T words, D width, F filters of one size, P positions of such a filter.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.blocks.layouts import real_first


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


class GatedConvolution(nn.Conv1d):
    """x' = (x + a * sigmoid(b)) / sqrt(2), where [a; b] = W * x (Gehring et al., 2017); padding stays zero."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__(width, 2 * width, size, padding="same")

    def forward(self, x: Tensor, kept: Tensor, dropout: Callable[[Tensor], Tensor]) -> Tensor:  # type: ignore[override]
        a = F.glu(super().forward(dropout(x).mT), 1).mT  # (B, T, D)
        return (x + a) * 0.5**0.5 * kept  # (B, T, D)


def gap_free(x: Tensor, real: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """x (B, T, D) with its padding zero and moved to the end; which of it is real (B, T, 1); and where each went.

    The last (B, T, D) are the places by which `gather` moves it back.
    """
    to = real_first(real)  # (B, T)
    kept = torch.zeros_like(real).scatter(1, to, real)[:, :, None]  # (B, T, 1)
    to = to[:, :, None].expand_as(x)  # (B, T, D)
    return torch.zeros_like(x).scatter(1, to, x) * kept, kept, to
