"""Transformer-XL ("Attentive language models beyond a fixed-length context", Dai et al., 2019).

A causal Transformer that reads a text in segments. Each layer keeps what entered it for the last M tokens, its memory,
and later segments attend to it, without a gradient. Scores depend on distances, which mean the same in every segment.

B batch, T tokens of a segment, S memory and segment, D width, H heads, K width of one head, P distances, V vocabulary.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.blocks.adaptive import AdaptiveEmbedding
from heedful.blocks.attention import attend
from heedful.blocks.feedforward import FeedForward
from heedful.blocks.linear import Linear, linear
from heedful.blocks.normalizers import NORMALIZERS
from heedful.blocks.norms import PostNorm, PreNorm
from heedful.blocks.relative import distance_sinusoids, distances, relative_bias
from heedful.blocks.state import Memory
from heedful.blocks.taps import Tap
from heedful.errors import UserError
from heedful.models.transformer_xl.config import TransformerXLConfig


class Biases(nn.Module):
    """u and v, (H, 1, K): what every query adds to its own vector, for contents and for distances."""

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.u = nn.Parameter(torch.randn(heads, width) * 0.02)
        self.v = nn.Parameter(torch.randn(heads, width) * 0.02)

    def forward(self, q: Tensor) -> tuple[Tensor, Tensor]:
        return q + self.u[:, None].to(q.dtype), q + self.v[:, None].to(q.dtype)


class RelativeAttention(nn.Module):
    """score(i, j) = ((q_i + u) . k_j + (q_i + v) . W_r R_{i-j}) / sqrt(K), over memory and segment."""

    def __init__(self, c: TransformerXLConfig) -> None:
        super().__init__()
        self.heads, self.dropout, self.normalize = c.heads, c.attention_dropout, NORMALIZERS[c.normalize]
        self.qkv = Linear(c.width, 3 * c.inner, bias=False)
        self.distance = Linear(c.width, c.inner, bias=False)
        self.out = Linear(c.inner, c.width, bias=False)
        self.queries, self.keys, self.values = Tap(), Tap(), Tap()
        self.scores, self.weights = Tap(), Tap()

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (B, H, T, K)

    def forward(self, x: Tensor, whole: Tensor, table: Tensor, biases: Biases, mask: Tensor) -> Tensor:
        """x (B, T, D) attends to `whole` (B, S, D), memory and x, at distances with these sinusoids (P, D)."""
        query, key_value = self.qkv.weight.tensor_split([self.out.weight.shape[1]])
        q = self.queries(self.split(linear(x, query)))  # (B, H, T, K)
        k, v = map(self.split, linear(whole, key_value).chunk(2, -1))  # (B, H, S, K)
        k, v = self.keys(k), self.values(v)
        with_u, with_v = biases(q)
        r = self.split(self.distance(table)[None])[0]  # (H, P, K)
        bias = relative_bias(with_v, r)
        dropout = self.dropout if self.training else 0.0
        o = attend(
            with_u, k, v, mask, bias, normalize=self.normalize, scores=self.scores, weights=self.weights,
            dropout=dropout,
        )  # (B, H, T, K)  # fmt: skip
        return self.out(o.transpose(1, 2).flatten(2))  # (B, T, D)


class Block(nn.Module):
    """Attention over memory and segment, then a feed-forward layer; add & norm around each."""

    def __init__(self, c: TransformerXLConfig) -> None:
        super().__init__()
        norm = PreNorm if c.norm == "pre" else PostNorm
        self.attention = RelativeAttention(c)
        self.mlp = FeedForward(c.width, c.hidden, nn.Sequential(nn.ReLU(), nn.Dropout(c.dropout)))
        self.add1, self.add2 = norm(c.width, c.dropout, c.norm_eps), norm(c.width, c.dropout, c.norm_eps)
        self.output = Tap()

    def forward(self, x: Tensor, whole: Tensor, table: Tensor, biases: Biases, mask: Tensor) -> Tensor:
        whole = self.add1.norm(whole) if isinstance(self.add1, PreNorm) else whole  # (B, S, D)
        x = self.add1(x, lambda x: self.attention(x, whole, table, biases, mask))  # (B, T, D)
        return self.output(self.add2(x, self.mlp))  # (B, T, D)


class TransformerXL(nn.Module):
    """tokens (B, T) -> logits (B, T, V) of the token after each."""

    lens_taps = "blocks.*.output"  # taps whose values `lens` takes

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        self.config = c = config
        assert c.vocab is not None, "the vocabulary size comes from the tokenizer"
        self.tokens = AdaptiveEmbedding(c.vocab, c.width, c.table_width, c.cutoffs, c.divisor)
        self.dropout = nn.Dropout(c.dropout)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.layers))
        own = 1 if c.share_biases else c.layers
        self.biases = nn.ModuleList(Biases(c.heads, c.inner // c.heads) for _ in range(own))
        for weight in self.blocks.parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight, std=0.02)

    def start(self, rows: int, device: torch.device, memory: int | None = None) -> Memory:
        """The state before the first token: an empty memory, of at most `memory` tokens, or as the settings say."""
        c, like = self.config, next(self.parameters())
        limit = c.memory if memory is None else memory
        if limit > c.max_memory:
            raise UserError(
                "this memory has longer distances than the model has learned", where="memory",
                found=f"{limit:,} tokens", expected=f"at most {c.max_memory:,}",
                todo=f"train with model.clamp={c.max_memory}: longer distances then count as this one",
            )  # fmt: skip
        return Memory.empty(c.layers, rows, c.width, limit, torch.empty(0, dtype=like.dtype, device=device))

    def features(
        self, tokens: Tensor, state: Memory, real: Tensor | None = None, documents: Tensor | None = None
    ) -> tuple[Tensor, Memory]:
        """The last layer (B, T, D) for the next T tokens, and the state after them; padding is not `real`.

        With documents (B, T), which never decrease within a row, a token attends to its own document alone; that of the
        memory is 0.
        """
        if real is not None:
            return self.padded_features(tokens, state, real)
        seen = F.pad(state.seen, (0, tokens.shape[1]), value=True)  # (B, S)
        mask = self.mask(seen, state)  # (B, 1, T, S)
        if documents is not None:
            number = F.pad(documents, (state.length, 0))  # (B, S)
            mask = mask & (documents[:, None, :, None] == number[:, None, None])  # (B, 1, T, S)
            seen = seen & (number == number[:, -1:])  # (B, S)
        return self.layers(tokens, state, mask, seen, None)

    def padded_features(self, tokens: Tensor, state: Memory, real: Tensor) -> tuple[Tensor, Memory]:
        """The same for padded rows: padding is moved to the front, before the memory, so that it adds no distance."""
        front = real.int().argsort(dim=1, stable=True)  # (B, T), padding first
        tokens, real = tokens.gather(1, front), real.gather(1, front)  # (B, T)
        order = F.pad(2 * real.int(), (state.length, 0), value=1).argsort(
            dim=1, stable=True
        )  # (B, S), the memory in between
        seen = torch.cat([state.seen, real], 1).gather(1, order)  # (B, S)
        x, state = self.layers(tokens, state, self.mask(seen, state), seen, order)  # (B, T, D)
        return x.gather(1, front.argsort(1)[..., None].expand_as(x)), state

    def mask(self, seen: Tensor, state: Memory) -> Tensor:
        """Which of the memory and the segment (B, S) each token of the segment attends to: its last M, or all."""
        at = torch.arange(seen.shape[1], device=seen.device)  # (S,)
        steps = at[state.length :, None] - at  # (T, S)
        mask = (steps >= 0) & (steps < state.limit) if self.config.same_length else steps >= 0  # (T, S)
        return (mask & seen[:, None])[:, None]  # (B, 1, T, S)

    def layers(
        self, tokens: Tensor, state: Memory, mask: Tensor, seen: Tensor, order: Tensor | None
    ) -> tuple[Tensor, Memory]:
        """The last layer (B, T, D) and the next memory; `order` (B, S) rearranges what is attended to."""
        past, count = state.length, tokens.shape[1]
        between = distances(count, past + count, past, tokens.device, self.config.clamp)  # (P,)
        x = self.dropout(self.tokens(tokens))  # (B, T, D)
        table = self.dropout(distance_sinusoids(between, self.config.width).to(x.dtype))  # (P, D)
        inputs: list[Tensor] = []
        for number, (block, memory) in enumerate(zip(self.blocks, state.layers, strict=True)):
            whole = torch.cat([memory, x], 1)  # (B, S, D)
            whole = whole if order is None else whole.gather(1, order[..., None].expand_as(whole))
            inputs.append(whole)
            x = block(x, whole, table, self.biases[number % len(self.biases)], mask)  # (B, T, D)
        return self.dropout(x), state.after(inputs, seen)

    def read(self, tokens: Tensor, documents: Tensor | None = None) -> Tensor:
        """The last layer (B, T, D) for segments without a memory."""
        return self.features(tokens, self.start(len(tokens), tokens.device), documents=documents)[0]

    def forward(self, tokens: Tensor, state: Memory, real: Tensor | None = None) -> tuple[Tensor, Memory]:
        x, state = self.features(tokens, state, real)  # (B, T, D)
        return self.tokens.logits(x), state  # (B, T, V)

    def lens(self, x: Tensor) -> Tensor:
        """Logit lens: the logits (B, T, V) if a block's output (B, T, D) were that of the last block."""
        return self.tokens.logits(x)  # (B, T, V)
