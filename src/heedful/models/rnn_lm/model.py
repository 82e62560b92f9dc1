"""The recurrent language model (Mikolov et al., 2010), with dropout as in Zaremba et al. (2014).

Each token of a text is predicted from the hidden states after all tokens before it.

B batch, T tokens, D width, H hidden width, V vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from heedful.blocks.embedding import TiedEmbedding
from heedful.blocks.linear import Linear
from heedful.blocks.recurrent import Layer, Stack, State
from heedful.models.rnn_lm.config import RnnLMConfig


@dataclass(frozen=True)
class RecurrentState:
    """The state of each layer."""

    layers: tuple[State, ...]


class RnnLM(nn.Module):
    """tokens (B, T) -> logits (B, T, V) of the token after each."""

    lens_taps = "stack.outputs.*"  # taps whose values `lens` takes

    def __init__(self, config: RnnLMConfig) -> None:
        super().__init__()
        self.config = c = config
        assert c.vocab is not None, "the vocabulary size comes from the tokenizer"
        self.tokens = TiedEmbedding(c.vocab, c.width)
        widths = [c.width] + [c.hidden] * (c.layers - 1)
        self.stack = Stack([Layer(c.cell, width, c.hidden) for width in widths], c.dropout)
        self.out = nn.Identity() if c.hidden == c.width else Linear(c.hidden, c.width)
        self.dropout = nn.Dropout(c.dropout)

    def start(self, rows: int, device: torch.device) -> RecurrentState:
        """The state before the first token of `rows` texts."""
        zero = torch.zeros(rows, self.config.hidden, device=device, dtype=self.tokens.weight.dtype)  # (B, H)
        return RecurrentState(((zero,) * (2 if self.config.cell == "lstm" else 1),) * self.config.layers)

    def features(
        self, tokens: Tensor, state: RecurrentState | None = None, real: Tensor | None = None
    ) -> tuple[Tensor, RecurrentState]:
        """The last layer (B, T, D) for the next T tokens, and the state after them; padding is not `real`."""
        x = self.dropout(self.tokens(tokens))  # (B, T, D)
        h, layers = self.stack(x, state and state.layers, real)  # (B, T, H)
        return self.out(self.dropout(h)), RecurrentState(layers)  # (B, T, D)

    def read(self, tokens: Tensor, real: Tensor | None = None) -> Tensor:
        """The last layer (B, T, D) for whole texts."""
        return self.features(tokens, None, real)[0]

    def forward(
        self, tokens: Tensor, state: RecurrentState, real: Tensor | None = None
    ) -> tuple[Tensor, RecurrentState]:
        x, state = self.features(tokens, state, real)  # (B, T, D)
        return self.tokens.logits(x), state  # (B, T, V)

    def lens(self, h: Tensor) -> Tensor:
        """Logit lens: the logits (B, T, V) if a layer's output (B, T, H) were that of the last layer."""
        return self.tokens.logits(self.out(h))  # (B, T, V)
