"""A text encoder of gated convolutions ("Convolutional sequence to sequence learning", Gehring et al., 2017).

Each layer sees some tokens on either side; of L layers of size k, a vector depends on L (k - 1) + 1 tokens.

    x' = (x + a * sigmoid(b)) / sqrt(2), where [a; b] = W * x

Differs: no positions are added, and there is one layer norm, on the embeddings, in place of normalized weights.

B batch, T positions, D width.
"""

import torch
from torch import Tensor, nn

from heedful.blocks.layouts import Layout, PackedTexts
from heedful.blocks.text_filters import GatedConvolution, gap_free
from heedful.models.conv_encoder.config import ConvEncoderConfig
from heedful.models.rnn_encoder.model import LayeredEncoder


class ConvEncoder(LayeredEncoder):
    """tokens (B, T), segments (B, T) -> a vector for each token (B, T, D), from those near it."""

    def __init__(self, config: ConvEncoderConfig) -> None:
        super().__init__(config)
        self.blocks = nn.ModuleList(GatedConvolution(config.width, config.size) for _ in range(config.layers))

    def encode(self, x: Tensor, layout: Layout | PackedTexts) -> list[Tensor]:
        """The input of the first layer (B, T, D), and the output of each."""
        assert not isinstance(layout, PackedTexts), "a convolution takes one sequence a row"
        real = torch.ones_like(x[..., 0], dtype=torch.bool) if layout.real is None else layout.real  # (B, T)
        outputs, (y, kept, to) = [x], gap_free(x, real)
        for layer, tap in zip(self.blocks, self.taps, strict=True):
            y = layer(y, kept, self.dropout)  # (B, T, D)
            outputs.append(tap(y.gather(1, to)))
        return outputs
