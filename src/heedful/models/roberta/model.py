"""RoBERTa ("A robustly optimized BERT pretraining approach", Liu et al., 2019).

BERT's encoder, trained longer and on more text, by masked words alone: no segments, no next sentence. Its pieces are
bytes, and positions are counted from 2 on, since the first rows of their table are kept for padding.

B batch, T positions, D width, V vocabulary, M masked words, N sequences.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from heedful.blocks.attention import SelfAttention
from heedful.blocks.encoder import EncoderBlock, MaskedWords, Pooler
from heedful.blocks.feedforward import ACTIVATIONS, FeedForward
from heedful.blocks.layouts import EndToEnd, Layout, Whole
from heedful.blocks.normalizers import NORMALIZERS
from heedful.blocks.norms import PostNorm
from heedful.blocks.positions import Learned
from heedful.blocks.scores import head_score
from heedful.blocks.taps import Tap
from heedful.models.roberta.config import FIRST, RobertaConfig


class Roberta(nn.Module):
    """tokens (B, T) -> a vector for each token (B, T, D)."""

    next_sentence = None  # it has no such head

    def __init__(self, config: RobertaConfig) -> None:
        super().__init__()
        self.config = c = config
        assert c.vocab is not None, "the vocabulary size comes from the tokenizer"
        self.tokens = nn.Embedding(c.vocab, c.width)
        self.positions = Learned(FIRST + c.context, c.width)
        self.segments = nn.Parameter(self.tokens.weight.new_empty(c.segments, c.width))
        self.norm = nn.LayerNorm(c.width, c.norm_eps)
        self.dropout = nn.Dropout(c.dropout)
        self.embedded = Tap()
        self.blocks = nn.ModuleList(
            EncoderBlock(
                SelfAttention(
                    c.width,
                    c.heads,
                    c.attention_dropout,
                    score=head_score(c.score, c.width // c.heads),
                    normalize=NORMALIZERS[c.normalize],
                ),
                FeedForward(c.width, c.hidden, ACTIVATIONS[c.activation]),
                PostNorm(c.width, c.dropout, c.norm_eps),
                PostNorm(c.width, c.dropout, c.norm_eps),
            )
            for _ in range(c.layers)
        )
        self.pooler = Pooler(c.width) if c.pooler else None
        self.masked_words = MaskedWords(c.width, F.gelu, c.norm_eps, c.vocab) if c.masked_words else None
        for weight in self.parameters():
            if weight.dim() == 2:
                nn.init.trunc_normal_(weight, std=0.02, a=-0.04, b=0.04)

    def embed(self, tokens: Tensor, at: Tensor) -> Tensor:
        """Token + position + the one segment, normed: what the first block reads."""
        x = self.positions(self.tokens(tokens), FIRST + at) + self.segments[0]  # (B, T, D)
        return self.embedded(self.dropout(self.norm(x)))  # (B, T, D)

    def layers(
        self, tokens: Tensor, segments: Tensor | None = None, layout: Layout | EndToEnd | None = None
    ) -> list[Tensor]:
        """The vectors (B, T, D) of each token before the first block, and after every one; segments mean nothing."""
        layout = layout or Whole(tokens)
        self.fits(layout.longest_within(self.config.context))
        found, mask = [self.embed(tokens, layout.at)], layout.mask
        for block in self.blocks:
            found.append(block(found[-1], mask))
        return found

    def forward(
        self, tokens: Tensor, segments: Tensor | None = None, layout: Layout | EndToEnd | None = None
    ) -> Tensor:
        return self.layers(tokens, segments, layout)[-1]  # (B, T, D)

    def pool(self, first: Tensor) -> Tensor:
        """A vector for each sequence, from those of their first tokens (N, D)."""
        assert self.pooler is not None, "this model has no pooler"
        return self.pooler(first)  # (N, D)

    def words(self, x: Tensor) -> Tensor:
        """The logits (M, V) of masked words, from the vectors (M, D) in their places."""
        assert self.masked_words is not None, "this model has no head for masked words"
        return F.linear(self.masked_words(x), self.tokens.weight, self.masked_words.bias)  # (M, V)

    @property
    def lens_taps(self) -> str | None:
        """The taps from which `lens` predicts words, where there is a head that can."""
        return None if self.masked_words is None else "blocks.*.output"

    def lens(self, x: Tensor) -> Tensor:
        """The logits (B, T, V) that a block's output (B, T, D) would give if no other followed."""
        return self.words(x.flatten(0, 1)).unflatten(0, x.shape[:2])  # (B, T, V)

    def fits(self, length: int) -> None:
        if length > self.config.context:
            raise ValueError(f"{length} tokens, but the model's context is {self.config.context}")
