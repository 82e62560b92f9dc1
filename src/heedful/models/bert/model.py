"""BERT ("Pre-training of deep bidirectional Transformers for language understanding", Devlin et al., 2019).

A Transformer encoder, in which every token attends to both sides. It is pre-trained on text without labels, by
predicting masked tokens and whether one sentence follows another; its vectors are then features of the tokens.

B batch, T positions, D width, V vocabulary, M masked tokens, N sequences.
"""

from torch import Tensor, nn

from heedful.blocks.attention import SelfAttention
from heedful.blocks.encoder import TOKEN_HEADS, EncoderBlock, Pooler
from heedful.blocks.feedforward import ACTIVATIONS, FeedForward
from heedful.blocks.layouts import Layout, PackedTexts
from heedful.blocks.linear import Linear
from heedful.blocks.normalizers import NORMALIZERS
from heedful.blocks.norms import PostNorm
from heedful.blocks.positions import LearnedPositions
from heedful.blocks.scores import head_score
from heedful.blocks.shared import SharedLayers
from heedful.blocks.taps import Tap
from heedful.models.bert.config import BertConfig, MaskedEncoderConfig
from heedful.models.encoder_model import EncoderModel


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


class MaskedEncoder(EncoderModel):
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
        head = TOKEN_HEADS[c.output]
        self.masked_words = head(c.width, predicts, c.norm_eps, c.vocab, c.embedding_width) if c.masked_words else None
        self.next_sentence = Linear(c.width, 2) if c.next_sentence else None
        init_weights(self)

    def encode(self, x: Tensor, layout: Layout | PackedTexts) -> list[Tensor]:
        """The input of the first block (B, T, D), and the output of each."""
        outputs, mask = [x], layout.mask
        for block in self.blocks:
            outputs.append(block(outputs[-1], mask))
        return outputs


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
