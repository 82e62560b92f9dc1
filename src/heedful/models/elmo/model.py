"""ELMo, embeddings from language models (Peters et al., 2018).

A forward and a backward language model; a weighted sum of all their layers is the contextual vector of each token. The
two share only the token embedding, which also computes the logits.

Differs: tokens have an embedding table instead of a character CNN; a layer's outputs are projected, but not its
recurrent state.

B batch, T tokens, D width, L layers, V vocabulary.
"""

from typing import Self

import torch
from torch import Tensor, nn

from heedful.blocks.embedding import TiedEmbedding
from heedful.blocks.linear import Linear
from heedful.blocks.mix import Mix
from heedful.blocks.recurrent import Layer
from heedful.blocks.taps import Tap
from heedful.models.elmo.config import ElmoConfig


class Reader(nn.Module):
    """One direction: x_1 = P LSTM(x_0), then x_l = x_{l-1} + P LSTM(x_{l-1})."""

    def __init__(self, c: ElmoConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer("lstm", c.width, c.hidden) for _ in range(c.layers))
        self.down = nn.ModuleList(Linear(c.hidden, c.width, bias=False) for _ in range(c.layers))
        self.outputs = nn.ModuleList(Tap() for _ in range(c.layers))
        self.dropout = nn.Dropout(c.dropout)

    def forward(self, x: Tensor, real: Tensor | None) -> list[Tensor]:
        outputs = []
        for number, (layer, down, output) in enumerate(zip(self.layers, self.down, self.outputs, strict=True)):
            y, _ = layer(self.dropout(x), None, real)
            x = output(down(y) + x if number else down(y))  # (B, T, D)
            outputs.append(x)
        return outputs


class Elmo(nn.Module):
    """tokens (B, T) -> logits (B, T, V) of the token after each, and of the token before each."""

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__()
        self.config = c = config
        assert c.vocab is not None, "the vocabulary size comes from the tokenizer"
        self.tokens = TiedEmbedding(c.vocab, c.width)
        self.ahead, self.back = Reader(c), Reader(c)
        self.dropout = nn.Dropout(c.dropout)

    def embed(self, tokens: Tensor, real: Tensor | None = None) -> Tensor:
        """The context-independent embedding of each token; zeros for padding."""
        x = self.tokens(tokens)  # (B, T, D)
        return x if real is None else x.masked_fill(~real[:, :, None], 0.0)  # (B, T, D)

    def both(self, x: Tensor, real: Tensor | None) -> tuple[list[Tensor], list[Tensor]]:
        """The layers of each direction, (B, T, D) each."""
        mirrored = self.back(x.flip(1), None if real is None else real.flip(1))
        return self.ahead(x, real), [y.flip(1) for y in mirrored]

    def read(self, tokens: Tensor, real: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The last layer of each direction: it predicts the next token, or the previous one."""
        ahead, back = self.both(self.embed(tokens, real), real)
        return self.dropout(ahead[-1]), self.dropout(back[-1])  # (B, T, D)

    def layers(self, tokens: Tensor, real: Tensor | None = None) -> Tensor:
        """The embedding (twice) and every layer, both directions concatenated."""
        x = self.embed(tokens, real)  # (B, T, D)
        ahead, back = self.both(x, real)
        joined = [torch.cat(pair, -1) for pair in zip([x, *ahead], [x, *back], strict=True)]
        return torch.stack(joined, 1)  # (B, L + 1, T, 2 * D)

    def forward(self, tokens: Tensor, real: Tensor | None = None) -> tuple[Tensor, Tensor]:
        ahead, back = self.read(tokens, real)  # (B, T, D)
        return self.tokens.logits(ahead), self.tokens.logits(back)  # (B, T, V)


class Embedder(nn.Module):
    """tokens (B, T) -> vectors (B, T, 2 D) for another model: a learned mix of the layers of a frozen ELMo."""

    def __init__(self, elmo: Elmo) -> None:
        super().__init__()
        self.elmo = elmo.eval().requires_grad_(False)
        self.mix = Mix(elmo.config.layers + 1)

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self.elmo.eval()  # frozen: no dropout either
        return self

    def forward(self, tokens: Tensor, real: Tensor | None = None) -> Tensor:
        with torch.no_grad():
            layers = self.elmo.layers(tokens, real)  # (B, L + 1, T, 2 * D)
        return self.mix(layers)
