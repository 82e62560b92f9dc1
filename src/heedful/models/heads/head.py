"""Task heads: one layer on top of an encoder (Devlin et al., 2019).

The encoder is fine-tuned, or frozen as a feature extractor.

B batch, T positions, D width, N texts.
"""

from typing import Any, Self

from torch import Tensor, nn

from heedful.blocks.layouts import EncoderLayout, Unpadded
from heedful.blocks.linear import Linear
from heedful.models import build
from heedful.models.heads.config import HeadConfig
from heedful.models.roles import BelowHead


class Head(nn.Module):
    """The base class of heads: an encoder, fine-tuned or frozen."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        assert config.encoder is not None, "the encoder comes from the recipe, or from the folder to start from"
        encoder: Any = build(config.encoder).requires_grad_(not config.freeze)
        self.encoder: BelowHead = encoder
        self.frozen = config.freeze

    def train(self, mode: bool = True) -> Self:
        """Training mode; a frozen encoder stays in evaluation mode."""
        super().train(mode)
        if self.frozen:
            self.get_submodule("encoder").eval()
        return self

    def pool_texts(self, tokens: Tensor, segments: Tensor | None, layout: EncoderLayout | None) -> Tensor:
        """The pooled vector of each text."""
        layout = layout or Unpadded(tokens)
        return self.encoder.summarize(self.encoder.layers(tokens, segments, layout)[-1], layout)  # (N, D)


def head_layer(width: int, out: int, bias: bool = True) -> Linear:
    """The output layer, initialized as in BERT."""
    layer = Linear(width, out, bias=bias)
    nn.init.trunc_normal_(layer.weight, std=0.02, a=-0.04, b=0.04)
    return layer
