"""The Transformer ("Attention is all you need", Vaswani et al., 2017).

An encoder reads the source; a decoder predicts the target token by token, attending to itself and to the source.

B batch, S source positions, T target positions, D width, V vocabulary (of the target, where the source has its own).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from heedful.blocks.attention import KV, MultiHead
from heedful.blocks.embedding import EMBEDDINGS, Embedding, TiedEmbedding
from heedful.blocks.encoder import EncoderBlock
from heedful.blocks.feedforward import ACTIVATIONS, FeedForward
from heedful.blocks.layouts import Layout, Unpadded
from heedful.blocks.masks import AnyMask, Bias, alibi
from heedful.blocks.normalizers import NORMALIZERS
from heedful.blocks.norms import PostNorm, PreNorm
from heedful.blocks.positions import FixedPositions, LearnedPositions, NoPositions, Rotary, sinusoid_halves, sinusoids
from heedful.blocks.scores import head_score
from heedful.blocks.state import LayerCache, Past, Shared
from heedful.blocks.taps import Tap
from heedful.models.limits import check_length
from heedful.models.transformer.config import TransformerConfig


@dataclass(frozen=True)
class DecoderState:
    """The decoder's cache of its own keys and values, and those of the source, projected once for each block."""

    past: Past
    memory: Shared[tuple[KV, ...]]
    source: Shared[AnyMask]  # mask of the source positions


def add_norm(c: TransformerConfig) -> PostNorm | PreNorm:
    return (PostNorm if c.norm == "post" else PreNorm)(c.width, c.dropout)


def multi_head(c: TransformerConfig, rotary: Rotary | None = None) -> MultiHead:
    score, normalize = head_score(c.score, c.width // c.heads), NORMALIZERS[c.normalize]
    return MultiHead(c.width, c.heads, score=score, normalize=normalize, rotary=rotary)


def self_attention(c: TransformerConfig) -> MultiHead:
    return multi_head(c, Rotary(c.context, c.width // c.heads) if c.positions == "rotary" else None)


def encoder_block(c: TransformerConfig) -> EncoderBlock:
    attention, mlp = self_attention(c), FeedForward(c.width, c.hidden, ACTIVATIONS[c.activation])
    return EncoderBlock(attention, mlp, add_norm(c), add_norm(c))


class DecoderBlock(nn.Module):
    """Masked self-attention, cross-attention to the source, a feed-forward layer; add & norm around each."""

    def __init__(self, c: TransformerConfig) -> None:
        super().__init__()
        self.attention = self_attention(c)
        self.cross = multi_head(c)
        self.mlp = FeedForward(c.width, c.hidden, ACTIVATIONS[c.activation])
        self.add1, self.add2, self.add3 = add_norm(c), add_norm(c), add_norm(c)
        self.output = Tap()

    def forward(
        self, x: Tensor, cache: LayerCache, memory: KV, mask: AnyMask, source: AnyMask, bias: Bias | None, at: Tensor
    ) -> Tensor:
        def self_attend(x: Tensor) -> Tensor:
            return self.attention(x, cache.append(self.attention.keys_values(x, at)), mask, bias, at)  # (B, T, D)

        x = self.add1(x, self_attend)  # (B, T, D)
        x = self.add2(x, lambda x: self.cross(x, memory, source))  # (B, T, D)
        return self.output(self.add3(x, self.mlp))  # (B, T, D)


class Transformer(nn.Module):
    """source (B, S), target (B, T) -> logits (B, T, V)."""

    alignment = "decoder.*.cross.weights"  # taps of the attention weights over the source
    lens_taps = "decoder.*.output"  # taps whose values `lens` takes

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = c = config
        assert c.vocab is not None, "the vocabulary size comes from the tokenizer"
        scale = None if c.scale_embedding else 1.0
        self.tokens = EMBEDDINGS[c.output](c.vocab, c.width, scale)
        # Only its vectors are used: the logits are those of the target.
        self.source_tokens = TiedEmbedding(c.source_vocab, c.width, scale) if c.source_vocab is not None else None
        positions: dict[str, Callable[[], nn.Module]] = {
            "sinusoid": lambda: FixedPositions(sinusoids(c.context, c.width)),
            "sinusoid_halves": lambda: FixedPositions(sinusoid_halves(c.context, c.width)),
            "learned": lambda: LearnedPositions(c.context, c.width),
        }
        self.positions = positions.get(c.positions, NoPositions)()
        self.dropout = nn.Dropout(c.dropout)
        self.encoder = nn.ModuleList(encoder_block(c) for _ in range(c.encoder_layers))
        self.decoder = nn.ModuleList(DecoderBlock(c) for _ in range(c.decoder_layers))
        self.norms = nn.ModuleList(nn.LayerNorm(c.width) if c.norm == "pre" else nn.Identity() for _ in range(2))

    @property
    def source_embedding(self) -> Embedding:
        """That of the encoder: of its own, or the one that it shares with the decoder."""
        return self.tokens if self.source_tokens is None else self.source_tokens

    def place(self, x: Tensor, at: Tensor) -> Tensor:
        return self.dropout(self.positions(x, at))  # (B, T, D)

    def embed(self, tokens: Tensor, at: Tensor) -> Tensor:
        return self.place(self.tokens(tokens), at)  # (B, T, D)

    def encode(self, source: Tensor, layout: Layout) -> Tensor:
        at, mask = layout.at, layout.mask
        x = self.place(self.source_embedding(source), at)  # (B, S, D)
        bias = alibi(self.config.heads, at=at) if self.config.positions == "alibi" else None
        for block in self.encoder:
            x = block(x, mask, bias, at)  # (B, S, D)
        return self.norms[0](x)

    def start(self, source: Tensor, layout: Layout | None = None) -> DecoderState:
        """Encode the source: the decoder's state before its first token."""
        layout = layout or Unpadded(source)
        check_length(layout.max_length(self.config.context), self.config.context)
        memory = self.encode(source, layout)  # (B, S, D)
        blocks: Any = self.decoder  # a ModuleList does not know the type of its blocks
        return DecoderState(
            layout.past(len(blocks)),
            Shared(tuple(block.cross.keys_values(memory) for block in blocks)),
            Shared(layout.cross),
        )

    def features(self, target: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """The decoder's last layer (B, T, D) for the next T target tokens, and the state after them."""
        past, count = state.past, target.shape[1]
        check_length(past.max_length(count), self.config.context)
        at, mask, caches = past.positions(count, target.device), past.attention_mask(count), past.layer_caches(count)
        bias = alibi(self.config.heads, past.length) if self.config.positions == "alibi" else None
        x = self.embed(target, at)  # (B, T, D)
        for block, cache, memory in zip(self.decoder, caches, state.memory.value, strict=True):
            x = block(x, cache, memory, mask, state.source.value, bias, at)  # (B, T, D)
        return self.norms[1](x), DecoderState(past.after(caches), state.memory, state.source)

    def read(self, source: Tensor, target: Tensor, layout: Layout | None = None) -> Tensor:
        """The decoder's last layer (B, T, D) for whole targets, as in training with teacher forcing."""
        return self.features(target, self.start(source, layout))[0]

    def forward(self, target: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        x, state = self.features(target, state)  # (B, T, D)
        return self.tokens.logits(x), state  # (B, T, V)

    def lens(self, x: Tensor) -> Tensor:
        """Logit lens: the logits (B, T, V) if a decoder block's output (B, T, D) were that of the last block."""
        return self.tokens.logits(self.norms[1](x))  # (B, T, V)
