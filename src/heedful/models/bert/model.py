"""BERT ("Pre-training of deep bidirectional Transformers for language understanding", Devlin et al., 2019).

A Transformer encoder, in which every token attends to both sides. It is pre-trained on text without labels, by
predicting masked tokens and whether one sentence follows another; its vectors are then features of the tokens.

B batch, T positions, D width, V vocabulary, M masked tokens, N sequences.
"""

from abc import abstractmethod

import torch.nn.functional as F
from torch import Tensor, nn

from heedful.blocks.attention import SelfAttention
from heedful.blocks.encoder import EncoderBlock, MaskedTokenHead, Pooler
from heedful.blocks.feedforward import ACTIVATIONS, FeedForward
from heedful.blocks.layouts import EncoderLayout, Layout, PackedTexts, Unpadded
from heedful.blocks.linear import Linear
from heedful.blocks.normalizers import NORMALIZERS
from heedful.blocks.norms import PostNorm
from heedful.blocks.positions import LearnedPositions
from heedful.blocks.scores import head_score
from heedful.blocks.shared import SharedLayers
from heedful.blocks.taps import Tap
from heedful.models.bert.config import BertConfig, MaskedEncoderConfig
from heedful.models.limits import check_length


def block(c: MaskedEncoderConfig) -> EncoderBlock:
    score, normalize = head_score(c.score, c.width // c.heads), NORMALIZERS[c.normalize]
    attention = SelfAttention(c.width, c.heads, c.attention_dropout, score=score, normalize=normalize)
    add1, add2 = (PostNorm(c.width, c.dropout, c.norm_eps) for _ in range(2))
    return EncoderBlock(attention, FeedForward(c.width, c.hidden, ACTIVATIONS[c.activation]), add1, add2)


def init_weights(module: nn.Module) -> None:
    """Matrices from a normal distribution of standard deviation 0.02, truncated at two of them, as published."""
    for weight in module.parameters():
        if weight.dim() == 2:
            nn.init.trunc_normal_(weight, std=0.02, a=-0.04, b=0.04)


class MaskedEncoder(nn.Module):
    """tokens (B, T), segments (B, T) -> a vector for each token (B, T, D)."""

    def __init__(self, config: MaskedEncoderConfig) -> None:
        super().__init__()
        self.config = c = config
        assert c.vocab is not None, "the vocabulary size comes from the tokenizer"
        self.tokens = nn.Embedding(c.vocab, c.embedding_width)
        self.positions = LearnedPositions(c.position_rows, c.embedding_width)
        segments = nn.Parameter(self.tokens.weight.new_empty(c.segments, c.embedding_width))
        self.segments = segments if c.segments else None
        self.norm = nn.LayerNorm(c.embedding_width, c.norm_eps)
        self.dropout = nn.Dropout(c.dropout)
        self.embedded = Tap()
        self.blocks = SharedLayers([block(c) for _ in range(c.groups)], c.layers)
        self.pooler = Pooler(c.width, ACTIVATIONS[c.pooler_activation]) if c.pooler else None
        predicts = ACTIVATIONS[c.head_activation]
        self.masked_words = (
            MaskedTokenHead(c.width, predicts, c.norm_eps, c.vocab, c.embedding_width) if c.masked_words else None
        )
        self.next_sentence = Linear(c.width, 2) if c.next_sentence else None
        init_weights(self)

    @abstractmethod
    def embed(self, tokens: Tensor, segments: Tensor | None, at: Tensor) -> Tensor:
        """The input of the first block (B, T, D), for tokens at the positions `at`."""

    def add_segments(self, x: Tensor, segments: Tensor | None) -> Tensor:
        """The vectors plus those of their segments (B, T); by default, of the first."""
        assert self.segments is not None, "this model has no segments"
        if segments is None or len(self.segments) == 1:
            return x + self.segments[0]
        return x + F.one_hot(segments, len(self.segments)).to(x.dtype) @ self.segments

    def layers(
        self, tokens: Tensor, segments: Tensor | None = None, layout: Layout | PackedTexts | None = None
    ) -> list[Tensor]:
        """The vectors (B, T, D) before the first block, and after each block."""
        layout = layout or Unpadded(tokens)
        check_length(layout.max_length(self.config.context), self.config.context)
        return self.encode(self.embed(tokens, segments, layout.at), layout)

    def encode(self, x: Tensor, layout: Layout | PackedTexts) -> list[Tensor]:
        """The input of the first block (B, T, D), and the output of each."""
        outputs, mask = [x], layout.mask
        for block in self.blocks:
            outputs.append(block(outputs[-1], mask))
        return outputs

    def forward(
        self, tokens: Tensor, segments: Tensor | None = None, layout: Layout | PackedTexts | None = None
    ) -> Tensor:
        return self.layers(tokens, segments, layout)[-1]  # (B, T, D)

    def pool(self, first: Tensor) -> Tensor:
        """The pooled vector of each sequence, from the vectors (N, D) of the first tokens."""
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
        return F.linear(self.masked_words(x), self.tokens.weight, self.masked_words.bias)  # (M, V)

    @property
    def lens_taps(self) -> str | None:
        """Taps whose values `lens` takes; None without a head that predicts tokens."""
        return None if self.masked_words is None else "blocks.*.output"

    def lens(self, x: Tensor) -> Tensor:
        """Logit lens: the logits (B, T, V) if a block's output (B, T, D) were that of the last block."""
        return self.words(x.flatten(0, 1)).unflatten(0, x.shape[:2])  # (B, T, V)


class BertEncoder(MaskedEncoder):
    """What BERT and encoders with its embeddings and objectives share."""

    def embed(self, tokens: Tensor, segments: Tensor | None, at: Tensor) -> Tensor:
        """Token + position + segment, normalized."""
        x = self.add_segments(self.positions(self.tokens(tokens), at), segments)  # (B, T, D)
        return self.embedded(self.dropout(self.norm(x)))  # (B, T, D)

    def follows(self, first: Tensor) -> Tensor:
        """Next-sentence logits (N, 2): "follows" and "does not follow"."""
        assert self.next_sentence is not None, "this model has no head for next sentences"
        return self.next_sentence(self.pool(first))  # (N, 2)


class Bert(BertEncoder):
    """BERT's encoder, with its pre-training heads."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
