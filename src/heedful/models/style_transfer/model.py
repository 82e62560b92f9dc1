"""Text style transfer with a discriminator ("Toward controlled generation of text", Hu et al., 2017).

An encoder reads a text and leaves its content, a vector for each word. The decoder generates the text again in a style,
which is one more input at each step. The discriminator reads a text and says which style it has, or that it was
generated. It also reads soft texts, a distribution at each place instead of a word, through which gradients pass.

Differs: the content is a memory that the decoder attends to (Luong et al., 2015), not a single vector.

B texts, S words of a text that is read, T of one that is written, D width, H hidden width, V vocabulary, K styles,
F filters.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from heedful.blocks.layouts import Layout, Unpadded
from heedful.blocks.linear import Linear
from heedful.blocks.memory import GlobalSpan, MemoryAttention
from heedful.blocks.normalizers import NORMALIZERS
from heedful.blocks.recurrent import CELLS, BidirectionalLayer, Layer, State
from heedful.blocks.scores import SCORES, with_key_projection
from heedful.blocks.state import Shared
from heedful.blocks.taps import Tap
from heedful.blocks.text_filters import Filters
from heedful.models.limits import check_length
from heedful.models.style_transfer.config import DiscriminatorConfig, StyleTransferConfig


@dataclass(frozen=True)
class StyleState:
    """The state of the decoder, the vector of the style that it writes, and the content."""

    layer: State
    style: Tensor  # (B, D)
    content: Shared[Any]  # a `Source`
    step: Tensor  # ()


@dataclass(frozen=True)
class SoftText:
    """Generated texts: a distribution over the vocabulary at each place, up to the end of the text."""

    words: Tensor  # (B, T, V)
    real: Tensor  # (B, T)


class WordVectors(nn.Module):
    """x = E[words], or p E for distributions p over words; logits = x E^T."""

    def __init__(self, vocab: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(vocab, width) * width**-0.5)

    def forward(self, words: Tensor) -> Tensor:
        if words.is_floating_point():
            return words @ self.weight  # (B, T, D)
        return nn.functional.embedding(words, self.weight)  # (B, T, D)

    def logits(self, x: Tensor) -> Tensor:
        return x @ self.weight.mT  # (B, T, V)


class Discriminator(nn.Module):
    """texts (B, T), or soft texts (B, T, V) -> logits (B, K + 1) of the styles, and of having been generated."""

    def __init__(self, vocab: int, styles: int, d: DiscriminatorConfig) -> None:
        super().__init__()
        self.words = WordVectors(vocab, d.width)
        self.filters = nn.ModuleList(Filters(d.width, d.filters, size) for size in d.sizes)
        self.dropout = nn.Dropout(d.dropout)
        self.head = Linear(len(d.sizes) * d.filters, styles + 1)

    def forward(self, words: Tensor, real: Tensor) -> Tensor:
        x = (self.words(words) * real[:, :, None]).mT  # (B, D, T)
        found = torch.cat([filters(x, real) for filters in self.filters], 1)  # (B, F)
        return self.head(self.dropout(found))  # (B, K + 1)


class StyleTransfer(nn.Module):
    """texts (B, S), styles (B,) -> state; then words (B, T), state -> logits (B, T, V), state.

    All weights but those of the discriminator are the generator's.
    """

    alignment = "attention.weights"  # tap of the attention weights over the text that is read

    def __init__(self, config: StyleTransferConfig) -> None:
        super().__init__()
        self.config = c = config
        assert c.vocab is not None and c.labels is not None, "both come from the training data"
        self.words = WordVectors(c.vocab, c.width)
        self.styles = nn.Embedding(len(c.labels), c.width)
        self.encoder = BidirectionalLayer(c.cell, c.width, c.hidden // 2)
        self.parts = CELLS[c.cell].parts  # of a state: hidden, and an LSTM's cell
        self.begin = Linear(c.hidden + c.width, self.parts * c.hidden)
        self.decoder = Layer(c.cell, 2 * c.width, c.hidden)
        score = with_key_projection(SCORES[c.score](c.hidden, c.hidden, c.context))
        self.attention = MemoryAttention(score, GlobalSpan(), NORMALIZERS[c.normalize])
        self.out = Linear(2 * c.hidden, c.width)
        self.dropout = nn.Dropout(c.dropout)
        self.content = Tap()
        self.discriminator = Discriminator(c.vocab, len(c.labels), c.discriminator)

    def start(self, texts: Tensor, styles: Tensor, layout: Layout | None = None) -> StyleState:
        """Read texts (B, S), or soft ones (B, S, V): the state before the first word in a style."""
        layout = layout or Unpadded(texts[..., 0] if texts.dim() == 3 else texts)
        longest = layout.max_length(self.config.context)
        if longest == 0:
            raise ValueError("the text is empty: it has no tokens")
        check_length(longest, self.config.context)
        real = layout.real
        y, after = self.encoder(self.dropout(self.words(texts)), None, real, layout.gaps)  # y (B, S, H)
        summary = torch.cat([after[0], after[self.parts]], -1)  # (B, H)
        style = self.styles(styles)  # (B, D)
        states = torch.tanh(self.begin(torch.cat([summary, style], -1))).unflatten(-1, (self.parts, -1))
        everywhere = torch.ones(texts.shape[:2], dtype=torch.bool, device=texts.device)
        content = self.attention.prepare(self.content(y), everywhere if real is None else real, layout.at)
        step = torch.zeros((), dtype=torch.long, device=texts.device)
        return StyleState(tuple(states.unbind(1)), style, Shared(content), step)

    def features(self, words: Tensor, state: StyleState) -> tuple[Tensor, StyleState]:
        """The output (B, T, D) for the next T words, (B, T) or soft ones (B, T, V), and the state after them."""
        if words.shape[1] == 0:
            raise ValueError("the text is empty: it has no tokens")
        x = self.dropout(self.words(words))  # (B, T, D)
        x = torch.cat([x, state.style[:, None].expand_as(x)], -1)  # (B, T, 2 * D)
        h, layer = self.decoder(x, state.layer)  # (B, T, H)
        at = state.step + torch.arange(x.shape[1], device=x.device)  # (T,)
        context, _ = self.attention(h, state.content.value, at)  # context (B, T, H)
        y = self.out(torch.cat([h, context], -1))  # (B, T, D)
        return self.dropout(y), replace(state, layer=layer, step=state.step + x.shape[1])

    def forward(self, words: Tensor, state: StyleState) -> tuple[Tensor, StyleState]:
        y, state = self.features(words, state)  # (B, T, D)
        return self.words.logits(y), state  # (B, T, V)

    def write(
        self, state: StyleState, begin: Tensor, end: int, never: Tensor, limits: Tensor, temperature: float
    ) -> SoftText:
        """Soft words, each softmax(logits / temperature), fed back as they are; the last is the end.

        `begin` (B, 1) is the token before the first word, and `limits` (B,) are the most words of each text. Words
        where `never` (V,) is true have no probability.
        """
        texts, reals = [], []
        words, real = begin, torch.ones_like(begin, dtype=torch.bool)  # (B, 1)
        for number in range(int(limits.max())):
            logits, state = self(words, state)
            words = (logits.masked_fill(never, -torch.inf) / temperature).softmax(-1)  # (B, 1, V)
            real = real & (limits[:, None] > number)  # (B, 1)
            texts.append(words)
            reals.append(real)
            real = real & (words.argmax(-1) != end)  # (B, 1)
            if not words.is_cuda and not real.any():
                break
        return SoftText(torch.cat(texts, 1), torch.cat(reals, 1))
