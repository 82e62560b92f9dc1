"""Sequence to sequence with a recurrent decoder (Sutskever et al., 2014), without attention and with it.

The encoder computes a memory, one vector per source token, and a summary; the decoder is initialized from the summary
and generates the target token by token. The attention context is an input of its first layer (Bahdanau et al., 2015) or
is combined with the output of its last one (Luong et al., 2015).

B batch, S source positions, T target positions, E width of an embedding, H of the decoder's states, M of the memory,
V vocabulary.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from heedful.blocks.embedding import TiedEmbedding
from heedful.blocks.feeding import has_kernels, run_fused
from heedful.blocks.layouts import Layout, Unpadded, mean
from heedful.blocks.linear import Linear
from heedful.blocks.memory import GlobalSpan, MemoryAttention, MonotonicSpan, PredictiveSpan
from heedful.blocks.normalizers import NORMALIZERS
from heedful.blocks.positions import FixedPositions, sinusoids
from heedful.blocks.recurrent import CELLS, BidirectionalLayer, Layer, Stack, State
from heedful.blocks.scores import SCORES, with_key_projection
from heedful.blocks.state import Shared
from heedful.blocks.taps import Tap
from heedful.blocks.text_filters import GatedConvolution, gap_free
from heedful.models.limits import check_length
from heedful.models.seq2seq.config import (
    AttentionConfig,
    ConvolutionalEncoder,
    RecurrentEncoder,
    Seq2SeqConfig,
    TransformerEncoder,
)
from heedful.models.transformer.config import TransformerConfig
from heedful.models.transformer.model import encoder_block


@dataclass(frozen=True)
class DecoderState:
    """The states of the decoder's layers, its step, and the source."""

    layers: tuple[State, ...]
    step: Tensor  # ()
    source: Shared[Any]  # a `Source`; None without attention
    chosen: Tensor | None = None  # (B, T) log p of the keys that hard attention sampled in training


class RecurrentReader(nn.Module):
    """Recurrent encoder: the memory is the output of the last layer, the summary its final hidden state."""

    def __init__(self, c: Seq2SeqConfig, e: RecurrentEncoder) -> None:
        super().__init__()
        widths = [c.width] + [e.hidden] * (e.layers - 1)
        both = e.directions == "both"
        layers: list[nn.Module] = [
            BidirectionalLayer(e.cell, width, e.hidden // 2) if both else Layer(e.cell, width, e.hidden)
            for width in widths
        ]
        self.stack, self.output = Stack(layers, c.dropout), Tap()
        self.parts = CELLS[e.cell].parts  # of a state, hidden first

    def forward(self, x: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        memory, states = self.stack(x, None, layout.real, layout.gaps)  # (B, S, M)
        summary = torch.cat(states[-1][:: self.parts], -1)  # (B, M)
        return self.output(memory), summary


class TransformerReader(nn.Module):
    """Transformer encoder: the summary is the mean of the memory."""

    def __init__(self, c: Seq2SeqConfig, e: TransformerEncoder) -> None:
        super().__init__()
        like = TransformerConfig(
            width=c.width, heads=e.heads, score=e.score, normalize=e.normalize, hidden=e.hidden, norm=e.norm,
            dropout=c.dropout,
        )  # fmt: skip
        self.positions = FixedPositions(sinusoids(c.context, c.width))
        self.blocks = nn.ModuleList(encoder_block(like) for _ in range(e.layers))
        self.norm = nn.LayerNorm(c.width) if e.norm == "pre" else nn.Identity()
        self.output = Tap()

    def forward(self, x: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        x = self.positions(x, layout.at)  # (B, S, E)
        for block in self.blocks:
            x = block(x, layout.mask, None, layout.at)  # (B, S, E)
        x = self.norm(x)  # (B, S, E)
        return self.output(x), mean(x, layout)


class ConvolutionReader(nn.Module):
    """Gated convolutions (Gehring et al., 2017); the summary is the mean of the memory."""

    def __init__(self, c: Seq2SeqConfig, e: ConvolutionalEncoder) -> None:
        super().__init__()
        self.positions, self.dropout = FixedPositions(sinusoids(c.context, c.width)), nn.Dropout(c.dropout)
        self.filters = nn.ModuleList(GatedConvolution(c.width, e.size) for _ in range(e.layers))
        self.output = Tap()

    def forward(self, x: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        x = self.positions(x, layout.at)  # (B, S, E)
        real = x.new_ones(x.shape[:2], dtype=torch.bool) if layout.real is None else layout.real
        x, kept, to = gap_free(x, real)
        for filters in self.filters:
            x = filters(x, kept, self.dropout)  # (B, S, E)
        x = x.gather(1, to)  # (B, S, E)
        return self.output(x), mean(x, layout)


def memory_attention(c: Seq2SeqConfig, a: AttentionConfig) -> MemoryAttention:
    """The decoder's attention to the memory."""
    span: GlobalSpan | MonotonicSpan | PredictiveSpan = GlobalSpan()
    if a.span.kind == "monotonic":
        span = MonotonicSpan(a.span.window)
    elif a.span.kind == "predictive":
        span = PredictiveSpan(c.hidden, a.span.window)
    score = SCORES[a.score](c.hidden, c.encoder.memory(c.width), c.context)
    return MemoryAttention(with_key_projection(score), span, NORMALIZERS[a.normalize], hard=a.choice == "hard")


def decoder_layers(c: Seq2SeqConfig, width: int) -> Stack:
    widths = [width] + [c.hidden] * (c.layers - 1)
    layers: list[nn.Module] = [Layer(c.cell, width, c.hidden) for width in widths]
    return Stack(layers, c.dropout)


class NoAttention(nn.Module):
    """y_t = W h_t: the decoder knows the source from its initial state only (Sutskever et al., 2014)."""

    def __init__(self, c: Seq2SeqConfig) -> None:
        super().__init__()
        self.stack, self.out = decoder_layers(c, c.width), Linear(c.hidden, c.width)

    def forward(self, x: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        h, layers = self.stack(x, state.layers)  # (B, T, H)
        return self.out(h), replace(state, layers=layers)  # (B, T, E)


class InputFeeding(nn.Module):
    """h_t = RNN([context_t; x_t], h_{t-1}), where the query is h_{t-1}; y_t = W h_t (Bahdanau et al., 2015)."""

    def __init__(self, c: Seq2SeqConfig, a: AttentionConfig) -> None:
        super().__init__()
        self.attention = memory_attention(c, a)
        self.stack = decoder_layers(c, c.encoder.memory(c.width) + c.width)
        self.out = Linear(c.hidden, c.width)

    def forward(self, x: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        if has_kernels(self.attention, self.stack, x, state.source.value):
            run = run_fused(self.attention, self.stack, x, state.layers, state.source.value)
            return self.out(run.outputs), replace(state, layers=run.layers)
        layers, outputs, chosen = state.layers, [], []
        for t in range(x.shape[1]):
            query = layers[-1][0][:, None]  # (B, 1, H)
            context, log_p = self.attention(query, state.source.value, state.step[None] + t)  # context (B, 1, M)
            h, layers = self.stack.step(torch.cat([context[:, 0], x[:, t]], -1), layers)  # (B, H)
            outputs.append(h)
            chosen.append(log_p)
        y = self.out(torch.stack(outputs, 1))  # (B, T, E)
        return y, replace(state, layers=layers, chosen=None if chosen[0] is None else torch.cat(chosen, 1))


class OutputJoining(nn.Module):
    """y_t = tanh(W [h_t; context_t]), where the query is h_t, for all steps at once (Luong et al., 2015)."""

    def __init__(self, c: Seq2SeqConfig, a: AttentionConfig) -> None:
        super().__init__()
        self.attention = memory_attention(c, a)
        self.stack = decoder_layers(c, c.width)
        self.out = Linear(c.hidden + c.encoder.memory(c.width), c.width)

    def forward(self, x: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        h, layers = self.stack(x, state.layers)  # (B, T, H)
        at = state.step + torch.arange(x.shape[1], device=x.device)  # (T,)
        context, chosen = self.attention(h, state.source.value, at)  # context (B, T, M)
        y = torch.tanh(self.out(torch.cat([h, context], -1)))  # (B, T, E)
        return y, replace(state, layers=layers, chosen=chosen)


class Seq2Seq(nn.Module):
    """source (B, S), target (B, T) -> logits (B, T, V)."""

    alignment = "decoder.attention.weights"  # tap of the attention weights over the source

    def __init__(self, config: Seq2SeqConfig) -> None:
        super().__init__()
        self.config = c = config
        assert c.vocab is not None, "the vocabulary size comes from the tokenizer"
        self.tokens = TiedEmbedding(c.vocab, c.width)
        self.dropout = nn.Dropout(c.dropout)
        match c.encoder:
            case RecurrentEncoder():
                self.encoder: nn.Module = RecurrentReader(c, c.encoder)
            case TransformerEncoder():
                self.encoder = TransformerReader(c, c.encoder)
            case ConvolutionalEncoder():
                self.encoder = ConvolutionReader(c, c.encoder)
        self.parts = CELLS[c.cell].parts  # of a state: hidden, and an LSTM's cell
        self.choices_affect_later_tokens = c.attention is not None and c.attention.feed == "input"
        self.begin = Linear(c.encoder.memory(c.width), c.layers * self.parts * c.hidden)
        if c.attention is None:
            self.decoder: Any = NoAttention(c)
        else:
            self.decoder = (InputFeeding if c.attention.feed == "input" else OutputJoining)(c, c.attention)

    def start(self, source: Tensor, layout: Layout | None = None) -> DecoderState:
        """Encode the source: the decoder's state before its first token."""
        layout = layout or Unpadded(source)
        longest = layout.max_length(self.config.context)
        if longest == 0:
            raise ValueError("the source is empty: it has no tokens")
        check_length(longest, self.config.context)
        memory, summary = self.encoder(self.dropout(self.tokens(source)), layout)  # memory (B, S, M)
        states = torch.tanh(self.begin(summary)).unflatten(-1, (self.config.layers, self.parts, -1))
        layers = tuple(tuple(layer.unbind(1)) for layer in states.unbind(1))
        real = torch.ones_like(source, dtype=torch.bool) if layout.real is None else layout.real
        attended = None if self.config.attention is None else self.decoder.attention.prepare(memory, real, layout.at)
        return DecoderState(layers, torch.zeros((), dtype=torch.long, device=source.device), Shared(attended))

    def features(self, target: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """The decoder's output (B, T, E) for the next T target tokens, and the state after them."""
        if target.shape[1] == 0:
            raise ValueError("the target is empty: it has no tokens")
        y, after = self.decoder(self.dropout(self.tokens(target)), state)  # (B, T, E)
        return self.dropout(y), replace(after, step=state.step + target.shape[1])

    def read(self, source: Tensor, target: Tensor, layout: Layout | None = None) -> Tensor:
        """The decoder's output (B, T, E) for whole targets, as in training with teacher forcing."""
        return self.features(target, self.start(source, layout))[0]

    def read_sampled(self, source: Tensor, target: Tensor, layout: Layout | None = None) -> tuple[Tensor, Tensor]:
        """The same with hard attention, and log p (B, T) of the sampled source positions."""
        x, state = self.features(target, self.start(source, layout))  # (B, T, E)
        assert state.chosen is not None, "only hard attention samples"
        return x, state.chosen

    def forward(self, target: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        x, state = self.features(target, state)  # (B, T, E)
        return self.tokens.logits(x), replace(state, chosen=None)  # (B, T, V)
