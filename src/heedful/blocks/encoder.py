"""The block that a Transformer's encoder, and all of BERT, is a stack of.

B batch, S positions, D width.
"""

from torch import Tensor, nn

from heedful.blocks.attention import MultiHead, SelfAttention
from heedful.blocks.feedforward import FeedForward
from heedful.blocks.masks import Bias, Visible
from heedful.blocks.norms import PostNorm, PreNorm
from heedful.blocks.taps import Tap


class EncoderBlock(nn.Module):
    """Self-attention, then a dense layer shared by all positions; add & norm around each."""

    def __init__(
        self, attention: MultiHead | SelfAttention, mlp: FeedForward, add1: PostNorm | PreNorm, add2: PostNorm | PreNorm
    ) -> None:
        super().__init__()
        self.attention, self.mlp = attention, mlp
        self.add1, self.add2 = add1, add2
        self.output = Tap()

    def forward(self, x: Tensor, mask: Visible = None, bias: Bias | None = None, at: Tensor | None = None) -> Tensor:
        x = self.add1(x, lambda x: self.attention.itself(x, mask, bias, at))  # (B, S, D)
        return self.output(self.add2(x, self.mlp))  # (B, S, D)
