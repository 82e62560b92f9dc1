"""XLNet ("Generalized autoregressive pretraining for language understanding", Yang et al., 2019).

A Transformer encoder with relative positions and segments, pre-trained by predicting tokens in a random order. Its
content stream h reads a text. In pre-training a query stream g, with the same weights, reads at the predicted
positions: it knows where it is, but not what stands there.

    h_i = block(h_i, keys and values from h_j, for all j up to and with i in the order)
    g_i = block(g_i, keys and values from h_j, for all j before i in the order)

Differs: no dropout between the two feed-forward matrices.

B batch, T positions, G predicted positions, Q = T + G queries of both streams, M positions of memory, S = M + T keys,
P distances, D width, H heads, K width of one head, V vocabulary, N sequences.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.blocks.attention import attend
from heedful.blocks.encoder import Pooler
from heedful.blocks.feedforward import ACTIVATIONS, FeedForward
from heedful.blocks.layouts import EncoderLayout, Layout, Unpadded
from heedful.blocks.linear import Linear, linear
from heedful.blocks.masks import Bias, Mask, dense, order, real, same
from heedful.blocks.normalizers import NORMALIZERS, softmax
from heedful.blocks.norms import PostNorm
from heedful.blocks.relative import (
    RankedPairs,
    distance_sinusoids,
    distances,
    gathered_bias,
    relative_attention,
    relative_bias,
    segment_bias,
)
from heedful.blocks.taps import Tap, tapped
from heedful.models.limits import check_length
from heedful.models.xlnet.config import XLNetConfig

NEVER = 2**30  # the rank of padding, which no query attends to


@dataclass(frozen=True)
class Stream:
    """What queries need besides their vectors, the same in all blocks: rules of masks and distances as tensors."""

    size: int  # queries
    mask: Tensor | None  # (B, 1, T, S) the keys that each may attend to; None: all
    same: Tensor | None  # (B, 1, T, S) the keys of its own segment; None: all
    index: Tensor | None  # (B, 1, T, S) the distance key of each pair; None: positions are consecutive


@dataclass(frozen=True)
class Memory:
    """Earlier text, which counts as of the first segment: the input of every block (B, M, D), without gradient."""

    layers: tuple[Tensor, ...]
    real: Tensor  # (B, M) False where there is no text yet

    def append(self, layers: list[Tensor]) -> "Memory":
        """The last M vectors, once these (B, T, D) are read."""
        size = self.real.shape[1]
        more = [torch.cat([old, new.to(old.dtype)], 1).detach() for old, new in zip(self.layers, layers, strict=False)]
        real = torch.cat([self.real, self.real.new_ones(layers[0].shape[:2])], 1)  # (B, M + T)
        keep = slice(real.shape[1] - size, None)
        return Memory(tuple(x[:, keep] for x in more), real[:, keep])


@dataclass(frozen=True)
class Keys:
    """The tokens that queries attend to, memory first: position, rank and segment, and which are real, (B, S) each."""

    memory: int  # M
    gaps: bool  # whether there may be padding between tokens
    left: bool  # whether tokens attend to none after them
    at: Tensor
    ranks: Tensor | None
    segments: Tensor | None
    real: Tensor | None

    @classmethod
    def of(
        cls,
        tokens: Tensor,
        segments: Tensor | None,
        layout: Layout,
        left: bool,
        ranks: Tensor | None = None,
        memory: Memory | None = None,
    ) -> "Keys":
        """The keys of tokens (B, T) in a layout, after those of a memory."""
        rows, width = tokens.shape
        at = (layout.at if layout.gaps else torch.arange(width, device=tokens.device)).expand(rows, -1)  # (B, T)
        if memory is None:
            return cls(0, layout.gaps, left, at, ranks, segments, layout.real)
        size = memory.real.shape[1]
        at = torch.cat([torch.arange(-size, 0, device=tokens.device).expand(rows, -1), at], 1)  # (B, S)
        ranks = None if ranks is None else F.pad(ranks, (size, 0), value=-1)  # (B, S)
        segments = None if segments is None else F.pad(segments, (size, 0))  # (B, S)
        current = torch.ones_like(tokens, dtype=torch.bool) if layout.real is None else layout.real  # (B, T)
        return cls(size, layout.gaps, left, at, ranks, segments, torch.cat([memory.real, current], 1))

    def sinusoids(self, width: int, clamp: int | None) -> Tensor:
        """Those of all distances (P, D)."""
        keys = self.at.shape[1]
        return distance_sinusoids(distances(keys - self.memory, keys, self.memory, self.at.device, clamp), width)

    def content(self) -> Stream:
        """The stream of all tokens, each of which attends to itself too."""
        return self._stream(lambda x: x[:, self.memory :], 1, self.gaps)

    def query(self, places: Tensor) -> Stream:
        """The stream at places (B, G), where none attends to the token there."""
        return self._stream(lambda x: x.gather(1, self.memory + places), 0, True)

    def pairs(self, places: Tensor | None = None) -> RankedPairs | None:
        """Both streams for a kernel; None where it does not compute their masks."""
        if self.gaps or self.left:
            return None
        columns = torch.arange(self.memory, self.at.shape[1], device=self.at.device).expand(len(self.at), -1)  # (B, T)
        sizes = [columns.shape[1]] if places is None else [columns.shape[1], places.shape[1]]
        columns = columns if places is None else torch.cat([columns, self.memory + places], 1)  # (B, Q)
        itself = torch.arange(columns.shape[1], device=self.at.device) < sizes[0]  # (Q,)
        segments = torch.zeros_like(self.at) if self.segments is None else self.segments  # (B, S)
        ranks = torch.zeros_like(self.at) if self.ranks is None else self.ranks  # (B, S)
        limit = ranks.gather(1, columns) + itself  # (B, Q)
        ranks = ranks if self.real is None else ranks.masked_fill(~self.real, NEVER)
        whole = (self.at.shape[1] - 1 - columns, limit, segments.gather(1, columns), ranks, segments)
        base, limit, segment, ranks, segments = (x.int().contiguous() for x in whole)
        return RankedPairs(tuple(sizes), base, limit, segment, ranks, segments)

    def _stream(self, of: Callable[[Tensor], Tensor], more: int, apart: bool) -> Stream:
        """The stream of queries at some of the keys; they attend to all that rank below their own rank and `more`."""
        at = of(self.at)  # (B, T)

        def whole(rule: Mask) -> Tensor:
            return dense(rule, at[:, None, :, None], self.at[:, None, :, None])

        rules = [] if self.real is None else [real(self.real)]
        rules += [] if self.ranks is None else [order(self.ranks, of(self.ranks) + more)]
        rules += [order(self.at, at + more)] if self.left else []
        same_segment = None if self.segments is None else whole(same(self.segments, of(self.segments)))
        last = self.at.shape[1] - self.memory - 1
        index = (last - at)[:, None, :, None] + (self.memory + self.at)[:, None, None] if apart else None
        return Stream(at.shape[1], whole(reduce(and_, rules)) if rules else None, same_segment, index)


class RelativeAttention(nn.Module):
    """score(i, j) = ((q_i + u) . k_j + (q_i + v) . r_{i-j} + (q_i + s) . e_{ij}) / sqrt(K).

    r are the distances' sinusoids times W_r; e is one of two vectors: i and j are in the same segment, or not.
    """

    def __init__(self, c: XLNetConfig) -> None:
        super().__init__()
        self.heads, self.dropout, self.normalize = c.heads, c.dropout, NORMALIZERS[c.normalize]
        self.q = Linear(c.width, c.width, bias=False)
        self.kv = Linear(c.width, 2 * c.width, bias=False)
        self.r = Linear(c.width, c.width, bias=False)
        self.out = Linear(c.width, c.width, bias=False)
        self.u, self.v, self.s = (nn.Parameter(torch.empty(c.heads, c.width // c.heads)) for _ in range(3))
        self.segments = nn.Parameter(torch.empty(2, c.heads, c.width // c.heads))  # same, other
        self.queries, self.keys, self.values = Tap(), Tap(), Tap()
        self.scores, self.weights = Tap(), Tap()

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (B, H, T, K)

    @property
    def has_kernel(self) -> bool:
        """Whether a fused kernel computes it: softmax, and no tap has a hook."""
        taps = (self.queries, self.keys, self.values, self.scores, self.weights)
        return self.normalize is softmax and not tapped(*taps)

    def bias(self, v: Tensor, s: Tensor, r: Tensor, stream: Stream) -> Bias:
        """The terms of distance and segment."""
        distance = relative_bias(v, r) if stream.index is None else gathered_bias(v, r, stream.index)
        return distance if stream.same is None else segment_bias(distance, s, self.segments, stream.same)

    def forward(self, x: Tensor, read: Tensor, r: Tensor, streams: list[Stream], pairs: RankedPairs | None) -> Tensor:
        """Queries of all streams x (B, Q, D), one after another, attend to what is read (B, S, D).

        By the definition or, where there are `pairs`, in a kernel that computes the same.
        """
        k, v = map(self.split, self.kv(read).chunk(2, -1))  # (B, H, S, K)
        k, v = self.keys(k), self.values(v)
        r = self.r(r).unflatten(-1, (self.heads, -1)).transpose(0, 1)  # (H, P, K)
        q = self.queries(self.split(self.q(x)))  # (B, H, Q, K)
        dropout = self.dropout if self.training else 0.0
        content, distance, segment = (q + each[:, None].to(q.dtype) for each in (self.u, self.v, self.s))
        if q.is_cuda and pairs is not None and self.has_kernel:
            o = relative_attention((content, distance, segment), k, v, r, self.segments, pairs, dropout)  # (B, H, Q, K)
        else:
            sizes = [stream.size for stream in streams]
            parts = zip(*(x.split(sizes, 2) for x in (content, distance, segment)), streams, strict=True)
            o = torch.cat([self.attend(some, k, v, r, stream, dropout) for *some, stream in parts], 2)  # (B, H, Q, K)
        return self.out(o.transpose(1, 2).flatten(2))  # (B, Q, D)

    def attend(self, q: list[Tensor], k: Tensor, v: Tensor, r: Tensor, stream: Stream, dropout: float) -> Tensor:
        """The queries of one stream, for contents, distances and segments (B, H, T, K) each."""
        content, distance, segment = q
        return attend(
            content, k, v, stream.mask, self.bias(distance, segment, r, stream), normalize=self.normalize,
            scores=self.scores, weights=self.weights, dropout=dropout,
        )  # (B, H, T, K)  # fmt: skip


class Block(nn.Module):
    """Relative attention, then a position-wise feed-forward layer; add & norm around each."""

    def __init__(self, c: XLNetConfig) -> None:
        super().__init__()
        self.attention = RelativeAttention(c)
        self.mlp = FeedForward(c.width, c.hidden, ACTIVATIONS[c.activation])
        self.add1, self.add2 = (PostNorm(c.width, c.dropout, c.norm_eps) for _ in range(2))
        self.output = Tap()

    def forward(
        self, x: Tensor, memory: Tensor | None, r: Tensor, streams: list[Stream], pairs: RankedPairs | None
    ) -> Tensor:
        content = x[:, : streams[0].size]  # (B, T, D)
        read = content if memory is None else torch.cat([memory.to(x.dtype), content], 1)  # (B, S, D)
        x = self.add1(x, lambda x: self.attention(x, read, r, streams, pairs))  # (B, Q, D)
        return self.output(self.add2(x, self.mlp))  # (B, Q, D)


class TokenBias(nn.Module):
    """The head that predicts tokens: x itself, whose product with the token embeddings plus `bias` gives the logits."""

    def __init__(self, vocab: int, width: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(vocab))

    def forward(self, x: Tensor) -> Tensor:
        return x

    def matrix(self, table: Tensor) -> Tensor:
        """The matrix (V, D) of the logits: that of the embeddings."""
        return table


class UntiedTokens(TokenBias):
    """The same with a matrix of its own."""

    def __init__(self, vocab: int, width: int) -> None:
        super().__init__(vocab, width)
        self.weight = nn.Parameter(torch.randn(vocab, width) * width**-0.5)

    def matrix(self, table: Tensor) -> Tensor:
        """The matrix (V, D) of the logits, whatever that of the embeddings."""
        return self.weight


HEADS = {"tied": TokenBias, "untied": UntiedTokens}


class XLNet(nn.Module):
    """tokens (B, T), segments (B, T) -> a vector for each token (B, T, D)."""

    def __init__(self, config: XLNetConfig) -> None:
        super().__init__()
        self.config = c = config
        self.left = c.direction == "left"
        assert c.vocab is not None, "the vocabulary size comes from the tokenizer"
        self.tokens = nn.Embedding(c.vocab, c.width)
        self.query = nn.Parameter(torch.empty(1, 1, c.width))  # the query stream's input at every position
        self.dropout = nn.Dropout(c.dropout)
        self.embedded = Tap()
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.layers))
        self.pooler = Pooler(c.width) if c.pooler else None
        self.masked_words = HEADS[c.output](c.vocab, c.width) if c.masked_words else None
        self.next_sentence = None
        for name, weight in self.named_parameters():
            if "norm" not in name and not name.endswith("bias"):
                nn.init.normal_(weight, std=0.02)

    def layers(self, tokens: Tensor, segments: Tensor | None = None, layout: Layout | None = None) -> list[Tensor]:
        """The vectors (B, T, D) before the first block, and after each block."""
        layout = layout or Unpadded(tokens)
        check_length(layout.max_length(self.config.context), self.config.context)
        return self.read(self.embed(tokens), Keys.of(tokens, segments, layout, self.left), ())

    def forward(self, tokens: Tensor, segments: Tensor | None = None, layout: Layout | None = None) -> Tensor:
        return self.layers(tokens, segments, layout)[-1]  # (B, T, D)

    def two_streams(
        self,
        tokens: Tensor,
        ranks: Tensor,
        places: Tensor,
        segments: Tensor | None = None,
        layout: Layout | None = None,
        memory: Memory | None = None,
    ) -> tuple[list[Tensor], Tensor]:
        """The content stream, (B, T, D) before and after each block, and the query stream (B, G, D) at its end.

        ranks (B, T) is the order in which tokens are predicted; tokens of equal rank see each other. The query stream
        is at places (B, G), and sees what comes before them.
        """
        keys = Keys.of(tokens, segments, layout or Unpadded(tokens), self.left, ranks, memory)
        query = self.dropout(self.query.expand(*places.shape, -1))  # (B, G, D)
        x = torch.cat([self.embed(tokens), query.to(self.query.dtype)], 1)  # (B, Q, D)
        outputs = self.read(x, keys, () if memory is None else memory.layers, places)
        return [x[:, : tokens.shape[1]] for x in outputs], outputs[-1][:, tokens.shape[1] :]

    def masked_vectors(self, tokens: Tensor, segments: Tensor | None, layout: Layout | None, places: Tensor) -> Tensor:
        """The vectors (B, T, D) that tokens are predicted from; at flat positions `places`, from all others alone.

        Since no token attends to those, the query stream takes their place in the content stream.
        """
        layout = layout or Unpadded(tokens)
        check_length(layout.max_length(self.config.context), self.config.context)
        masked = torch.zeros_like(tokens, dtype=torch.bool).flatten().index_fill(0, places, True)  # (B * T,)
        masked = masked.view_as(tokens)  # (B, T)
        x = torch.where(masked[:, :, None], self.dropout(self.query), self.embed(tokens))  # (B, T, D)
        keys = Keys.of(tokens, segments, layout, self.left)
        keys = replace(keys, real=~masked if keys.real is None else keys.real & ~masked)
        return self.read(x, keys, ())[-1]  # (B, T, D)

    def embed(self, tokens: Tensor) -> Tensor:
        """The input of the first block (B, T, D)."""
        return self.embedded(self.dropout(self.tokens(tokens)))  # (B, T, D)

    def read(self, x: Tensor, keys: Keys, memory: tuple[Tensor, ...], places: Tensor | None = None) -> list[Tensor]:
        """The vectors of all streams (B, Q, D) before the first block, and after each block."""
        streams = [keys.content()] if places is None else [keys.content(), keys.query(places)]
        pairs = keys.pairs(places)
        r = self.dropout(keys.sinusoids(self.config.width, self.config.clamp).to(self.query.dtype))  # (P, D)
        outputs = [x]
        for number, block in enumerate(self.blocks):
            outputs.append(block(outputs[-1], memory[number] if memory else None, r, streams, pairs))
        outputs[-1] = self.dropout(outputs[-1])
        return outputs

    def start(self, rows: int, size: int, device: torch.device) -> Memory:
        """A memory of this many tokens, in which there is no text yet."""
        zeros = torch.zeros(rows, size, self.config.width, dtype=self.query.dtype, device=device)  # (B, M, D)
        return Memory((zeros,) * self.config.layers, torch.zeros(rows, size, dtype=torch.bool, device=device))

    def pool(self, last: Tensor) -> Tensor:
        """The pooled vector of each sequence, from the vectors (N, D) of the last tokens."""
        assert self.pooler is not None, "this model has no pooler"
        return self.pooler(last)  # (N, D)

    def summarize(self, x: Tensor, layout: EncoderLayout) -> Tensor:
        """The pooled vector of each sequence, from those of all tokens (B, T, D); its last token is `<cls>`."""
        return self.pool(layout.last(x))  # (N, D)

    def words(self, x: Tensor) -> Tensor:
        """The logits (M, V) of tokens, from the vectors (M, D) at their positions."""
        assert self.masked_words is not None, "this model has no head that predicts tokens"
        return linear(x, self.masked_words.matrix(self.tokens.weight), self.masked_words.bias)  # (M, V)

    @property
    def lens_taps(self) -> str | None:
        """Taps whose values `lens` takes; None without a head that predicts tokens."""
        return None if self.masked_words is None else "blocks.*.output"

    def lens(self, x: Tensor) -> Tensor:
        """Logit lens: the logits (B, T, V) if a block's output (B, T, D) were that of the last block."""
        return self.words(x.flatten(0, 1)).unflatten(0, x.shape[:2])  # (B, T, V)
