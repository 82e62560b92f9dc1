"""The predictor of sentence autoencoders: codes of sentences, and sentences of codes.

N sentences, K units of a code, R rows, T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from heedful.blocks.connectors import Posterior
from heedful.blocks.layouts import Padded
from heedful.blocks.noise import gaussian
from heedful.data.formats.sources import Pair, lines
from heedful.data.pairs.batches import encode_pairs
from heedful.data.text.sentences import SentenceText
from heedful.data.tokenizers.tokenizer import TrainedTokenizer
from heedful.decode.rules import SuppressTokens
from heedful.decode.search import Paths, beam, drain, greedy
from heedful.decode.settings import SentenceConfig
from heedful.errors import UserError, shown
from heedful.models.own import settings_of
from heedful.tasks.predictor import Evaluation, Predictor, Result, batch_of
from heedful.tasks.text_autoencoding.losses import estimate

BATCH_SIZE = 256  # sentences of a batch
BATCH_TOKENS = 16_384
SAMPLES = 20  # codes of each sentence from which the perplexity is estimated
LONGEST_LINE = 1_000_000  # characters


@dataclass(frozen=True, repr=False)
class DecodedSentence(Result):
    """A sentence generated from a code: its text, log p(sentence | code), its token ids, and the code."""

    text: str
    log_probability: float
    ids: list[int] = field(repr=False)
    complete: bool = field(repr=False)  # whether the model ended it, not the length limit
    code: list[float] = field(repr=False)


@dataclass
class SentenceAutoencoder(Predictor[str, DecodedSentence, str]):
    """Encodes sentences as codes, and generates sentences from codes."""

    task: ClassVar = "text_autoencoding"

    model: nn.Module
    tokenizer: TrainedTokenizer
    context: int
    device: torch.device
    settings: SentenceConfig = field(default_factory=SentenceConfig)
    notes: tuple[str, ...] = ()

    @property
    def decode_settings(self) -> SentenceConfig:
        """The settings of the search."""
        return self.settings

    @property
    def units(self) -> int:
        """The number of units of a code."""
        config: Any = settings_of(self.model)
        return int(config.units)

    def predict(self, inputs: Sequence[str]) -> list[DecodedSentence]:
        """The reconstruction of each sentence, from the mean of its code."""
        return self.decode(self.encode(inputs))

    def encode(self, texts: Sequence[str]) -> Tensor:
        """The mean of the code of each sentence (N, K)."""
        return self.posterior(texts).mean

    @torch.inference_mode()
    def posterior(self, texts: Sequence[str]) -> Posterior:
        """The code of each sentence as a distribution: mean and log variance (N, K)."""
        ids = self._ids(batch_of(texts))
        found: list[Posterior] = []
        for start in range(0, len(ids), BATCH_SIZE):
            part = ids[start : start + BATCH_SIZE]
            source = torch.full((len(part), max(map(len, part))), TrainedTokenizer.pad)
            for row, one in enumerate(part):
                source[row, : len(one)] = torch.tensor(one)
            real = torch.arange(source.shape[1]) < torch.tensor([len(one) for one in part])[:, None]
            found.append(self._net.encode(source.to(self.device), Padded(real.to(self.device), gaps=False)))
        if not found:
            nothing = torch.zeros(0, self.units)
            return Posterior(nothing, nothing if settings_of(self.model).connector.random else None)
        means = torch.cat([one.mean.float().cpu() for one in found])
        logs = [one.log_variance.float().cpu() for one in found if one.log_variance is not None]
        return Posterior(means, torch.cat(logs) if logs else None)

    @torch.inference_mode()
    def decode(self, codes: Tensor, beams: int | None = None) -> list[DecodedSentence]:
        """The most probable sentence of each code (N, K): by greedy search, or with beams."""
        if codes.dim() != 2 or codes.shape[1] != self.units:
            raise UserError(
                "these are not codes of this model", found=" x ".join(map(str, codes.shape)),
                expected=f"a row of {self.units} numbers for each sentence",
            )  # fmt: skip
        width, found = self.settings.beams if beams is None else beams, list[DecodedSentence]()
        limit = min(self.settings.max_length or self.context, self.context - 1)
        rules = (SuppressTokens((TrainedTokenizer.pad, TrainedTokenizer.unk, TrainedTokenizer.bos)),)
        for part in codes.split(BATCH_SIZE) if len(codes) else ():
            state = self._net.start(part.to(self.device))
            prefix = torch.full((len(part), 1), TrainedTokenizer.bos, device=self.device)  # (B, 1)
            limits = torch.full((len(part),), limit)
            if width == 1:
                paths = drain(greedy(self._net, state, prefix, limits, TrainedTokenizer.eos, rules))
            else:
                penalty = self.settings.length_penalty
                paths = drain(
                    beam(self._net, state, prefix, limits, TrainedTokenizer.eos, width, 1, penalty, rules=rules)
                )
            found += self._sentences(paths, part)
        return found

    def sample(self, count: int, seed: int = 0, beams: int | None = None) -> list[DecodedSentence]:
        """Sentences of codes from the prior N(0, 1); number n is the same for every count."""
        if not settings_of(self.model).connector.random and self.units:
            raise UserError(
                "this model has no prior to sample codes from", found=f"connector {self._connector}",
                expected="connector stochastic", todo="train with model.connector.kind=stochastic",
            )  # fmt: skip
        indices = torch.arange(count)
        return self.decode(gaussian(seed, torch.tensor(0), indices, (self.units,)).reshape(count, -1), beams)

    def interpolate(self, first: str, last: str, steps: int = 7, beams: int | None = None) -> list[DecodedSentence]:
        """The sentences of evenly spaced codes on the line from one sentence's to another's, both included."""
        if steps < 2:
            raise UserError("an interpolation has two ends", where="steps", found=str(steps), expected="at least 2")
        if not self.units:
            raise UserError("this model has no codes to interpolate", found=f"connector {self._connector}")
        ends = self.encode([first, last])  # (2, K)
        shares = torch.linspace(0, 1, steps)[:, None]
        return self.decode((1 - shares) * ends[0] + shares * ends[1], beams)

    @property
    def _connector(self) -> str:
        return str(settings_of(self.model).connector.kind)

    def _ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of each sentence, with the end token; sentences without tokens are refused."""
        found = [[*ids, TrainedTokenizer.eos] for ids in self.tokenizer.ids(texts)]
        for text, ids in zip(texts, found, strict=True):
            if len(ids) == 1:
                raise UserError("a sentence is empty", found=shown(text), expected="at least one word")
            if len(ids) + 1 > self.context:
                raise UserError(
                    "a sentence is too long for this model", found=f"{len(ids) + 1:,} tokens: {shown(text)}",
                    expected=f"at most {self.context:,}",
                )  # fmt: skip
        return found

    def _sentences(self, paths: Paths, codes: Tensor) -> list[DecodedSentence]:
        parts = (paths.tokens[:, 0], paths.lengths[:, 0], paths.logs[:, 0], codes)
        return [
            DecodedSentence(
                self.tokenizer.decode(ids[:length]), log, ids[:length], ids[length - 1] == TrainedTokenizer.eos, code
            )
            for ids, length, log, code in zip(*(part.tolist() for part in parts), strict=True)
        ]

    def _evaluate(self, data: Path | Sequence[str]) -> Evaluation:
        read = SentenceText.of(lines(data, LONGEST_LINE) if isinstance(data, Path) else data)
        pairs = [Pair(text, text) for text in read.sentences]
        encoded = encode_pairs(pairs, self.tokenizer, self.context)
        found = estimate(self._net, encoded, self.device, BATCH_TOKENS, SAMPLES)
        return Evaluation.of(found.scores(), found.loss, found.sentences)
