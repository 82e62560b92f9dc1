"""The hierarchical recurrent encoder-decoder (Sordoni et al., 2015; Serban et al., 2016).

An encoder reads each utterance, and a recurrent network reads their vectors, one a turn: its state c_n is what was said
up to turn n. The decoder begins the reply to turn n with tanh(W c_n), or also attends to c_1 ... c_n.

    v_n = encode(x_n) + s(speaker of n)        c_n = RNN(v_n, c_{n-1})
    h_0 = tanh(W (c_n + r(speaker of n + 1)))  h_t = RNN(y_{t-1}, h_{t-1})

B dialogues, U utterances, T tokens, N = B * U, R replies, E width of an embedding, M of an utterance, C of a turn,
V vocabulary.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from heedful.blocks.embedding import TiedEmbedding
from heedful.blocks.layouts import Padded
from heedful.blocks.linear import Linear
from heedful.blocks.recurrent import CELLS, Layer, Stack
from heedful.blocks.state import Shared
from heedful.blocks.taps import Tap
from heedful.models.hred.config import HredConfig
from heedful.models.limits import check_length
from heedful.models.seq2seq.config import RecurrentEncoder, TransformerEncoder
from heedful.models.seq2seq.model import (
    DecoderState,
    InputFeeding,
    NoAttention,
    OutputJoining,
    RecurrentReader,
    TransformerReader,
)

GROUPS, GROUP = 4, 32  # groups of utterances that are read together, at most; the utterances of one, at least


class Hred(nn.Module):
    """utterances (B, U, T) -> the state before the reply to each (N); tokens (R, T), state -> logits (R, T, V)."""

    alignment = "decoder.attention.weights"  # tap of the attention weights over the turns

    def __init__(self, config: HredConfig) -> None:
        super().__init__()
        self.config = c = config
        assert c.vocab is not None, "the vocabulary size comes from the tokenizer"
        encoder, hidden = c.reader.encoder, c.writer.encoder.memory(c.width)
        self.tokens = TiedEmbedding(c.vocab, c.width)
        self.dropout = nn.Dropout(c.dropout)
        if isinstance(encoder, TransformerEncoder):
            self.encoder: nn.Module = TransformerReader(c.reader, encoder)
        else:
            assert isinstance(encoder, RecurrentEncoder), "the settings have no other kind"
            self.encoder = RecurrentReader(c.reader, encoder)
        self.speakers, self.next = nn.Embedding(c.speakers, c.utterance), nn.Embedding(c.speakers, hidden)
        for table in (self.speakers, self.next):
            nn.init.normal_(table.weight, std=0.1)  # small beside what is said
        widths = [c.utterance] + [hidden] * (c.turns.layers - 1)
        self.turns = Stack([Layer(c.turns.cell or c.cell, width, hidden) for width in widths])
        self.context = Tap()
        self.parts = CELLS[c.cell].parts  # of a state: hidden, and an LSTM's cell
        self.begin = Linear(hidden, c.layers * self.parts * c.hidden)
        if c.attention is None:
            self.decoder: Any = NoAttention(c.writer)
        else:
            self.decoder = (InputFeeding if c.attention.feed == "input" else OutputJoining)(c.writer, c.attention)

    def start(self, utterances: Tensor, real: Tensor, speakers: Tensor) -> DecoderState:
        """The states (N) before the reply to each utterance (B, U, T); `speakers` (B, U + 1) with the one who replies.

        `real` (B, U, T) is False for padding, also of a whole utterance; the state after such a one is that before it.
        """
        check_length(int(real.sum(2).max()), self.config.context)
        spoken = real.any(2)  # (B, U)
        speakers = speakers.clamp(max=self.config.speakers - 1)
        vectors = self.encode(utterances[spoken], real[spoken])
        said = vectors.new_zeros(*spoken.shape, vectors.shape[1]).masked_scatter(
            spoken[..., None], vectors
        )  # (B, U, M)
        turns, _ = self.turns(said + self.speakers(speakers[:, :-1]), None, spoken)  # (B, U, C)
        turns = self.context(turns)  # (B, U, C)
        states = torch.tanh(self.begin(self.dropout(turns + self.next(speakers[:, 1:])).flatten(0, 1)))
        states = states.unflatten(-1, (self.config.layers, self.parts, -1))  # (N, layers, parts, H)
        layers = tuple(tuple(layer.unbind(1)) for layer in states.unbind(1))
        step = torch.zeros((), dtype=torch.long, device=utterances.device)
        return DecoderState(layers, step, Shared(self.attended(turns, spoken)))

    def encode(self, utterances: Tensor, real: Tensor) -> Tensor:
        """The vectors (N, M) of utterances (N, T), which are read in groups of similar lengths: less is padding."""
        order, vectors = real.sum(1).argsort(descending=True, stable=True), list[Tensor]()
        for rows in order.split(max(GROUP, -(-len(order) // GROUPS))):
            columns = real[rows].any(0)  # (T,)
            x = self.dropout(self.tokens(utterances[rows][:, columns]))
            vectors.append(self.encoder(x, Padded(real[rows][:, columns]))[1])
        return torch.cat(vectors)[order.argsort()]  # (N, M)

    def attended(self, turns: Tensor, spoken: Tensor) -> Any:
        """What the reply to each turn attends to: the turns up to it; None without attention."""
        if self.config.attention is None:
            return None
        count = turns.shape[1]
        before = torch.ones(count, count, dtype=torch.bool, device=turns.device).tril()  # (U, U)
        heard = (before & spoken[:, None]).flatten(0, 1)  # (N, U)
        each = turns.repeat_interleave(count, 0)  # (N, U, C)
        return self.decoder.attention.prepare(each, heard, Padded(heard).at)

    def features(self, target: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """The decoder's output (R, T, E) for the next T tokens of each reply, and the state after them."""
        if target.shape[1] == 0:
            raise ValueError("the reply is empty: it has no tokens")
        y, after = self.decoder(self.dropout(self.tokens(target)), state)  # (R, T, E)
        return self.dropout(y), replace(after, step=state.step + target.shape[1])

    def forward(self, target: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        x, state = self.features(target, state)  # (R, T, E)
        return self.tokens.logits(x), state  # (R, T, V)
