"""What text encoders share: vectors of tokens and segments, layers over them, and what heads read of the last one.

B batch, T positions, D width, V vocabulary, M masked tokens, N sequences.
"""

from abc import abstractmethod
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from heedful.blocks.encoder import MaskedTokenHead, Pooler
from heedful.blocks.layouts import EncoderLayout, Layout, PackedTexts, Unpadded
from heedful.blocks.linear import linear
from heedful.models.limits import check_length
from heedful.models.roles import EncoderConfig


class EncoderModel(nn.Module):
    """tokens (B, T), segments (B, T) -> a vector for each token (B, T, D)."""

    outputs: ClassVar[str] = "blocks.*.output"  # the taps of what each layer gives

    config: EncoderConfig
    tokens: nn.Embedding
    segments: nn.Parameter | None
    pooler: Pooler | None
    masked_words: MaskedTokenHead | None

    @abstractmethod
    def embed(self, tokens: Tensor, segments: Tensor | None, at: Tensor) -> Tensor:
        """The input of the first layer (B, T, D), for tokens at the positions `at`."""

    @abstractmethod
    def encode(self, x: Tensor, layout: Layout | PackedTexts) -> list[Tensor]:
        """The input of the first layer (B, T, D), and the output of each."""

    def add_segments(self, x: Tensor, segments: Tensor | None) -> Tensor:
        """The vectors plus those of their segments (B, T); by default, of the first."""
        assert self.segments is not None, "this model has no segments"
        if segments is None or len(self.segments) == 1:
            return x + self.segments[0]
        return x + F.one_hot(segments, len(self.segments)).to(x.dtype) @ self.segments

    def layers(
        self, tokens: Tensor, segments: Tensor | None = None, layout: Layout | PackedTexts | None = None
    ) -> list[Tensor]:
        """The vectors (B, T, D) before the first layer, and after each."""
        layout = layout or Unpadded(tokens)
        check_length(layout.max_length(self.config.context), self.config.context)
        return self.encode(self.embed(tokens, segments, layout.at), layout)

    def forward(
        self, tokens: Tensor, segments: Tensor | None = None, layout: Layout | PackedTexts | None = None
    ) -> Tensor:
        return self.layers(tokens, segments, layout)[-1]  # (B, T, D)

    def pool(self, first: Tensor) -> Tensor:
        """The pooled vector of each sequence, from one vector of each (N, D)."""
        assert self.pooler is not None, "this model has no pooler"
        return self.pooler(first)  # (N, D)

    def summarize(self, x: Tensor, layout: EncoderLayout) -> Tensor:
        """The pooled vector of each sequence, from those of all tokens (B, T, D); its first token is `[CLS]`."""
        return self.pool(layout.first(x))  # (N, D)

    def masked_vectors(
        self, tokens: Tensor, segments: Tensor | None, layout: Layout | PackedTexts | None, places: Tensor
    ) -> Tensor:
        """The vectors (B, T, D) that tokens are predicted from; masks stand at the flat positions `places`."""
        return self(tokens, segments, layout)  # (B, T, D)

    def words(self, x: Tensor) -> Tensor:
        """The logits (M, V) of masked tokens, from the vectors (M, D) at their positions."""
        assert self.masked_words is not None, "this model has no head for masked tokens"
        head = self.masked_words
        return linear(head(x), head.matrix(self.tokens.weight), head.bias)  # (M, V)

    @property
    def lens_taps(self) -> str | None:
        """Taps whose values `lens` takes; None without a head that predicts tokens."""
        return None if self.masked_words is None else self.outputs

    def lens(self, x: Tensor) -> Tensor:
        """Logit lens: the logits (B, T, V) if a layer's output (B, T, D) were that of the last one."""
        return self.words(x.flatten(0, 1)).unflatten(0, x.shape[:2])  # (B, T, V)
