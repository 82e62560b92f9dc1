"""The encoder block of Transformer and BERT, and the pre-training heads of BERT.

B batch, S positions, D width.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from heedful.blocks.attention import KV, MultiHead, SelfAttention
from heedful.blocks.feedforward import Activation, FeedForward
from heedful.blocks.linear import Linear
from heedful.blocks.masks import AnyMask, Bias
from heedful.blocks.norms import PostNorm, PreNorm
from heedful.blocks.taps import Tap


class EncoderBlock(nn.Module):
    """Self-attention, then a position-wise feed-forward layer; add & norm around each."""

    def __init__(
        self, attention: MultiHead | SelfAttention, mlp: FeedForward, add1: PostNorm | PreNorm, add2: PostNorm | PreNorm
    ) -> None:
        super().__init__()
        self.attention, self.mlp = attention, mlp
        self.add1, self.add2 = add1, add2
        self.output = Tap()

    def forward(
        self,
        x: Tensor,
        mask: AnyMask = None,
        bias: Bias | None = None,
        at: Tensor | None = None,
        past: Callable[[KV], KV] = lambda kv: kv,
    ) -> Tensor:
        x = self.add1(x, lambda x: self.attention.self_attend(x, mask, bias, at, past))  # (B, S, D)
        return self.output(self.add2(x, self.mlp))  # (B, S, D)


class Pooler(nn.Module):
    """f(W x) of x, the vector of the first token of a sequence; f is tanh in BERT."""

    def __init__(self, width: int, activation: Activation = torch.tanh) -> None:
        super().__init__()
        self.dense = Linear(width, width)
        self.activation = activation

    def forward(self, first: Tensor) -> Tensor:
        return self.activation(self.dense(first))


class MaskedTokenHead(nn.Module):
    """Masked-token head: norm(f(W x)), whose product with the token embeddings plus `bias` gives the logits."""

    def __init__(self, width: int, activation: Activation, norm_eps: float, vocab: int, out: int | None = None) -> None:
        super().__init__()
        self.dense = Linear(width, out or width)
        self.activation = activation
        self.norm = nn.LayerNorm(out or width, norm_eps)
        self.bias = nn.Parameter(self.dense.weight.new_zeros(vocab))

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.activation(self.dense(x)))
