"""Transformer text classifier: the encoder of Vaswani et al. (2017) over word vectors, its mean, and a linear layer.

B texts, T words, D width, C classes.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from heedful.blocks.attention import MultiHead
from heedful.blocks.encoder import EncoderBlock
from heedful.blocks.feedforward import ACTIVATIONS, FeedForward
from heedful.blocks.layouts import Padded
from heedful.blocks.linear import Linear
from heedful.blocks.masks import alibi
from heedful.blocks.normalizers import NORMALIZERS
from heedful.blocks.norms import PostNorm, PreNorm
from heedful.blocks.positions import FixedPositions, LearnedPositions, NoPositions, Rotary, sinusoid_halves, sinusoids
from heedful.blocks.scores import head_score
from heedful.models.limits import check_length
from heedful.models.transformer_classifier.config import TransformerClassifierConfig


def encoder_block(c: TransformerClassifierConfig) -> EncoderBlock:
    score, rotary = head_score(c.score, c.width // c.heads), None
    if c.positions == "rotary":
        rotary = Rotary(c.context, c.width // c.heads)
    attention = MultiHead(c.width, c.heads, score=score, normalize=NORMALIZERS[c.normalize], rotary=rotary)
    add_norm = PostNorm if c.norm == "post" else PreNorm
    mlp = FeedForward(c.width, c.hidden, ACTIVATIONS[c.activation])
    return EncoderBlock(attention, mlp, add_norm(c.width, c.dropout), add_norm(c.width, c.dropout))


class TransformerClassifier(nn.Module):
    """tokens (B, T) -> logits (B, C): a linear layer on the mean or the maximum of the last block."""

    def __init__(self, config: TransformerClassifierConfig) -> None:
        super().__init__()
        self.config = c = config
        assert c.vocab is not None and c.labels is not None, "both come from the training data"
        self.tokens = nn.Embedding(c.vocab, c.width)
        nn.init.uniform_(self.tokens.weight, -0.25, 0.25)
        self.tokens.requires_grad_(not c.freeze)
        positions: dict[str, Callable[[], nn.Module]] = {
            "sinusoid": lambda: FixedPositions(sinusoids(c.context, c.width)),
            "sinusoid_halves": lambda: FixedPositions(sinusoid_halves(c.context, c.width)),
            "learned": lambda: LearnedPositions(c.context, c.width),
        }
        self.positions = positions.get(c.positions, NoPositions)()
        self.blocks = nn.ModuleList(encoder_block(c) for _ in range(c.layers))
        self.norm = nn.LayerNorm(c.width) if c.norm == "pre" else nn.Identity()
        self.dropout = nn.Dropout(c.dropout)
        self.head = Linear(c.width, len(c.labels))

    def forward(self, tokens: Tensor, segments: Tensor | None = None, layout: Padded | None = None) -> Tensor:
        layout = layout or Padded(torch.ones_like(tokens, dtype=torch.bool))
        check_length(layout.max_length(self.config.context), self.config.context)
        at, mask, real = layout.at, layout.mask, layout.real[:, :, None]
        bias = alibi(self.config.heads, at=at) if self.config.positions == "alibi" else None
        x = self.dropout(self.positions(self.tokens(tokens), at))  # (B, T, D)
        for block in self.blocks:
            x = block(x, mask, bias, at)  # (B, T, D)
        x = self.norm(x)  # (B, T, D)
        if self.config.pool == "mean":
            x = x.masked_fill(~real, 0.0).sum(1) / real.sum(1).clamp(min=1)  # (B, D)
        else:
            x = x.masked_fill(~real, torch.finfo(x.dtype).min).amax(1)  # (B, D)
            x = x.masked_fill(~real.any(1), 0.0)  # (B, D)
        return self.head(self.dropout(x))  # (B, C)
