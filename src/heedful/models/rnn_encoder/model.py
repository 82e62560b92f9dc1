"""A text encoder of recurrent layers, in the place of a Transformer's encoder.

Each layer reads the text in both directions; what both states know at a token is its vector. Such encoders are older
than attention (Schuster and Paliwal, 1997; Dai and Le, 2015), and take masked tokens and every head all the same.

B batch, T positions, D width, N sequences.
"""

import torch
from torch import Tensor, nn

from heedful.blocks.encoder import MaskedTokenHead, Pooler
from heedful.blocks.feedforward import ACTIVATIONS
from heedful.blocks.layouts import EncoderLayout, Layout, PackedTexts, mean
from heedful.blocks.recurrent import BidirectionalLayer
from heedful.blocks.taps import Tap
from heedful.models.encoder_model import EncoderModel
from heedful.models.rnn_encoder.config import LayeredEncoderConfig, RnnEncoderConfig

NORM_EPS = 1e-5


class LayeredEncoder(EncoderModel):
    """What encoders without attention share: the vectors of tokens and segments, normalized, and the heads."""

    outputs = "taps.*"

    def __init__(self, config: LayeredEncoderConfig) -> None:
        super().__init__()
        self.config = c = config
        assert c.vocab is not None, "the vocabulary size comes from the tokenizer"
        self.tokens = nn.Embedding(c.vocab, c.width)
        self.segments = nn.Parameter(torch.empty(c.segments, c.width))
        self.norm = nn.LayerNorm(c.width, NORM_EPS)
        self.dropout = nn.Dropout(c.dropout)
        self.embedded = Tap()
        self.taps = nn.ModuleList(Tap() for _ in range(c.layers))
        self.pooler = Pooler(c.width) if c.pooler else None
        self.masked_words = MaskedTokenHead(c.width, ACTIVATIONS["gelu"], NORM_EPS, c.vocab) if c.masked_words else None
        for table in (self.tokens.weight, self.segments):
            nn.init.normal_(table, std=0.02)

    def embed(self, tokens: Tensor, segments: Tensor | None, at: Tensor) -> Tensor:
        """Token + segment, normalized; positions are those of the layers, so nothing is added for them."""
        x = self.add_segments(self.tokens(tokens), segments)  # (B, T, D)
        return self.embedded(self.dropout(self.norm(x)))  # (B, T, D)

    def summarize(self, x: Tensor, layout: EncoderLayout) -> Tensor:
        """The pooled vector of each sequence, from the mean of those of its tokens (B, T, D)."""
        assert not isinstance(layout, PackedTexts), "layers over neighbours take one sequence a row"
        return self.pool(mean(x, layout))  # (N, D)


class RnnEncoder(LayeredEncoder):
    """x' = x + [h of the layer forwards; h of the layer backwards]."""

    def __init__(self, config: RnnEncoderConfig) -> None:
        super().__init__(config)
        self.blocks = nn.ModuleList(
            BidirectionalLayer(config.cell, config.width, config.width // 2) for _ in range(config.layers)
        )

    def encode(self, x: Tensor, layout: Layout | PackedTexts) -> list[Tensor]:
        """The input of the first layer (B, T, D), and the output of each."""
        assert not isinstance(layout, PackedTexts), "a recurrent layer takes one sequence a row"
        outputs = [x]
        for layer, tap in zip(self.blocks, self.taps, strict=True):
            y, _ = layer(self.dropout(outputs[-1]), None, layout.real, layout.gaps)  # (B, T, D)
            outputs.append(tap(outputs[-1] + y))
        return outputs
