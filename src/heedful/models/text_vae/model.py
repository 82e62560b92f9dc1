"""An autoencoder of sentences (Bowman et al., 2016): an encoder, a connector, and a decoder without attention.

With a stochastic connector it is variational: the code z of a sentence is sampled, and the decoder is a language model
that knows the sentence from z alone.

B batch, S source positions, T target positions, E width of an embedding, H of a state, K units of a code, V vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from heedful.blocks.connectors import Constant, Forward, Mlp, Posterior, Stochastic
from heedful.blocks.embedding import TiedEmbedding
from heedful.blocks.layouts import Layout, Unpadded
from heedful.blocks.linear import Linear
from heedful.blocks.recurrent import CELLS, BidirectionalLayer, Layer, Stack, State
from heedful.models.limits import check_length
from heedful.models.text_vae.config import (
    ConnectorConfig,
    ConstantConnector,
    ForwardConnector,
    MlpConnector,
    TextVaeConfig,
)


@dataclass(frozen=True)
class DecoderState:
    """The state of each of the decoder's layers."""

    layers: tuple[State, ...]


def connector(c: ConnectorConfig, size: int) -> Constant | Forward | Mlp | Stochastic:
    """The connector between two states of this size."""
    if isinstance(c, ConstantConnector):
        return Constant(size, size)
    if isinstance(c, ForwardConnector):
        return Forward(size, size)
    if isinstance(c, MlpConnector):
        return Mlp(size, size, c.units)
    return Stochastic(size, size, c.units)


class TextVae(nn.Module):
    """source (B, S) -> a code (B, K); code -> state; target (B, T), state -> logits (B, T, V)."""

    def __init__(self, config: TextVaeConfig) -> None:
        super().__init__()
        self.config = c = config
        assert c.vocab is not None, "the vocabulary size comes from the tokenizer"
        self.tokens = TiedEmbedding(c.vocab, c.width)
        self.dropout = nn.Dropout(c.dropout)
        widths = [c.width] + [c.hidden] * (c.layers - 1)
        self.encoder = Stack([BidirectionalLayer(c.cell, width, c.hidden // 2) for width in widths], c.dropout)
        self.connector = connector(c.connector, c.state)
        self.decoder = Stack([Layer(c.cell, width, c.hidden) for width in widths], c.dropout)
        self.out = Linear(c.hidden, c.width)
        self.parts = CELLS[c.cell].parts  # of a layer's state: hidden, and an LSTM's cell

    def encode(self, source: Tensor, layout: Layout | None = None) -> Posterior:
        """The code of each sentence (B, K), as a distribution."""
        layout = layout or Unpadded(source)
        longest = layout.max_length(self.config.context)
        if longest == 0:
            raise ValueError("the sentence is empty: it has no tokens")
        check_length(longest, self.config.context)
        _, states = self.encoder(self.dropout(self.tokens(source)), None, layout.real, layout.gaps)
        both = [torch.cat(part, -1) for state in states for part in zip(*self._directions(state), strict=True)]
        return self.connector.encode(torch.cat(both, -1))

    def start(self, code: Tensor) -> DecoderState:
        """The decoder's state before the first token of sentences with these codes (B, K)."""
        states = self.connector.decode(code).unflatten(-1, (self.config.layers, self.parts, -1))
        return DecoderState(tuple(tuple(layer.unbind(1)) for layer in states.unbind(1)))

    def features(self, target: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """The decoder's output (B, T, E) for the next T tokens, and the state after them."""
        if target.shape[1] == 0:
            raise ValueError("the target is empty: it has no tokens")
        h, layers = self.decoder(self.dropout(self.tokens(target)), state.layers)  # (B, T, H)
        return self.dropout(self.out(h)), DecoderState(layers)  # (B, T, E)

    def forward(self, target: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        x, state = self.features(target, state)  # (B, T, E)
        return self.tokens.logits(x), state  # (B, T, V)

    def _directions(self, state: State) -> tuple[State, State]:
        """The states of both directions of a layer, each of its parts (B, H / 2)."""
        return state[: self.parts], state[self.parts :]
