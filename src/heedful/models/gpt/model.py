"""GPT and GPT-2 ("Improving language understanding by generative pre-training", Radford et al., 2018; "Language models
are unsupervised multitask learners", 2019).

The decoder of a Transformer alone, which predicts each token of a text from those before it.

B batch, T positions, D width, V vocabulary.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from heedful.blocks.attention import SelfAttention
from heedful.blocks.embedding import EMBEDDINGS
from heedful.blocks.feedforward import ACTIVATIONS, FeedForward
from heedful.blocks.layouts import CausalRows, Documents, EncoderLayout, PackedTexts, Unpadded
from heedful.blocks.masks import AnyMask, Bias, Local, Mask, alibi, causal, real
from heedful.blocks.normalizers import NORMALIZERS
from heedful.blocks.norms import PostNorm, PreNorm
from heedful.blocks.positions import FixedPositions, LearnedPositions, NoPositions, Rotary, sinusoid_halves, sinusoids
from heedful.blocks.scores import DepthScaledDot, Score, head_score
from heedful.blocks.sparse import BlockSparse
from heedful.blocks.state import Cache, LayerCache, NoLayerCache, Past, WindowCache
from heedful.blocks.taps import Tap, watched
from heedful.models.gpt.config import GptConfig
from heedful.models.limits import check_length
from heedful.models.sizes import has_kernel

if TYPE_CHECKING:
    from heedful.models.gpt.rows import RowByRow

SMALL = 512  # positions of rows in which a mask of T x T is cheaper than lists of blocks


class Block(nn.Module):
    """Masked self-attention, then a feed-forward layer; add & norm around each."""

    def __init__(self, c: GptConfig, number: int) -> None:
        super().__init__()
        rotary = Rotary(c.context, c.width // c.heads) if c.positions == "rotary" else None
        norm = PreNorm if c.norm == "pre" else PostNorm
        by_depth = c.score == "depth_scaled_dot"
        score: Score = DepthScaledDot(number) if by_depth else head_score(c.score, c.width // c.heads)
        self.attention = SelfAttention(c.width, c.heads, c.attention_dropout, rotary, score, NORMALIZERS[c.normalize])
        self.mlp = FeedForward(c.width, c.inner, ACTIVATIONS[c.activation])
        self.add1, self.add2 = norm(c.width, c.dropout, c.norm_eps), norm(c.width, c.dropout, c.norm_eps)
        self.output = Tap()

    def forward(self, x: Tensor, cache: LayerCache, mask: AnyMask, bias: Bias | None, at: Tensor) -> Tensor:
        x = self.add1(x, lambda x: self.attention.self_attend(x, mask, bias, at, cache.append))  # (B, T, D)
        return self.output(self.add2(x, self.mlp))  # (B, T, D)


class Gpt(nn.Module):
    """tokens (B, T) -> logits (B, T, V) of the token after each."""

    lens_taps = "blocks.*.output"  # taps whose values `lens` takes

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.config = c = config
        self.local = None if c.window is None else Local(c.window, c.sink)
        assert c.vocab is not None, "the vocabulary size comes from the tokenizer"
        # Sinusoids have values of about 0.7, so embeddings are scaled by sqrt(D), as in the Transformer.
        scale = None if c.positions.startswith("sinusoid") else 1.0
        self.tokens = EMBEDDINGS[c.output](c.vocab, c.width, scale)
        positions: dict[str, Callable[[], nn.Module]] = {
            "learned": lambda: LearnedPositions(c.context, c.width),
            "sinusoid": lambda: FixedPositions(sinusoids(c.context, c.width)),
            "sinusoid_halves": lambda: FixedPositions(sinusoid_halves(c.context, c.width)),
        }
        self.positions = positions.get(c.positions, NoPositions)()
        self.dropout = nn.Dropout(c.dropout)
        self.blocks = nn.ModuleList(Block(c, number) for number in range(1, c.layers + 1))
        self.norm = nn.LayerNorm(c.width, c.norm_eps) if c.norm == "pre" else nn.Identity()
        for name, weight in self.named_parameters():
            if weight.dim() == 2 and (not name.startswith("tokens.") or self.tokens.scale == 1):
                residual = name.endswith(
                    ("out.weight", "down.weight")
                )  # added to a sum of 2 L terms: initialized smaller
                nn.init.normal_(weight, std=0.02 / (2 * c.layers) ** 0.5 if residual else 0.02)

    def bias(self, state: Past, count: int) -> Bias | None:
        """The ALiBi bias, if the model has it, for the next `count` tokens."""
        if self.config.positions != "alibi":
            return None
        if isinstance(state, WindowCache) and state.begun:
            columns = state.with_next(count)  # (B, S)
            return alibi(self.config.heads, state.length, columns, torch.arange(count, device=columns.device))
        return alibi(self.config.heads, state.length)

    def mask(self, state: Past, rows: int, count: int) -> AnyMask:
        """What the next `count` tokens attend to; a window over a long text as lists of blocks."""
        c, mask = self.config, state.attention_mask(count)
        if self.local is None or count <= SMALL or not has_kernel(c.score, c.normalize) or watched(self.blocks):
            return mask
        if not isinstance(mask, Mask) or mask.spans is None:  # after cached keys, which are not where they stood
            return mask
        return BlockSparse.of(mask, rows, c.heads, count, device=self.tokens.weight.device)

    def embed(self, tokens: Tensor, at: Tensor) -> Tensor:
        return self.dropout(self.positions(self.tokens(tokens), at))  # (B, T, D)

    def read(self, tokens: Tensor, documents: Tensor | None = None) -> Tensor:
        """The last layer (B, T, D) for whole texts, as in training.

        With documents (B, T), the index of each token's document in its row, a token attends to its own document alone,
        and positions restart with each document; the result may then be one long row (1, B * T, D).
        """
        if documents is None:
            layout: CausalRows | Documents = CausalRows(tokens, self.local)
        else:
            layout = Documents.of(documents, self.in_one_row, self.local)
        return self.features(layout.arrange(tokens), layout.past(self.config.layers))[0]

    def layers(
        self, tokens: Tensor, segments: Tensor | None = None, layout: EncoderLayout | None = None
    ) -> list[Tensor]:
        """The vectors (B, T, D) before the first block, and after each, the last one normalized; no segments.

        A token attends to itself and those before it. Padding may be on any side.
        """
        layout = layout or Unpadded(tokens)
        assert not isinstance(layout, PackedTexts), "texts of a causal encoder have rows of their own"
        c, at = self.config, layout.at
        check_length(layout.max_length(c.context), c.context)
        mask = causal() if self.local is None else self.local.mask(at.expand_as(tokens))
        mask = mask if layout.real is None else mask & real(layout.real, layout.gaps)
        bias = alibi(c.heads, at=at) if c.positions == "alibi" else None
        x = self.embed(tokens, at)  # (B, T, D)
        outputs = [x]
        for block in self.blocks:
            x = block(x, NoLayerCache(), mask, bias, at)  # (B, T, D)
            outputs.append(x)
        return [*outputs[:-1], self.norm(x)]

    def summarize(self, x: Tensor, layout: EncoderLayout) -> Tensor:
        """A vector for each text (N, D): that of its last token, which has read them all."""
        return layout.last(x)  # (N, D)

    def start(self, rows: int, device: torch.device) -> Past:
        """The state before the first token."""
        layers = self.config.layers
        return Cache((None,) * layers) if self.local is None else WindowCache.empty(layers, self.local, rows, device)

    def features(self, tokens: Tensor, state: Past) -> tuple[Tensor, Past]:
        """The last layer (B, T, D) for the next T tokens, and the state after them."""
        count = tokens.shape[1]
        check_length(state.max_length(count), self.config.context)
        at, caches = state.positions(count, tokens.device), state.layer_caches(count)
        mask, bias = self.mask(state, tokens.shape[0], count), self.bias(state, count)
        x = self.embed(tokens, at)  # (B, T, D)
        for block, cache in zip(self.blocks, caches, strict=True):
            x = block(x, cache, mask, bias, at)  # (B, T, D)
        return self.norm(x), state.after(caches)

    def forward(self, tokens: Tensor, state: Past) -> tuple[Tensor, Past]:
        x, state = self.features(tokens, state)  # (B, T, D)
        return self.tokens.logits(x), state  # (B, T, V)

    def lens(self, x: Tensor) -> Tensor:
        """Logit lens: the logits (B, T, V) if a block's output (B, T, D) were that of the last block."""
        return self.tokens.logits(self.norm(x))  # (B, T, V)

    def row_by_row(self) -> "RowByRow | None":
        """The same model in Triton kernels that compute each batch row independently, if they support it."""
        from heedful.models.gpt.rows import RowByRow

        return RowByRow(self) if RowByRow.supports(self) else None

    @property
    def in_one_row(self) -> bool:
        """Whether to join the rows of a batch into one: on a GPU, where a kernel supports it (without dropout)."""
        c = self.config
        supported = has_kernel(c.score, c.normalize) and c.positions != "alibi" and c.window is None
        return self.tokens.weight.is_cuda and supported and not (self.training and c.attention_dropout > 0)
