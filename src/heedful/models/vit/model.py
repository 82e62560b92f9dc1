"""The Vision Transformer ("An image is worth 16 x 16 words", Dosovitskiy et al., 2021).

An image is cut into patches, which a Transformer encoder reads as if they were words: each is projected to a vector,
positions are added, and a class token in front of them gathers what the last layer reads. DeiT ("Training
data-efficient image transformers", Touvron et al., 2021) adds a second such token, which learns from another model.

B batch, C channels, Y rows, X columns, N patches, T tokens, D width, K classes.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn

from heedful.blocks.attention import SelfAttention
from heedful.blocks.encoder import EncoderBlock
from heedful.blocks.feedforward import ACTIVATIONS, FeedForward
from heedful.blocks.normalizers import NORMALIZERS
from heedful.blocks.norms import PreNorm
from heedful.blocks.patches import Grid, LearnedGrid, NoGrid, Patches, SinusoidGrid
from heedful.blocks.scores import head_score
from heedful.blocks.taps import Tap
from heedful.models.image_model import ImageModel
from heedful.models.vit.config import VitConfig


def block(c: VitConfig) -> EncoderBlock:
    score, normalize = head_score(c.score, c.width // c.heads), NORMALIZERS[c.normalize]
    attention = SelfAttention(c.width, c.heads, c.attention_dropout, score=score, normalize=normalize)
    add1, add2 = (PreNorm(c.width, c.dropout, c.norm_eps) for _ in range(2))
    return EncoderBlock(attention, FeedForward(c.width, c.hidden, ACTIVATIONS[c.activation]), add1, add2)


def positions(c: VitConfig) -> LearnedGrid | SinusoidGrid | NoGrid:
    if c.positions == "none":
        return NoGrid()
    return (LearnedGrid if c.positions == "learned" else SinusoidGrid)(c.first, c.grid, c.width)


class Vit(ImageModel):
    """images (B, C, Y, X) -> logits (B, K), for images of any size in whole patches."""

    after_map: ClassVar = ("head", "second")

    config: VitConfig

    def __init__(self, config: VitConfig) -> None:
        super().__init__()
        self.config = c = config
        self.patches = Patches(c.channels, c.width, c.patch)
        self.tokens = nn.ParameterList(torch.randn(1, 1, c.width) * 0.02 for _ in range(c.first))
        self.positions = positions(c)
        self.dropout = nn.Dropout(c.dropout)
        self.embedded = Tap()
        self.blocks = nn.ModuleList(block(c) for _ in range(c.layers))
        self.norm = nn.LayerNorm(c.width, c.norm_eps)
        self.head = nn.Linear(c.width, c.outputs)
        self.second = nn.ModuleDict({"head": nn.Linear(c.width, c.outputs)} if c.distillation == "head" else {})
        for weight in self.parameters():
            if weight.dim() == 2:
                nn.init.trunc_normal_(weight, std=0.02)

    def embed(self, images: Tensor) -> tuple[Tensor, Grid]:
        """Class tokens and patches with their positions (B, T, D), and the grid of the patches."""
        self.check(images)
        grid, x = self.patches.grid(images), self.patches(images)  # (B, N, D)
        x = torch.cat([*(token.expand(x.shape[0], -1, -1) for token in self.tokens), x], 1)  # (B, T, D)
        return self.embedded(self.dropout(self.positions(x, grid))), grid

    def encode(self, images: Tensor) -> tuple[Tensor, Grid]:
        """The normalized output of the last block (B, T, D), and the grid of the patches."""
        x, grid = self.embed(images)
        for block in self.blocks:
            x = block(x)  # (B, T, D)
        return self.norm(x), grid

    def class_tokens(self, images: Tensor) -> Tensor:
        """The normalized output of the class tokens: in the last block, nothing else is read."""
        x, _ = self.embed(images)
        *blocks, last = self.blocks
        assert isinstance(last, EncoderBlock)
        for block in blocks:
            x = block(x)  # (B, T, D)
        return self.norm(last.first(x, self.config.first))

    def map(self, images: Tensor) -> Tensor:
        x, grid = self.encode(images)
        return x[:, self.config.first :].transpose(1, 2).unflatten(2, grid)  # (B, D, Y, X)

    def features(self, images: Tensor) -> Tensor:
        return self.class_tokens(images)[:, 0] if self.config.first else self.encode(images)[0].mean(1)  # (B, D)

    def training_logits(self, images: Tensor) -> list[tuple[float, Tensor]]:
        """The logits (B, K) of the last layer, or of both, each with half the weight."""
        if not self.second:
            return [(1.0, self.head(self.features(images)))]
        x = self.class_tokens(images)
        return [(0.5, self.head(x[:, 0])), (0.5, self.second["head"](x[:, 1]))]

    def forward(self, images: Tensor) -> Tensor:
        logits = [weight * logits for weight, logits in self.training_logits(images)]
        return sum(logits[1:], logits[0])  # (B, K)
