"""Translation: a target sentence from a source sentence.

B batch, S source positions, T target positions, D width, V vocabulary, L longest path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from heedful.blocks.layouts import Layout, PackedPairs, Padded
from heedful.blocks.losses import Loss, projected_cross_entropy
from heedful.blocks.taps import taps, watch, watched
from heedful.data.formats.sources import Jsonl, Pair, Tsv
from heedful.data.pairs.batches import Batch, EncodedPairs, PackedBatch, PairBatch, encode_pairs
from heedful.data.tokenizers.base import require_list
from heedful.data.tokenizers.tokenizer import TrainedTokenizer
from heedful.decode.graphs import Graphs
from heedful.decode.rules import Banned, ForcedPrefix, Rule, sampling_rules
from heedful.decode.search import Paths, Search, beam, drain, greedy, sample
from heedful.decode.settings import DecodeConfig, TranslationSettings
from heedful.errors import UserError
from heedful.models.own import Plain
from heedful.models.roles import Seq2Seq
from heedful.plots.figures import heatmap
from heedful.plots.style import Figure, Style
from heedful.tasks.predictor import Evaluation, Predictor, Result
from heedful.training.metrics import translation_scores

BATCH_TOKENS = 16384  # source tokens, hypotheses counted, that are decoded together
MULTIPLE = 16  # sources are pad_sequences to it, so that few shapes occur


class Exploring(Protocol):
    """What a translation model offers that chooses where to look; see `models/seq2seq/model.py`."""

    tokens: Any
    looks_ahead: bool  # whether a choice has part in later tokens too

    def read_sampled(
        self, source: Tensor, target: Tensor, layout: Layout | None = None, /
    ) -> tuple[Tensor, Tensor]: ...


def translation_loss(model: Seq2Seq, batch: Batch, label_smoothing: float = 0.0) -> Loss:
    """Cross-entropy of every target token given the source and the target tokens before it."""
    if isinstance(batch, PackedBatch):
        source, target = batch.source.shape[1], batch.target.shape[1]
        layout: Layout = PackedPairs.of(batch.source_lengths, batch.target_lengths, source, target, batch.longest)
        given, wanted = batch.target, batch.labels
    else:
        layout = Padded(batch.source_real, gaps=False)
        given, wanted = batch.target[:, :-1], batch.target[:, 1:]
    x = model.read(batch.source, given, layout)  # (B, T, D)
    return projected_cross_entropy(
        x.flatten(0, 1), model.tokens.weight, wanted.flatten(), label_smoothing, ignore=TrainedTokenizer.pad
    )


def reinforced_translation_loss(model: Exploring, batch: PairBatch, label_smoothing: float = 0.0) -> Loss:
    """The same for hard attention, whose positions are sampled (Xu et al., 2015).

    The choices s learn by REINFORCE to raise L = sum_s p(s) log p(target | s), a lower bound of log p(target): each is
    made likelier by as much as the tokens that it has part in turn out better than their baseline, the mean of the
    other sentences at that place, which does not depend on the choice, so that the gradient is right on average.
    """
    given, wanted = batch.target[:, :-1], batch.target[:, 1:]
    x, chosen = model.read_sampled(batch.source, given, Padded(batch.source_real, gaps=False))  # (B, T, D), (B, T)
    loss = projected_cross_entropy(
        x.flatten(0, 1), model.tokens.weight, wanted.flatten(), label_smoothing, ignore=TrainedTokenizer.pad
    )
    real = wanted != TrainedTokenizer.pad  # (B, T)
    with torch.no_grad():
        wide = torch.promote_types(x.dtype, torch.float32)
        logs = model.tokens.logits(x).log_softmax(-1, wide).gather(-1, wanted[:, :, None]).squeeze(-1)  # (B, T)
        reward = advantage(logs * real, real)  # (B, T)
        if model.looks_ahead:
            later = torch.ones(2 * wanted.shape[1:], device=x.device).triu()  # (T, T)
            reward = (reward[:, None] * later).sum(2)  # a choice has part in all tokens from its own on
    return replace(loss, total=loss.total - (chosen * reward * real).sum())


def advantage(rewards: Tensor, real: Tensor) -> Tensor:
    """How much better each reward (B, T) is than the mean of the other rows' in its column, or of all of theirs."""
    others = real.sum(0) - real.int()  # (B, T)
    mean = (rewards.sum(0) - rewards) / others.clamp(min=1)  # (B, T)
    every = (real.sum() - real.sum(1, keepdim=True)).clamp(min=1)  # (B, 1)
    instead = (rewards.sum() - rewards.sum(1, keepdim=True)) / every  # (B, 1), where no other row is as long
    return torch.where(real, rewards - torch.where(others > 0, mean, instead), 0.0)  # (B, T)


@torch.inference_mode()
def perplexity_loss(model: Seq2Seq, encoded: EncodedPairs, device: torch.device, batch_tokens: int) -> float:
    """The mean loss a target token over a whole set, without label smoothing."""
    total, count = 0.0, 0
    for batch in encoded.in_order(batch_tokens):
        loss = translation_loss(model, batch.to(device))
        total, count = total + loss.plain.item(), count + batch.tokens
    return total / count


@dataclass(frozen=True, repr=False)
class Alignment(Result):
    """The decoder's attention to the source: a row for each target piece, a column for each source piece."""

    source: list[str]
    target: list[str]
    weights: Tensor  # (T, S)
    layer: int  # the decoder's layer they are from, the first being 1

    def labels(self) -> tuple[list[str], list[str]]:
        """The pieces of target and source as figures show them: a low line for a space, no sign for a continuation."""
        target, source = (
            [piece.replace(" ", "▁").removeprefix("##") for piece in pieces] for pieces in (self.target, self.source)
        )
        return target, source

    def plot(self, title: str = "", style: Style = "light") -> Figure:
        """The weights as a heat map: a row for each target piece, a column for each source piece."""
        return heatmap(self.weights.numpy(), *self.labels(), title, style=style)


@dataclass(frozen=True, repr=False)
class Translation(Result):
    """One translation: its text, log p(target | source), the same after the length penalty, and its token ids."""

    text: str
    log_probability: float
    score: float = field(repr=False)
    ids: list[int] = field(repr=False)
    complete: bool = field(repr=False)  # whether the model ended it, not the length limit


@dataclass
class Translator(Predictor[str, Translation, tuple[str, str]]):
    """Translates texts, by beam search, greedily or by sampling."""

    task: ClassVar = "translation"

    model: nn.Module
    tokenizer: TrainedTokenizer
    context: int
    device: torch.device
    settings: TranslationSettings = field(default_factory=TranslationSettings)
    notes: tuple[str, ...] = ()
    graphs: Graphs | None = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        captures = self.device.type == "cuda" and not isinstance(self.model, Plain)
        self.graphs = Graphs(self.model) if captures else None

    @property
    def decode_settings(self) -> DecodeConfig:
        """How translations are searched for."""
        return DecodeConfig(**self.settings.model_dump(include=set(DecodeConfig.model_fields)))

    def predict(self, inputs: Sequence[str]) -> list[Translation]:
        """The best translation of each text."""
        return [found[0] for found in self.search(inputs)]

    def _evaluate(self, data: Path | Sequence[tuple[str, str]]) -> Evaluation:
        if isinstance(data, Path):
            kind = Jsonl if data.name.removesuffix(".gz").endswith(".jsonl") else Tsv
            pairs = kind(train=str(data), valid=str(data)).pairs("valid")
        else:
            pairs = [Pair(*pair) for pair in data]
        encoded = encode_pairs(pairs, self.tokenizer, self.context)
        loss = perplexity_loss(self._net, encoded, self.device, BATCH_TOKENS) if len(encoded) else None
        found, _ = self.hypotheses([pair.source for pair in pairs])
        return Evaluation.of(translation_scores(found, [pair.target for pair in pairs]), loss, len(pairs))

    def hypotheses(
        self, texts: Sequence[str], beams: int | None = None, progress: Callable[[int], None] | None = None
    ) -> tuple[list[str], int]:
        """The best translation of each text, and how many texts are too long and count as translated by nothing."""
        fits = [length <= self.context for length in self.lengths(texts)]
        short = [text for text, fit in zip(texts, fits, strict=True) if fit]
        found = iter(self.search(short, beams, progress=progress))
        return [next(found)[0].text if fit else "" for fit in fits], fits.count(False)

    def translate(self, texts: Sequence[str], beams: int | None = None) -> list[str]:
        """The best translation of each text."""
        return [found[0].text for found in self.search(texts, beams=beams)]

    def search(
        self,
        texts: Sequence[str],
        beams: int | None = None,
        top: int = 1,
        progress: Callable[[int], None] | None = None,
    ) -> list[list[Translation]]:
        """The `top` best translations of each text by beam search, best first; with one beam, greedily."""
        width = self.settings.beams if beams is None else beams
        if not 1 <= top <= width:
            raise ValueError(f"{width} beams cannot give {top} translations")

        def begin(source: Tensor, real: Tensor, limit: Tensor, rows: list[int]) -> Search:
            state, prefix = self.start(source, real)
            if width == 1:
                return greedy(self._net, state, prefix, limit, TrainedTokenizer.eos, self.rules(), self._graphs())
            return beam(
                self._net, state, prefix, limit, TrainedTokenizer.eos, width, top, self.settings.length_penalty,
                rules=self.rules(), graphs=self._graphs(),
            )  # fmt: skip

        return self._run(texts, begin, width, progress)

    def sample(
        self,
        texts: Sequence[str],
        settings: TranslationSettings | None = None,
        *,
        first: int = 0,
        progress: Callable[[int], None] | None = None,
        **changes: float | None,
    ) -> list[list[Translation]]:
        """A sampled translation of each text; text n of a seed gives the same, whatever else is in the batch.

        Settings may also be given by their names: temperature, top_k, top_p, seed. `first` is the number of the first
        text, for texts that come in parts.
        """
        how = (settings or self.settings).but(**changes)
        rules = [*self.rules(), *sampling_rules(how)]

        def begin(source: Tensor, real: Tensor, limit: Tensor, rows: list[int]) -> Search:
            state, prefix = self.start(source, real)
            seeds = [(how.seed * 1_000_003 + first + row) % 2**63 for row in rows]
            return sample(self._net, state, prefix, limit, TrainedTokenizer.eos, seeds, rules, self._graphs())

        return self._run(texts, begin, 1, progress)

    @torch.inference_mode()
    def steps(
        self,
        text: str,
        beams: int,
        top: int = 1,
        length_penalty: float = 1.0,
        limit: int | None = None,
        begins: Sequence[int] = (),
    ) -> Search:
        """The beam search for the translation of one text, step by step, of at most `limit` tokens.

        Every path begins with some tokens, where these are given.
        """
        source, real, most = self.batch(self.source_ids([text]))
        limits = most if limit is None else most.clamp(max=limit)  # (1,)
        rules = [*self.rules(), *([ForcedPrefix(tuple(begins))] if begins else [])]
        return beam(
            self._net, *self.start(source, real), limits, TrainedTokenizer.eos, beams, top, length_penalty,
            rules=rules, graphs=self._graphs(),
        )  # fmt: skip

    def room(self, text: str) -> int:
        """The most tokens that the translation of a text may have."""
        return int(self._limits(torch.tensor([len(ids) for ids in self.source_ids([text])])))

    @torch.inference_mode()
    def align(self, text: str, translation: Translation) -> Alignment:
        """The attention of the target pieces to the source pieces, in one layer, averaged over its heads.

        The layer is the one whose rows have the least entropy.
        """
        if not aligns(self.model):
            raise UserError(
                "this model does not attend to the source",
                found="a model without attention",
                todo="leave the alignment out, or train a model with attention",
            )
        ids = self.source_ids([text])[0]
        given = torch.tensor([[TrainedTokenizer.bos, *translation.ids]], device=self.device)[:, :-1]  # (1, T)
        with watch(self.model, self._net.alignment) as seen:
            self.model(given, self.start(torch.tensor([ids], device=self.device), None)[0])
        # A recurrent decoder attends once a step, a Transformer's block once for all of them.
        layers = [torch.cat(values, 2).float().mean(dim=(0, 1)) for values in seen.all.values()]  # (T, S) each
        entropies = [float(torch.special.entr(weights).sum()) for weights in layers]
        sharpest = entropies.index(min(entropies))
        pieces = self.tokenizer.pieces
        return Alignment(pieces(ids), pieces(translation.ids), layers[sharpest].cpu(), sharpest + 1)

    def lengths(self, texts: Sequence[str]) -> list[int]:
        """The number of tokens of each text as the model reads it; more than `context` are too many."""
        return [len(ids) + 1 for ids in self.tokenizer.ids(require_list(texts))]

    def source_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of each text as the model reads it."""
        found = [[*ids, TrainedTokenizer.eos] for ids in self.tokenizer.ids(require_list(texts))]
        for number, ids in enumerate(found):
            if len(ids) > self.context:
                raise TooLongError(number, len(ids), self.context)
        return found

    def start(self, source: Tensor, real: Tensor | None = None) -> tuple[object, Tensor]:
        """The state once texts (B, S) are read, and the tokens (B, 1) that translations begin with."""
        layout = None if real is None else Padded(real, gaps=False)
        prefix = torch.full((len(source), 1), TrainedTokenizer.bos, device=self.device)  # (B, 1)
        return self._net.start(source, layout), prefix

    def _graphs(self) -> Graphs | None:
        """Captured steps, unless the model has hooks: a graph would not call them."""
        return None if watched(self.model) else self.graphs

    def rules(self) -> tuple[Rule, ...]:
        """The rules about tokens that are never generated."""
        return (Banned((TrainedTokenizer.pad, TrainedTokenizer.unk, TrainedTokenizer.bos)),)

    @torch.inference_mode()
    def _run(
        self,
        texts: Sequence[str],
        begin: Callable[[Tensor, Tensor, Tensor, list[int]], Search],
        width: int,
        progress: Callable[[int], None] | None,
    ) -> list[list[Translation]]:
        ids = self.source_ids(texts)
        found: dict[int, list[Translation]] = {}
        for rows in _by_length(ids, BATCH_TOKENS // width):
            paths = drain(begin(*self.batch([ids[row] for row in rows]), rows))
            for row, translations in zip(rows, self._read(paths), strict=True):
                found[row] = translations
            if progress is not None:
                progress(len(rows))
        return [found[row] for row in range(len(texts))]

    def batch(self, ids: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor, Tensor]:
        """Padded texts (B, S), which of their positions are real (B, S), and the longest translations (B,)."""
        lengths = torch.tensor([len(row) for row in ids])  # (B,)
        longest = min(-(-int(lengths.max()) // MULTIPLE) * MULTIPLE, self.context)
        source = torch.full((len(ids), longest), TrainedTokenizer.pad)  # (B, S)
        for place, row in enumerate(ids):
            source[place, : len(row)] = torch.tensor(row)
        real = torch.arange(longest) < lengths[:, None]  # (B, S)
        return source.to(self.device), real.to(self.device), self._limits(lengths)

    def _limits(self, lengths: Tensor) -> Tensor:
        """The most tokens (B,) of the translations of texts of some lengths (B,)."""
        most = self.settings.max_length
        limit = 2 * lengths + 16 if most is None else torch.full_like(lengths, most)
        return limit.clamp(max=self.context - 1)  # (B,)

    def _read(self, paths: Paths) -> Iterable[list[Translation]]:
        parts = (paths.tokens, paths.lengths, paths.logs, paths.scores)
        for tokens, lengths, logs, scores in zip(*(part.tolist() for part in parts), strict=True):
            yield [
                Translation(
                    self.tokenizer.decode(ids[:length]),
                    log,
                    score,
                    ids[:length],
                    ids[length - 1] == TrainedTokenizer.eos,
                )
                for ids, length, log, score in zip(tokens, lengths, logs, scores, strict=True)
            ]


def aligns(model: Any) -> bool:
    """Whether a model has taps for its attention to the source."""
    return any(fnmatchcase(name, model.alignment) for name in taps(model))


class TooLongError(ValueError):
    """A text that does not fit into the model: its number, its tokens, and how many fit."""

    def __init__(self, number: int, tokens: int, context: int) -> None:
        super().__init__(f"text {number + 1} has {tokens} tokens, but the model reads at most {context}")
        self.number, self.tokens, self.context = number, tokens, context


def _by_length(ids: Sequence[Sequence[int]], budget: int) -> Iterable[list[int]]:
    """Row numbers in groups of like length, the longest first, each within a budget of pad_sequences tokens."""
    order = sorted(range(len(ids)), key=lambda row: (-len(ids[row]), row))
    group: list[int] = []
    for row in order:
        if group and len(ids[group[0]]) * (len(group) + 1) > budget:
            yield group
            group = []
        group.append(row)
    if group:
        yield group
