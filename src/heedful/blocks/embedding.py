"""Token embeddings that also give the logits.

B batch, T positions, D width, V vocabulary.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FEW = 512  # rows of a decoding step


class Tied(nn.Module):
    """x = E[tokens] s coming in, logits = x E^T going out (Press and Wolf, 2017).

    s is sqrt(D), and E drawn that much smaller, where nothing else is said (Vaswani et al., 2017).
    """

    def __init__(self, vocab: int, width: int, scale: float | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(vocab, width) * width**-0.5)
        self.scale = math.sqrt(width) if scale is None else scale
        self.packed: tuple[object, Tensor] | None = None

    def forward(self, tokens: Tensor) -> Tensor:
        x = F.embedding(tokens, self.weight)  # (B, T, D)
        return x if self.scale == 1 else x * self.scale

    def logits(self, x: Tensor) -> Tensor:
        few = x.dim() > 1 and 0 < x.numel() <= FEW * x.shape[-1]
        if few and x.device.type == "cpu" and x.dtype == torch.float32 and not torch.is_grad_enabled():
            return self.quickly(x)  # (B, T, V)
        return F.linear(x, self.weight)  # (B, T, V)

    def quickly(self, x: Tensor) -> Tensor:
        """The same for a decoding step on a CPU: oneDNN packs the large matrix once, and few rows go a third faster."""
        if torch.compiler.is_compiling() or not torch.backends.mkldnn.is_available():
            return F.linear(x, self.weight)
        state = (self.weight.data_ptr(), self.weight._version)  # weights that were trained on or loaded are packed anew
        if self.packed is None or self.packed[0] != state:
            self.packed = (state, self.weight.detach().to_mkldnn())
        rows = x.reshape(-1, x.shape[-1]).contiguous().to_mkldnn()
        return torch.ops.aten.mkldnn_linear(rows, self.packed[1]).to_dense().view(*x.shape[:-1], -1)  # (B, T, V)
