"""A learned weighted sum of layers, as in ELMo (Peters et al., 2018).

B batch, L layers, T positions, D width.
"""

import torch
from torch import Tensor, nn

from heedful.blocks.taps import Tap


class Mix(nn.Module):
    """gamma * sum_l softmax(s)_l x_l, initialized with gamma = 1 and equal weights."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.share, self.gamma = nn.Parameter(torch.zeros(layers)), nn.Parameter(torch.ones(()))
        self.weights = Tap()

    def forward(self, x: Tensor) -> Tensor:
        weights = self.weights(self.share.softmax(0))  # (L,)
        return self.gamma * torch.einsum("l,bltd->btd", weights, x)  # (B, T, D)
