"""The encoder block of Transformer and BERT, and the pre-training heads of BERT.

B batch, S positions, D width.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from heedful.blocks.attention import KV, MultiHead, SelfAttention, unchanged
from heedful.blocks.feedforward import Activation, FeedForward
from heedful.blocks.linear import Linear
from heedful.blocks.masks import AnyMask, Bias
from heedful.blocks.norms import PostNorm, PreNorm
from heedful.blocks.taps import Tap, tapped


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
        past: Callable[[KV], KV] = unchanged,
    ) -> Tensor:
        x = self.add1(x, lambda x: self.attention.self_attend(x, mask, bias, at, past))  # (B, S, D)
        return self.output(self.add2(x, self.mlp))  # (B, S, D)

    def first(self, x: Tensor, count: int) -> Tensor:
        """The output of the first `count` positions alone, where nothing reads the others; with norms before.

        With dropout, all are computed, so that each position has the random numbers that it would have otherwise.
        """
        if tapped(self.output) or not (isinstance(self.add1, PreNorm) and isinstance(self.attention, SelfAttention)):
            return self(x)[:, :count]
        if self.training and (self.add1.dropout.p or self.attention.dropout):
            return self(x)[:, :count]
        y = self.attention.attend_from(self.add1.norm(x), count)
        x = (x[:, :count] + self.add1.dropout(y)).to(y.dtype)
        return self.add2(x, self.mlp)


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

    def matrix(self, table: Tensor) -> Tensor:
        """The matrix (V, D) of the logits: that of the embeddings."""
        return table


class UntiedTokenHead(MaskedTokenHead):
    """The same with a matrix of its own."""

    def __init__(self, width: int, activation: Activation, norm_eps: float, vocab: int, out: int | None = None) -> None:
        super().__init__(width, activation, norm_eps, vocab, out)
        self.weight = nn.Parameter(torch.randn(vocab, out or width) * (out or width) ** -0.5)

    def matrix(self, table: Tensor) -> Tensor:
        """The matrix (V, D) of the logits, whatever that of the embeddings."""
        return self.weight


TOKEN_HEADS = {"tied": MaskedTokenHead, "untied": UntiedTokenHead}
