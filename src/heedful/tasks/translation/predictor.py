"""Translation losses, and the predictor of encoder-decoder models.

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
from heedful.blocks.losses import Loss, confidence_penalty
from heedful.blocks.taps import taps, watch, watched
from heedful.data.formats.parallel import require_language, tagged
from heedful.data.formats.sources import Jsonl, Pair, Tsv
from heedful.data.pairs.batches import Batch, EncodedPairs, PackedBatch, PairBatch, encode_pairs
from heedful.data.tokenizers.base import require_list
from heedful.data.tokenizers.multilingual import MultilingualTokenizer
from heedful.data.tokenizers.tokenizer import TrainedTokenizer
from heedful.decode.graphs import Graphs
from heedful.decode.rules import ForcedEnd, ForcedPrefix, Renormalize, Rule, SuppressTokens, sampling_rules
from heedful.decode.search import Paths, Search, beam, drain, greedy, sample
from heedful.decode.settings import DecodeConfig, TranslationSettings
from heedful.errors import UserError, shown
from heedful.models.own import Plain
from heedful.models.roles import Seq2Seq
from heedful.plots.figures import heatmap
from heedful.plots.style import Figure, Style
from heedful.tasks.predictor import Evaluation, Predictor, Result
from heedful.training.metrics import translation_scores

BATCH_TOKENS = 16384  # source tokens of a batch, times hypotheses
PAD_MULTIPLE = 16  # sources are padded to a multiple of this, so that few shapes occur


class HardAttentionModel(Protocol):
    """A translation model that samples the position that it attends to; see `models/seq2seq/model.py`."""

    tokens: Any
    choices_affect_later_tokens: bool  # through input feeding

    def read_sampled(
        self, source: Tensor, target: Tensor, layout: Layout | None = None, /
    ) -> tuple[Tensor, Tensor]: ...


def translation_loss(model: Seq2Seq, batch: Batch, label_smoothing: float = 0.0, penalty: float = 0.0) -> Loss:
    """Cross-entropy of each target token given the source and the earlier ones, with a confidence penalty."""
    if isinstance(batch, PackedBatch):
        source, target = batch.source.shape[1], batch.target.shape[1]
        layout: Layout = PackedPairs.of(batch.source_lengths, batch.target_lengths, source, target, batch.longest)
        inputs, labels = batch.target, batch.labels
    else:
        layout = Padded(batch.source_real, gaps=False)
        inputs, labels = batch.target[:, :-1], batch.target[:, 1:]
    x = model.read(batch.source, inputs, layout)  # (B, T, D)
    loss: Loss = model.tokens.loss(x.flatten(0, 1), labels.flatten(), TrainedTokenizer.pad, label_smoothing)
    if penalty == 0:  # which alone needs all logits at once
        return loss
    return confidence_penalty(loss, model.tokens.logits(x), labels != TrainedTokenizer.pad, penalty)


def reinforce_loss(model: HardAttentionModel, batch: PairBatch, label_smoothing: float = 0.0) -> Loss:
    """The translation loss of hard attention, whose positions s are sampled (Xu et al., 2015).

    REINFORCE raises L = sum_s p(s) log p(target | s), a lower bound of log p(target): log p(s) is weighted by the
    advantage of the target tokens that the choice affects. The baseline is the mean of the other sentences at that
    position; it does not depend on the choice, so the gradient is unbiased.
    """
    inputs, labels = batch.target[:, :-1], batch.target[:, 1:]
    layout = Padded(batch.source_real, gaps=False)
    x, choice_logs = model.read_sampled(batch.source, inputs, layout)  # (B, T, D), (B, T)
    loss = model.tokens.loss(x.flatten(0, 1), labels.flatten(), TrainedTokenizer.pad, label_smoothing)
    real = labels != TrainedTokenizer.pad  # (B, T)
    with torch.no_grad():
        dtype = torch.promote_types(x.dtype, torch.float32)
        logs = model.tokens.logits(x).log_softmax(-1, dtype).gather(-1, labels[:, :, None]).squeeze(-1)  # (B, T)
        reward = advantage(logs * real, real)  # (B, T)
        if model.choices_affect_later_tokens:
            later = torch.ones(2 * labels.shape[1:], device=x.device).triu()  # (T, T)
            reward = (reward[:, None] * later).sum(2)  # (B, T), summed over the tokens from each choice on
    return replace(loss, total=loss.total - (choice_logs * reward * real).sum())


def advantage(rewards: Tensor, real: Tensor) -> Tensor:
    """Each reward (B, T) minus the mean reward of the other rows at its position, or at all if none is as long."""
    others = real.sum(0) - real.int()  # (B, T)
    mean = (rewards.sum(0) - rewards) / others.clamp(min=1)  # (B, T)
    all_others = (real.sum() - real.sum(1, keepdim=True)).clamp(min=1)  # (B, 1)
    overall = (rewards.sum() - rewards.sum(1, keepdim=True)) / all_others  # (B, 1), where no other row is as long
    return torch.where(real, rewards - torch.where(others > 0, mean, overall), 0.0)  # (B, T)


@torch.inference_mode()
def mean_loss(model: Seq2Seq, encoded: EncodedPairs, device: torch.device, batch_tokens: int) -> float:
    """The mean loss per target token over a set, without label smoothing."""
    total, count = 0.0, 0
    for batch in encoded.in_order(batch_tokens):
        loss = translation_loss(model, batch.to(device))
        total, count = total + loss.plain.item(), count + batch.tokens
    return total / count


@dataclass(frozen=True, repr=False)
class Alignment(Result):
    """The decoder's attention to the source: a row per target token, a column per source token."""

    source: list[str]
    target: list[str]
    weights: Tensor  # (T, S)
    layer: int  # decoder layer of the weights, from 1

    def labels(self) -> tuple[list[str], list[str]]:
        """The tokens of target and source as figures show them: ▁ for a space, without ## for continuations."""
        target, source = (
            [piece.replace(" ", "▁").removeprefix("##") for piece in pieces] for pieces in (self.target, self.source)
        )
        return target, source

    def plot(self, title: str = "", style: Style = "light") -> Figure:
        """The weights as a heat map: a row per target token, a column per source token."""
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
    """Translates texts by beam search, greedy search or sampling."""

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
        """The settings of the beam search."""
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
        loss = mean_loss(self._net, encoded, self.device, BATCH_TOKENS) if len(encoded) else None
        found, _ = self.hypotheses([pair.source for pair in pairs])
        return Evaluation.of(translation_scores(found, [pair.target for pair in pairs]), loss, len(pairs))

    def hypotheses(
        self, texts: Sequence[str], beams: int | None = None, progress: Callable[[int], None] | None = None
    ) -> tuple[list[str], int]:
        """The best translation of each text, empty for texts that are too long, and the number of such texts."""
        fits = [length <= self.context for length in self.lengths(texts)]
        short = [text for text, fit in zip(texts, fits, strict=True) if fit]
        found = iter(self.search(short, beams, progress=progress))
        return [next(found)[0].text if fit else "" for fit in fits], fits.count(False)

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages that it translates into; none where it has one target language, without a token."""
        return self.tokenizer.languages if isinstance(self.tokenizer, MultilingualTokenizer) else ()

    def addressed(self, texts: Sequence[str], to: str | None) -> list[str]:
        """Texts with the token of the language to translate them into, if the model has several."""
        if to is None:
            return require_list(texts)
        if not self.languages:
            raise UserError("this model has one target language", where="to", found=shown(to), todo="leave it out")
        require_language(to, self.languages, "to")
        return [tagged(text, to) for text in require_list(texts)]

    def translate(self, texts: Sequence[str], beams: int | None = None, to: str | None = None) -> list[str]:
        """The best translation of each text; `to` is the target language of a model with several."""
        return [found[0].text for found in self.search(self.addressed(texts, to), beams=beams)]

    def search(
        self,
        texts: Sequence[str],
        beams: int | None = None,
        top: int = 1,
        progress: Callable[[int], None] | None = None,
    ) -> list[list[Translation]]:
        """The `top` best translations of each text by beam search, best first; one beam is greedy search."""
        width = self.settings.beams if beams is None else beams
        if not 1 <= top <= width:
            raise ValueError(f"{width} beams cannot give {top} translations")

        def make_search(source: Tensor, real: Tensor, limit: Tensor, rows: list[int]) -> Search:
            state, prefix = self.start(source, real)
            if width == 1:
                return greedy(self._net, state, prefix, limit, TrainedTokenizer.eos, self.rules(), self._graphs())
            return beam(
                self._net, state, prefix, limit, TrainedTokenizer.eos, width, top, self.settings.length_penalty,
                rules=self.rules(), graphs=self._graphs(),
            )  # fmt: skip

        return self._decode(texts, make_search, width, progress)

    def sample(
        self,
        texts: Sequence[str],
        settings: TranslationSettings | None = None,
        *,
        first: int = 0,
        progress: Callable[[int], None] | None = None,
        **changes: float | None,
    ) -> list[list[Translation]]:
        """A sampled translation of each text; text n gives the same result for the same seed in any batch.

        Single settings may be passed by name: temperature, top_k, top_p, seed. `first` is the number of the first text,
        for texts that are passed in several calls.
        """
        settings = (settings or self.settings).but(**changes)
        rules = [*self.rules(), *sampling_rules(settings)]

        def make_search(source: Tensor, real: Tensor, limit: Tensor, rows: list[int]) -> Search:
            state, prefix = self.start(source, real)
            seeds = [(settings.seed * 1_000_003 + first + row) % 2**63 for row in rows]
            return sample(self._net, state, prefix, limit, TrainedTokenizer.eos, seeds, rules, self._graphs())

        return self._decode(texts, make_search, 1, progress)

    @torch.inference_mode()
    def steps(
        self,
        text: str,
        beams: int,
        top: int = 1,
        length_penalty: float = 1.0,
        limit: int | None = None,
        prefix: Sequence[int] = (),
    ) -> Search:
        """A beam search for translations of a text, step by step: at most `limit` tokens, starting with `prefix`."""
        source, real, maximum = self.batch(self.source_ids([text]))
        limits = maximum if limit is None else maximum.clamp(max=limit)  # (1,)
        rules = [*self.rules(), *([ForcedPrefix(tuple(prefix))] if prefix else [])]
        return beam(
            self._net, *self.start(source, real), limits, TrainedTokenizer.eos, beams, top, length_penalty,
            rules=rules, graphs=self._graphs(),
        )  # fmt: skip

    def room(self, text: str) -> int:
        """The maximum number of tokens of the translation of a text."""
        return int(self._limits(torch.tensor([len(ids) for ids in self.source_ids([text])])))

    @torch.inference_mode()
    def align(self, text: str, translation: Translation) -> Alignment:
        """The attention of the target tokens to the source tokens, averaged over the heads of one layer.

        It is the layer with the lowest entropy.
        """
        if not aligns(self.model):
            raise UserError(
                "this model does not attend to the source",
                found="a model without attention",
                todo="leave the alignment out, or train a model with attention",
            )
        ids = self.source_ids([text])[0]
        inputs = torch.tensor([[TrainedTokenizer.bos, *translation.ids]], device=self.device)[:, :-1]  # (1, T)
        with watch(self.model, self._net.alignment) as seen:
            self.model(inputs, self.start(torch.tensor([ids], device=self.device), None)[0])
        # A recurrent decoder attends once per step, a Transformer block once for all steps.
        layers = [torch.cat(values, 2).float().mean(dim=(0, 1)) for values in seen.all.values()]  # (T, S) each
        entropies = [float(torch.special.entr(weights).sum()) for weights in layers]
        sharpest = entropies.index(min(entropies))
        source, target = self.tokenizer.source_pieces(ids), self.tokenizer.pieces(translation.ids)
        return Alignment(source, target, layers[sharpest].cpu(), sharpest + 1)

    def lengths(self, texts: Sequence[str]) -> list[int]:
        """The number of tokens of each text, at most `context` of which the model can read."""
        return [len(ids) + 1 for ids in self.tokenizer.ids(require_list(texts))]

    def source_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of each text, with the end token."""
        found = [[*ids, TrainedTokenizer.eos] for ids in self.tokenizer.ids(require_list(texts))]
        for number, ids in enumerate(found):
            if len(ids) > self.context:
                raise TooLongError(number, len(ids), self.context)
        return found

    def start(self, source: Tensor, real: Tensor | None = None) -> tuple[object, Tensor]:
        """The decoder's state for sources (B, S), and the start tokens (B, 1)."""
        layout = None if real is None else Padded(real, gaps=False)
        prefix = torch.full((len(source), 1), TrainedTokenizer.bos, device=self.device)  # (B, 1)
        return self._net.start(source, layout), prefix

    def _graphs(self) -> Graphs | None:
        """Captured CUDA graphs, unless the model has hooks, which a graph would not call."""
        return None if watched(self.model) else self.graphs

    def rules(self) -> tuple[Rule, ...]:
        """The rules of the search: no special tokens, and maybe an end token where a translation is cut."""
        rules: list[Rule] = [SuppressTokens(self.tokenizer.suppressed)]
        longest = self.settings.max_length
        if longest is not None and self.tokenizer.forces_end:
            rules.append(ForcedEnd(min(longest, self.context - 1), TrainedTokenizer.eos))
        return (*rules, Renormalize()) if self.settings.renormalize else tuple(rules)

    @torch.inference_mode()
    def _decode(
        self,
        texts: Sequence[str],
        make_search: Callable[[Tensor, Tensor, Tensor, list[int]], Search],
        width: int,
        progress: Callable[[int], None] | None,
    ) -> list[list[Translation]]:
        ids = self.source_ids(texts)
        found: dict[int, list[Translation]] = {}
        for rows in _length_groups(ids, BATCH_TOKENS // width):
            paths = drain(make_search(*self.batch([ids[row] for row in rows]), rows))
            for row, translations in zip(rows, self._translations(paths), strict=True):
                found[row] = translations
            if progress is not None:
                progress(len(rows))
        return [found[row] for row in range(len(texts))]

    def batch(self, ids: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor, Tensor]:
        """Padded sources (B, S), the mask of real positions (B, S), and the length limits of translations (B,)."""
        lengths = torch.tensor([len(row) for row in ids])  # (B,)
        longest = min(-(-int(lengths.max()) // PAD_MULTIPLE) * PAD_MULTIPLE, self.context)
        source = torch.full((len(ids), longest), TrainedTokenizer.pad)  # (B, S)
        for index, row in enumerate(ids):
            source[index, : len(row)] = torch.tensor(row)
        real = torch.arange(longest) < lengths[:, None]  # (B, S)
        return source.to(self.device), real.to(self.device), self._limits(lengths)

    def _limits(self, lengths: Tensor) -> Tensor:
        """The maximum number of tokens (B,) of translations of sources with these lengths (B,)."""
        return length_limits(lengths, self.settings.max_length, self.context)

    def _translations(self, paths: Paths) -> Iterable[list[Translation]]:
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


def length_limits(lengths: Tensor, maximum: int | None, context: int) -> Tensor:
    """The maximum number of tokens (B,) of translations of sources with these lengths (B,)."""
    limit = 2 * lengths + 16 if maximum is None else torch.full_like(lengths, maximum)
    return limit.clamp(max=context - 1)  # (B,)


def aligns(model: Any) -> bool:
    """Whether a model has taps for its attention to the source."""
    return any(fnmatchcase(name, model.alignment) for name in taps(model))


class TooLongError(ValueError):
    """A text that is longer than the model's context."""

    def __init__(self, number: int, tokens: int, context: int) -> None:
        super().__init__(f"text {number + 1} has {tokens} tokens, but the model reads at most {context}")
        self.number, self.tokens, self.context = number, tokens, context


def _length_groups(ids: Sequence[Sequence[int]], budget: int) -> Iterable[list[int]]:
    """Row numbers in groups of similar lengths, longest first, each within a budget of padded tokens."""
    order = sorted(range(len(ids)), key=lambda row: (-len(ids[row]), row))
    group: list[int] = []
    for row in order:
        if group and len(ids[group[0]]) * (len(group) + 1) > budget:
            yield group
            group = []
        group.append(row)
    if group:
        yield group
