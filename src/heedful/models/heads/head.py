"""What stands on an encoder: one added layer (Devlin et al., 2019), over whatever gives a vector for each token.

Everything below that layer is the encoder, which is fine-tuned, or frozen: a feature extractor for any task.

B batch, T positions, D width, N texts.
"""

from typing import Any, Self

from torch import Tensor, nn

from heedful.blocks.layouts import Reading, Whole
from heedful.blocks.linear import Linear
from heedful.models import build
from heedful.models.heads.config import HeadConfig
from heedful.models.roles import Encoder


class Head(nn.Module):
    """An encoder, fine-tuned or frozen, below what a task adds to it."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        assert config.encoder is not None, "the encoder comes from the recipe, or from the folder to start from"
        encoder: Any = build(config.encoder).requires_grad_(not config.freeze)
        self.encoder: Encoder = encoder
        self.frozen = config.freeze

    def train(self, mode: bool = True) -> Self:
        """Training mode; a frozen encoder stays in evaluation mode."""
        super().train(mode)
        if self.frozen:
            self.get_submodule("encoder").eval()
        return self

    def pooled(self, tokens: Tensor, segments: Tensor | None, layout: Reading | None, first: Tensor | None) -> Tensor:
        """The pooled vector of each text, whose first tokens are numbered, or else those that the layout knows."""
        layout = layout or Whole(tokens)
        x = self.encoder(tokens, segments, layout)  # (B, T, D)
        return self.encoder.pool(layout.first(x) if first is None else x.flatten(0, 1)[first])  # (N, D)


def added(width: int, out: int) -> Linear:
    """The one layer that is not pre-trained, initialized as in BERT."""
    layer = Linear(width, out)
    nn.init.trunc_normal_(layer.weight, std=0.02, a=-0.04, b=0.04)
    return layer
