"""The predictor of dialogue models: the reply to a history of utterances."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from heedful.blocks.taps import watched
from heedful.data.dialogues.batches import by_width, encode_dialogues, split_by_area
from heedful.data.dialogues.sources import (
    DailyDialog,
    Dialogue,
    JsonlDialogues,
    collect_dialogues,
    number_speakers,
    utterance,
)
from heedful.data.tokenizers.tokenizer import TrainedTokenizer
from heedful.decode.graphs import Graphs
from heedful.decode.rules import MinLength, Rule, SuppressTokens, sampling_rules
from heedful.decode.search import Paths, Search, beam, drain, greedy, sample
from heedful.decode.settings import ReplyConfig, ReplySettings
from heedful.errors import UserError
from heedful.models.own import Plain, settings_of
from heedful.tasks.dialogue.reading import History, Reading, mean_loss, reading_of
from heedful.tasks.predictor import Evaluation, Predictor, Result
from heedful.training.metrics import Score, distinct, exact_match

BATCH_TOKENS = 16384  # tokens of the histories of a batch, times hypotheses
MARKS = 2  # an utterance begins with bos and ends with eos
Utterances: TypeAlias = Sequence[str | tuple[str, str]]  # texts, or (speaker, text)


@dataclass(frozen=True, repr=False)
class Reply(Result):
    """A reply: its text, log p(reply | history), the same after the length penalty, and its token ids."""

    text: str
    log_probability: float
    score: float = field(repr=False)
    ids: list[int] = field(repr=False)
    complete: bool = field(repr=False)  # whether the model ended it, not the length limit


@dataclass
class DialogueModel(Predictor[Utterances, Reply, Utterances]):
    """Replies to a history of utterances, by greedy search, beam search or sampling.

    A history is a list of texts, whose speakers take turns, or of (speaker, text).
    """

    task: ClassVar = "dialogue"

    model: nn.Module
    tokenizer: TrainedTokenizer
    context: int
    device: torch.device
    settings: ReplySettings = field(default_factory=ReplySettings)
    notes: tuple[str, ...] = ()
    graphs: Graphs | None = field(init=False)
    reading: Reading = field(init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        captures = self.device.type == "cuda" and not isinstance(self.model, Plain)
        self.graphs = Graphs(self.model) if captures else None
        self.reading = reading_of(settings_of(self.model))

    @property
    def decode_settings(self) -> ReplyConfig:
        """The settings of the beam search."""
        return ReplyConfig(**self.settings.model_dump(include=set(ReplyConfig.model_fields)))

    def predict(self, inputs: Sequence[Utterances]) -> list[Reply]:
        """The best reply to each history."""
        return [found[0] for found in self.search(self.histories(inputs))]

    def reply(self, history: Utterances) -> Reply:
        """The best reply to a history."""
        return self.predict([history])[0]

    def sample_reply(
        self, history: Utterances, settings: ReplySettings | None = None, *, first: int = 0, **changes: float | None
    ) -> Reply:
        """A sampled reply to a history; `first` counts the replies of a conversation, so that each is random."""
        return self.sample([history], settings, first=first, **changes)[0]

    def sample(
        self,
        inputs: Sequence[Utterances],
        settings: ReplySettings | None = None,
        *,
        first: int = 0,
        **changes: float | None,
    ) -> list[Reply]:
        """A sampled reply to each history; history n gives the same reply for the same seed in any batch.

        Single settings may be passed by name: temperature, top_k, top_p, seed.
        """
        settings = (settings or self.settings).but(**changes)
        rules = [*self.rules(), *sampling_rules(settings)]

        def make_search(state: Any, prefix: Tensor, limit: Tensor, rows: list[int]) -> Search:
            seeds = [(settings.seed * 1_000_003 + first + row) % 2**63 for row in rows]
            return sample(self._net, state, prefix, limit, TrainedTokenizer.eos, seeds, rules, self._graphs())

        return [found[0] for found in self._decode(self.histories(inputs), make_search, 1)]

    def search(
        self,
        histories: Sequence[History],
        beams: int | None = None,
        top: int = 1,
        progress: Callable[[int], None] | None = None,
    ) -> list[list[Reply]]:
        """The `top` best replies to each history by beam search, best first; one beam is greedy search."""
        width = self.settings.beams if beams is None else beams
        if not 1 <= top <= width:
            raise ValueError(f"{width} beams cannot give {top} replies")

        def make_search(state: Any, prefix: Tensor, limit: Tensor, rows: list[int]) -> Search:
            eos, rules, graphs = TrainedTokenizer.eos, self.rules(), self._graphs()
            if width == 1:
                return greedy(self._net, state, prefix, limit, eos, rules, graphs)
            penalty = self.settings.length_penalty
            return beam(self._net, state, prefix, limit, eos, width, top, penalty, rules=rules, graphs=graphs)

        return self._decode(histories, make_search, width, progress)

    def histories(self, inputs: Sequence[Utterances]) -> list[History]:
        """The ids of each history, whose utterances fit the model's context."""
        return [self._history(one, f"history {number}") for number, one in enumerate(inputs, 1)]

    def _history(self, history: Utterances, where: str) -> History:
        if isinstance(history, str):
            raise TypeError("a history is a list of utterances, as [text]")
        said = [utterance(one, where) for one in history]
        if not said or not all(one.text.strip() for one in said):
            raise UserError(
                "a history needs utterances with text", where=where,
                found="a blank utterance" if said else "no utterance", expected="at least one utterance",
                todo="leave blank utterances out",
            )  # fmt: skip
        ids = [[*one, TrainedTokenizer.eos] for one in self.tokenizer.ids([one.text.strip() for one in said])]
        for turn, one in enumerate(ids, 1):
            if len(one) + 1 > self.context:
                raise UserError(
                    "this utterance is too long for the model", where=f"{where}, utterance {turn}",
                    found=f"{len(one) - 1:,} tokens", expected=f"at most {self.context - MARKS:,}",
                    todo="split it, or train a model with a larger model.context",
                )  # fmt: skip
        speakers = number_speakers([one.speaker for one in said])
        return History(ids, [*speakers, next_speaker(speakers)])

    def _evaluate(self, data: Path | Sequence[Utterances]) -> Evaluation:
        if isinstance(data, Path):
            kind = JsonlDialogues if data.name.removesuffix(".gz").endswith(".jsonl") else DailyDialog
            dialogues = kind(train=str(data), valid=str(data)).read("valid").dialogues
        else:
            rows = [[utterance(one, f"dialogue {number}") for one in row] for number, row in enumerate(data, 1)]
            dialogues = collect_dialogues(rows, "the examples").dialogues
        longest = self.context - MARKS
        encoded = encode_dialogues(dialogues, self.tokenizer, longest, max(len(one.utterances) for one in dialogues))
        loss = mean_loss(self._net, self.reading, encoded, self.device, BATCH_TOKENS)
        found, _ = self.last_replies(dialogues)
        return Evaluation.of(reply_scores(loss, found, [one.utterances[-1] for one in dialogues]), loss, len(dialogues))

    def last_replies(
        self,
        dialogues: Sequence[Dialogue],
        utterances: int | None = None,
        beams: int | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> tuple[list[str], int]:
        """The reply in place of the last utterance of each dialogue, and the number of dialogues that are too long.

        It is empty for those. With `utterances`, a reply sees as much of a long dialogue as in training.
        """
        found, histories = dict[int, str](), dict[int, History]()
        for row, dialogue in enumerate(dialogues):
            count = len(dialogue.utterances)
            begin = 0 if utterances is None else (count - 2) // (utterances - 1) * (utterances - 1)
            ids = [[*one, TrainedTokenizer.eos] for one in self.tokenizer.ids(dialogue.utterances[begin:-1])]
            if max(map(len, ids)) < self.context:
                histories[row] = History(ids, list(dialogue.speakers[begin:]))
        replies = self.search(list(histories.values()), beams, progress=progress)
        found = {row: each[0].text for row, each in zip(histories, replies, strict=True)}
        return [found.get(row, "") for row in range(len(dialogues))], len(dialogues) - len(histories)

    def rules(self) -> tuple[Rule, ...]:
        """The rules that suppress special tokens, and empty replies, of which there are none in the data."""
        special = (TrainedTokenizer.pad, TrainedTokenizer.unk, TrainedTokenizer.bos)
        return (SuppressTokens(special), MinLength(1, TrainedTokenizer.eos))

    def _graphs(self) -> Graphs | None:
        """Captured CUDA graphs, unless the model has hooks, which a graph would not call."""
        return None if watched(self.model) else self.graphs

    @torch.inference_mode()
    def _decode(
        self,
        histories: Sequence[History],
        make_search: Callable[[Any, Tensor, Tensor, list[int]], Search],
        width: int,
        progress: Callable[[int], None] | None = None,
    ) -> list[list[Reply]]:
        if not histories:
            return []
        sizes = np.array([self.reading.size(one) for one in histories])  # (B, 2)
        most = min(self.settings.max_length, self.context - 1)
        found: dict[int, list[Reply]] = {}
        for rows in split_by_area(by_width(np.arange(len(histories)), sizes), sizes, BATCH_TOKENS // width):
            state = self.reading.start(self._net, [histories[row] for row in rows], self.device)
            prefix = torch.full((len(rows), 1), TrainedTokenizer.bos, device=self.device)  # (B, 1)
            limit = torch.full((len(rows),), most)  # (B,)
            paths = drain(make_search(state, prefix, limit, rows.tolist()))
            found.update(zip(rows.tolist(), self._replies(paths), strict=True))
            if progress is not None:
                progress(len(rows))
        return [found[row] for row in range(len(histories))]

    def _replies(self, paths: Paths) -> Iterable[list[Reply]]:
        parts = (paths.tokens, paths.lengths, paths.logs, paths.scores)
        for tokens, lengths, logs, scores in zip(*(part.tolist() for part in parts), strict=True):
            yield [
                Reply(
                    self.tokenizer.decode(ids[:length]),
                    log,
                    score,
                    ids[:length],
                    ids[length - 1] == TrainedTokenizer.eos,
                )
                for ids, length, log, score in zip(tokens, lengths, logs, scores, strict=True)
            ]


def next_speaker(speakers: Sequence[int]) -> int:
    """Who replies: the one who spoke before the last speaker did, or a second speaker."""
    others = [speaker for speaker in speakers if speaker != speakers[-1]]
    return others[-1] if others else 1


def reply_scores(loss: float, replies: Sequence[str], references: Sequence[str]) -> tuple[Score, ...]:
    """Perplexity of all replies; of the last of each dialogue, exact match, and how different they are."""
    perplexity = Score("perplexity", math.exp(min(loss, 700.0)), "tokens of all utterances but the first")
    return (perplexity, exact_match(replies, references), distinct(replies, 1), distinct(replies, 2))
