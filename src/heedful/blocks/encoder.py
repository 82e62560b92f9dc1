"""The block that a Transformer's encoder, and all of BERT, is a stack of; and the heads of BERT and its like.

B batch, S positions, D width.
"""

from torch import Tensor, nn

from heedful.blocks.attention import MultiHead, SelfAttention
from heedful.blocks.feedforward import Activation, FeedForward
from heedful.blocks.linear import Linear
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


class Pooler(nn.Module):
    """tanh(W x), x the vector of a sequence's first token."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = Linear(width, width)

    def forward(self, first: Tensor) -> Tensor:
        return self.dense(first).tanh()


class MaskedWords(nn.Module):
    """The head that predicts masked tokens: a dense layer, then the product with all token embeddings, and a bias."""

    def __init__(self, width: int, activation: Activation, norm_eps: float, vocab: int) -> None:
        super().__init__()
        self.dense = Linear(width, width)
        self.activation = activation
        self.norm = nn.LayerNorm(width, norm_eps)
        self.bias = nn.Parameter(self.dense.weight.new_zeros(vocab))

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.activation(self.dense(x)))
