"""Image captioning with visual attention ("Show, attend and tell", Xu et al., 2015).

An image encoder leaves a map, one vector for each place of a grid. The decoder generates the caption word by word: its
state is the query, the map is keys and values. Soft attention takes the weighted sum of the places, hard attention one
of them. A Transformer decoder attends to the map by cross-attention.

Differs: the output layer is the embedding, and the previous word has a matrix of its own in front of it.

B images, R captions (some of each image), T words, P places of the map, M its width, E width of an embedding, H of the
decoder's states, V vocabulary, Y rows and X columns of the map.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from heedful.blocks.attention import KV
from heedful.blocks.embedding import TiedEmbedding
from heedful.blocks.feeding import has_kernels, run_fused
from heedful.blocks.layouts import Unpadded
from heedful.blocks.linear import Linear
from heedful.blocks.memory import GlobalSpan, MemoryAttention, Source
from heedful.blocks.normalizers import NORMALIZERS
from heedful.blocks.patches import LearnedGrid, NoGrid, SinusoidGrid
from heedful.blocks.positions import FixedPositions, sinusoids
from heedful.blocks.recurrent import CELLS, Layer, Stack, State
from heedful.blocks.scores import SCORES, with_key_projection
from heedful.blocks.state import Past, Shared, map_tensors, regroup
from heedful.blocks.taps import Tap, watched
from heedful.models import build
from heedful.models.captioner.config import (
    CaptionerConfig,
    HardAttention,
    MapAttention,
    RecurrentDecoder,
    TransformerDecoder,
)
from heedful.models.limits import check_length
from heedful.models.roles import ImageEncoder
from heedful.models.transformer.config import TransformerConfig
from heedful.models.transformer.model import DecoderBlock


class Read(NamedTuple):
    """What the decoder leaves of T words of R captions."""

    x: Tensor  # (R, T, E) its last layer
    weights: Tensor | None = None  # (R, T, P) of recurrent attention
    choices: Tensor | None = None  # (R, T) log p of the places that hard attention sampled


@dataclass(frozen=True)
class RecurrentState:
    """The states of the layers, and the map that all captions of an image share."""

    layers: tuple[State, ...]
    source: Shared[Any]  # a `Source`; None without attention


@dataclass(frozen=True)
class TransformerState:
    """The cache of the decoder's own keys and values, and those of the map, projected once for each block."""

    past: Past
    memory: Shared[tuple[KV, ...]]


def initial_states(summary: Tensor, layers: int, parts: int) -> tuple[State, ...]:
    """The first states of all layers, from one vector; an LSTM has two parts."""
    states = torch.tanh(summary).unflatten(-1, (layers, parts, -1))  # (B, L, parts, H)
    return tuple(tuple(layer.unbind(1)) for layer in states.unbind(1))


def recurrent_layers(d: RecurrentDecoder, width: int, dropout: float) -> Stack:
    layers: list[nn.Module] = [Layer(d.cell, d.hidden if n else width, d.hidden) for n in range(d.layers)]
    return Stack(layers, dropout)


def repeat_rows(source: Source, rows: int) -> Source:
    """The map of each image for each of its captions: a kernel reads a row of its own."""
    times = rows // source.real.shape[0]
    if times == 1 or torch.is_inference_mode_enabled():
        return source
    repeated: Source = map_tensors(source, lambda x: x.repeat_interleave(times, 0) if x.dim() > 1 else x)
    return repeated


class Unattended(nn.Module):
    """h_t = RNN(y_{t-1}, h_{t-1}): the image is seen once, by the first state (Vinyals et al., 2015)."""

    alignment = "attention.weights"  # no tap has this name

    def __init__(self, c: CaptionerConfig, d: RecurrentDecoder) -> None:
        super().__init__()
        self.config, self.parts = d, CELLS[d.cell].parts
        self.tokens = TiedEmbedding(c.vocab or 0, d.width)
        self.begin = Linear(c.memory, d.layers * self.parts * d.hidden)
        self.stack = recurrent_layers(d, d.width, c.dropout)
        self.out = Linear(d.hidden + d.width, d.width)
        self.dropout = nn.Dropout(c.dropout)

    def start(self, memory: Tensor) -> RecurrentState:
        states = initial_states(self.begin(memory.mean(1)), self.config.layers, self.parts)
        return RecurrentState(states, Shared(None))

    def forward(self, tokens: Tensor, state: RecurrentState) -> tuple[Read, RecurrentState]:
        x = self.dropout(self.tokens(tokens))  # (R, T, E)
        h, layers = self.stack(x, state.layers)  # (R, T, H)
        y = self.out(torch.cat([h, x], -1))  # (R, T, E)
        return Read(self.dropout(y)), replace(state, layers=layers)


class Gate(nn.Module):
    """beta = sigmoid(w . h): how much of the context is used for the next word."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.linear, self.beta = Linear(hidden, 1), Tap()

    def forward(self, h: Tensor, context: Tensor) -> Tensor:
        return self.beta(torch.sigmoid(self.linear(h))) * context  # (R, 1, M)


class NoGate(nn.Module):
    """The context as it is."""

    linear = None

    def forward(self, h: Tensor, context: Tensor) -> Tensor:
        return context


class Attended(nn.Module):
    """z_t = beta_t context(h_{t-1}), h_t = RNN([z_t; y_{t-1}], h_{t-1}), out_t = W [h_t; z_t; y_{t-1}]."""

    def __init__(self, c: CaptionerConfig, d: RecurrentDecoder, a: MapAttention) -> None:
        super().__init__()
        self.config, self.parts = d, CELLS[d.cell].parts
        self.tokens = TiedEmbedding(c.vocab or 0, d.width)
        self.begin = Linear(c.memory, d.layers * self.parts * d.hidden)
        score = with_key_projection(SCORES[a.score](d.hidden, c.memory, c.grid[0] * c.grid[1]))
        soft = a.soft if isinstance(a, HardAttention) else 0.0
        hard = isinstance(a, HardAttention)
        self.attention = MemoryAttention(score, GlobalSpan(), NORMALIZERS[a.normalize], hard, soft)
        self.alignment = "attention.choice" if hard else "attention.weights"
        self.gate = Gate(d.hidden) if a.gate else NoGate()
        self.stack = recurrent_layers(d, c.memory + d.width, c.dropout)
        self.out = Linear(d.hidden + c.memory + d.width, d.width)
        self.dropout = nn.Dropout(c.dropout)

    def start(self, memory: Tensor) -> RecurrentState:
        states = initial_states(self.begin(memory.mean(1)), self.config.layers, self.parts)
        real = torch.ones(memory.shape[:2], dtype=torch.bool, device=memory.device)  # (B, P)
        at = torch.arange(memory.shape[1], device=memory.device)  # (P,)
        return RecurrentState(states, Shared(self.attention.prepare(memory, real, at)))

    def forward(self, tokens: Tensor, state: RecurrentState) -> tuple[Read, RecurrentState]:
        x = self.dropout(self.tokens(tokens))  # (R, T, E)
        if x.is_cuda and not watched(self.gate):
            source = repeat_rows(state.source.value, x.shape[0])
            if has_kernels(self.attention, self.stack, x, source):
                run = run_fused(self.attention, self.stack, x, state.layers, source, self.gate.linear)
                y = self.out(torch.cat([run.outputs, run.contexts, x], -1))
                return Read(self.dropout(y), run.weights), replace(state, layers=run.layers)
        layers, at = state.layers, torch.zeros(1, dtype=torch.long, device=x.device)
        outputs, contexts, weights, choices = [], [], list[Tensor](), list[Tensor | None]()
        for word in x.unbind(1):
            query = layers[-1][0][:, None]  # (R, 1, H)
            context, chosen = self.attention(query, state.source.value, at, weights.append)  # context (R, 1, M)
            z = self.gate(query, context)[:, 0]  # (R, M)
            h, layers = self.stack.step(torch.cat([z, word], -1), layers)  # (R, H)
            outputs.append(h)
            contexts.append(z)
            choices.append(chosen)
        y = self.out(torch.cat([torch.stack(outputs, 1), torch.stack(contexts, 1), x], -1))  # (R, T, E)
        logs = [each for each in choices if each is not None]
        read = Read(self.dropout(y), torch.cat(weights, 1), torch.cat(logs, 1) if logs else None)
        return read, replace(state, layers=layers)


class CrossAttended(nn.Module):
    """Blocks of the Transformer: masked self-attention, cross-attention to the map, a feed-forward layer."""

    alignment = "blocks.*.cross.weights"

    def __init__(self, c: CaptionerConfig, d: TransformerDecoder) -> None:
        super().__init__()
        like = TransformerConfig(
            width=d.width, heads=d.heads, score=d.score, normalize=d.normalize, hidden=d.hidden, norm=d.norm,
            context=c.context, dropout=c.dropout,
        )  # fmt: skip
        self.context = c.context
        self.tokens = TiedEmbedding(c.vocab or 0, d.width)
        self.memory = Linear(c.memory, d.width)
        self.positions = FixedPositions(sinusoids(c.context, d.width))
        self.blocks = nn.ModuleList(DecoderBlock(like) for _ in range(d.layers))
        self.norm = nn.LayerNorm(d.width) if d.norm == "pre" else nn.Identity()
        self.dropout = nn.Dropout(c.dropout)

    def start(self, memory: Tensor) -> TransformerState:
        m = self.memory(memory)  # (B, P, E)
        blocks: Any = self.blocks  # a ModuleList does not know the type of its blocks
        keys = tuple(block.cross.keys_values(m) for block in blocks)
        return TransformerState(Unpadded(memory[..., 0]).past(len(blocks)), Shared(keys))

    def forward(self, tokens: Tensor, state: TransformerState) -> tuple[Read, TransformerState]:
        past, count = state.past, tokens.shape[1]
        check_length(past.max_length(count), self.context)
        at, mask, caches = past.positions(count, tokens.device), past.attention_mask(count), past.layer_caches(count)
        x = self.dropout(self.positions(self.tokens(tokens), at))  # (R, T, E)
        for block, cache, memory in zip(self.blocks, caches, state.memory.value, strict=True):
            x = block(x, cache, memory, mask, None, None, at)  # (R, T, E)
        return Read(self.norm(x)), replace(state, past=past.after(caches))


def decoder_of(c: CaptionerConfig) -> Unattended | Attended | CrossAttended:
    if isinstance(c.decoder, TransformerDecoder):
        return CrossAttended(c, c.decoder)
    return Unattended(c, c.decoder) if c.decoder.attention is None else Attended(c, c.decoder, c.decoder.attention)


class Captioner(nn.Module):
    """images (B, C, Y, X) -> state; then tokens (R, T), state -> logits (R, T, V), state."""

    alignment: str  # taps of the attention weights over the map, or of the places that hard attention chooses

    def __init__(self, config: CaptionerConfig) -> None:
        super().__init__()
        self.config = c = config
        assert c.vocab is not None, "the vocabulary size comes from the tokenizer"
        encoder: Any = build(c.encoder)
        encoder.keep_map()
        self.encoder: ImageEncoder = encoder
        if c.positions == "none":
            self.positions: nn.Module = NoGrid()
        else:
            self.positions = (LearnedGrid if c.positions == "learned" else SinusoidGrid)(0, c.grid, c.memory)
        self.map = Tap()
        self.decoder = decoder_of(c)
        self.alignment = f"decoder.{self.decoder.alignment}"
        for name in {"encoder": ("encoder", "positions"), "decoder": ("decoder",), "none": ()}[c.freeze]:
            self.get_submodule(name).requires_grad_(False)

    @property
    def tokens(self) -> TiedEmbedding:
        """The embedding, which also gives the logits."""
        return self.decoder.tokens

    def train(self, mode: bool = True) -> Self:
        """Training mode; a frozen part stays in evaluation mode."""
        super().train(mode)
        if self.config.freeze != "none":
            self.get_submodule(self.config.freeze).eval()
        return self

    def encode(self, images: Tensor) -> Tensor:
        """The places of the map, row by row."""
        # In this memory format convolutions, norms and pools are fastest, and the places of the map are already rows.
        grid = self.encoder.map(images.contiguous(memory_format=torch.channels_last))  # (B, M, Y, X)
        places = grid.flatten(2).transpose(1, 2)  # (B, P, M)
        return self.map(self.positions(places, (grid.shape[2], grid.shape[3])))

    def start(self, images: Tensor) -> Any:
        """Encode the images: the decoder's state before its first token."""
        return self.decoder.start(self.encode(images))

    def features(self, tokens: Tensor, state: Any) -> tuple[Read, Any]:
        """What the decoder leaves of the next T tokens, and the state after them."""
        if tokens.shape[1] == 0:
            raise ValueError("the caption is empty: it has no tokens")
        found: tuple[Read, Any] = self.decoder(tokens, state)
        return found

    def read(self, images: Tensor, captions: Tensor) -> Read:
        """What the decoder leaves of whole captions (R, T), R / B of each image, as in training."""
        state, times = self.start(images), len(captions) // max(1, len(images))
        rows = torch.arange(len(captions), device=captions.device) // max(1, times)  # (R,)
        return self.features(captions, regroup(state, rows) if times > 1 else state)[0]

    def forward(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        read, state = self.features(tokens, state)
        return self.tokens.logits(read.x), state  # (R, T, V)
