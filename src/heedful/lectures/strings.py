"""Random strings that a sequence-to-sequence net learns to copy or to reverse.

B batch, S letters read, T letters written.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.decode.search import drain, greedy
from heedful.lectures.learning import seeded
from heedful.models.seq2seq.config import AttentionConfig, RecurrentEncoder, Seq2SeqConfig
from heedful.models.seq2seq.model import Seq2Seq

LETTERS = "abcdefghij"
BEGIN, END = len(LETTERS), len(LETTERS) + 1
BATCH = 32  # strings of a step
ATTENTION = AttentionConfig(score="general", feed="output")  # all steps attend at once, which trains fastest


@dataclass(frozen=True)
class Writer:
    """A network that copies or reverses strings, and the generator of the strings."""

    net: Seq2Seq
    backwards: bool
    longest: int
    generator: torch.Generator

    def strings(self, count: int, length: int) -> tuple[Tensor, Tensor]:
        """Random sources (B, S), and their targets (B, S + 2)."""
        source = torch.randint(len(LETTERS), (count, length), generator=self.generator)
        return source, self.target(source)

    def target(self, source: Tensor) -> Tensor:
        """The target string between its begin and end tokens."""
        begin, end = torch.full_like(source[:, :1], BEGIN), torch.full_like(source[:, :1], END)
        return torch.cat([begin, source.flip(1) if self.backwards else source, end], 1)

    def loss(self) -> Tensor:
        """The loss on random strings of one random length."""
        length = int(torch.randint(1, self.longest + 1, (), generator=self.generator))
        source, target = self.strings(BATCH, length)
        logits = self.net.tokens.logits(self.net.read(source, target[:, :-1]))
        return F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten())

    @torch.no_grad()
    def exact(self, count: int, length: int) -> float:
        """The share of new strings of a length that are written exactly, the end token included."""
        source, target = self.strings(count, length)
        limit = torch.full((count,), length + 1)
        paths = drain(greedy(self.net, self.net.start(source), target[:, :1], limit, END))
        written = paths.tokens[:, 0, : length + 1]
        return float((written == target[:, 1:]).all(1).float().mean()) if written.shape[1] == length + 1 else 0.0


def writer(attention: AttentionConfig | None, width: int, backwards: bool, longest: int, seed: int) -> Writer:
    """An untrained network: one bidirectional encoder layer, and one decoder layer."""
    config = Seq2SeqConfig(
        vocab=len(LETTERS) + 2, width=width, hidden=width, layers=1, dropout=0.0,
        encoder=RecurrentEncoder(layers=1, hidden=width), attention=attention,
    )  # fmt: skip
    net = seeded(lambda: Seq2Seq(config), seed)
    return Writer(net.eval(), backwards, longest, torch.Generator().manual_seed(seed))
