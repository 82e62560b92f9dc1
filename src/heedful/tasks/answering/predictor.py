"""Answers to questions as parts of a passage.

N windows, P places of a passage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from heedful.blocks.losses import Loss
from heedful.data.batch import IGNORE_INDEX
from heedful.data.formats.squad import JsonQuestions, Question, Squad, WindowsConfig
from heedful.data.labelled.answering import AnswerBatch, EncodedQuestions, best_windows, encode_questions
from heedful.data.tokenizers.base import MaskTokenizer
from heedful.tasks.predictor import Evaluation, Predictor, Result
from heedful.tasks.reading import layout_of
from heedful.training.span_metrics import answer_scores

BATCH_TOKENS = 16384  # tokens that are read together
MOST = 1024  # questions that are encoded together

Floats = NDArray[np.float64]


def outputs(model: Any, batch: AnswerBatch) -> Tensor:
    """The scores (N, P, 2) of each place of the passages: that the answer begins there, and that it ends there."""
    layout = layout_of(batch.sequences)
    found: Tensor = model(batch.ids, batch.segments, layout, batch.begins, batch.sizes, batch.most)
    return found


def answer_loss(model: Any, batch: AnswerBatch) -> Loss:
    """The mean of the cross-entropies of the first and of the last token, over the tokens of the passage."""
    start, end = outputs(model, batch).unbind(-1)
    sides = ((start, batch.starts), (end, batch.ends))
    losses = [F.cross_entropy(scores, at, ignore_index=IGNORE_INDEX, reduction="sum") for scores, at in sides]
    total = (losses[0] + losses[1]) / 2
    return Loss(total, total.detach(), (batch.starts != IGNORE_INDEX).sum())


@torch.inference_mode()
def mean_loss(model: Any, encoded: EncodedQuestions, device: torch.device) -> float:
    """The mean loss an answer over a whole set, of those that are wholly in a window."""
    batches = encoded.in_order(encoded.with_targets, BATCH_TOKENS)
    total = sum(answer_loss(model, batch.to(device)).plain.item() for batch, _ in batches)
    return total / max(1, len(encoded.with_targets))


@torch.inference_mode()
def passage_scores(model: Any, encoded: EncodedQuestions, device: torch.device) -> list[Floats]:
    """For each question the scores (tokens of the passage, 2), each token's from the window that is best for it."""
    windows: list[Floats] = [np.zeros((0, 2))] * len(encoded.firsts)
    for batch, rows in encoded.in_order(np.arange(len(encoded.firsts)), BATCH_TOKENS):
        scores = outputs(model, batch.to(device)).double().cpu().numpy()
        for row, found in zip(rows.tolist(), scores, strict=True):
            windows[row] = found[: encoded.sizes[row]]
    return [
        together(windows[begin:end], encoded.firsts[begin:end])
        for begin, end in zip(encoded.windows[:-1].tolist(), encoded.windows[1:].tolist(), strict=True)
    ]


def together(scores: Sequence[Floats], firsts: NDArray[np.int64]) -> Floats:
    """The scores of windows, which begin at some tokens of a passage, as those of the whole passage."""
    if len(scores) == 1:
        return scores[0]
    sizes = [len(each) for each in scores]
    place = np.arange(int(firsts[-1]) + sizes[-1])
    best = best_windows(list(zip(firsts.tolist(), sizes, strict=True)), len(place))
    return np.stack([scores[window][at] for window, at in zip(best, place - firsts[best], strict=True)])


class Span(NamedTuple):
    """Tokens from `start` to `end`, both included, and how likely they are, of all that an answer may be."""

    start: int
    end: int
    probability: float


def best_spans(scores: Floats, longest: int, top: int) -> list[Span]:
    """The likeliest parts of a passage (P, 2), from the likeliest on, none of more tokens than may be.

    A part's score is that of its start and of its end together; of equal ones the first and shortest comes first.
    """
    count = len(scores)
    sums = np.full((count, min(longest, count)), -np.inf)  # (P, tokens of the answer, less one)
    for more in range(sums.shape[1]):
        sums[: count - more, more] = scores[: count - more, 0] + scores[more:, 1]
    flat = sums.ravel()
    if not flat.size:
        return []
    norm = flat.max() + np.log(np.exp(flat - flat.max()).sum())
    order = np.argsort(-flat, kind="stable")[:top]
    chosen = order[np.isfinite(flat[order])]
    starts, more = np.divmod(chosen, sums.shape[1])
    likely = np.exp(flat[chosen] - norm)
    return [Span(*found) for found in zip(starts.tolist(), (starts + more).tolist(), likely.tolist(), strict=True)]


@dataclass(frozen=True, repr=False)
class Answer(Result):
    """A span of the passage as an answer, and its probability among all spans."""

    text: str
    start: int  # character
    end: int  # one past the last character
    probability: float


@dataclass
class QuestionAnswerer(Predictor[tuple[str, str], Answer | None, tuple[tuple[str, str], str | Sequence[str]]]):
    """Answers questions by a span of a passage; an input is (question, passage)."""

    task: ClassVar = "answering"

    model: nn.Module
    tokenizer: MaskTokenizer
    device: torch.device
    windows: WindowsConfig
    context: int
    notes: tuple[str, ...] = ()

    @property
    def decode_settings(self) -> WindowsConfig:
        """How long passages are read, and how long an answer may be."""
        return self.windows

    def predict(self, inputs: Sequence[tuple[str, str]]) -> list[Answer | None]:
        """The best answer to each (question, passage); None where the passage has no words."""
        return [found[0] if found else None for found in self.answer(inputs)]

    def _evaluate(self, data: Path | Sequence[tuple[tuple[str, str], str | Sequence[str]]]) -> Evaluation:
        if isinstance(data, Path):
            kind = JsonQuestions if data.name.removesuffix(".gz").endswith(".jsonl") else Squad
            questions = kind(train=str(data), valid=str(data)).read("valid").questions
            given = [(one.question, one.passage) for one in questions]
            right = [[answer.text for answer in one.answers] for one in questions]
        else:
            given = [example[0] for example in data]
            right = [[answers] if isinstance(answers, str) else list(answers) for _, answers in data]
        found = ["" if best is None else best.text for best in self.predict(given)]
        return Evaluation.of(answer_scores(found, right), None, len(given))

    def answer(self, questions: Sequence[tuple[str, str]], top: int = 1) -> list[list[Answer]]:
        """The likeliest answers to each question, given with its passage; none where the passage has no words."""
        if isinstance(questions, str) or any(isinstance(each, str) for each in questions):
            raise TypeError("give a list of questions with their passages, as [(question, passage)]")
        found = []
        for start in range(0, len(questions), MOST):
            asked = [Question("", question, passage, ()) for question, passage in questions[start : start + MOST]]
            encoded = encode_questions(asked, self.tokenizer, self.context, self.windows)
            found += self.answers([question.passage for question in asked], encoded, top)
        return found

    def answers(self, passages: Sequence[str], encoded: EncodedQuestions, top: int = 1) -> list[list[Answer]]:
        """The likeliest answers to each question of a set that was encoded."""
        every = passage_scores(self.model, encoded, self.device)
        return [
            [
                Answer(passage[(first := int(places[start, 0])) : (last := int(places[end, 1]))], first, last, likely)
                for start, end, likely in best_spans(scores, self.windows.longest, top)
            ]
            for passage, places, scores in zip(passages, encoded.offsets, every, strict=True)
        ]
